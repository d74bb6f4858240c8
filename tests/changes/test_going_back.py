"""Going back to earlier editions, and cleaning."""

import pytest

from gristmill.dataset import InputError, NotADatasetError, StorageMissingError
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.commit.commit import roll_back
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms import ShardNames
from tests.changes.changes import (
    C,
    append,
    assert_whole,
    convert,
    found_by_verify,
    records_of,
    split_of,
)
from tests.support.conversion import convert as convert_job
from tests.support.conversion import job_of
from tests.support.editions import files_of


@pytest.fixture
def replaced(output, inputs):
    """A dataset whose third edition has replaced two."""
    convert(output, inputs["a"])
    append(output, inputs["b"])
    convert(output, inputs["c"], overwrite=True, keep=True)
    return output


def test_where_nobody_can_go_back_to(replaced):
    for output, split, error, said in (
        (replaced, "train", InputError, "expected: edition 1, 2, 3"),
        (replaced, "test", InputError, "no such split"),
        (f"{replaced}/nothing", "train", NotADatasetError, "not a committed dataset"),
    ):
        with pytest.raises(error, match=said):
            roll_back(output, split, 4)
    lost = f"{replaced}/d-train.array_record-00000-of-00002"
    storage_for(lost).delete(lost)
    before = files_of(replaced)
    for edition in (1, 2):
        with pytest.raises(StorageMissingError, match="not there any more"):
            roll_back(replaced, "train", edition)
    assert files_of(replaced) == before


def test_what_no_edition_names_goes(replaced):
    before = files_of(replaced)
    told = {}
    found = clean(replaced, delete=False, seen=told.__setitem__)
    assert files_of(replaced) == before
    assert found.editions == (("train", 1), ("train", 2))
    assert clean(replaced) == found
    assert (found.files, found.file_bytes) == (len(told), sum(told.values()))
    after = files_of(replaced)
    assert before.keys() - after.keys() == told.keys()
    assert {name: len(before[name]) for name in told} == told
    assert_whole(replaced, C)
    assert clean(replaced).files == 0
    assert files_of(replaced) == after


def test_files_of_others_beside_those_of_commands_stay(replaced):
    split = split_of(replaced)
    first = "d-train.array_record-00000-of-00002"
    # Of a command that was killed, just after its commit or before.
    gone = [f"tmp-d-train.{split.write}/.0.tmp", "tmp-d-train/.0.tmp"]
    unfinished = f"tmp-d-train.{'0' * 16}/.0.tmp"
    stay = [
        *("tmp-d-train.old/a", "tmp-d-trains/a", "d-train.array_record-notes"),
        *(f"{first}.md5", f"errors/{first}.md5.jsonl"),
    ]
    for path in (*gone, unfinished, *stay):
        storage_for(replaced).write(f"{replaced}/{path}", b"{}")
    clean(replaced)
    assert {*gone, first}.isdisjoint(files_of(replaced))
    assert {*stay, unfinished} <= files_of(replaced).keys()
    clean(replaced, unfinished=True)
    assert unfinished not in files_of(replaced)
    assert {*stay} <= files_of(replaced).keys()


def test_nothing_goes_where_a_table_cannot_be_read(replaced):
    roll_back(replaced, "train", 2)
    split = split_of(replaced)
    storage_for(replaced).delete(f"{replaced}/{split.parts[0].table}")
    shards = {path for path in files_of(replaced) if ".array_record-" in path}
    with pytest.raises(StorageMissingError):
        clean(replaced)
    assert shards <= files_of(replaced).keys()


def test_shards_that_are_named_otherwise_go_too(tmp_path, output, inputs):
    """As the stand-ins for other functions name them: no write is in the name."""
    for name in "abc":
        names = ShardNames(kind="inputs", suffix=f"{name}.ar")
        plan = ("match_shards", None)
        convert_job(
            job_of(inputs[name], output, names=names, plan=plan), overwrite=True
        )
    (shard,) = (path for path in files_of(output) if path.endswith(".ar"))
    assert shard.endswith("c.ar")
    assert records_of(output) == C
    assert found_by_verify(output) == ([], [])
