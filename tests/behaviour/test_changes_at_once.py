"""Changes of a dataset that meet at the worst moment: one is told, nothing is lost."""

from __future__ import annotations

import dataclasses
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
from gristmill.dataset.commit.roll_back import roll_back
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.index import index
from gristmill.pipelines.options.definitions import IndexOptions
from gristmill.pipelines.verify import verify
from gristmill.transforms.conversion.begin_job import begin_job
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.shard_tasks import make_shard, shard_tasks
from tests.support.conversion import convert, job_of
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
    [("link_all", ""), ("load", ".index"), ("write", ".shards.npz")],
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
    assert_whole(output, NEW)
    assert open_manifest(output).splits["train"].numbers == (2,)


def test_who_overwrites_where_a_first_commit_is_near(
    output: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No `dataset.json` could stop it yet: both have numbers of their own."""
    first = job_of(source_of(tmp_path, "old", OLD), output, name="d")
    second = job_of(source_of(tmp_path, "new", NEW), output, name="d")
    prepared = begin_job(first).prepared
    results = list(map(make_shard, shard_tasks(prepared)))
    begun = []

    def begin() -> None:
        begun.append(begin_job(second, overwrite=True).prepared)

    at_storage(monkeypatch, "write", "dataset.json", begin)
    commit_shards([first], results)
    assert records_of(output) == OLD
    assert verify(output, workers=1).findings == ()
    commit_shards([second], map(make_shard, shard_tasks(begun[0])))
    assert_whole(output, NEW)


@pytest.mark.parametrize("keep", [False, True])
def test_an_append_that_was_replaced_since_it_was_found_to_be_done(
    output: str, tmp_path: pathlib.Path, keep: bool
) -> None:
    write(output, [b"first"])
    key = layout.edition_key("train", 2)
    job = job_of(source_of(tmp_path, "new", OLD), output, name="d", split=key)
    convert(job)
    write(output, NEW, overwrite=True, keep_replaced=keep)
    before = files_of(output)
    with pytest.raises(TOLD, match="changed"):
        begin_job(job)
    assert files_of(output) == before


def test_an_append_whose_inputs_came_back_meanwhile(
    output: str, tmp_path: pathlib.Path
) -> None:
    write(output, [b"first"])
    key = functools.partial(layout.edition_key, "train")
    job = job_of(source_of(tmp_path, "new", NEW), output, name="d", split=key(2))
    convert(job)
    write(output, OLD, overwrite=True, keep_replaced=True)
    again = dataclasses.replace(job, split=key(4))
    results = list(map(make_shard, shard_tasks(begin_job(again).prepared)))
    roll_back(output, "train", 2)
    with pytest.raises(TOLD, match="another command has changed the split"):
        commit_shards([again], results)
    assert records_of(output) == [b"first", *NEW]
    assert verify(output, workers=1).findings == ()


def test_an_equal_writer_that_has_begun_to_delete_the_parts(
    output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a third command had the output: the marker is as it was before."""
    storage = storage_for(output)
    place = layout.join(output, layout.write_path("d", "train"))

    def other() -> None:
        found = storage.load(place)
        assert found is not None
        storage.write(place, found.data, replaces=found.version)
        parts = storage.list_tree(layout.temporary_dir(output, "d", "train"))
        (shard,) = (i for i in parts if i.path.endswith(".array_record"))
        storage.delete(shard.path)

    at_storage(monkeypatch, "link_all", "", other)
    with pytest.raises(JobChangedError, match="another write has taken over"):
        write(output, OLD)
    write(output, NEW, overwrite=True)
    assert_whole(output, NEW)


@pytest.mark.parametrize("shards", [1, 2])
def test_an_equal_writer_that_has_the_output_before_the_end(
    output: str, shards: int
) -> None:
    """A shard is gone by then, and all else is still there."""
    storage = storage_for(output)
    place = layout.join(output, layout.write_path("d", "train"))

    def write_and_lose() -> None:
        with Writer(output, name="d", records_per_shard=len(OLD) // shards) as writer:
            for record in OLD:
                writer.write(record)
            found = storage.load(place)
            assert found is not None
            storage.write(place, found.data, replaces=found.version)
            for info in storage.list_tree(layout.temporary_dir(output, "d", "train")):
                if info.path.endswith(".array_record"):
                    storage.delete(info.path)

    with pytest.raises(JobChangedError, match="another write has taken over"):
        write_and_lose()


@pytest.mark.parametrize("there", [False, True])
def test_who_takes_an_edition_that_another_one_is_about_to_commit(
    output: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """The other one commits once nothing more is looked at, before it is deleted."""
    if there:
        write(output, [b"first"])
    with Writer(output, name="d", part=0, parts=1, overwrite=True) as writer:
        for record in OLD:
            writer.write(record)
    job = job_of(source_of(tmp_path, "new", NEW), output, name="d")
    told = []

    def other() -> None:
        try:
            commit_parts(output, name="d", overwrite=True)
        except (*TOLD, InputError) as error:
            told.append(error)

    at_storage(monkeypatch, "delete_all", "tmp-d-train", other)
    prepared = begin_job(job, overwrite=True).prepared
    assert told
    commit_shards([job], map(make_shard, shard_tasks(prepared)))
    assert_whole(output, NEW)


def test_a_writer_that_was_killed_before_its_first_commit_is_repeated(
    output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        at_storage(patch, "write", "dataset.json", killed)
        with pytest.raises(KeyboardInterrupt):
            write(output, OLD)
    write(output, NEW)
    assert_whole(output, NEW)


class TestIndex:
    @pytest.fixture
    def files(self, tmp_path: pathlib.Path) -> str:
        for name, records in (("0", OLD), ("1", NEW)):
            write(str(tmp_path / name), records)
            (shard,) = (tmp_path / name).glob("*-00000-of-00001")
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
        key = layout.edition_key("train", 2)
        source = source_of(tmp_path, "more", [b"more"])
        job = job_of(source, files, name="d", split=key)
        begun, told = [], []

        def begin() -> None:
            try:
                begun.append(begin_job(job).prepared)
            except TOLD as error:
                told.append(error)

        if at is None:
            begin()
        else:
            at_storage(monkeypatch, "write", at, begin)
        self.index(f"{files}/1.array_record")
        assert len(told) == (at == "dataset.json")
        for prepared in begun:
            with pytest.raises(TOLD):
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

    def test_of_one_that_was_killed_it_is_repeated(self, files, monkeypatch):
        with monkeypatch.context() as patch:
            at_storage(patch, "write", "dataset.json", killed)
            with pytest.raises(KeyboardInterrupt):
                self.index(f"{files}/0.array_record")
        self.index(f"{files}/1.array_record")
        assert records_of(files) == NEW
        found = verify(files, workers=1)
        assert (found.findings, found.leftovers) == ((), ())
