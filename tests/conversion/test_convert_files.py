"""The conversion as a transform: the same bytes from every runner and any retry."""

from __future__ import annotations

import logging
import pathlib
import random

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.transforms.beam.convert_files import ConvertFiles, MakePlanned
from gristmill.transforms.conversion.commit_shards import (
    commit_shards,
)
from gristmill.transforms.conversion.make_shards import (
    make_shard,
    make_shards,
    shard_tasks,
)
from gristmill.transforms.jobs.conversion_job import ConversionJob
from tests.support.conversion import (
    contents,
    convert,
    job_of,
    prepared_of,
    read_output,
    varied_records,
    work_of,
)
from tests.support.pipelines import counters, distributions
from tests.support.records import frames_of, write_tfrecords

RUNNERS = {
    "in memory": ("--runner=FnApiRunner",),
    "every bundle twice": ("--runner=FnApiRunner", "--direct_runner_bundle_repeat=1"),
    "two processes": (
        *("--runner=FnApiRunner", "--direct_running_mode=multi_processing"),
        "--direct_num_workers=2",
    ),
    "with retries": ("--runner=BundleBasedDirectRunner",),
}
PLANS = [("num_shards", 9), ("shard_bytes", 40_000)]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> tuple[pathlib.Path, list[bytes]]:
    """Files of all kinds, compressed and not."""
    folder = tmp_path_factory.mktemp("inputs")
    long = [random.Random(n).randbytes(2_000) for n in range(40)]
    # So long that a range lies within it.
    long[7] = random.Random(8).randbytes(200_000)
    parts = [varied_records(120, seed=1), long, varied_records(80, seed=2)]
    write_tfrecords(folder / "a", parts[0])
    write_tfrecords(folder / "b", parts[1])
    write_tfrecords(folder / "c", parts[2], compression="GZIP")
    parts.append(varied_records(600, seed=3))  # Cut by both plans.
    write_tfrecords(folder / "d", parts[3], compression="ZLIB")
    return folder, [record for part in parts for record in part]


def run(*options: str, planned=None, **transform) -> beam.runners.runner.PipelineResult:
    pipeline = beam.Pipeline(options=PipelineOptions(list(options)))
    _ = pipeline | (planned or ConvertFiles(**transform))
    result = pipeline.run()
    result.wait_until_finish()
    return result


@pytest.fixture(scope="module")
def reference(inputs, tmp_path_factory) -> dict[str, dict[str, bytes]]:
    """All files of the dataset, by plan, as the plain functions make them."""
    folder, records = inputs
    found = {}
    for plan in PLANS:
        output = tmp_path_factory.mktemp("reference") / "out"
        convert(job_of(folder, output, plan=plan))
        assert read_output(output) == records
        found[plan[0]] = contents(output)
    return found


class TestDeterminism:
    @pytest.mark.slow
    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("plan", PLANS, ids=str)
    @pytest.mark.parametrize("runner", ["in memory", "every bundle twice"])
    def test_planned_in_the_pipeline(self, inputs, reference, tmp_path, runner, plan):
        job = job_of(inputs[0], tmp_path / "out", plan=plan)
        run(*RUNNERS[runner], jobs=(job,))
        assert contents(tmp_path / "out") == reference[plan[0]]

    @pytest.mark.parametrize("most", [1, 4, 9, 100])
    def test_few_elements_stand_for_many(self, inputs, reference, tmp_path, most):
        job = job_of(inputs[0], tmp_path / "out", plan=PLANS[0])
        work = work_of(job)
        strides = work.strides(most)
        prepared = work.begun[0].prepared
        passes = len(prepared.plan.pass_begins)
        assert passes < prepared.plan.shards
        assert len(strides) == min(most, passes)
        tasks = [task for stride in strides for task in stride.begin().tasks]
        assert sorted(tasks) == sorted(shard_tasks(prepared))
        commit_shards([job], [made for task in tasks for made in make_shards(task)])
        assert contents(tmp_path / "out") == reference[PLANS[0][0]]


class TestRetries:
    FLAKY = """
import pathlib

CALLS = pathlib.Path({calls!r})

def flaky(record):
    calls = int(CALLS.read_text())
    CALLS.write_text(str(calls + 1))
    if calls in (0, 40, 300):
        raise OSError("not yet")
    return [record, b"+"] if record else None
"""

    @pytest.mark.slow
    def test_a_function_that_fails_at_first(self, tmp_path, monkeypatch):
        calls = tmp_path / "calls"
        (tmp_path / "flaky_at_first.py").write_text(self.FLAKY.format(calls=str(calls)))
        monkeypatch.syspath_prepend(str(tmp_path))
        records = varied_records(100, seed=2)
        (tmp_path / "in").write_bytes(frames_of(records))
        outputs = []
        for name, first_call, options in (
            ("steady", 1000, RUNNERS["in memory"]),
            ("flaky", 0, RUNNERS["with retries"]),
        ):
            calls.write_text(str(first_call))
            job = job_of(
                tmp_path / "in",
                tmp_path / name,
                plan=("num_shards", 4),
                map="flaky_at_first:flaky",
            )
            run(*options, jobs=(job,))
            outputs.append(contents(tmp_path / name))
        assert int(calls.read_text()) > 100  # Some records were seen again.
        assert outputs[0] == outputs[1]
        empty = sum(not record for record in records)
        split = open_manifest(str(tmp_path / "flaky")).splits["train"]
        assert split.dropped_records == empty
        assert split.added_records == 100 - empty
        assert split.records == 2 * (100 - empty)


