"""Jobs that stopped half way, and what is found in the output by the next."""

import dataclasses
import os
import pathlib
import random
import shutil

import pytest

from gristmill import dataset
from gristmill.dataset import (
    FormatVersionError,
    GristmillError,
    InputError,
    JobChangedError,
    StorageChangedError,
    WriterOptions,
)
from gristmill.dataset.arrayrecord import shard_writer
from gristmill.dataset.arrayrecord.file_writer import with_versions
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.anywhere import index, verify
from gristmill.pipelines.options.job_options import IndexOptions
from gristmill.transforms import PackOptions, PlanOptions, ShardNames
from gristmill.transforms.conversion import take_output as take_output_module
from gristmill.transforms.conversion.begin import begin_job, list_inputs, plan_job
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.make_shards import (
    convert_shard,
    make_shard,
    shard_tasks,
)
from gristmill.transforms.conversion.take_output import take_output
from gristmill.transforms.jobs.conversion_job import load_prepared
from tests.support.conversion import (
    assert_whole,
    contents,
    convert,
    finished_shard,
    job_of,
    prepared_of,
    read_output,
)
from tests.support.records import frames_of
from tests.support.told import told
from tests.support.watched import at_storage

SHARDS = 6
ROWS = PackOptions(length=32, column="ids")


def records_of(seed):
    """Returns documents of very different lengths."""
    chance = random.Random(seed)
    lengths = [chance.choice((0, 5, 17, 40, 130)) for _ in range(100)]
    return [
        dataset.encode_example({"ids": [chance.randrange(1000) for _ in range(length)]})
        for length in lengths
    ]


RECORDS = [record for seed in range(3) for record in records_of(seed)]


