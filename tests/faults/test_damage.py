"""Bad input of every kind: a message that helps, or everything else recovered."""

from __future__ import annotations

import dataclasses
import gzip
import pathlib
import random
import struct
import zlib
from collections.abc import Callable
from typing import Any

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
from gristmill.transforms.conversion.make_shards import make_shards, shard_tasks
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
WHOLE = RecordOptions(whole_files=True)
LENGTH = struct.pack("<Q", 1 << 60)
HUGE = LENGTH + struct.pack("<I", mask(google_crc32c.value(LENGTH)))


def flip(place: int, bits: int = 1) -> Callable[[bytes], bytes]:
    return lambda data: data[:place] + bytes([data[place] ^ bits]) + data[place + 1 :]


# What becomes of the file from the frame on, the size of the damage, and its reason.
KINDS: dict[str, tuple[Callable[[bytes], bytes], int, str]] = {
    "length": (flip(1, 0x40), FRAME, "length"),
    "length_crc": (flip(9), FRAME, "length"),
    "data": (flip(50), FRAME, "data"),
    "data_crc": (flip(FRAME - 1, 0x80), FRAME, "data"),
    "huge": (lambda data: HUGE + data[12:], FRAME, "truncated"),
    "bytes_lost": (lambda data: data[:30] + data[70:], FRAME - 40, "data"),
    "bytes_inserted": (lambda d: d[:30] + b"inserted" + d[30:], FRAME + 8, "data"),
    "zeros": (lambda data: bytes(FRAME) + data[FRAME:], FRAME, "length"),
    "truncated": (lambda data: data[:40], 40, "truncated"),
}


def damaged(kind: str, *numbers: int) -> bytes:
    """Returns the frames, some of them damaged."""
    data = frames_of(RECORDS)
    for number in reversed(numbers):
        data = data[: number * FRAME] + KINDS[kind][0](data[number * FRAME :])
    return data


def left(*lost: int) -> list[bytes]:
    return [record for number, record in enumerate(RECORDS) if number not in lost]


def assert_says(error: BaseException, *parts: str) -> None:
    for part in (*parts, "where:", "to do:"):
        assert part in str(error)


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "in"


