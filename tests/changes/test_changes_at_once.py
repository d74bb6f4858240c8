"""Changes of a dataset that meet at the worst moment: one is told, nothing is lost."""

from __future__ import annotations

import functools
import pathlib

import pytest

from gristmill import loader
from gristmill.dataset import (
    JobChangedError,
    StorageChangedError,
    Writer,
    commit_parts,
)
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.commit.commit import roll_back
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.pipelines.anywhere import index, verify
from gristmill.pipelines.options.job_options import IndexOptions
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.make_shards import make_shard, shard_tasks
from tests.support.conversion import job_of
from tests.support.editions import files_of
from tests.support.records import frames_of
from tests.support.removals import remove_from
from tests.support.watched import at_storage

TOLD = (JobChangedError, StorageChangedError)
OLD, NEW = [b"old %d" % i for i in range(9)], [b"new %d" % i for i in range(7)]


def records_of(output: str) -> list[bytes]:
    dataset = loader.open(output, "train", verify="never", cache_dir="")
    return dataset.read(range(len(dataset)))


def assert_whole(output: str, records: list[bytes]) -> None:
    found = verify(output, workers=1)
    assert (found.findings, found.leftovers) == ((), ())
    assert records_of(output) == records


def killed() -> None:
    raise KeyboardInterrupt


def write(output: str, records: list[bytes], **options: bool) -> None:
    with Writer(output, name="d", **options) as writer:
        for record in records:
            writer.write(record)


def source_of(folder: pathlib.Path, name: str, records: list[bytes]) -> pathlib.Path:
    inputs = folder / name
    inputs.mkdir()
    (inputs / "in.tfrecord").write_bytes(frames_of(records))
    return inputs


@pytest.mark.parametrize(
    ("operation", "place"),
    [("write", ".npz"), ("write", ".shards.npz"), ("write", "dataset.json")],
)
def test_of_two_equal_writers_one_commits(
    output: str, monkeypatch: pytest.MonkeyPatch, operation: str, place: str
) -> None:
    """Both take the same number, and give other records."""
    write(output, [b"first"])

    def other() -> None:
        write(output, NEW, overwrite=True)

    at_storage(monkeypatch, operation, place, other)
    with pytest.raises(TOLD):
        write(output, OLD, overwrite=True)
    clean(output, unfinished=True)
    assert_whole(output, NEW)
    assert open_manifest(output).splits["train"].numbers == (2,)


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("parts_first", [False, True])
def test_parts_of_a_writer_beside_a_conversion(
    output: str, tmp_path: pathlib.Path, there: bool, parts_first: bool
) -> None:
    """Both replace the split: who commits later is told."""
    if there:
        write(output, [b"first"])
    with Writer(output, name="d", part=0, parts=1, overwrite=True) as writer:
        for record in OLD:
            writer.write(record)
    job = job_of(source_of(tmp_path, "new", NEW), output, name="d")
    results = [*map(make_shard, shard_tasks(begin_job(job, overwrite=True).prepared))]
    commits = [
        functools.partial(commit_parts, output, name="d", overwrite=True),
        functools.partial(commit_shards, [job], results),
    ]
    first, later = commits if parts_first else commits[::-1]
    first()
    with pytest.raises((*TOLD, InputError)):
        later()
    assert verify(output, workers=1).findings == ()
    clean(output, unfinished=True)
    assert_whole(output, OLD if parts_first else NEW)


class TestIndex:
    @pytest.fixture
    def files(self, tmp_path: pathlib.Path) -> str:
        for name, records in (("0", OLD), ("1", NEW)):
            write(str(tmp_path / name), records)
            (shard,) = (tmp_path / name).glob("d-train.array_record-*")
            (tmp_path / "files").mkdir(exist_ok=True)
            shard.rename(tmp_path / f"files/{name}.array_record")
        return str(tmp_path / "files")

    def index(self, *files: str) -> None:
        given = IndexOptions(files=files, name="d", split="train", overwrite=True)
        index(given, workers=1)

    @pytest.mark.parametrize("at", [".shards.npz", "dataset.json"])
    @pytest.mark.parametrize("there", [False, True])
    def test_of_two_at_once_one_is_told(self, files, monkeypatch, there, at):
        if there:
            self.index(f"{files}/0.array_record")
        own, others = [f"{files}/{n}.array_record" for n in "01"], []

        def other() -> None:
            self.index(own[1])
            others.append(files_of(files)["dataset.json"])

        at_storage(monkeypatch, "write", at, other)
        with pytest.raises(TOLD):
            self.index(*own)
        assert files_of(files)["dataset.json"] == others[0]
        assert verify(files, workers=1).findings == ()
        assert records_of(files) == NEW

    @pytest.mark.parametrize("at", [None, ".shards.npz", "dataset.json"])
    def test_beside_an_append_one_is_told(self, files, tmp_path, monkeypatch, at):
        self.index(f"{files}/0.array_record")
        source = source_of(tmp_path, "more", [b"more"])
        job = job_of(source, files, name="d", appends=True)
        begun = []

        def begin() -> None:
            begun.append(begin_job(job).prepared)

        if at is None:
            begin()
        else:
            at_storage(monkeypatch, "write", at, begin)
        self.index(f"{files}/1.array_record")
        (prepared,) = begun
        with pytest.raises(TOLD, match="the split"):
            commit_shards([job], map(make_shard, shard_tasks(prepared)))
        assert verify(files, workers=1).findings == ()
        assert records_of(files) == NEW

    @pytest.mark.parametrize("there", [False, True])
    def test_after_one_that_was_killed_the_files_stay(self, files, monkeypatch, there):
        if there:
            write(files, OLD)
        with monkeypatch.context() as patch:
            at_storage(patch, "write", "dataset.json", killed)
            with pytest.raises(KeyboardInterrupt):
                self.index(f"{files}/0.array_record")
        before = files_of(files)["0.array_record"]
        for _ in range(2):
            write(files, NEW, overwrite=True)
            clean(files)
        assert records_of(files) == NEW
        assert files_of(files)["0.array_record"] == before

    def test_after_going_back_the_files_stay(self, files):
        write(files, OLD)
        names = [f"{files}/0.array_record", f"{files}/1.array_record"]
        before = [files_of(files)[pathlib.Path(name).name] for name in names]
        given = IndexOptions(
            files=names, name="d", split="train", overwrite=True, keep_replaced=True
        )
        index(given, workers=1)
        remove_from(files, [3])
        roll_back(files, "train", 1)
        clean(files)
        assert_whole(files, OLD)
        after = files_of(files)
        assert [after[pathlib.Path(name).name] for name in names] == before
        assert not any(name.startswith("d-train.array_record-e") for name in after)
