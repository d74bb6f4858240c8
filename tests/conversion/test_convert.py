"""A conversion: every record in order, in the same bytes whoever makes them."""

import dataclasses
import itertools
import logging
import random
import threading

import apache_beam as beam
import pytest
from apache_beam.metrics.metric import Lineage

from gristmill import loader
from gristmill.dataset import (
    CorruptInputError,
    DataLossError,
    StorageError,
    TransposedChunkError,
    WriterOptions,
    open_manifest,
)
from gristmill.dataset.metadata import layout
from gristmill.pipelines.convert import convert as run_conversion
from gristmill.transforms import (
    ConvertFiles,
    IndexArrayRecords,
    ReadAllRecords,
    ReadArrayRecords,
    ReadTFRecords,
    VerifyDataset,
    WriteArrayRecords,
)
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.make_shards import (
    ShardResult,
    make_shard,
    shard_tasks,
)
from gristmill.transforms.sources.shards import open_shard as open_shard_module
from tests.conversion.format_files import put, put_in
from tests.servers.buckets import upload
from tests.support.conversion import (
    contents,
    convert,
    dataset_of,
    job_of,
    prepared_of,
    read_output,
    shards_of,
    varied_records,
    work_of,
)
from tests.support.pipelines import (
    BUNDLES_TWICE,
    IN_MEMORY,
    WORKER_PROCESSES,
    counters,
    distributions,
    ended,
    run,
)
from tests.support.records import (
    AWKWARD_RECORDS,
    frames_of,
    text_records,
    write_array_records,
    write_tfrecords,
)