class TestMatrix:
    # First and last of the file, first and last of a range, and one in the middle.
    @pytest.mark.one_in(4)
    @pytest.mark.parametrize("number", [0, 2, 3, 4, 11])
    @pytest.mark.parametrize("kind", KINDS)
    def test_it_is_named_or_left_out_and_listed(self, tmp_path, path, kind, number):
        path.write_bytes(damaged(kind, number))
        cut = kind == "truncated"
        kept = left(*range(number, 12 if cut else number + 1))
        _, size, reason = KINDS[kind]
        if kind == "bytes_lost" and number == 11:
            reason = "truncated"
        begin = number * FRAME
        for plan in PLANS:
            output = tmp_path / plan[0]
            job = job_of(path, output, plan=plan)
            with pytest.raises(CorruptInputError) as caught:
                convert(job)
            place = f"{path}, byte offset {begin:,}"
            assert_says(caught.value, place, "expected:", "got:", "`on_corrupt` skip")
            with pytest.raises(NotADatasetError):
                open_manifest(str(output))
            job = dataclasses.replace(job, on_corrupt="skip")
            if not kept:
                with pytest.raises(CorruptInputError, match="no record of the inputs"):
                    convert(job)
                continue
            split = convert(job).manifest.splits["train"]
            assert read_output(output) == kept
            (region,) = skipped_in(output)
            assert region == {
                "file": str(path),
                "begin_bytes": begin,
                "end_bytes": begin + size,
                "compressed": False,
                "reason": reason,
                "detail": region["detail"],
            }
            assert {"expected", "got"} <= {*region["detail"].replace(":", "").split()}
            assert (split.skipped_regions, split.skipped_bytes) == (1, size)
            assert split.records == split.source["records"] == len(kept)

    @pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
    @pytest.mark.parametrize("plan", [*PLANS, ("num_shards", 6)], ids=str)
    def test_several_regions_each_once(self, tmp_path, path, plan, pack):
        numbers = (0, 3, 4, 8, 11)
        path.write_bytes(pack(damaged("data", *numbers)))
        job = job_of(path, tmp_path / "out", plan=plan, on_corrupt="skip")
        split = convert(job).manifest.splits["train"]
        assert read_output(tmp_path / "out") == left(*numbers)
        begins = [region["begin_bytes"] for region in skipped_in(tmp_path / "out")]
        assert begins == [number * FRAME for number in numbers]
        assert (split.skipped_regions, split.skipped_bytes) == (5, 5 * FRAME)

    def test_it_is_told_by_the_shard_that_meets_it(self, tmp_path, path):
        """Not at the commit, after hours of work on everything else."""
        path.write_bytes(damaged("length", 7))
        job = job_of(path, tmp_path / "out", plan=("num_shards", SHARDS))
        for task in shard_tasks(prepared_of(job)):
            if task.shard == 2:
                with pytest.raises(CorruptInputError, match=f"offset {7 * FRAME:,}"):
                    list(make_shards(task))
            else:
                assert list(make_shards(task))

    @pytest.mark.slow
    @pytest.mark.parametrize("shards", [1, 2, 7, 30, 55])
    def test_beside_frames_in_records(self, tmp_path, path, shards):
        inner = frames_of([random.Random(n).randbytes(100) for n in range(50)])
        records = [b"first", inner, *RECORDS * 5, inner, b"last"]
        begin = len(frames_of(records[:31]))
        path.write_bytes(flip(begin + 2)(frames_of(records)))
        plan = ("num_shards", shards)
        options = {"plan": plan, "on_corrupt": "skip", "records": WHOLE}
        split = convert(job_of(path, tmp_path / "out", **options)).manifest.splits
        assert read_output(tmp_path / "out") == records[:31] + records[32:]
        (region,) = skipped_in(tmp_path / "out")
        place = begin, begin + FRAME
        assert (region["begin_bytes"], region["end_bytes"]) == place
        assert split["train"].skipped_regions == 1


