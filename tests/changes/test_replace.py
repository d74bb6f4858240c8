"""A split that is replaced: who reads, verifies or writes meanwhile, what is left."""

import functools
import pathlib

import apache_beam as beam
import pytest

from gristmill import loader
from gristmill.dataset import (
    InputError,
    InvalidDatasetError,
    JobChangedError,
    ReplacedError,
    StorageChangedError,
    StorageError,
)
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.commit.commit import roll_back
from gristmill.dataset.metadata.manifest import states_of
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.anywhere import index, verify
from gristmill.pipelines.convert import convert as run_conversion
from gristmill.pipelines.options.job_options import IndexOptions
from gristmill.transforms import WriteArrayRecords
from tests.changes.changes import (
    NAME,
    A,
    B,
    C,
    Killed,
    append,
    assert_whole,
    begun_group,
    convert,
    files_with,
    found_by_verify,
    records_of,
    split_of,
    stop,
    write,
)
from tests.support.conversion import job_of
from tests.support.open_files import files_of_at_most
from tests.support.pipelines import run
from tests.support.records import array_record_bytes
from tests.support.told import told
from tests.support.watched import at_storage

OUT = "gs://bucket/out"
FILE = "x.array_record"


def by_beam(output, b, keep):
    given = {"name": NAME, "num_shards": 2, "overwrite": True, "keep_replaced": keep}
    run(beam.Create(B), WriteArrayRecords(output, **given))


def by_index(output, b, keep):
    folder, place = str(pathlib.Path(b).parent), f"{output}/{FILE}"
    data = array_record_bytes(B, options="group_size:1", folder=folder)
    storage_for(place).write(place, data)
    given = {"name": NAME, "split": "train", "overwrite": True, "keep_replaced": keep}
    index(IndexOptions(files=(place,), **given), workers=1)


def by_writer(output, b, keep, parts=0):
    write(output, B, parts=parts, overwrite=True, keep_replaced=keep)


MAKERS = {
    "convert": lambda out, b, keep: convert(out, b, overwrite=True, keep=keep),
    "writer": by_writer,
    "parts": functools.partial(by_writer, parts=2),
    "group": lambda out, b, keep: begun_group(out, B, overwrite=True, keep=keep)(),
    "index": by_index,
    "Beam": by_beam,
}


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("maker", MAKERS)
def test_what_is_replaced_is_kept_if_asked(there, b, maker, keep):
    MAKERS[maker](there, b, keep)
    split = split_of(there)
    assert sorted(states_of(split)) == ([1, 2] if keep else [2])
    assert sorted(records_of(there)) == B
    assert found_by_verify(there) == ([], [])
    if keep:
        assert records_of(there, 1) == A
    else:
        assert files_with(there, A) == []


@pytest.mark.parametrize("at", [".shards.npz", "dataset.json"])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("maker", [*MAKERS][:-1])
def test_of_two_at_once_the_later_is_told(
    output, a, b, c, monkeypatch, maker, first, at
):
    if not first:
        convert(output, a)
    other = functools.partial(convert, output, c, overwrite=True)
    if maker == "writer":  # Of the same id.
        other = functools.partial(write, output, C, overwrite=True)
    at_storage(monkeypatch, "write", at, other)
    with pytest.raises((InputError, JobChangedError, StorageChangedError)) as caught:
        MAKERS[maker](output, b, False)
    if maker == "convert":
        assert "gristmill inspect" in str(caught.value)
        assert "gristmill clean" in str(caught.value)
    assert found_by_verify(output)[0] == []
    clean(output, unfinished=True)
    split = assert_whole(output, C)
    assert split.numbers == (1 if first else 2,)


def test_splits_of_one_command_are_replaced_and_made_at_once(there, b):
    jobs = [job_of(b, there, name=NAME, split=s) for s in ("train", "more")]
    run_conversion(jobs, overwrite=True)
    assert_whole(there, B)
    assert records_of(there, split="more") == B


