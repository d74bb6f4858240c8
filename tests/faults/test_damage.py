"""Bad input of every kind: a message that helps, or everything else recovered."""

from __future__ import annotations

import dataclasses
import gzip
import pathlib
import random
import struct
import zlib
from typing import Any, NamedTuple

import google_crc32c
import pytest

from gristmill.dataset.base.errors import (
    CorruptInputError,
    DataLossError,
    InputError,
    NotADatasetError,
)
from gristmill.dataset.formats.tfrecord_frames import mask
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.transforms.jobs.conversion_job import ShardNames
from gristmill.transforms.sources.formats import RecordOptions
from tests.support.conversion import (
    convert,
    job_of,
    prepared_of,
    read_output,
    skipped_in,
)
from tests.support.memory import peak_memory
from tests.support.records import frames_of, write_array_records

# Twelve frames of 116 bytes: four shards of three frames, cut between frames.
RECORDS = [bytes([65 + number]) * 100 for number in range(12)]
FRAME = 116
SHARDS = 4
PLANS = [("num_shards", SHARDS), ("match_shards", None), ("shard_bytes", 500)]


class Damage(NamedTuple):
    """A damaged file.

    Attributes:
        data: Its bytes.
        begin: Where the damaged region begins.
        end: Where it ends.
        reason: As `errors/` says it.
        lost: Numbers of the records that cannot be recovered.
    """

    data: bytes
    begin: int
    end: int
    reason: str
    lost: tuple[int, ...]


def damage(kind: str, number: int) -> Damage:
    """Damages the frame of one record."""
    data = bytearray(frames_of(RECORDS))
    begin, end = number * FRAME, (number + 1) * FRAME
    if kind == "length":
        data[begin + 1] ^= 0x40
        return Damage(bytes(data), begin, end, "length", (number,))
    if kind == "length_crc":
        data[begin + 9] ^= 0x01
        return Damage(bytes(data), begin, end, "length", (number,))
    if kind == "data":
        data[begin + 50] ^= 0x01
        return Damage(bytes(data), begin, end, "data", (number,))
    if kind == "data_crc":
        data[end - 1] ^= 0x80
        return Damage(bytes(data), begin, end, "data", (number,))
    if kind == "huge":
        length = struct.pack("<Q", 1 << 60)
        crc = struct.pack("<I", mask(google_crc32c.value(length)))
        data[begin : begin + 12] = length + crc
        return Damage(bytes(data), begin, end, "truncated", (number,))
    if kind == "bytes_lost":
        del data[begin + 30 : begin + 70]
        last = number == len(RECORDS) - 1
        reason = "truncated" if last else "data"
        return Damage(bytes(data), begin, end - 40, reason, (number,))
    if kind == "bytes_inserted":
        data[begin + 30 : begin + 30] = b"inserted"
        return Damage(bytes(data), begin, end + 8, "data", (number,))
    if kind == "zeros":
        data[begin:end] = bytes(FRAME)
        return Damage(bytes(data), begin, end, "length", (number,))
    assert kind == "truncated"
    del data[begin + 40 :]
    lost = tuple(range(number, len(RECORDS)))
    return Damage(bytes(data), begin, begin + 40, "truncated", lost)


KINDS = [
    *("length", "length_crc", "data", "data_crc", "huge"),
    *("bytes_lost", "bytes_inserted", "zeros", "truncated"),
]
# First and last of the file, first and last of a range, and one in the middle.
NUMBERS = [0, 2, 3, 4, 11]


def assert_says(error: BaseException, *parts: str) -> None:
    message = str(error)
    for part in (*parts, "where:", "to do:"):
        assert part in message