class TestJobs:
    @pytest.mark.slow
    def test_several_splits_at_once(self, tmp_path):
        jobs = []
        wanted = {}
        for number, split in enumerate(("train", "test", "validation")):
            wanted[split] = varied_records(50, seed=number)
            (tmp_path / split).write_bytes(frames_of(wanted[split]))
            plan = PLANS[number % 2]
            jobs.append(
                job_of(tmp_path / split, tmp_path / "out", plan=plan, split=split)
            )
        result = run(*RUNNERS["in memory"], jobs=tuple(jobs))
        manifest = open_manifest(str(tmp_path / "out"))
        assert sorted(manifest.splits) == sorted(wanted)
        for split, records in wanted.items():
            assert read_output(tmp_path / "out", split) == records
        counted = counters(result)
        assert counted["records"] == 150
        shards = sum(s.shards for s in manifest.splits.values())
        assert counted["planned-shards"] == counted["made-shards"] == shards
        assert "resumed-shards" not in counted
        measured = distributions(result)
        assert {each.count for each in measured.values()} == {shards}
        file_bytes = sum(s.file_bytes for s in manifest.splits.values())
        assert measured["shard-bytes"].sum == file_bytes
        assert counted["raw-bytes"] == manifest.splits["train"].raw_bytes + sum(
            manifest.splits[split].raw_bytes for split in ("test", "validation")
        )

        # All again: nothing is done, though one more split comes with it.
        (tmp_path / "more").write_bytes(frames_of([b"more"]))
        jobs.append(job_of(tmp_path / "more", tmp_path / "out", split="more"))
        before = contents(tmp_path / "out")
        result = run(*RUNNERS["in memory"], jobs=tuple(jobs))
        counted = counters(result)
        assert counted["planned-shards"] == counted["made-shards"] == 1
        after = contents(tmp_path / "out")
        assert {path for path in after if before.get(path) != after[path]} == {
            *("dataset.json", "data-more.array_record-00000-of-00001"),
            *("index/data-more.inputs.npz", "index/data-more.job.json"),
            "index/data-more.array_record-00000-of-00001.index",
            "index/data-more.shards.npz",
        }

    def test_skipped_and_dropped_are_counted(self, tmp_path, monkeypatch):
        (tmp_path / "only_long.py").write_text(
            "def keep(record):\n    return record if len(record) > 5 else None\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        records = [b"short", b"long enough", b"tiny", b"long as well"]
        (tmp_path / "in").write_bytes(b"junk" + frames_of(records))
        job = job_of(
            tmp_path / "in",
            tmp_path / "out",
            map="only_long:keep",
            on_corrupt="skip",
        )
        counted = counters(run(*RUNNERS["in memory"], jobs=(job,)))
        assert counted == {
            "planned-shards": 1,
            "made-shards": 1,
            "records": 2,
            "raw-bytes": 23,
            "skipped-regions": 1,
            "dropped-records": 2,
            "added-records": 0,
            "changed-records": 0,
        }
        assert read_output(tmp_path / "out") == [b"long enough", b"long as well"]

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (({"output": "/a"}, {"output": "/b"}), "must share output and name"),
            (({"name": "a"}, {"name": "b"}), "must share output and name"),
            (({}, {}), "write the same split"),
            ((), "no conversion given"),
        ],
    )
    def test_jobs_that_do_not_go_together(self, changes, message):
        jobs = tuple(
            ConversionJob(**{"inputs": ("x",), "output": "/out", "name": "n", **change})
            for change in changes
        )
        with pytest.raises(InputError, match=message):
            ConvertFiles(jobs=jobs)

    @pytest.mark.parametrize("planned", ["in the pipeline", "before"])
    def test_a_rerun_counts_and_logs_what_it_finds(self, tmp_path, caplog, planned):
        caplog.set_level(logging.INFO, "gristmill")
        write_tfrecords(tmp_path / "in", varied_records(60, seed=1))
        job = job_of(tmp_path / "in", tmp_path / "out", plan=("num_shards", 6))
        made = list(map(make_shard, shard_tasks(prepared_of(job))))
        lost = [made[shard].report for shard in (0, 3)]
        for report in lost:
            (tmp_path / "out" / layout.index_path(report.path)).unlink()
        caplog.clear()
        work = MakePlanned(work_of(job)) if planned == "before" else None
        result = run(*RUNNERS["in memory"], planned=work, jobs=(job,))
        counted = counters(result)
        assert counted["planned-shards"] == 6
        assert counted["made-shards"] == 2
        assert counted["resumed-shards"] == 4
        assert counted["records"] == sum(report.written.records for report in lost)
        assert distributions(result)["shard-milliseconds"].count == 2
        *before, committed = [m for m in caplog.messages if "split train" in m]
        told = "; ".join(before)
        assert "1 files, 17398 bytes become 6 shards" in told
        assert "60 records in 6 shards" in committed
