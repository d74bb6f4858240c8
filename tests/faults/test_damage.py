"""Bad input of every kind: a message that helps, or everything else recovered."""

import dataclasses
import gzip
import random
import re
import struct
import zlib

import google_crc32c
import pytest

from gristmill.dataset import (
    CorruptInputError,
    DataLossError,
    InputError,
    NotADatasetError,
    open_manifest,
)
from gristmill.dataset.formats.tfrecord_frames import mask
from gristmill.transforms import RecordOptions
from gristmill.transforms.conversion.make_shards import make_shards, shard_tasks
from tests.support.conversion import (
    convert,
    job_of,
    prepared_of,
    read_output,
    skipped_in,
)
from tests.support.records import frames_of, write_array_records
from tests.support.told import told

# Twelve frames of 116 bytes: four shards of three frames, cut between frames.
RECORDS = [bytes([65 + number]) * 100 for number in range(12)]
FRAME = 116
SHARDS = 4
PLANS = [("num_shards", SHARDS), ("match_shards", None), ("shard_bytes", 500)]
WHOLE = RecordOptions(whole_files=True)
LENGTH = struct.pack("<Q", 1 << 60)
HUGE = LENGTH + struct.pack("<I", mask(google_crc32c.value(LENGTH)))


def flip(place, bits=1):
    return lambda data: data[:place] + bytes([data[place] ^ bits]) + data[place + 1 :]