@pytest.fixture
def inputs(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for seed in range(3):
        (folder / str(seed)).write_bytes(frames_of(records_of(seed)))
    return folder


@pytest.fixture
def job(inputs, tmp_path):
    return job_of(inputs, tmp_path / "out", plan=("num_shards", SHARDS))


def states(job, word=""):
    """Returns what would change if a file were written again."""
    return {
        str(path): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in pathlib.Path(job.output).rglob("*")
        if path.is_file() and word in path.name
    }


def file_of(job, kind):
    """Returns a file of the third shard, or of the whole job."""
    shard = layout.shard_name("data", "train", 2, SHARDS)
    found = {
        "shard": shard,
        "index": layout.index_path(shard),
        "segments": layout.segments_path(shard),
        "table": layout.table_path("data", "train"),
        "list": layout.inputs_path("data", "train"),
        "job": layout.job_path("data", "train"),
        "manifest": "dataset.json",
    }
    return pathlib.Path(job.output, found[kind])


def half_done(job):
    prepared = prepared_of(job)
    for shard in (0, 2, 5):
        convert_shard(prepared, shard)
    return job


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
LOST = [f"{kind} {how}" for kind in ("shard", "segments") for how in SEEN]
HARMS = [
    *((harm, False) for harm in (*(f"index {how}" for how in HOW), *LOST)),
    *(
        (harm, True)
        for harm in ("index gone", *LOST, *(f"table {how}" for how in SEEN))
    ),
]


@pytest.mark.parametrize(("harm", "committed"), HARMS)
def test_what_is_lost_is_made_again_and_all_else_stays(job, tmp_path, harm, committed):
    """By a crash of the program or of the machine, or by somebody since the commit."""
    kind, _, how = harm.partition(" ")
    job = dataclasses.replace(job, pack=ROWS if kind == "segments" else None)
    undisturbed = dataclasses.replace(job, output=str(tmp_path / "fresh"))
    manifest = convert(undisturbed).manifest
    if committed:
        convert(job)
    else:
        half_done(job)
    HOW[how](file_of(job, kind))
    kept = states(job, "-00000-of") | states(job, "-00005-of")
    if committed:
        assert verify(job.output, workers=1, quick=True).findings
    else:
        assert finished_shard(prepared_of(job), 2) is None
    assert convert(job).manifest.splits == manifest.splits
    assert kept.items() <= states(job).items()
    assert contents(job.output) == contents(undisturbed.output)
    assert begin_job(job).committed is not None


class TestUnfinished:
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

    def test_an_index_of_another_version_is_not_overwritten(self, job):
        path = file_of(half_done(job), "index")
        data = bytearray(path.read_bytes())
        data[8] += 1
        path.write_bytes(bytes(data))
        with pytest.raises(FormatVersionError):
            convert(job)

    @pytest.mark.parametrize("text", ["", "[]", '{"job": {"inputs": 3}}', None])
    def test_a_description_that_cannot_be_read(self, job, text):
        prepared_of(job)
        if text is None:
            file_of(job, "list").unlink()
        else:
            file_of(job, "job").write_text(text)
        convert(job)
        assert read_output(job.output) == RECORDS
        clean(job.output)
        assert file_of(job, "job").exists() == (text is None)
        assert_whole(job.output)


class TestChanged:
    """A run with other options or inputs than the unfinished one before it."""

    @pytest.mark.parametrize(
        ("change", "difference"),
        [
            ({"plan": PlanOptions(kind="num_shards", value=7)}, "shards, is 7 shards"),
            ({"writer": WriterOptions(group_size=2)}, "writer.group_size was 1, is 2"),
            ({"map": "os.path:basename"}, "map was None, is 'os.path:basename'"),
            ({"names": ShardNames(kind="beam", prefix="x")}, "names.kind was 'tfds'"),
            ({"pack": ROWS}, "pack was"),
        ],
        ids=str,
    )
    def test_options(self, job, change, difference):
        half_done(job)
        before, other = states(job, "record-"), dataclasses.replace(job, **change)
        (note,) = begin_job(other).notes
        assert difference in note
        assert f"gristmill clean --unfinished {job.output}" in note
        # The first one goes on, and what commits later is told.
        convert(job)
        assert before.items() <= states(job).items()
        with told(JobChangedError, "made with other options or inputs"):
            begin_job(other)
        clean(job.output, unfinished=True)
        assert_whole(job.output)

    @pytest.mark.parametrize(
        ("change", "difference"),
        [
            (lambda d: (d / "9").write_bytes(frames_of([b"x"])), "1 input file new: "),
            (lambda d: (d / "1").unlink(), "1 input file gone: "),
            (
                lambda d: (d / "1").write_bytes(frames_of([b"x"])),
                "1 input file changed: ",
            ),
        ],
        ids=["new", "gone", "changed"],
    )
    def test_inputs(self, job, inputs, change, difference):
        half_done(job)
        change(inputs)
        (note,) = begin_job(job).notes
        assert f"{difference}{inputs}/" in note

    def test_code_of_the_map_function(self, job, tmp_path, monkeypatch):
        monkeypatch.syspath_prepend(tmp_path)
        module = tmp_path / "map_that_changes.py"
        module.write_text("def keep(record):\n    return record\n")
        job = half_done(dataclasses.replace(job, map="map_that_changes:keep"))
        assert begin_job(job).notes == ()
        module.write_text("def keep(record):\n    return record + b'!'\n")
        assert "function was edited" in begin_job(job).notes[0]

    def test_a_process_that_lives_on_sees_what_changed(self, job):
        """Workers outlive a run: the description that they know can be an old one."""
        first = prepared_of(job)
        assert load_prepared(first.write).job.max_corrupt == 100
        prepared_of(dataclasses.replace(job, max_corrupt=7))
        assert load_prepared(first.write).job.max_corrupt == 7
        results = [make_shard(task) for task in shard_tasks(first)]
        convert(dataclasses.replace(job, writer=WriterOptions(group_size=3)))
        with told(StorageChangedError, "has changed the split while"):
            commit_shards([job], results)
        clean(job.output, unfinished=True)
        with told(JobChangedError, "another command has made the split"):
            load_prepared(first.write)
        shutil.rmtree(job.output)
        with told(JobChangedError, "got:      no such split"):
            make_shard(next(shard_tasks(first)))

    @pytest.mark.parametrize("same", [True, False])
    def test_a_newer_codec(self, job, inputs, monkeypatch, same):
        """What it made stays; where the inputs are others too, nothing is taken."""
        versions = WriterOptions(versions="gristmill:1,zstd-1.4.0")
        with monkeypatch.context() as patched:  # A version that is not installed.
            for module in (take_output_module, shard_writer):
                patched.setattr(module, "check_versions", lambda *_, **__: None)
            convert(dataclasses.replace(job, writer=versions))
        if not same:
            (inputs / "4").write_bytes(frames_of([b"more"]))
        # As the drop-in pipelines begin.
        taken = take_output(plan_job(job, list_inputs(job)), overwrite="changed")
        assert (taken.committed is not None) == same
        expected = versions if same else with_versions(WriterOptions())
        assert taken.prepared.job.writer == expected


class TestCommitted:
    """A run over a dataset that is there already."""

    def test_a_split_without_description_is_known_by_the_dataset(self, job):
        convert(job)
        file_of(job, "job").unlink()
        assert begin_job(job).committed is not None
        other = dataclasses.replace(job, writer=WriterOptions(group_size=4))
        with told(JobChangedError, "would not make it"):
            convert(other)
        convert(other, overwrite=True)
        assert read_output(job.output) == RECORDS

    def test_a_split_that_was_indexed_since_is_not_what_was_converted(self, job):
        convert(job)
        lost, *shards = sorted(pathlib.Path(job.output).glob("*.array_record-*"))
        lost.unlink()
        files = tuple(map(str, shards))
        index(IndexOptions(files=files, split="train", overwrite=True), workers=1)
        with told(JobChangedError, "would not make it"):
            convert(job)


class TestOverwrite:
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
        stranger = file_of(job, "shard")
        stranger.parent.mkdir()
        stranger.write_text("mine")
        with pytest.raises(InputError, match=str(stranger)):
            convert(job)
        assert contents(job.output) == {stranger.name: b"mine"}

    @pytest.mark.parametrize(
        "names", [{"kind": "beam", "prefix": "p"}, {"kind": "inputs"}]
    )
    def test_shards_of_other_names_go_with_what_is_given_up(self, job, output, names):
        job = dataclasses.replace(job, output=output)
        plan = PlanOptions(kind="match_shards", value=None)
        named = ShardNames(suffix=".ar", **names)
        other = dataclasses.replace(job, names=named, plan=plan)
        for task in shard_tasks(begin_job(other).prepared):
            make_shard(task)
        mine, storage = layout.join(output, "notes.ar"), storage_for(output)
        storage.write(mine, b"mine")
        convert(job)
        clean(output, unfinished=True)
        assert storage.read(mine) == b"mine"
        storage.delete(mine)
        assert_whole(output)
        assert len(storage.list(output)) == SHARDS + 1


class TestRows:
    """A packed shard has a segment index beside it."""

    def test_a_segment_index_of_another_content_in_a_bucket(self, job, server):
        """A bucket keeps checksums: also one of the same size is not taken for it."""
        job = dataclasses.replace(job, output="gs://bucket/out", pack=ROWS)
        prepared = prepared_of(half_done(job))
        assert finished_shard(prepared, 2) is not None
        shard = layout.shard_name("data", "train", 2, SHARDS)
        path = f"{job.output}/{layout.segments_path(shard)}"
        storage = storage_for(path)
        damaged = storage.read(path)[::-1]
        storage.write(path, damaged)
        assert finished_shard(prepared, 2) is None
        convert(job)
        assert_whole(job.output)
        storage.write(path, damaged)
        # A listing tells: no file is read.
        (finding,) = verify(job.output, workers=1, quick=True).findings
        assert path.endswith(finding.path)
        assert finding.what == "segment index is not the file that was written"

    def test_inputs_whose_pattern_would_match_it(self, job, inputs, tmp_path):
        """The next run would take it for an input."""
        (tmp_path / "raw" / "index").mkdir(parents=True)
        shutil.copy(inputs / "0", tmp_path / "raw" / "index" / "a.segments")
        pattern = f"{tmp_path}/*/index/*.segments"
        with told(InputError, "the output lies among the inputs"):
            convert(dataclasses.replace(job, inputs=(pattern,), pack=ROWS))
