"""Records that are removed: what is written again, what is kept, and who is told."""

import pathlib
import shutil

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset import (
    CorruptShardError,
    InputError,
    JobChangedError,
    RecordsDigest,
    StateMismatchError,
    StorageChangedError,
)
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.provenance.trace import locate_record
from gristmill.pipelines.removal import remove as run_removal
from gristmill.transforms.removal.cut_shard import cut_shard
from gristmill.transforms.removal.removal_job import begin_removal
from tests.changes.changes import (
    append,
    assert_whole,
    convert,
    records_of,
    run,
    split_of,
)
from tests.support.editions import files_of
from tests.support.records import (
    checksums,
    flip,
    frames_of,
    read_array_records,
    text_records,
)
from tests.support.told import told

OLD, NEW = text_records(60), text_records(25, seed=1)
FIRST = "d-train.array_record-00000-of-00004"


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    """The current folder, with the files `old` and `new`."""
    monkeypatch.chdir(tmp_path)
    for name, records in (("old", OLD), ("new", NEW)):
        (tmp_path / name).write_bytes(frames_of(records))
    return tmp_path


@pytest.fixture
def made(inputs, output):
    """A dataset of the old records in four shards."""
    convert(output, "old", shards=4)
    return output


@pytest.fixture
def here(inputs):
    """The same on a disk."""
    convert("out", "old", shards=4)
    return "out"


def remove(output, records, *, erase=False, **asked):
    return run_removal(output, {"records": records, **asked}, erase=erase, workers=1)


def without(records, *removed):
    return [record for n, record in enumerate(records) if n not in removed]


def test_only_shards_that_hold_some_are_written_again(made):
    before = files_of(made)
    result = remove(made, [3, 4, 59])
    split = assert_whole(made, without(OLD, 3, 4, 59))
    assert (result.records, result.editions) == (3, (2,))
    assert (result.cut_shards, result.shared_shards) == (2, 2)
    # The state before is kept, and nothing of it was touched.
    after = files_of(made)
    assert [n for n in before if before[n] != after[n]] == ["dataset.json"]
    assert {name for name in after.keys() - before.keys() if "/" not in name} == {
        f"d-train.array_record-{split.write}-0000{number}-of-00004" for number in (0, 3)
    }
    assert [state.edition for state in split.replaced] == [1]
    assert records_of(made, 1) == OLD


def test_the_ledger_adds_up(here):
    def digest_of(records):
        return RecordsDigest.of(checksums(records), np.array([*map(len, records)]))

    gone, base = [0, 17, 18, 44], split_of(here)
    result = remove(here, gone)
    split, own = split_of(here), [OLD[n] for n in gone]
    digest = digest_of(own)
    assert split.removed == {
        "edition": 1,
        "shards_digest": base.shards_digest,
        "records": 4,
        "raw_bytes": result.raw_bytes,
        "records_digest": digest.hex,
        "list": f"index/d-train.{split.write}.removed.npz",
        "request": split.removed["request"],
    }
    assert result.raw_bytes == digest.raw_bytes
    listed = np.load(f"{here}/{split.removed['list']}")
    singles = [digest_of([record]) for record in own]
    assert {name: values.tolist() for name, values in listed.items()} == {
        "version": 1,
        "records": gone,
        "digest_low": [one.low for one in singles],
        "digest_high": [one.high for one in singles],
    }


@pytest.mark.slow
def test_other_readers_read_the_files_that_inspect_names(inputs):
    import grain

    gone = [1, 2, 30, 31, 40]
    run("convert old out --num-shards=4 --group-size=16")
    remove("out", gone)
    listed = run("inspect out --files").split()
    source = grain.sources.ArrayRecordDataSource(listed)
    left = without(OLD, *gone)
    assert [source[n] for n in range(len(source))] == left
    assert [r for path in listed for r in read_array_records(path)] == left
    said = run("inspect out")
    assert "edition 2, by remove, of 5 records of edition 1: 55 records" in said
    assert "give the files that `gristmill inspect --files` prints" in said
    run("clean out")
    assert_whole("out", left)
    assert {*listed} == {*map(str, pathlib.Path("out").glob("*.array_record-*"))}