class TestMatrix:
    @pytest.mark.one_in(4)
    @pytest.mark.parametrize("number", NUMBERS)
    @pytest.mark.parametrize("kind", KINDS)
    def test_it_is_named_or_left_out_and_listed(self, tmp_path, kind, number):
        damaged = damage(kind, number)
        path = tmp_path / "in"
        path.write_bytes(damaged.data)
        left = [record for n, record in enumerate(RECORDS) if n not in damaged.lost]
        for plan in PLANS:
            output = tmp_path / plan[0]
            job = job_of(path, output, plan=plan)
            with pytest.raises(CorruptInputError) as caught:
                convert(job)
            place = f"{path}, byte offset {damaged.begin:,}"
            assert_says(caught.value, place, "expected:", "got:", "`on_corrupt` skip")
            with pytest.raises(NotADatasetError):
                open_manifest(str(output))
            job = dataclasses.replace(job, on_corrupt="skip")
            if not left:
                with pytest.raises(CorruptInputError, match="no record of the inputs"):
                    convert(job)
                continue
            split = convert(job).manifest.splits["train"]
            assert read_output(output) == left
            (region,) = skipped_in(output)
            assert region == {
                "file": str(path),
                "begin_bytes": damaged.begin,
                "end_bytes": damaged.end,
                "compressed": False,
                "reason": damaged.reason,
                "detail": region["detail"],
            }
            assert "expected" in region["detail"]
            assert "got" in region["detail"]
            skipped_bytes = damaged.end - damaged.begin
            assert (split.skipped_regions, split.skipped_bytes) == (1, skipped_bytes)
            assert split.records == split.source["records"] == len(left)

    @pytest.mark.parametrize("plan", PLANS, ids=str)
    def test_several_regions_each_once(self, tmp_path, plan):
        data = bytearray(frames_of(RECORDS))
        for number in (0, 3, 4, 8, 11):
            data[number * FRAME + 50] ^= 1
        path = tmp_path / "in"
        path.write_bytes(bytes(data))
        output = tmp_path / "out"
        job = job_of(path, output, plan=plan, on_corrupt="skip")
        split = convert(job).manifest.splits["train"]
        assert read_output(output) == [RECORDS[n] for n in (1, 2, 5, 6, 7, 9, 10)]
        begins = [region["begin_bytes"] for region in skipped_in(output)]
        assert begins == [0, 3 * FRAME, 4 * FRAME, 8 * FRAME, 11 * FRAME]
        assert (split.skipped_regions, split.skipped_bytes) == (5, 5 * FRAME)

    def test_a_compressed_file_in_many_shards_sets_a_region_aside_once(self, tmp_path):
        data = bytearray(frames_of(RECORDS))
        for number in (1, 7):
            data[number * FRAME + 50] ^= 1
        (tmp_path / "in").write_bytes(gzip.compress(bytes(data)))
        job = job_of(
            tmp_path / "in",
            tmp_path / "out",
            plan=("num_shards", 6),
            on_corrupt="skip",
        )
        convert(job)
        assert read_output(tmp_path / "out") == [
            record for i, record in enumerate(RECORDS) if i not in (1, 7)
        ]
        begins = [region["begin_bytes"] for region in skipped_in(tmp_path / "out")]
        assert begins == [1 * FRAME, 7 * FRAME]


class TestWrongFiles:
    @pytest.fixture
    def strange(self, tmp_path) -> dict[str, bytes]:
        write_array_records(tmp_path / "official", [b"a" * 1000] * 300)
        return {
            "random": random.Random(1).randbytes(300_000),
            "text": b"To be, or not to be, that is the question.\n" * 5000,
            "text that looks compressed": b"x marks the spot\n" * 5000,
            "zeros": bytes(100_000),
            "one byte": b"\xff",
            "array_record": (tmp_path / "official").read_bytes(),
        }

    @pytest.mark.parametrize(
        ("kind", "known"),
        [
            ("random", None),
            ("text", "text"),
            ("text that looks compressed", "text"),
            ("zeros", None),
            ("one byte", None),
            ("array_record", "ArrayRecord"),
        ],
    )
    def test_what_is_no_tfrecord_file(self, tmp_path, strange, kind, known):
        (tmp_path / "in").mkdir()
        path = tmp_path / "in" / "b"
        path.write_bytes(strange[kind])
        (tmp_path / "in" / "a").write_bytes(frames_of(RECORDS))
        shards = 1 if kind == "one byte" else 5
        plan = ("num_shards", shards)
        with pytest.raises(InputError if known else CorruptInputError) as caught:
            convert(job_of(tmp_path / "in", tmp_path / "fail", plan=plan))
        what = "ends in the middle" if kind == "one byte" else "not a TFRecord file"
        if known:
            assert_says(
                caught.value, f"{what}, but {known}", str(path), "narrower pattern"
            )
        else:
            place = f"{path}, byte offset 0"
            assert_says(caught.value, what, place, "expected:", "got:", "if it is a")

        output = tmp_path / "out"
        job = job_of(tmp_path / "in", output, plan=plan, on_corrupt="skip")
        convert(job)
        assert read_output(output) == RECORDS
        (region,) = skipped_in(output)
        whole = 0, len(strange[kind])
        assert (region["begin_bytes"], region["end_bytes"]) == whole

    def test_an_empty_file_is_an_error_unless_damage_is_accepted(self, tmp_path):
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a").write_bytes(frames_of(RECORDS))
        (tmp_path / "in" / "b").write_bytes(b"")
        job = job_of(tmp_path / "in", tmp_path / "out", plan=("match_shards", None))
        with pytest.raises(InputError) as caught:
            convert(job)
        assert_says(
            caught.value,
            "1 input file is empty",
            f"{tmp_path}/in/b",
            "expected: at least one record",
            "got:      0 bytes",
            "`on_corrupt` skip",
        )
        for option in ({"on_corrupt": "skip"}, {"allow_empty_files": True}):
            output = tmp_path / next(iter(option))
            accepting = dataclasses.replace(job, output=str(output), **option)
            result = convert(accepting)
            assert read_output(output) == RECORDS
            assert result.manifest.splits["train"].shards == 2

    def test_two_files_of_the_same_name(self, tmp_path):
        for folder, record in (("x", b"one"), ("y", b"two")):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "same").write_bytes(frames_of([record]))
        plan = ("match_shards", None)
        job = job_of(f"{tmp_path}/?/same", tmp_path / "out", plan=plan)
        (note,) = prepared_of(job).files.notes()
        assert f"{tmp_path}/x/same and {tmp_path}/y/same" in note
        convert(job)
        assert read_output(tmp_path / "out") == [b"one", b"two"]

        named = ShardNames(kind="inputs", suffix=".array_record")
        job = dataclasses.replace(job, output=str(tmp_path / "named"), names=named)
        with pytest.raises(InputError) as caught:
            convert(job)
        assert_says(
            caught.value,
            "same.array_record",
            f"{tmp_path}/x/same and {tmp_path}/y/same",
        )

    @pytest.mark.parametrize("compression", ["none", "gzip"])
    def test_a_length_of_2_to_the_60_allocates_nothing(self, tmp_path, compression):
        damaged = damage("huge", 5).data
        path = tmp_path / "in"
        path.write_bytes(gzip.compress(damaged) if compression == "gzip" else damaged)
        with peak_memory() as peak:
            with pytest.raises(CorruptInputError) as caught:
                convert(job_of(path, tmp_path / "fail"))
            convert(job_of(path, tmp_path / "skip", on_corrupt="skip"))
        assert peak.bytes < 8 << 20
        assert f"byte offset {5 * FRAME:,}" in str(caught.value)
        assert f"{(1 << 60) + 16:,} bytes" in str(caught.value)
        assert read_output(tmp_path / "skip") == RECORDS[:5] + RECORDS[6:]


