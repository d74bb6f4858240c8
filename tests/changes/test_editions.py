"""Datasets of several editions, as every reader sees them."""

from __future__ import annotations

import dataclasses
import glob
import json
import pathlib
import pickle
import shutil

import numpy as np
import pytest
from click.testing import CliRunner

from gristmill import loader
from gristmill.dataset.base.errors import (
    InputError,
    InvalidDatasetError,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import (
    Manifest,
    open_manifest,
    read_table,
)
from gristmill.pipelines.anywhere import index, verify
from gristmill.pipelines.commands.main import cli
from gristmill.pipelines.options.job_options import IndexOptions
from tests.support.datasets import convert
from tests.support.records import frames_of, text_records

EDITIONS = [
    [text_records(70, seed=1), text_records(31, seed=2)],
    [text_records(17, seed=3)],
    [text_records(9, seed=4), text_records(20, seed=5), text_records(3, seed=6)],
]
RECORDS = [[r for file in edition for r in file] for edition in EDITIONS]
ALL = [record for records in RECORDS for record in records]
ENDS = np.cumsum([len(records) for records in RECORDS]).tolist()


def grow(folder: pathlib.Path, editions: int, *, first: int = 1) -> str:
    """Adds editions to a dataset, and returns its directory."""
    for edition in range(first, editions + 1):
        convert(folder, EDITIONS[edition - 1], edition=edition)
    return str(folder / "out")


def key_of(output: pathlib.Path, edition: int) -> str:
    """Returns the key by which the files of an edition are named."""
    part = open_manifest(str(output)).splits["train"].part(edition)
    return layout.write_key("train", part.write)


@pytest.fixture(scope="module")
def grown(tmp_path_factory) -> pathlib.Path:
    """A dataset after each edition, as copies: `1`, `2` and `3`."""
    folder = tmp_path_factory.mktemp("grown")
    for edition in (1, 2, 3):
        grow(folder, edition, first=edition)
        shutil.copytree(folder / "out", folder / str(edition))
    return folder


@pytest.fixture(scope="module")
def whole(grown) -> str:
    return str(grown / "3")


@pytest.fixture
def own(grown, tmp_path) -> pathlib.Path:
    """A dataset of three editions for one test."""
    return pathlib.Path(shutil.copytree(grown / "3", tmp_path / "own"))


class TestOnDisk:
    def test_globs_find_all_shards_in_any_order_and_tfds_the_first_edition(self, whole):
        from tensorflow_datasets.core.naming import ShardedFileTemplate

        table = read_table(whole, open_manifest(whole).splits["train"])
        shards = [f"{whole}/{path}" for path in table.paths]
        template = ShardedFileTemplate(
            data_dir=whole,
            dataset_name="d",
            split="train",
            filetype_suffix="array_record",
        )
        assert sorted(glob.glob(str(template.glob_pattern()))) == shards[:2]
        for pattern in (f"{whole}/d-train*", f"{whole}/d-train.array_record*"):
            assert sorted(glob.glob(pattern)) == sorted(shards)
        records = loader.ArrayRecordDataSource(shards)
        assert [records[i] for i in range(len(records))] == ALL


class TestReaders:
    @pytest.mark.parametrize("edition", [1, 2, 3])
    def test_an_edition_is_what_the_dataset_was(self, grown, whole, edition):
        then, now = (
            loader.open(grown / str(edition)),
            loader.open(whole, edition=edition),
        )
        assert list(now) == list(then) == ALL[: ENDS[edition - 1]]
        assert now.facts == then.facts
        assert now.facts.edition == edition
        orders = [
            loader.global_batches(d, batch_size=16, seed=3).indices(1_000)
            for d in (then, now)
        ]
        assert all((order == orders[0]).all() for order in orders)

    @pytest.mark.parametrize("edition", [1, 2, 3])
    def test_head_shows_an_edition(self, whole, edition, tmp_path):
        def head(path, *more):
            return CliRunner().invoke(cli, ["head", str(path), "-n", "999", *more])

        shown = head(whole, "--edition", str(edition), "--raw")
        assert shown.stdout_bytes == b"".join(ALL[: ENDS[edition - 1]])
        assert "no state of the split" in head(whole, "--edition", "9").output
        (tmp_path / "a").write_bytes(frames_of(ALL[:1]))
        refused = head(tmp_path / "a", "--edition", "1")
        assert "--edition is for a dataset only" in refused.output

    @pytest.mark.parametrize("edition", [0, 4, -1, "1", 1.5])
    def test_editions_that_there_are_not(self, whole, edition):
        with pytest.raises(InputError, match="edition of split train of") as caught:
            loader.open(whole, edition=edition)
        assert "expected: an integer" in str(caught.value)

    def test_index_makes_one_split_of_them_again(self, own):
        shutil.rmtree(own / "index")
        (own / "dataset.json").unlink()
        index(IndexOptions(files=(str(own),)))
        dataset = loader.open(own)
        assert sorted(dataset) == sorted(ALL)
        assert dataset.facts.edition == 1

    def test_index_misses_a_shard_of_an_edition(self, own):
        key, mark = key_of(own, 3), key_of(own, 3).partition(".")[2]
        (own / f"d-train.array_record-{mark}-00001-of-00003").unlink()
        (own / "dataset.json").unlink()
        with pytest.raises(InputError, match="not all shards") as caught:
            index(IndexOptions(files=(str(own),)))
        assert f"split {key}\n  expected: 3 files" in str(caught.value)


class TestWhileItGrows:
    def test_a_pickled_dataset_stays_at_its_edition(self, tmp_path):
        dataset = loader.open(grow(tmp_path, 1))
        pickled = pickle.dumps(dataset)
        second = grow(tmp_path, 2, first=2)
        assert list(pickle.loads(pickled)) == RECORDS[0]
        pickled = pickle.dumps(loader.open(second))
        grow(tmp_path, 3, first=3)
        again = pickle.loads(pickled)
        assert (again.facts.edition, list(again)) == (2, RECORDS[0] + RECORDS[1])


class TestState:
    def stream(self, batches, state=None):
        feed = batches.feed(host=(0, 1))
        if state is not None:
            feed.set_state(state)
        return list(feed)

    @pytest.mark.parametrize("mixed", [False, True])
    @pytest.mark.parametrize("edition", [1, 2])
    def test_it_resumes_on_its_edition(self, grown, whole, edition, mixed):
        def batches_of(path):
            dataset, other = loader.open(path), loader.open(grown / "1")
            return loader.global_batches(
                {"grown": dataset, "other": other} if mixed else dataset,
                batch_size=8,
                seed=2,
                epochs=2,
            )

        then = batches_of(grown / str(edition))
        feed = then.feed(host=(0, 1), start_step=5)
        state = json.loads(json.dumps(feed.get_state()))
        assert state["phases"][0]["datasets"][0]["edition"] == edition
        assert self.stream(batches_of(whole), state) == self.stream(then)[5:]


class TestVerify:
    @pytest.mark.parametrize("edition", [1, 2, 3])
    def test_a_table_that_is_lost(self, own, edition):
        path = layout.table_path("d", key_of(own, edition))
        (own / path).unlink()
        result = verify(str(own))
        assert [finding.path for finding in result.findings] == [path]
        assert result.shards == 6 - [2, 1, 3][edition - 1]  # The others are read.

    @pytest.mark.parametrize("quick", [True, False])
    def test_a_file_named_like_a_shard_of_an_edition(self, own, quick):
        key = key_of(own, 2)
        stray = layout.shard_name("d", key, 0, 9)
        (own / stray).touch()
        found = verify(str(own), quick=quick)
        assert (found.findings, found.leftovers) == ((), (stray,))

    def test_a_shard_in_two_editions(self, own):
        manifest = open_manifest(str(own))
        (split,) = manifest.splits.values()
        second = dataclasses.replace(split.editions[1], edition=4, write="f" * 16)
        twice = type(split).of_editions([*split.editions, second])
        changed = Manifest(name="d", splits={"train": twice})
        (own / "dataset.json").write_bytes(changed.encode())
        found = verify(str(own)).findings
        assert any("shard of two splits" in str(finding) for finding in found)
        with pytest.raises(InvalidDatasetError, match="lists a file twice"):
            loader.open(own)
