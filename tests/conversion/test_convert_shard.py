"""Whole conversions with real files: nothing lost, nothing changed, always the same."""

from __future__ import annotations

import contextlib
import pathlib
import random
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.dataset.base.errors import CorruptInputError, DataLossError
from gristmill.transforms.conversion.make_shards import (
    convert_shard,
    shard_tasks,
)
from gristmill.transforms.sources.formats import RecordOptions
from tests.support.conversion import (
    contents,
    convert,
    job_of,
    prepared_of,
    read_output,
    skipped_in,
    varied_records,
)
from tests.support.records import frames_of, small_records, write_tfrecords

WHOLE = RecordOptions(whole_files=True)
PLANS = [
    ("match_shards", None),
    ("num_shards", 1),
    ("num_shards", 13),
    ("shard_bytes", 1 << 20),
]


@pytest.fixture(scope="module")
def varied(tmp_path_factory) -> tuple[pathlib.Path, list[bytes]]:
    """Files that TensorFlow wrote, and all their records in order."""
    folder = tmp_path_factory.mktemp("varied")
    big = [b"", random.Random(1).randbytes(5 << 20), b"", b"x"]
    files = {
        "a": (varied_records(150, seed=1), ""),
        "b": (big + varied_records(50, seed=2), ""),
        "c": (varied_records(90, seed=3), "GZIP"),
        "d": ([b""], ""),
        "e": (varied_records(70, seed=4), "ZLIB"),
        "f": (varied_records(60, seed=5), ""),
    }
    for name, (records, compression) in files.items():
        write_tfrecords(folder / name, records, compression=compression)
    return folder, [record for records, _ in files.values() for record in records]


class TestLossless:
    @pytest.mark.parametrize("plan", PLANS, ids=str)
    def test_exactly_the_input_in_order_and_the_same_bytes_again(
        self, varied, tmp_path, plan
    ):
        folder, records = varied
        first = convert(job_of(folder, tmp_path / "one", plan=plan))
        assert read_output(tmp_path / "one") == records
        split = first.manifest.splits["train"]
        assert split.records == len(records)
        assert split.raw_bytes == sum(map(len, records))

        # Again elsewhere, in another order, and every third shard twice.
        job = job_of(folder, tmp_path / "two", plan=plan)
        tasks = list(shard_tasks(prepared_of(job)))
        random.Random(7).shuffle(tasks)
        for task in tasks[::3]:
            convert_shard(task.prepared, task.shard)
        convert(job, tasks=tasks)
        assert contents(tmp_path / "one") == contents(tmp_path / "two")


class TestNestedPayloads:
    """Records that hold frames themselves, cut in their middle."""

    @pytest.mark.slow
    @given(
        files=st.lists(small_records(max_records=5), min_size=1, max_size=3),
        shards=st.integers(1, 12),
    )
    @settings(max_examples=40)
    def test_any_small_file_and_any_number_of_shards(self, files, shards):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "in").mkdir()
            total = 0
            for number, records in enumerate(files):
                data = frames_of(records) or frames_of([b""])
                (folder / "in" / str(number)).write_bytes(data)
                total += len(data)
            plan = ("num_shards", min(shards, total))
            expected = [record for records in files for record in (records or [b""])]
            with contextlib.suppress(CorruptInputError, DataLossError):
                convert(job_of(folder / "in", folder / "out", plan=plan))
                assert read_output(folder / "out") == expected
            job = job_of(folder / "in", folder / "whole", plan=plan, records=WHOLE)
            convert(job)
            assert read_output(folder / "whole") == expected

    @pytest.mark.slow
    def test_whole_files_with_real_damage_elsewhere(self, tmp_path):
        inner = frames_of([random.Random(n).randbytes(100) for n in range(50)])
        records = [b"first", inner, *varied_records(60, seed=4), inner, b"last"]
        data = bytearray(frames_of(records))
        broken = len(frames_of(records[:31]))
        data[broken + 2] ^= 1
        (tmp_path / "in").write_bytes(bytes(data))
        for shards in (1, 2, 7, 30, 55):
            output = tmp_path / str(shards)
            job = job_of(
                tmp_path / "in",
                output,
                plan=("num_shards", shards),
                on_corrupt="skip",
                records=WHOLE,
            )
            result = convert(job)
            assert read_output(output) == records[:31] + records[32:]
            (region,) = skipped_in(output)
            place = broken, len(frames_of(records[:32]))
            assert (region["begin_bytes"], region["end_bytes"]) == place
            assert result.manifest.splits["train"].skipped_regions == 1


class TestReports:
    def test_real_damage_is_told_by_the_shard_that_meets_it(self, tmp_path):
        # Not at the commit, after hours of work on everything else.
        records = varied_records(200, seed=4)
        data = bytearray(frames_of(records))
        broken = len(frames_of(records[:150]))
        data[broken] ^= 1
        (tmp_path / "in").write_bytes(bytes(data))
        job = job_of(tmp_path / "in", tmp_path / "out", plan=("num_shards", 4))
        prepared = prepared_of(job)
        raised = []
        for shard in range(4):
            try:
                convert_shard(prepared, shard)
            except CorruptInputError as error:
                raised.append((shard, f"byte offset {broken:,}" in str(error)))
        begins = [int(cut) for cut in prepared.plan.cut_bytes]
        owner = next(i for i in range(4) if begins[i] <= broken < begins[i + 1])
        assert raised == [(owner, True)]
        assert owner > 0

    def test_nothing_is_left_behind_when_a_shard_fails(self, tmp_path):
        (tmp_path / "in").write_bytes(frames_of([b"a" * 99] * 50)[:-1])
        prepared = prepared_of(job_of(tmp_path / "in", tmp_path / "out"))
        with pytest.raises(CorruptInputError):
            convert_shard(prepared, 0)
        left = {name.split("/")[0] for name in contents(tmp_path / "out")}
        assert left == {"index"}
        assert not list((tmp_path / "out" / "tmp-data-train").iterdir())