class TestWrongFiles:
    @pytest.mark.parametrize(
        ("kind", "known"),
        [
            *(("random", None), ("text", "text"), ("text like gzip", "text")),
            *(("zeros", None), ("one byte", None), ("array_record", "ArrayRecord")),
        ],
    )
    def test_what_is_no_tfrecord_file(self, tmp_path, kind, known):
        write_array_records(tmp_path / "official", [b"a" * 1000] * 300)
        data = {
            "random": random.Random(1).randbytes(300_000),
            "text": b"To be, or not to be, that is the question.\n" * 5000,
            "text like gzip": b"x marks the spot\n" * 5000,
            "zeros": bytes(100_000),
            "one byte": b"\xff",
            "array_record": (tmp_path / "official").read_bytes(),
        }[kind]
        (tmp_path / "in").mkdir()
        path = tmp_path / "in" / "b"
        path.write_bytes(data)
        (tmp_path / "in" / "a").write_bytes(frames_of(RECORDS))
        plan = ("num_shards", 1 if kind == "one byte" else 5)
        with pytest.raises(InputError if known else CorruptInputError) as caught:
            convert(job_of(tmp_path / "in", tmp_path / "fail", plan=plan))
        what = "ends in the middle" if kind == "one byte" else "not a TFRecord file"
        if known:
            parts = [f"{what}, but {known}", str(path), "narrower pattern"]
        else:
            parts = [what, f"{path}, byte offset 0", "expected:", "got:", "if it is a"]
        assert_says(caught.value, *parts)
        job = job_of(tmp_path / "in", tmp_path / "out", plan=plan, on_corrupt="skip")
        convert(job)
        assert read_output(tmp_path / "out") == RECORDS
        (region,) = skipped_in(tmp_path / "out")
        assert (region["begin_bytes"], region["end_bytes"]) == (0, len(data))

    @pytest.mark.parametrize(
        "option", [{"on_corrupt": "skip"}, {"allow_empty_files": True}]
    )
    def test_an_empty_file_is_an_error_unless_it_is_accepted(self, tmp_path, option):
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a").write_bytes(frames_of(RECORDS))
        (tmp_path / "in" / "b").write_bytes(b"")
        job = job_of(tmp_path / "in", tmp_path / "out", plan=("match_shards", None))
        with pytest.raises(InputError) as caught:
            convert(job)
        parts = "1 input file is empty", f"{tmp_path}/in/b", "at least one record"
        assert_says(caught.value, *parts, "got:      0 bytes", "`on_corrupt` skip")
        assert (
            convert(dataclasses.replace(job, **option)).manifest.splits["train"].shards
            == 2
        )
        assert read_output(tmp_path / "out") == RECORDS

    @pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
    def test_a_length_of_2_to_the_60_allocates_nothing(self, tmp_path, path, pack):
        path.write_bytes(pack(damaged("huge", 5)))
        with peak_memory() as peak:
            with pytest.raises(CorruptInputError) as caught:
                convert(job_of(path, tmp_path / "fail"))
            convert(job_of(path, tmp_path / "skip", on_corrupt="skip"))
        assert peak.bytes < 8 << 20
        assert f"byte offset {5 * FRAME:,}" in str(caught.value)
        assert f"{(1 << 60) + 16:,} bytes" in str(caught.value)
        assert read_output(tmp_path / "skip") == left(5)

    @pytest.mark.parametrize("on_corrupt", ["fail", "skip"])
    def test_frames_in_a_record_that_is_cut_are_an_error(
        self, tmp_path, path, on_corrupt
    ):
        # The second shard finds frames in a record; one is bad, as damage is.
        inner = flip(20 * 46 + 20)(frames_of([b"i" * 30] * 40))
        records = [b"x", inner, b"y"]
        path.write_bytes(frames_of(records))
        options: dict[str, Any] = {"plan": ("num_shards", 6), "on_corrupt": on_corrupt}
        with pytest.raises((CorruptInputError, DataLossError)) as caught:
            convert(job_of(path, tmp_path / "out", **options))
        assert_says(caught.value, str(path), "give `whole_files`")
        assert not (tmp_path / "out" / "dataset.json").exists()
        convert(job_of(path, tmp_path / "whole", records=WHOLE, **options))
        assert read_output(tmp_path / "whole") == records
        assert not skipped_in(tmp_path / "whole")


