"""A split that is replaced: who reads, verifies or writes meanwhile, what is left."""

import functools
import pathlib

import apache_beam as beam
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import (
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
from gristmill.transforms.beam.write_arrayrecords import WriteArrayRecords
from tests.changes.changes import (
    NAME,
    append,
    assert_whole,
    begun_group,
    convert,
    files_with,
    found_by_verify,
    records_of,
    split_of,
    write,
    write_inputs,
)
from tests.support.conversion import job_of
from tests.support.open_files import files_of_at_most
from tests.support.pipelines import run
from tests.support.records import array_record_bytes
from tests.support.watched import at_storage

OLD, NEW, OTHER = ([b"<%s %d>" % (n, i) for i in range(9)] for n in (b"a", b"b", b"c"))
OUT = "gs://bucket/out"
FILE = "x.array_record"
Inputs = dict[str, str]


@pytest.fixture
def inputs(tmp_path):
    records = {"old": OLD, "new": NEW, "other": OTHER}
    return {name: write_inputs(tmp_path, name, r) for name, r in records.items()}


@pytest.fixture
def there(output, inputs):
    """A dataset of the old records."""
    convert(output, inputs["old"])
    return output


def by_beam(output, inputs, keep):
    given = {"name": NAME, "num_shards": 2, "overwrite": True, "keep_replaced": keep}
    run(beam.Create(NEW), WriteArrayRecords(output, **given))


def by_index(output, inputs, keep):
    folder, place = pathlib.Path(inputs["new"]).parent, f"{output}/{FILE}"
    data = array_record_bytes(NEW, options="group_size:1", folder=str(folder))
    storage_for(place).write(place, data)
    given = {"name": NAME, "split": "train", "overwrite": True, "keep_replaced": keep}
    index(IndexOptions(files=(place,), **given), workers=1)


MAKERS = {
    "convert": lambda out, given, keep: convert(
        out, given["new"], overwrite=True, keep=keep
    ),
    "writer": lambda out, given, keep: write(
        out, NEW, overwrite=True, keep_replaced=keep
    ),
    "parts": lambda out, given, keep: write(
        out, NEW, parts=2, overwrite=True, keep_replaced=keep
    ),
    "group": lambda out, given, keep: begun_group(
        out, NEW, overwrite=True, keep=keep
    )(),
    "index": by_index,
    "Beam": by_beam,
}


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("maker", MAKERS)
def test_what_is_replaced_is_kept_if_asked(there, inputs, maker, keep):
    MAKERS[maker](there, inputs, keep)
    split = split_of(there)
    assert sorted(states_of(split)) == ([1, 2] if keep else [2])
    assert sorted(records_of(there)) == NEW
    assert found_by_verify(there) == ([], [])
    if keep:
        assert records_of(there, 1) == OLD
    else:
        assert files_with(there, OLD) == []


@pytest.mark.parametrize("at", [".shards.npz", "dataset.json"])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("maker", [*MAKERS][:-1])
def test_of_two_at_once_the_later_is_told(
    output, inputs, monkeypatch, maker, first, at
):
    if not first:
        convert(output, inputs["old"])
    other = functools.partial(convert, output, inputs["other"], overwrite=True)
    if maker == "writer":  # Of the same id.
        other = functools.partial(write, output, OTHER, overwrite=True)
    at_storage(monkeypatch, "write", at, other)
    with pytest.raises((InputError, JobChangedError, StorageChangedError)) as told:
        MAKERS[maker](output, inputs, False)
    if maker == "convert":
        assert "gristmill inspect" in str(told.value)
        assert "gristmill clean" in str(told.value)
    assert found_by_verify(output)[0] == []
    clean(output, unfinished=True)
    split = assert_whole(output, OTHER)
    assert split.numbers == (1 if first else 2,)


def test_splits_of_one_command_are_replaced_and_made_at_once(there, inputs):
    jobs = [job_of(inputs["new"], there, name=NAME, split=s) for s in ("train", "more")]
    run_conversion(jobs, overwrite=True)
    assert_whole(there, NEW)
    assert records_of(there, split="more") == NEW


def test_what_a_killed_commit_did_not_delete_any_command_deletes(
    there, inputs, monkeypatch
):
    def killed():
        raise KeyboardInterrupt

    at_storage(monkeypatch, "write", "dataset.json", killed, after=True)
    with pytest.raises(KeyboardInterrupt):
        convert(there, inputs["new"], overwrite=True)
    findings, leftovers = found_by_verify(there)
    assert findings == []
    assert f"{NAME}-train.array_record-00001-of-00002" in leftovers
    convert(there, inputs["other"], split="more")
    assert_whole(there, NEW)


@pytest.mark.slow
def test_what_cannot_be_deleted_the_next_command_deletes(server, inputs):
    convert(OUT, inputs["old"])
    shard = f"out/{NAME}-train.array_record-00001-of-00002"
    server.fail("403", "delete", times=1, name=shard)
    convert(OUT, inputs["new"], overwrite=True)
    assert files_with(OUT, OLD)
    convert(OUT, inputs["new"])
    assert files_with(OUT, OLD) == []
    assert_whole(OUT, NEW)


@pytest.mark.parametrize("begun", [False, True])
def test_a_reader_of_what_is_deleted_is_told_by_what_it_was_replaced(
    there, inputs, begun
):
    held = loader.open(there, verify="never", cache_dir="")
    if begun:
        assert held.read([0]) == OLD[:1]
    convert(there, inputs["new"], overwrite=True)
    if begun and "://" not in there:  # The shard is open.
        assert held.read([0]) == OLD[:1]
        return
    with pytest.raises(ReplacedError) as caught:
        held.read([0])
    assert "expected: edition 1, sha256:" in str(caught.value)
    assert "got:      edition 2, made by gristmill" in str(caught.value)


@pytest.mark.parametrize("quick", [True, False])
def test_a_verification_that_is_overtaken(there, inputs, quick, monkeypatch):
    """It has read `dataset.json`, and looks at the files afterwards."""
    other = functools.partial(convert, there, inputs["new"], overwrite=True)
    at_storage(monkeypatch, "read", ".shards.npz", other, after=True)
    with pytest.raises(InvalidDatasetError, match="changed while it was verified"):
        verify(there, quick=quick, workers=1)
    assert verify(there, quick=quick, workers=1).findings == ()


def test_a_lost_dataset_json_gives_up_what_was_at_work(there, inputs):
    """Nobody knows what it held: its files go."""
    place = f"{there}/dataset.json"

    def lose():
        before = storage_for(place).stat(place)
        assert before is not None
        storage_for(place).write(place, b"{", replaces=before.version)
        convert(there, inputs["new"], overwrite=True)

    with pytest.raises(JobChangedError, match="given up"):
        append(there, inputs["other"], meanwhile=lose)
    assert found_by_verify(there)[0] == []
    clean(there)
    assert_whole(there, NEW)


def test_a_disk_that_fills_up(tmp_path, inputs):
    output = str(tmp_path / "out")
    convert(output, inputs["old"])
    with files_of_at_most(10_000), pytest.raises(StorageError, match="too large"):
        convert(output, inputs["new"], overwrite=True)
    assert records_of(output) == OLD
    convert(output, inputs["new"], overwrite=True)
    assert_whole(output, NEW)


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), [(3, 3), (3, 9), (9, 3)])
def test_requests_for_each_shard(server, inputs, old, new):
    """The commit asks for nothing of a new shard; each old file is deleted once.

    One old index is read: it tells that the shards are no files that were indexed.
    """
    convert(OUT, inputs["old"], shards=old)

    def of_shards():
        return [kind for kind, name, _ in server.log if "array_record-" in name]

    def begin():
        server.requests.clear()
        server.log.clear()

    convert(OUT, inputs["new"], shards=new, overwrite=True, meanwhile=begin)
    assert of_shards().count("delete") == 2 * old
    assert len(of_shards()) == 2 * old + 1
    # Tables, descriptions and `dataset.json`, and listings.
    assert sum(server.requests.values()) - len(of_shards()) < 60
    convert(OUT, inputs["other"], shards=old, overwrite=True, keep=True)
    begin()
    roll_back(OUT, "train", 2)
    assert of_shards() == []
    assert_whole(OUT, NEW)