class TestDamagedCompression:
    """A gzip or zlib file can be read no further than its damage."""

    @staticmethod
    def written(path: pathlib.Path, kind: str) -> tuple[list[bytes], bytes]:
        records = [random.Random(n).randbytes(900) for n in range(400)]
        pack = gzip.compress if kind == "gzip" else zlib.compress
        data = bytearray(pack(frames_of(records)))
        data[len(data) // 2 : len(data) // 2 + 70_000] = b"\xff" * 70_000
        path.write_bytes(bytes(data))
        return records, bytes(data)

    @pytest.mark.parametrize("kind", ["gzip", "zlib"])
    def test_fail(self, tmp_path, kind):
        path = tmp_path / "in"
        self.written(path, kind)
        for plan in (("num_shards", 1), ("shard_bytes", 50_000)):
            with pytest.raises(CorruptInputError) as caught:
                convert(job_of(path, tmp_path / plan[0], plan=plan))
            assert_says(caught.value, str(path), "byte offset", "expected:", "got:")
            assert not (tmp_path / plan[0] / "dataset.json").exists()

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["gzip", "zlib"])
    def test_skip(self, tmp_path, kind):
        (tmp_path / "in").mkdir()
        path = tmp_path / "in" / "b"
        records, data = self.written(path, kind)
        for name in ("a", "c"):
            (tmp_path / "in" / name).write_bytes(frames_of(RECORDS))
        outputs: dict[str, list[bytes]] = {}
        for plan in (
            ("match_shards", None),
            ("num_shards", 3),
            ("shard_bytes", 50_000),
        ):
            output = tmp_path / plan[0]
            job = job_of(tmp_path / "in", output, plan=plan, on_corrupt="skip")
            split = convert(job).manifest.splits["train"]
            outputs[plan[0]] = read_output(output)
            (rest,) = skipped_in(output)
            assert rest["compressed"]
            assert rest["file"] == str(path)
            assert rest["end_bytes"] == len(data)
            assert "expected" in rest["detail"]
            assert split.skipped_regions == 1
            assert split.skipped_bytes == len(data) - rest["begin_bytes"]
        assert len({tuple(found) for found in outputs.values()}) == 1
        middle = outputs["match_shards"][12:-12]
        assert outputs["match_shards"][:12] == outputs["match_shards"][-12:] == RECORDS
        good = len(data) // 2 // 916 - 1
        assert middle[:good] == records[:good]
        # Some of what was overwritten was not compressible: that far it is intact.
        assert middle == records[: len(middle)]

    def test_a_member_cut_short(self, tmp_path):
        data = gzip.compress(frames_of(RECORDS))
        path = tmp_path / "in"
        path.write_bytes(data[:-8])  # Only the trailer is gone: all records are there.
        with pytest.raises(CorruptInputError, match="ends in the middle"):
            convert(job_of(path, tmp_path / "fail"))
        convert(job_of(path, tmp_path / "out", on_corrupt="skip"))
        assert read_output(tmp_path / "out") == RECORDS
        (region,) = skipped_in(tmp_path / "out")
        assert region["reason"] == "compressed"
        assert "compressed byte offset" in region["detail"]
        assert region["end_bytes"] == len(data) - 8

    def test_not_even_a_header(self, tmp_path):
        path = tmp_path / "in"
        path.write_bytes(b"\x1f\x8b\x08" + b"\xff" * 50)
        # A dataset of nothing would look like one.
        with pytest.raises(CorruptInputError, match="no record of the inputs could"):
            convert(job_of(path, tmp_path / "out", on_corrupt="skip"))
        assert not (tmp_path / "out" / "dataset.json").exists()
        (region,) = skipped_in(tmp_path / "out")
        assert region["compressed"]
        assert region["end_bytes"] == path.stat().st_size