def test_numbers_that_there_are_not(here):
    for number in (-1, 60):
        with told(InputError, "no such record"):
            remove(here, [0, number])
    assert records_of(here) == OLD


def test_all_records_of_a_shard_and_of_an_edition(here):
    append(here, "new")
    first = loader.open(here).shard(1).first_record
    remove(here, [*range(first), *range(60, 85)])
    split = assert_whole(here, OLD[first:])
    assert [part.records for part in split.parts] == [60 - first, 0]


def test_the_same_numbers_are_removed_once_from_an_edition(here):
    remove(here, [3, 4])
    before = files_of(here)
    result = remove(here, [4, 3])
    assert (result.records, result.editions) == (0, ())
    assert files_of(here) == before
    with told(StateMismatchError, "not the newest"):
        remove(here, [3, 4], edition=1)
    append(here, "new")
    assert remove(here, [3, 4]).records == 0
    remove(here, [3, 4], edition=3)
    assert_whole(here, without(OLD, 3, 4, 5, 6) + NEW)
    assert remove(here, [3, 4], edition=3).records == 0


def test_no_command_brings_them_back_in_silence(here):
    append(here, "new")
    remove(here, [3, 61])
    for again in (lambda: convert(here, "old", shards=4), lambda: append(here, "new")):
        with told(JobChangedError, "records were removed"):
            again()
    assert_whole(here, without(OLD + NEW, 3, 61))
    said = run(f"convert old {here} --name=d --overwrite")
    assert "gets back the records that were removed" in said
    assert_whole(here, OLD)


@pytest.mark.slow
def test_what_a_conversion_left_out_is_known_afterwards(inputs):
    flip("old", 20)
    run("convert old out --num-shards=4 --name=d --on-corrupt=skip")

    def places():
        dataset = loader.open("out")
        found = [locate_record(dataset, n) for n in range(len(dataset))]
        return [place.source_offset_bytes for place in found]

    before = places()
    for erase in (False, True):
        remove("out", [2], erase=erase)
        assert places() == without(before, 2)
    split = assert_whole("out", without(OLD[1:], 2))
    (name,) = (path.name for path in (inputs / "out/errors").iterdir())
    assert name == f"d-train.array_record-{split.write}-00000-of-00004.jsonl"


def leave(output, records, *, shards):
    """Leaves a removal that was killed after some of its shards."""
    for task in [*begin_removal(output, records).tasks()][:shards]:
        cut_shard(task)


def test_shards_that_were_finished_are_kept(made):
    def versions():
        return {(info.path, info.version) for info in storage_for(made).list(made)}

    leave(made, [3, 30, 59], shards=2)
    before = versions()
    remove(made, [3, 30, 59])
    new = [path for path, _ in versions() - before]
    assert sum(".array_record" in path for path in new) == 1
    assert_whole(made, without(OLD, 3, 30, 59))


def test_of_two_removals_the_later_one_is_told(made):
    leave(made, [3, 59], shards=1)
    remove(made, [5])
    # The numbers are those of other records now.
    with told(StateMismatchError, "since this removal was begun"):
        remove(made, [59, 3])
    clean(made, unfinished=True)
    assert_whole(made, without(OLD, 5))


def test_it_is_told_of_what_replaced_the_split_before_its_tables_were_read(made):
    removal = begin_removal(made, [3, 59])
    convert(made, "new", overwrite=True)
    with told(StorageChangedError, "changed the split"):
        list(removal.tasks())
    assert records_of(made) == NEW


def test_damage_of_a_shard_that_is_cut_is_found(here):
    flip(f"{here}/{FIRST}", 700)
    with pytest.raises(CorruptShardError):
        remove(here, [0])
    assert split_of(here).edition == 1
    remove(here, [59])  # Of another shard.
    assert split_of(here).edition == 2


def test_a_shard_is_not_cut_by_the_index_of_other_records(inputs, here):
    (inputs / "old").write_bytes(frames_of([record[::-1] for record in OLD]))
    convert("other", "old", shards=4)
    shutil.copy(f"other/index/{FIRST}.index", f"{here}/index/{FIRST}.index")
    with pytest.raises(CorruptShardError):
        remove(here, [0])
    assert split_of(here).edition == 1