pytestmark = pytest.mark.usefixtures("here")
PLANS = [
    *(("match_shards", None), ("num_shards", 1)),
    *(("num_shards", 9), ("shard_bytes", 40_000)),
]
PARTS = [text_records(900), [*AWKWARD_RECORDS], text_records(700, seed=1)]
RECORDS = [record for part in PARTS for record in part]
PATTERN = "raw data/part*.tfrecord"
TEXTS = text_records(300)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Files of all kinds, and all their records in order."""
    folder = tmp_path_factory.mktemp("inputs")
    long = [random.Random(n).randbytes(2_000) for n in range(40)]
    # So long that a range lies within it.
    long[7] = random.Random(8).randbytes(200_000)
    files = {
        "a": (varied_records(120, seed=1), ""),
        "b": (long, ""),
        "c": (varied_records(80, seed=2), "GZIP"),
        "d": ([b""], ""),
        "e": (varied_records(600, seed=3), "ZLIB"),  # Cut by both plans.
    }
    for name, (records, compression) in files.items():
        write_tfrecords(folder / name, records, compression=compression)
    return folder, [record for records, _ in files.values() for record in records]


@pytest.fixture(scope="module")
def made(inputs, tmp_path_factory):
    """All files of the dataset, by plan, as the plain functions make them."""
    folder, records = inputs
    found = {}
    for plan in PLANS:
        output = tmp_path_factory.mktemp("made") / "out"
        split = convert(job_of(folder, output, plan=plan)).manifest.splits["train"]
        assert read_output(output) == records
        assert split.records == len(records)
        assert split.raw_bytes == sum(map(len, records))
        found[plan] = contents(output)
    return found


class TestTheSameBytes:
    @pytest.mark.parametrize("plan", PLANS, ids=str)
    def test_in_another_order_and_some_twice(self, inputs, made, tmp_path, plan):
        job = job_of(inputs[0], "out", plan=plan)
        tasks = list(shard_tasks(prepared_of(job)))
        random.Random(7).shuffle(tasks)
        convert(job, tasks=[*tasks, *tasks[::3]])
        assert contents("out") == made[plan]

    @pytest.mark.slow
    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("plan", PLANS[2:], ids=str)
    @pytest.mark.parametrize("argv", [IN_MEMORY, BUNDLES_TWICE, WORKER_PROCESSES])
    def test_on_beam(self, inputs, made, tmp_path, argv, plan):
        job = job_of(inputs[0], "out", plan=plan)
        ended(ConvertFiles(jobs=(job,)), argv=argv)
        assert contents("out") == made[plan]

    @pytest.mark.parametrize("most", [1, 4, 100])
    def test_few_elements_stand_for_many(self, inputs, tmp_path, most):
        work = work_of(job_of(inputs[0], "out", plan=PLANS[2]))
        strides = work.strides(most)
        tasks = [task for stride in strides for task in stride.begin().tasks]
        assert sorted(tasks) == sorted(shard_tasks(work.begun[0].prepared))
        assert len(strides) == min(most, len(tasks))


class TestOnBeam:
    @pytest.mark.slow
    def test_several_splits_at_once(self, tmp_path):
        records = {
            split: varied_records(50, seed=len(split))
            for split in ("train", "test", "validation")
        }
        put(tmp_path, {split: frames_of(each) for split, each in records.items()})
        jobs = [
            job_of(tmp_path / split, "out", plan=PLANS[2], split=split)
            for split in records
        ]
        # Of the last one, some is left out.
        put(tmp_path, {"validation": b"junk" + frames_of(records["validation"])})
        options = {"map": "tests.golden.functions:thin", "on_corrupt": "skip"}
        jobs[2] = dataclasses.replace(jobs[2], **options)
        even = (record for record in records["validation"] if len(record) % 2 == 0)
        records["validation"] = [*even]
        result = ended(ConvertFiles(jobs=tuple(jobs)))
        splits = open_manifest("out").splits
        for split, expected in records.items():
            assert read_output("out", split) == expected
        shards = sum(split.shards for split in splits.values())
        left = [*itertools.chain(*records.values())]
        assert counters(result) == {
            **{"planned-shards": shards, "made-shards": shards, "records": len(left)},
            "raw-bytes": sum(map(len, left)),
            **{"skipped-regions": 1, "dropped-records": 150 - len(left)},
            **{"added-records": 0, "changed-records": 0},
        }
        measured = distributions(result)
        assert {each.count for each in measured.values()} == {shards}
        file_bytes = sum(split.file_bytes for split in splits.values())
        assert measured["shard-bytes"].sum == file_bytes

        # All again: nothing is done but a split that comes with it.
        put(tmp_path, {"more": frames_of([b"more"])})
        jobs.append(job_of("more", "out", split="more"))
        counted = counters(ended(ConvertFiles(jobs=tuple(jobs))))
        assert counted["planned-shards"] == counted["made-shards"] == 1

    def test_a_rerun_counts_and_logs_what_it_finds(self, tmp_path, caplog):
        caplog.set_level(logging.INFO, "gristmill")
        write_tfrecords("in", varied_records(60, seed=1))
        job = job_of("in", "out", shards=6)
        results = list(map(make_shard, shard_tasks(prepared_of(job))))
        lost = [results[shard].report for shard in (0, 3)]
        for report in lost:
            (tmp_path / "out" / layout.index_path(report.path)).unlink()
        caplog.clear()
        counted = counters(ended(ConvertFiles(jobs=(job,))))
        shards = [counted[f"{of}-shards"] for of in ("planned", "made", "resumed")]
        assert shards == [6, 2, 4]
        assert counted["records"] == sum(report.written.records for report in lost)
        *begun, committed = [m for m in caplog.messages if "split train" in m]
        assert "1 files, 17398 bytes become 6 shards" in "; ".join(begun)
        assert "60 records in 6 shards" in committed

    @pytest.mark.slow
    def test_sources_and_sinks_are_reported_and_all_is_counted(self, tmp_path, caplog):
        caplog.set_level(logging.INFO, "gristmill")
        old, records = tmp_path / "old", text_records(5)
        old.mkdir()
        write_tfrecords(tmp_path / "in", records)
        for name in ("x", "y"):
            write_array_records(old / name, records)

        def lineage(result):
            kinds = Lineage.SOURCE, Lineage.SINK
            found = [Lineage.query(result.metrics(), kind) for kind in kinds]
            at = f"filesystem:localhost.{tmp_path}"
            return [{name.removeprefix(at) for name in names} for names in found]

        # What is written is read in the same job: the names are the same.
        read = ReadTFRecords(f"{tmp_path}/i*")
        write = WriteArrayRecords(tmp_path / "out", num_shards=1)
        chain = (read, write, beam.Map(lambda one: one.output), ReadAllRecords())
        assert lineage(ended(*chain)) == [{"", "/out"}, {"/out"}]
        # The name of a file is any bytes.
        path = (tmp_path / "in").rename(tmp_path / "in\udcff")
        job = job_of(path, tmp_path / "new")
        assert lineage(ended(ConvertFiles(jobs=(job,)))) == [{r"/in\udcff"}, {"/new"}]
        indexed = ended(IndexArrayRecords(files=old / "*"))
        assert lineage(indexed) == [{"/old"}, {"/old"}]
        assert counters(indexed) == {
            **{"planned-shards": 2, "made-shards": 2, "records": 10},
            "raw-bytes": 2 * sum(map(len, records)),
        }
        (old / "y").write_bytes(b"damaged")
        verified = ended(VerifyDataset(old))
        assert lineage(verified) == [{"/old"}, set()]
        counted = counters(verified)
        assert counted["planned-shards"] == counted["verified-shards"] == 2
        assert counted["findings"] == 1
        *_, last = caplog.records
        assert last.levelname == "WARNING"
        assert "verified 2 shards, 5 records, 1 finding" in last.getMessage()


class TestCommit:
    """What does not add up is refused, and nothing is committed."""

    @pytest.mark.parametrize(
        ("lost", "said"),
        [
            ("*00001-of*", "(?s)00001-of-.*missing.*run the same command again"),
            ("index/*00001-of*", "(?s)00001-of-.*missing.*run the same command again"),
            (slice(1), "1 of 5 shards were not made"),
            (slice(None), "no shard of a split was made"),
        ],
        ids=["shard", "index", "result", "all results"],
    )
    def test_a_shard_that_is_not_there(self, tmp_path, lost, said):
        write_tfrecords("in", varied_records(60, seed=1))
        job = job_of("in", "out", shards=5)
        results = [make_shard(task) for task in shard_tasks(prepared_of(job))]
        if isinstance(lost, slice):
            del results[lost]
        else:
            next((tmp_path / "out").glob(lost)).unlink()
        with pytest.raises(DataLossError, match=said):
            commit_shards([job], results)
        assert not (tmp_path / "out" / "dataset.json").exists()

    def test_a_split_that_was_there_and_is_gone(self, tmp_path):
        """Somebody may delete it, once it was found that nothing is to do."""
        put_in(tmp_path, frames_of([b"one", b"two"]))
        train, test = (job_of("in", "out", split=split) for split in ("train", "test"))
        convert(train)
        results = [ShardResult(next(shard_tasks(begin_job(train).prepared)), None)]
        results.append(make_shard(next(shard_tasks(prepared_of(test)))))
        (tmp_path / "out" / "dataset.json").unlink()
        with pytest.raises(DataLossError, match=r"(?s)gone.*train|train.*gone"):
            commit_shards([train, test], results)
        assert not (tmp_path / "out" / "dataset.json").exists()

    def test_of_a_shard_that_fails_nothing_is_left(self, tmp_path):
        put_in(tmp_path, frames_of([b"a" * 99] * 50)[:-1])
        with pytest.raises(CorruptInputError):
            convert(job_of("in", "out"))
        left = {name.split("/")[0] for name in contents("out")}
        assert left == {"index"}
        assert not list((tmp_path / "out" / "tmp-data-train").iterdir())


class TestBuckets:
    """From and to gs://: the same bytes as on a local disk, in few requests."""

    @pytest.fixture
    def local(self, tmp_path):
        for number, records in enumerate(PARTS):
            name = f"raw data/part {number} #é[1].tfrecord"
            put(tmp_path, {name: frames_of(records)})
        return str(tmp_path)

    @pytest.fixture
    def server(self, server, local, blocks_of):
        blocks_of(1 << 18)
        upload(server, local, "in")
        return server

    @staticmethod
    def stored(server):
        objects = server.objects.buckets["out"].items()
        return {name.removeprefix("sets/c4/"): one.data for name, one in objects}

    @pytest.mark.parametrize("source", ["gs", "local"])
    @pytest.mark.parametrize("target", ["gs", "local"])
    def test_the_bytes_are_those_of_a_local_conversion(
        self, server, local, source, target
    ):
        place = {"gs": "gs://bucket/in", "local": local}[source]
        output = {"gs": "gs://out/sets/c4", "local": f"{local}/c4"}[target]
        for inputs, to in ((place, output), (local, f"{local}/expected")):
            job = job_of(f"{inputs}/{PATTERN}", to, shards=4)
            run_conversion([job], workers=1)
        found = self.stored(server) if target == "gs" else contents(output)
        expected = contents(f"{local}/expected")
        assert found.keys() == expected.keys()
        for shard in shards_of(f"{local}/expected"):
            assert found[shard] == expected[shard]
        assert loader.open(output)[:] == RECORDS
        # Once each: no object is written twice, and none on the way.
        written = [name for kind, name, _ in server.log if kind in ("insert", "start")]
        assert sorted(written) == sorted(server.objects.buckets["out"])

    @pytest.mark.parametrize("which", ["in", "out"])
    def test_a_missing_bucket_is_named_before_any_work(self, server, which):
        places = {"in": "gs://bucket/in/**", "out": "gs://out/c4", which: "gs://none/x"}
        with pytest.raises(StorageError, match="bucket does not exist"):
            begin_job(job_of(places["in"], places["out"]))
        assert not server.objects.buckets["out"]

    @pytest.mark.slow
    @pytest.mark.parametrize("workers", [1, 2])
    def test_uploads_overlap_and_local_bytes_are_bounded(
        self, server, tmp_path, temporary_in, workers
    ):
        """While shards are on their way, the next ones are made, but not too many."""
        temporary_in(tmp_path)
        slow = {"name": "data-train.array_record-", "times": 10**9, "seconds": 0.3}
        server.fail("slow", "insert", **slow)
        counts, done = [0], threading.Event()

        def watch():
            while not done.wait(0.01):
                counts.append(len([*tmp_path.glob("gristmill-*/tmp-data-train")]))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            job = job_of("gs://bucket/in/**", "gs://out/c4", shards=12)
            run_conversion([job], workers=workers)
        finally:
            done.set()
            watcher.join()
        # Each of small shards: one is written, others are on their way.
        assert 1 < max(counts) <= 3 * workers
        assert not list(tmp_path.glob("gristmill-*"))

    @pytest.mark.slow
    def test_transforms_read_write_and_verify(self, server, tmp_path):
        options = {"num_shards": 3, "shard_bytes": 50_000}
        local = WriteArrayRecords("c4", **options)
        run(beam.Create(RECORDS), local)
        (result,) = run(
            ReadTFRecords(f"gs://bucket/in/{PATTERN}", range_bytes=20_000),
            WriteArrayRecords("gs://out/sets/c4", **options),
            argv=BUNDLES_TWICE,
        )
        assert result.records == len(RECORDS)
        assert self.stored(server) == contents("c4")
        reading = ReadArrayRecords("gs://out/sets/c4", range_bytes=20_000)
        assert sorted(run(reading)) == sorted(RECORDS)
        (verified,) = run(VerifyDataset("gs://out/sets/c4"))
        assert (verified.findings, verified.records) == ((), len(RECORDS))


