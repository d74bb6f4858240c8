"""Jobs that stopped half way, and what is found in the output by the next."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import random
import shutil

import pytest

from gristmill import dataset
from gristmill.dataset.arrayrecord import shard_writer
from gristmill.dataset.arrayrecord.file_writer import with_versions
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.errors import (
    FormatVersionError,
    GristmillError,
    InputError,
    JobChangedError,
    StorageChangedError,
)
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.anywhere import index, verify
from gristmill.pipelines.options.job_options import IndexOptions
from gristmill.transforms.conversion import take_output as take_output_module
from gristmill.transforms.conversion.begin import begin_job, list_inputs, plan_job
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.make_shards import (
    convert_shard,
    make_shard,
    shard_tasks,
)
from gristmill.transforms.conversion.take_output import take_output
from gristmill.transforms.jobs.conversion_job import (
    ConversionJob,
    ShardNames,
    load_prepared,
)
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.planning.shard_plan import PlanOptions
from tests.support.conversion import (
    contents,
    convert,
    finished_shard,
    job_of,
    prepared_of,
    read_output,
)
from tests.support.records import frames_of
from tests.support.watched import at_storage

SHARDS = 6
ROWS = PackOptions(length=32, column="ids")


def records_of(seed: int) -> list[bytes]:
    """Returns documents of very different lengths."""
    chance = random.Random(seed)
    lengths = [chance.choice((0, 5, 17, 40, 130)) for _ in range(100)]
    return [
        dataset.encode_example({"ids": [chance.randrange(1000) for _ in range(length)]})
        for length in lengths
    ]


RECORDS = [record for seed in range(3) for record in records_of(seed)]


@pytest.fixture
def inputs(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for seed in range(3):
        (folder / str(seed)).write_bytes(frames_of(records_of(seed)))
    return folder


@pytest.fixture
def job(inputs: pathlib.Path, tmp_path: pathlib.Path) -> ConversionJob:
    return job_of(inputs, tmp_path / "out", plan=("num_shards", SHARDS))


def states(job: ConversionJob, word: str = "") -> dict[str, tuple[int, int]]:
    """Returns what would change if a file were written again."""
    return {
        str(path): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in pathlib.Path(job.output).rglob("*")
        if path.is_file() and word in path.name
    }


def shard_file(job: ConversionJob, shard: int) -> pathlib.Path:
    return pathlib.Path(job.output, layout.shard_name("data", "train", shard, SHARDS))


def file_of(job: ConversionJob, kind: str) -> pathlib.Path:
    """Returns a file of the third shard, or of the whole job."""
    shard, folder = shard_file(job, 2), pathlib.Path(job.output)
    found: dict[str, str] = {
        "shard": shard.name,
        "index": layout.index_path(shard.name),
        "segments": layout.segments_path(shard.name),
        "table": layout.table_path("data", "train"),
        "list": layout.inputs_path("data", "train"),
        "job": layout.job_path("data", "train"),
        "manifest": "dataset.json",
    }
    return folder / found[kind]


def half_done(job: ConversionJob) -> ConversionJob:
    prepared = prepared_of(job)
    for shard in (0, 2, 5):
        convert_shard(prepared, shard)
    return job


def assert_whole(output: str) -> None:
    """The output is a dataset, and nothing else is there."""
    found = verify(output, workers=1)
    assert (found.findings, found.leftovers) == ((), ())


HOW = {
    "gone": lambda path: path.unlink(),
    "short": lambda path: os.truncate(path, path.stat().st_size - 1),
    "very short": lambda path: os.truncate(path, 50),
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "flipped": lambda path: path.write_bytes(
        path.read_bytes()[:-9] + b"?" + path.read_bytes()[-8:]
    ),
}
# All of them are seen without reading the shards.
SEEN = ("gone", "short", "empty")
HARMS = [
    *(f"index {how}" for how in HOW),
    *(f"{kind} {how}" for kind in ("shard", "segments") for how in SEEN),
]


class TestUnfinished:
    """What a crash, of the program or of the machine, can leave."""

    @pytest.mark.parametrize("harm", HARMS)
    def test_what_is_not_whole_is_made_again_and_all_else_stays(
        self, job, tmp_path, harm
    ):
        kind, _, how = harm.partition(" ")
        job = dataclasses.replace(job, pack=ROWS if kind == "segments" else None)
        half_done(job)
        HOW[how](file_of(job, kind))
        before = states(job, "-00000-of") | states(job, "-00005-of")
        prepared = prepared_of(job)
        assert finished_shard(prepared, 2) is None
        convert(job)
        assert before.items() <= states(job).items()
        undisturbed = dataclasses.replace(job, output=str(tmp_path / "fresh"))
        convert(undisturbed)
        assert contents(job.output) == contents(undisturbed.output)
        assert job.pack or read_output(job.output) == RECORDS

    @pytest.mark.parametrize("max_corrupt", [100, 7])
    def test_an_end_between_the_two_files_of_the_description(
        self, job, monkeypatch, max_corrupt
    ):
        def killed():
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            at_storage(patch, "write", ".inputs.npz", killed)
            with pytest.raises(KeyboardInterrupt):
                begin_job(job)
        assert list(contents(job.output)) == ["index/data-train.job.json"]
        convert(dataclasses.replace(job, max_corrupt=max_corrupt))
        assert read_output(job.output) == RECORDS

    def test_a_lost_list_of_files_is_written_again(self, job):
        inputs = file_of(half_done(job), "list")
        before, finished = inputs.read_bytes(), states(job, "-00002-of")
        inputs.unlink()
        convert(job)
        assert inputs.read_bytes() == before
        assert states(job, "-00002-of") == finished
        assert read_output(job.output) == RECORDS

    def test_an_index_of_another_version_is_not_overwritten(self, job):
        path = file_of(half_done(job), "index")
        data = bytearray(path.read_bytes())
        data[8] += 1
        path.write_bytes(bytes(data))
        with pytest.raises(FormatVersionError):
            convert(job)

    @pytest.mark.parametrize("text", ["", "{}", "[]", '{"job": {"inputs": 3}}'])
    def test_a_description_that_cannot_be_read(self, job, text):
        prepared_of(job)
        file_of(job, "job").write_text(text)
        convert(job)
        assert read_output(job.output) == RECORDS
        clean(job.output)
        assert not file_of(job, "job").exists()
        assert verify(job.output, workers=1).leftovers == ()


class TestChanged:
    """A run with other options or inputs than the unfinished one before it."""

    @pytest.mark.parametrize(
        ("change", "difference"),
        [
            (
                {"plan": PlanOptions(kind="num_shards", value=7)},
                "6 shards, is 7 shards",
            ),
            ({"plan": PlanOptions(kind="shard_bytes", value=6)}, "is 6 bytes of input"),
            ({"writer": WriterOptions(group_size=2)}, "writer.group_size was 1, is 2"),
            ({"writer": WriterOptions(compression="snappy")}, "writer.compression was"),
            ({"map": "os.path:basename"}, "map was None, is 'os.path:basename'"),
            ({"names": ShardNames(kind="beam", prefix="x")}, "names.kind was 'tfds'"),
            ({"pack": ROWS}, "pack was"),
        ],
        ids=str,
    )
    def test_options(self, job, change, difference):
        half_done(job)
        before, other = states(job), dataclasses.replace(job, **change)
        taken = begin_job(other)
        (note,) = taken.notes
        assert difference in note
        assert f"gristmill clean --unfinished {job.output}" in note
        make_shard(next(shard_tasks(taken.prepared)))
        assert before.items() <= states(job).items()
        # The first one goes on, and what commits later is told.
        convert(job)
        assert read_output(job.output) == RECORDS
        with pytest.raises(JobChangedError, match="made with other options or inputs"):
            begin_job(other)
        clean(job.output, unfinished=True)
        assert_whole(job.output)

    def test_rows_of_another_length(self, job):
        half_done(dataclasses.replace(job, pack=ROWS))
        other = dataclasses.replace(job, pack=PackOptions(length=64, column="ids"))
        assert "pack.length was 32, is 64" in begin_job(other).notes[0]
        convert(other)
        clean(job.output, unfinished=True)
        assert_whole(job.output)
        with pytest.raises(JobChangedError, match=r"pack\.length was 64, is 32"):
            convert(dataclasses.replace(job, pack=ROWS))

    def test_code_of_the_map_function(self, job, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(tmp_path)
        module = tmp_path / "map_that_changes.py"
        module.write_text("def keep(record):\n    return record\n")
        job = dataclasses.replace(job, map="map_that_changes:keep")
        half_done(job)
        assert prepared_of(job).write.id == prepared_of(job).write.id
        module.write_text("def keep(record):\n    return record + b'!'\n")
        assert "function was edited" in begin_job(job).notes[0]

    @pytest.mark.parametrize(
        ("change", "difference"),
        [
            (lambda d: (d / "9").write_bytes(frames_of([b"x"])), "1 input files new: "),
            (lambda d: (d / "1").unlink(), "1 input files gone: "),
            (lambda d: (d / "1").write_bytes(frames_of([b"x"])), "files changed: "),
            (lambda d: (d / "1").rename(d / "7"), "new: "),
        ],
        ids=["new", "gone", "changed", "renamed"],
    )
    def test_inputs(self, job, inputs, change, difference):
        half_done(job)
        change(inputs)
        (note,) = begin_job(job).notes
        assert difference in note
        assert f"{inputs}/" in note
        convert(job)
        assert len(read_output(job.output)) >= 200
        clean(job.output, unfinished=True)
        assert_whole(job.output)

    def test_a_process_that_lives_on_sees_what_changed(self, job):
        # Workers outlive a run: the description that they know can be an old one.
        first = prepared_of(job)
        assert load_prepared(first.write).job.max_corrupt == 100
        prepared_of(dataclasses.replace(job, max_corrupt=7))
        assert load_prepared(first.write).job.max_corrupt == 7
        results = [make_shard(task) for task in shard_tasks(first)]
        convert(dataclasses.replace(job, writer=WriterOptions(group_size=3)))
        with pytest.raises(StorageChangedError, match="has changed the split while"):
            commit_shards([job], results)
        clean(job.output, unfinished=True)
        with pytest.raises(JobChangedError, match="another command has made the split"):
            load_prepared(first.write)
        shutil.rmtree(job.output)
        with pytest.raises(JobChangedError, match="got:      no such split"):
            make_shard(next(shard_tasks(first)))

    @pytest.mark.parametrize("same", [True, False])
    def test_a_newer_codec(self, job, inputs, monkeypatch, same):
        """What it made stays; where the inputs are others too, nothing is taken."""
        versions = WriterOptions(versions="gristmill:1,zstd-1.4.0")
        old = dataclasses.replace(job, writer=versions)
        with monkeypatch.context() as patched:  # A version that is not installed.
            for module in (take_output_module, shard_writer):
                patched.setattr(module, "check_versions", lambda *_, **__: None)
            convert(old)
        if not same:
            (inputs / "4").write_bytes(frames_of([b"more"]))
        # As the drop-in pipelines begin.
        prepared = plan_job(job, list_inputs(job))
        taken = take_output(prepared, overwrite="changed")
        assert (taken.committed is not None) == same
        expected = versions if same else with_versions(WriterOptions())
        assert taken.prepared.job.writer == expected


class TestCommitted:
    """A run over a dataset that is there already."""

    def test_the_same_again_does_nothing(self, job):
        first = convert(job)
        before = states(job)
        taken = begin_job(job)
        assert taken.committed == first.manifest
        results = [make_shard(task) for task in shard_tasks(taken.prepared)]
        assert all(result.report is not None for result in results)
        assert states(job) == before

    @pytest.mark.parametrize(
        "harm",
        ["index gone", *HARMS[len(HOW) :], *(f"table {how}" for how in SEEN)],
    )
    def test_what_was_lost_since_is_made_again(self, job, harm):
        kind, _, how = harm.partition(" ")
        job = dataclasses.replace(job, pack=ROWS if kind == "segments" else None)
        manifest = convert(job).manifest
        files = contents(job.output)
        kept = states(job, "00000-of")
        HOW[how](file_of(job, kind))
        assert verify(job.output, workers=1, quick=True).findings
        assert convert(job).manifest == manifest
        assert contents(job.output) == files
        assert kept.items() <= states(job).items()
        assert begin_job(job).committed == manifest

    def test_a_split_without_description_is_known_by_the_dataset(self, job):
        convert(job)
        file_of(job, "job").unlink()
        assert begin_job(job).committed is not None
        other = dataclasses.replace(job, writer=WriterOptions(group_size=4))
        with pytest.raises(JobChangedError, match="from another source"):
            convert(other)
        convert(other, overwrite=True)
        assert read_output(job.output) == RECORDS

    def test_a_split_that_was_indexed_since_is_not_what_was_converted(self, job):
        convert(job)
        shards = sorted(pathlib.Path(job.output).glob("*.array_record-*"))
        shards[0].unlink()
        files = tuple(map(str, shards[1:]))
        index(IndexOptions(files=files, split="train", overwrite=True), workers=1)
        assert open_manifest(job.output).splits["train"].records < len(RECORDS)
        with pytest.raises(JobChangedError, match="from another source"):
            convert(job)


class TestOverwrite:
    def test_everything_of_the_split_goes_and_nothing_else(self, job, tmp_path):
        (tmp_path / "more").write_bytes(frames_of([b"one", b"two"]))
        convert(job, job_of(tmp_path / "more", job.output, split="test"))
        pathlib.Path(job.output, "notes.txt").write_text("mine")
        others = states(job, "data-test") | states(job, "notes")
        smaller = dataclasses.replace(job, plan=PlanOptions(kind="num_shards", value=2))
        convert(smaller, overwrite=True)
        assert others.items() <= states(job).items()
        assert read_output(job.output) == RECORDS
        assert read_output(job.output, "test") == [b"one", b"two"]
        mark = open_manifest(job.output).splits["train"].write
        shards = [f"data-train.array_record-{mark}-0000{n}-of-00002" for n in range(2)]
        assert {pathlib.Path(path).name for path in states(job, "train")} == {
            *(*shards, *(f"{shard}.index" for shard in shards)),
            *(f"data-train.{mark}.{end}" for end in ("job.json", "inputs.npz")),
            f"data-train.{mark}.shards.npz",
        }

    @pytest.mark.parametrize(
        "harm",
        [
            *("manifest very short", "table gone", "table very short"),
            *("list gone", "list very short"),
        ],
    )
    def test_what_cannot_be_read_is_replaced(self, job, harm):
        convert(job)
        kind, _, how = harm.partition(" ")
        HOW[how](file_of(job, kind))
        other = dataclasses.replace(job, plan=PlanOptions(kind="num_shards", value=4))
        with pytest.raises(GristmillError):
            convert(other)
        convert(other, overwrite=True)
        assert read_output(job.output) == RECORDS
        clean(job.output)
        assert len(list(pathlib.Path(job.output).glob("*record-*-of-*"))) == 4
        assert verify(job.output, workers=1).leftovers == ()


class TestOthers:
    """Files of other names, and of nobody that is known."""

    def test_a_stranger_is_not_overwritten(self, job):
        stranger = shard_file(job, 3)
        stranger.parent.mkdir()
        stranger.write_text("mine")
        with pytest.raises(InputError, match=str(stranger)):
            convert(job)
        assert contents(job.output) == {stranger.name: b"mine"}
        convert(job, overwrite=True)
        assert read_output(job.output) == RECORDS
        clean(job.output, unfinished=True)
        assert stranger.read_text() == "mine"

    @pytest.mark.parametrize("described", [b"", b"{}", None])
    def test_a_stranger_stays_beside_what_nobody_can_read(self, job, output, described):
        """Only a job of its own can have made a shard without an index."""
        storage = storage_for(output)
        mine = layout.join(output, layout.shard_name("data", "train", 0, 9))
        if described is not None:
            place = layout.join(output, layout.job_path("data", "train"))
            storage.write(place, described)
        convert(dataclasses.replace(job, output=output), overwrite=True)
        storage.write(mine, b"mine")
        clean(output, unfinished=True)
        assert storage.read(mine) == b"mine"

    @pytest.mark.parametrize("first", [True, False])
    @pytest.mark.parametrize("kind", ["beam", "inputs"])
    def test_shards_of_other_names_go_with_what_is_given_up(
        self, job, output, kind, first
    ):
        job = dataclasses.replace(job, output=output)
        if not first:
            convert(job)
        prefix = {"beam": {"prefix": "part"}, "inputs": {}}[kind]
        names = ShardNames(kind=kind, suffix=".ar", **prefix)
        plan = PlanOptions(kind="match_shards", value=None)
        other = dataclasses.replace(job, names=names, plan=plan)
        for task in shard_tasks(begin_job(other, overwrite=not first).prepared):
            make_shard(task)
        mine, storage = layout.join(output, "notes.ar"), storage_for(output)
        storage.write(mine, b"mine")
        if first:
            convert(job)
        clean(output, unfinished=True)
        assert storage.read(mine) == b"mine"
        storage.delete(mine)
        assert_whole(output)
        assert len(storage.list(output)) == SHARDS + 1