def test_what_a_killed_commit_did_not_delete_any_command_deletes(
    there, b, c, monkeypatch
):
    at_storage(monkeypatch, "write", "dataset.json", stop, after=True)
    with pytest.raises(Killed):
        convert(there, b, overwrite=True)
    findings, leftovers = found_by_verify(there)
    assert findings == []
    assert f"{NAME}-train.array_record-00001-of-00002" in leftovers
    convert(there, c, split="more")
    assert_whole(there, B)


@pytest.mark.slow
def test_what_cannot_be_deleted_the_next_command_deletes(server, a, b):
    convert(OUT, a)
    shard = f"out/{NAME}-train.array_record-00001-of-00002"
    server.fail("403", "delete", times=1, name=shard)
    convert(OUT, b, overwrite=True)
    assert files_with(OUT, A)
    convert(OUT, b)
    assert files_with(OUT, A) == []
    assert_whole(OUT, B)


@pytest.mark.parametrize("begun", [False, True])
def test_a_reader_of_what_is_deleted_is_told_by_what_it_was_replaced(there, b, begun):
    held = loader.open(there, verify="never", cache_dir="")
    if begun:
        assert held.read([0]) == A[:1]
    convert(there, b, overwrite=True)
    if begun and "://" not in there:  # The shard is open.
        assert held.read([0]) == A[:1]
        return
    with told(
        ReplacedError,
        "expected: edition 1, sha256:",
        "got:      edition 2, made by gristmill",
    ):
        held.read([0])


@pytest.mark.parametrize("quick", [True, False])
def test_a_verification_that_is_overtaken(there, b, quick, monkeypatch):
    """It has read `dataset.json`, and looks at the files afterwards."""
    other = functools.partial(convert, there, b, overwrite=True)
    at_storage(monkeypatch, "read", ".shards.npz", other, after=True)
    with told(InvalidDatasetError, "changed while it was verified"):
        verify(there, quick=quick, workers=1)
    assert verify(there, quick=quick, workers=1).findings == ()


def test_a_lost_dataset_json_gives_up_what_was_at_work(there, b, c):
    """Nobody knows what it held: its files go."""
    place = f"{there}/dataset.json"

    def lose():
        before = storage_for(place).stat(place)
        assert before is not None
        storage_for(place).write(place, b"{", replaces=before.version)
        convert(there, b, overwrite=True)

    with told(JobChangedError, "given up"):
        append(there, c, meanwhile=lose)
    assert found_by_verify(there)[0] == []
    clean(there)
    assert_whole(there, B)


def test_a_disk_that_fills_up(tmp_path, a, b):
    output = str(tmp_path / "out")
    convert(output, a)
    with files_of_at_most(10_000), told(StorageError, "too large"):
        convert(output, b, overwrite=True)
    assert records_of(output) == A
    convert(output, b, overwrite=True)
    assert_whole(output, B)


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), [(3, 3), (3, 6), (6, 3)])
def test_requests_for_each_shard(server, a, b, c, old, new):
    """The commit asks for nothing of a new shard; each old file is deleted once.

    One old index is read: it tells that the shards are no files that were indexed.
    """

    def of_shards():
        return [kind for kind, name, _ in server.log if "array_record-" in name]

    def begin():
        server.requests.clear()
        server.log.clear()

    convert(OUT, a, shards=old)
    convert(OUT, b, shards=new, overwrite=True, meanwhile=begin)
    assert sorted(of_shards()) == ["delete"] * 2 * old + ["media"]
    # Tables, descriptions and `dataset.json`, and listings.
    assert sum(server.requests.values()) - len(of_shards()) < 60
    convert(OUT, c, shards=old, overwrite=True, keep=True)
    begin()
    roll_back(OUT, "train", 2)
    assert of_shards() == []
    assert_whole(OUT, B)