class TestBudget:
    """How many damaged regions are accepted."""

    @pytest.fixture
    def job(self, tmp_path):
        data = bytearray(frames_of(RECORDS))
        for number in (1, 4, 7, 8):
            data[number * FRAME + 50] ^= 1
        (tmp_path / "in").write_bytes(bytes(data))
        return job_of(
            tmp_path / "in",
            tmp_path / "out",
            plan=("num_shards", SHARDS),
            on_corrupt="skip",
        )

    @staticmethod
    def state(job) -> dict[str, Any]:
        return {
            path.name: (path.stat().st_ino, path.stat().st_mtime_ns)
            for path in pathlib.Path(job.output).glob("*.array_record-*")
        }

    @pytest.mark.parametrize("budget", [0, 1, 2, 3])
    def test_too_small_then_raised(self, job, budget):
        with pytest.raises(CorruptInputError) as caught:
            convert(dataclasses.replace(job, max_corrupt=budget))
        assert_says(
            caught.value,
            "`max_corrupt`",
            f"at most {budget:,} damaged regions",
            "got:",
        )
        if budget < 2:  # Spent within one shard: the message says where.
            begin = FRAME * {0: 1, 1: 8}[budget]
            assert f"{job.inputs[0]}, byte offset {begin:,}" in str(caught.value)
        assert not pathlib.Path(job.output, "dataset.json").exists()
        finished = self.state(job)
        # Shards 0 to 2 hold 1, 1 and 2 regions: the budget ends in one of them, or
        # only all together are too many.
        assert len(finished) == {0: 0, 1: 2, 2: 4, 3: 4}[budget]

        split = convert(dataclasses.replace(job, max_corrupt=4)).manifest.splits
        assert split["train"].skipped_regions == 4
        assert finished.items() <= self.state(job).items()
        assert read_output(job.output) == [
            RECORDS[n] for n in (0, 2, 3, 5, 6, 9, 10, 11)
        ]

    def test_what_was_accepted_before_is_an_error_when_it_is_not_any_more(self, job):
        with pytest.raises(CorruptInputError):
            convert(dataclasses.replace(job, max_corrupt=3))
        # All shards are finished; but --on-corrupt fail means: no damage at all.
        with pytest.raises(CorruptInputError) as caught:
            convert(dataclasses.replace(job, on_corrupt="fail"))
        assert_says(caught.value, "at most 0 damaged regions", "errors/")
        assert not pathlib.Path(job.output, "dataset.json").exists()

    @pytest.mark.parametrize("on_corrupt", ["fail", "skip"])
    def test_frames_in_a_record_that_is_cut_are_an_error(self, tmp_path, on_corrupt):
        # The second shard finds frames in a record; one is bad, as damage is.
        inner = bytearray(frames_of([b"i" * 30] * 40))
        inner[20 * 46 + 20] ^= 1
        records = [b"x", bytes(inner), b"y"]
        (tmp_path / "in").write_bytes(frames_of(records))
        options = {"plan": ("num_shards", 6), "on_corrupt": on_corrupt}
        with pytest.raises((CorruptInputError, DataLossError)) as caught:
            convert(job_of(tmp_path / "in", tmp_path / "out", **options))
        assert_says(caught.value, f"{tmp_path}/in", "give `whole_files`")
        assert not (tmp_path / "out" / "dataset.json").exists()
        options["records"] = RecordOptions(whole_files=True)
        convert(job_of(tmp_path / "in", tmp_path / "whole", **options))
        assert read_output(tmp_path / "whole") == records
        assert not skipped_in(tmp_path / "whole")