class TestCopies:
    """Chunks of shards that have the asked options are copied as they are."""

    @pytest.mark.parametrize("group_size", [1, 4])
    @pytest.mark.parametrize("shards", [1, 2, 9])
    def test_all_records_are_there(self, tmp_path, shards, group_size):
        """At a border within a chunk, records are encoded again."""
        source = dataset_of(tmp_path, TEXTS, group_size=group_size)
        options = {"shards": shards, "writer": WriterOptions(group_size=group_size)}
        convert(job_of(str(source), "new", **options))
        assert read_output("new") == TEXTS
        if (shards, group_size) == (1, 1):
            # As if they had been converted from the files of the source.
            convert(job_of("train.tfrecord", "anew"))
            (name,) = shards_of("anew")
            made, anew = (tmp_path / folder / name for folder in ("new", "anew"))
            assert made.read_bytes() == anew.read_bytes()

    @pytest.mark.parametrize("policy", ["fail", "skip"])
    def test_transposed_chunks_are_refused(self, tmp_path, policy):
        path, options = "a.array_record", "group_size:1,transpose:true"
        write_array_records(path, TEXTS, options=options)
        with pytest.raises(TransposedChunkError, match=r"dataset\.Writer"):
            convert(job_of(path, "b", on_corrupt=policy))

    @pytest.mark.parametrize("group_size", [1, 2])
    def test_damage_on_the_way_changes_no_byte(self, tmp_path, server, group_size):
        """Whether chunks are copied or their records encoded again."""
        dataset = dataset_of(tmp_path, RECORDS)
        writer = WriterOptions(group_size=group_size)
        upload(server, dataset, "d")
        convert(job_of(str(dataset), "whole", writer=writer))
        (name,) = shards_of("whole")
        for skip in range(5):
            open_shard_module.kept_shard.cache_clear()
            server.faults.clear()
            server.fail("flip", "media", name="-00000-of-", skip=skip)
            convert(job_of("gs://bucket/d", f"{skip}", writer=writer))
            made, whole = (tmp_path / one / name for one in (f"{skip}", "whole"))
            assert made.read_bytes() == whole.read_bytes()
