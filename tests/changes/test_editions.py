"""Datasets of several editions, as every reader sees them."""

import dataclasses
import glob
import itertools
import pathlib
import pickle
import shutil

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset import InputError, InvalidDatasetError, Manifest, read_table
from gristmill.dataset.metadata import layout
from gristmill.pipelines.anywhere import index, verify
from gristmill.pipelines.options.job_options import IndexOptions
from tests.changes.changes import run, split_of
from tests.support.datasets import convert
from tests.support.records import text_records
from tests.support.told import told

EDITIONS = [
    [text_records(70, seed=1), text_records(31, seed=2)],
    [text_records(17, seed=3)],
    [text_records(9, seed=4), text_records(20, seed=5), text_records(3, seed=6)],
]
ALL = [record for edition in EDITIONS for file in edition for record in file]
ENDS = [*itertools.accumulate(sum(map(len, edition)) for edition in EDITIONS)]


def key_of(output, edition):
    """Returns the key by which the files of an edition are named."""
    return layout.write_key("train", split_of(str(output)).part(edition).write)


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """A dataset after each edition, as copies `1`, `2` and `3`; pickled before."""
    folder = tmp_path_factory.mktemp("grown")
    for edition, files in enumerate(EDITIONS, 1):
        convert(folder, files, edition=edition)
        shutil.copytree(folder / "out", folder / str(edition))
        pickled = pickle.dumps(loader.open(folder / "out"))
        (folder / f"{edition}.pickle").write_bytes(pickled)
    return folder


@pytest.fixture(scope="module")
def whole(grown):
    return str(grown / "3")


@pytest.fixture
def own(grown, tmp_path):
    """A dataset of three editions for one test."""
    return pathlib.Path(shutil.copytree(grown / "3", tmp_path / "own"))


def test_globs_find_all_shards_in_any_order_and_tfds_the_first_edition(whole):
    from tensorflow_datasets.core.naming import ShardedFileTemplate

    table = read_table(whole, split_of(whole))
    shards = [f"{whole}/{path}" for path in table.paths]
    given = {"dataset_name": "d", "split": "train", "filetype_suffix": "array_record"}
    template = ShardedFileTemplate(data_dir=whole, **given)
    assert sorted(glob.glob(str(template.glob_pattern()))) == shards[:2]
    for pattern in (f"{whole}/d-train*", f"{whole}/d-train.array_record*"):
        assert sorted(glob.glob(pattern)) == sorted(shards)
    records = loader.ArrayRecordDataSource(shards)
    assert [records[i] for i in range(len(records))] == ALL


@pytest.mark.parametrize("edition", [1, 2, 3])
def test_an_edition_is_what_the_dataset_was(grown, whole, edition):
    then, now = loader.open(grown / str(edition)), loader.open(whole, edition=edition)
    pickled = pickle.loads((grown / f"{edition}.pickle").read_bytes())
    assert [*now] == [*then] == [*pickled] == ALL[: ENDS[edition - 1]]
    assert now.facts == then.facts == pickled.facts
    assert now.facts.edition == edition
    orders = [
        loader.global_batches(one, batch_size=16, seed=3).indices(1_000)
        for one in (then, now)
    ]
    assert np.array_equal(*orders)
    shown = run(f"head {whole} -n 999 --edition {edition} --raw")
    assert shown.partition("next:")[0] == " ".join(b"".join(now).decode().split())


@pytest.mark.parametrize("edition", [0, 4, -1, "1", 1.5])
def test_editions_that_there_are_not(whole, edition):
    with pytest.raises(InputError, match=r"(?s)edition of split.*expected: an integer"):
        loader.open(whole, edition=edition)


def test_what_was_lost_is_indexed_as_one_split(own):
    key = key_of(own, 3)
    lost = own / layout.shard_name("d", key, 1, 3)
    for left in (True, False):
        shutil.rmtree(own / "index")
        (own / "dataset.json").unlink()
        if left:
            index(IndexOptions(files=(str(own),)))
            assert sorted(loader.open(own)) == sorted(ALL)
    lost.unlink()
    with told(InputError, "not all shards", f"split {key}\n  expected: 3 files"):
        index(IndexOptions(files=(str(own),)))


def test_verify_names_the_table_of_an_edition(own):
    path = layout.table_path("d", key_of(own, 2))
    (own / path).unlink()
    result = verify(str(own))
    assert [finding.path for finding in result.findings] == [path]
    assert result.shards == 5  # The others are read.


def test_a_shard_in_two_editions(own):
    split = split_of(str(own))
    second = dataclasses.replace(split.editions[1], edition=4, write="f" * 16)
    twice = type(split).of_editions([*split.editions, second])
    changed = Manifest(name="d", splits={"train": twice})
    (own / "dataset.json").write_bytes(changed.encode())
    found = verify(str(own)).findings
    assert any("shard of two splits" in str(finding) for finding in found)
    with pytest.raises(InvalidDatasetError, match="lists a file twice"):
        loader.open(own)