# What becomes of the file from the frame on, the size of the damage, and its reason.
KINDS = {
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


def damaged(kind, *numbers):
    """Returns the frames, some of them damaged."""
    data = frames_of(RECORDS)
    for number in reversed(numbers):
        data = data[: number * FRAME] + KINDS[kind][0](data[number * FRAME :])
    return data


def left(*lost):
    return [record for number, record in enumerate(RECORDS) if number not in lost]


def helpful(error, *parts):
    """Expects an error that also says where, and what to do."""
    return told(error, *parts, "where:", "to do:")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "in"


class TestMatrix:
    # First and last of the file, first and last of a range, and one in the middle.
    @pytest.mark.one_in(4)
    @pytest.mark.parametrize("number", [0, 2, 3, 4, 11])
    @pytest.mark.parametrize("kind", KINDS)
    def test_it_is_named_or_left_out_and_listed(self, tmp_path, path, kind, number):
        path.write_bytes(damaged(kind, number))
        kept = left(*range(number, 12 if kind == "truncated" else number + 1))
        _, size, reason = KINDS[kind]
        if kind == "bytes_lost" and number == 11:
            reason = "truncated"
        begin = number * FRAME
        for plan in PLANS:
            job = job_of(path, tmp_path / plan[0], plan=plan)
            place = f"{path}, byte offset {begin:,}", "expected:", "got:"
            with helpful(CorruptInputError, *place, "`on_corrupt` skip"):
                convert(job)
            with pytest.raises(NotADatasetError):
                open_manifest(job.output)
            job = dataclasses.replace(job, on_corrupt="skip")
            if not kept:
                with pytest.raises(CorruptInputError, match="no record of the inputs"):
                    convert(job)
                continue
            split = convert(job).manifest.splits["train"]
            assert read_output(job.output) == kept
            (region,) = skipped_in(job.output)
            assert re.search("expected.* got", region.pop("detail"))
            assert region == {
                "file": str(path),
                "begin_bytes": begin,
                "end_bytes": begin + size,
                "compressed": False,
                "reason": reason,
            }
            assert (split.skipped_regions, split.skipped_bytes) == (1, size)
            assert split.records == split.source["records"] == len(kept)

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


class TestWrongFiles:
    @pytest.mark.parametrize(
        ("data", "says"),
        [
            (random.Random(1).randbytes(300_000), "not a TFRecord file"),
            (b"x marks the spot\n" * 5000, "not a TFRecord file, but text"),
            (None, "not a TFRecord file, but ArrayRecord"),
            (b"\xff", "ends in the middle"),
        ],
        ids=["random", "text", "ArrayRecord", "one byte"],
    )
    def test_what_is_no_tfrecord_file(self, tmp_path, data, says):
        path = tmp_path / "in" / "b"
        path.parent.mkdir()
        path.with_name("a").write_bytes(frames_of(RECORDS))
        write_array_records(path, [b"a" * 1000] * 300)
        if data:
            path.write_bytes(data)
        plan = ("num_shards", 1 if data == b"\xff" else 5)
        job = job_of(path.parent, tmp_path / "out", plan=plan)
        parts = [f"{path}, byte offset 0", "expected:", "got:", "if it is a"]
        if "but" in says:
            parts = [str(path), "narrower pattern"]
        with helpful((InputError, CorruptInputError), says, *parts):
            convert(job)
        convert(dataclasses.replace(job, on_corrupt="skip"))
        assert read_output(job.output) == RECORDS
        (region,) = skipped_in(job.output)
        assert region["begin_bytes"] == 0
        assert region["end_bytes"] == path.stat().st_size

    def test_an_empty_file_is_an_error_unless_damage_is_left_out(self, tmp_path):
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a").write_bytes(frames_of(RECORDS))
        (tmp_path / "in" / "b").write_bytes(b"")
        job = job_of(tmp_path / "in", tmp_path / "out", plan=("match_shards", None))
        parts = "1 input file is empty", f"{tmp_path}/in/b", "at least one record"
        with helpful(InputError, *parts, "got:      0 bytes", "`on_corrupt` skip"):
            convert(job)
        convert(dataclasses.replace(job, on_corrupt="skip"))
        assert read_output(tmp_path / "out") == RECORDS

    @pytest.mark.parametrize("on_corrupt", ["fail", "skip"])
    def test_frames_in_a_record_that_is_cut_are_an_error(
        self, tmp_path, path, on_corrupt
    ):
        # The second shard finds frames in a record; one is bad, as damage is.
        inner = flip(20 * 46 + 20)(frames_of([b"i" * 30] * 40))
        records = [b"x", inner, b"y"]
        path.write_bytes(frames_of(records))
        options = {"plan": ("num_shards", 6), "on_corrupt": on_corrupt}
        errors = CorruptInputError, DataLossError
        with helpful(errors, str(path), "give `whole_files`"):
            convert(job_of(path, tmp_path / "out", **options))
        assert not (tmp_path / "out" / "dataset.json").exists()
        convert(job_of(path, tmp_path / "whole", records=WHOLE, **options))
        assert read_output(tmp_path / "whole") == records
        assert not skipped_in(tmp_path / "whole")


class TestDamagedCompression:
    """A gzip or zlib file can be read no further than its damage."""

    @pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
    @pytest.mark.parametrize("plan", PLANS, ids=str)
    def test_what_is_before_it_is_kept(self, tmp_path, pack, plan):
        (tmp_path / "in").mkdir()
        path, data = tmp_path / "in" / "b", pack(frames_of(RECORDS))
        path.write_bytes(data[:-4])  # Only the trailer is gone: all records are there.
        for name in "ac":
            (tmp_path / "in" / name).write_bytes(frames_of(RECORDS))
        job = job_of(tmp_path / "in", tmp_path / "out", plan=plan)
        with helpful(CorruptInputError, "ends in the middle", f"{path}, byte offset"):
            convert(job)
        split = convert(dataclasses.replace(job, on_corrupt="skip")).manifest.splits
        assert read_output(tmp_path / "out") == RECORDS * 3
        (rest,) = skipped_in(tmp_path / "out")
        assert (rest["file"], rest["compressed"]) == (str(path), True)
        assert (rest["reason"], rest["end_bytes"]) == ("compressed", len(data) - 4)
        assert split["train"].skipped_bytes == len(data) - 4 - rest["begin_bytes"]
        assert "compressed byte offset" in rest["detail"]


class TestBudget:
    """How many damaged regions are accepted."""

    # Shards 0 to 2 hold 1, 1 and 2 regions: the budget ends in one of them, or only all
    # together are too many. Where it is spent within one, the message says where.
    @pytest.mark.parametrize(
        ("budget", "finished", "number"),
        [(0, 0, 1), (1, 2, 8), (2, 4, None), (3, 4, None)],
    )
    def test_too_small_then_raised(self, tmp_path, path, budget, finished, number):
        path.write_bytes(damaged("data", 1, 4, 7, 8))
        plan, output = ("num_shards", SHARDS), tmp_path / "out"
        job = job_of(path, output, plan=plan, on_corrupt="skip", max_corrupt=budget)
        place = f"{path}, byte offset {number * FRAME:,}" if number else ""
        said = "`max_corrupt`", f"at most {budget:,} damaged regions", "got:"
        with helpful(CorruptInputError, *said, place):
            convert(job)
        assert not (output / "dataset.json").exists()
        shards = {
            shard: shard.stat().st_ino for shard in output.glob("*.array_record-*")
        }
        assert len(shards) == finished
        if not number:  # All are finished; but `fail` means: no damage at all.
            with helpful(CorruptInputError, "at most 0 damaged regions", "errors/"):
                convert(dataclasses.replace(job, on_corrupt="fail"))
        split = convert(dataclasses.replace(job, max_corrupt=4)).manifest.splits
        assert split["train"].skipped_regions == 4
        assert all(shard.stat().st_ino == inode for shard, inode in shards.items())
        assert read_output(output) == left(1, 4, 7, 8)