class TestDamagedCompression:
    """A gzip or zlib file can be read no further than its damage."""

    @pytest.mark.slow
    @pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
    def test_what_is_before_it_is_kept(self, tmp_path, pack):
        (tmp_path / "in").mkdir()
        path = tmp_path / "in" / "b"
        records = [random.Random(n).randbytes(900) for n in range(400)]
        data = bytearray(pack(frames_of(records)))
        middle = len(data) // 2
        data[middle : middle + 70_000] = b"\xff" * 70_000
        path.write_bytes(bytes(data))
        for name in ("a", "c"):
            (tmp_path / "in" / name).write_bytes(frames_of(RECORDS))
        outputs = []
        plans = (("match_shards", None), ("num_shards", 3), ("shard_bytes", 50_000))
        for plan in plans:
            output = tmp_path / plan[0]
            job = job_of(tmp_path / "in", output, plan=plan)
            with pytest.raises(CorruptInputError) as caught:
                convert(job)
            assert_says(caught.value, str(path), "byte offset", "expected:", "got:")
            assert not (output / "dataset.json").exists()
            job = dataclasses.replace(job, on_corrupt="skip")
            split = convert(job).manifest.splits["train"]
            outputs.append(read_output(output))
            (rest,) = skipped_in(output)
            assert (rest["file"], rest["compressed"]) == (str(path), True)
            assert rest["end_bytes"] == len(data)
            skipped_bytes = len(data) - rest["begin_bytes"]
            assert (split.skipped_regions, split.skipped_bytes) == (1, skipped_bytes)
        assert outputs[0] == outputs[1] == outputs[2]
        # Some of what was overwritten was not compressible: that far it is intact.
        kept = len(outputs[0]) - 24
        assert kept >= middle // 916 - 1
        assert outputs[0] == [*RECORDS, *records[:kept], *RECORDS]

    def test_a_member_cut_short(self, tmp_path, path):
        data = gzip.compress(frames_of(RECORDS))
        path.write_bytes(data[:-8])  # Only the trailer is gone: all records are there.
        with pytest.raises(CorruptInputError, match="ends in the middle"):
            convert(job_of(path, tmp_path / "fail"))
        convert(job_of(path, tmp_path / "out", on_corrupt="skip"))
        assert read_output(tmp_path / "out") == RECORDS
        (region,) = skipped_in(tmp_path / "out")
        assert (region["reason"], region["end_bytes"]) == ("compressed", len(data) - 8)
        assert "compressed byte offset" in region["detail"]

    def test_not_even_a_header(self, tmp_path, path):
        path.write_bytes(b"\x1f\x8b\x08" + b"\xff" * 50)
        # A dataset of nothing would look like one.
        with pytest.raises(CorruptInputError, match="no record of the inputs could"):
            convert(job_of(path, tmp_path / "out", on_corrupt="skip"))
        assert not (tmp_path / "out" / "dataset.json").exists()
        (region,) = skipped_in(tmp_path / "out")
        assert (region["compressed"], region["end_bytes"]) == (True, 53)


class TestBudget:
    """How many damaged regions are accepted."""

    @pytest.fixture
    def job(self, tmp_path, path):
        path.write_bytes(damaged("data", 1, 4, 7, 8))
        plan = ("num_shards", SHARDS)
        return job_of(path, tmp_path / "out", plan=plan, on_corrupt="skip")

    # Shards 0 to 2 hold 1, 1 and 2 regions: the budget ends in one of them, or only all
    # together are too many. Where it is spent within one, the message says where.
    @pytest.mark.parametrize(
        ("budget", "finished", "number"),
        [(0, 0, 1), (1, 2, 8), (2, 4, None), (3, 4, None)],
    )
    def test_too_small_then_raised(self, job, budget, finished, number):
        def shards() -> dict[str, int]:
            found = pathlib.Path(job.output).glob("*.array_record-*")
            return {path.name: path.stat().st_ino for path in found}

        with pytest.raises(CorruptInputError) as caught:
            convert(dataclasses.replace(job, max_corrupt=budget))
        said = f"at most {budget:,} damaged regions"
        assert_says(caught.value, "`max_corrupt`", said, "got:")
        if number is not None:
            place = f"{job.inputs[0]}, byte offset {number * FRAME:,}"
            assert place in str(caught.value)
        assert not pathlib.Path(job.output, "dataset.json").exists()
        before = shards()
        assert len(before) == finished
        split = convert(dataclasses.replace(job, max_corrupt=4)).manifest.splits
        assert split["train"].skipped_regions == 4
        assert before.items() <= shards().items()
        assert read_output(job.output) == left(1, 4, 7, 8)

    def test_what_was_accepted_before_is_an_error_when_it_is_not_any_more(self, job):
        with pytest.raises(CorruptInputError):
            convert(dataclasses.replace(job, max_corrupt=3))
        # All shards are finished; but --on-corrupt fail means: no damage at all.
        with pytest.raises(CorruptInputError) as caught:
            convert(dataclasses.replace(job, on_corrupt="fail"))
        assert_says(caught.value, "at most 0 damaged regions", "errors/")
        assert not pathlib.Path(job.output, "dataset.json").exists()
