"""Files of editions that nothing names: which they are, and that all others stay."""

from __future__ import annotations

import dataclasses
import json

import pytest

from gristmill.dataset.base.errors import StorageMissingError
from gristmill.dataset.commit.editions import (
    rolled_back,
    with_write,
    without_replaced,
)
from gristmill.dataset.commit.garbage import SplitFiles
from gristmill.dataset.commit.write import Write
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest, read_table
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from tests.support.shards import report

NAME = "c4"


def mark_of(number: int) -> str:
    """Returns the id that is in the names of an edition: the first has plain names."""
    return f"{number:016x}" if number > 1 else ""


class Files:
    """A dataset's files, made up: what is in them does not matter, but tables."""

    def __init__(self, output: str):
        from gristmill.dataset.storage.lookup import storage_for

        self.output, self.storage = output, storage_for(output)

    def add(self, *paths: str) -> None:
        for path in paths:
            self.storage.write(layout.join(self.output, path), path.encode())

    def describe(self, number: int) -> None:
        path = layout.job_path(NAME, layout.write_key("train", mark_of(number)))
        description = json.dumps({"fingerprint": f"{number:016x}"})
        self.storage.write(layout.join(self.output, path), description.encode())

    def edition(self, number: int, *, kind: str = "tfds", **changes) -> Split:
        mark = mark_of(number)
        key = layout.write_key("train", mark)
        names = [
            layout.shard_name(NAME, key, shard, 2)
            if kind == "tfds"
            else f"part-{mark or 0}-{shard}.ar"
            for shard in range(2)
        ]
        reports = [
            dataclasses.replace(report(shard), path=name)
            for shard, name in enumerate(names)
        ]
        table = ShardTable.of(reports)
        split = Split.of_table(
            table,
            table.encode(),
            path=layout.table_path(NAME, key),
            writer_options="",
            source={"job": f"{number:016x}"},
            edition=number,
            write=mark,
        )
        for name in names:
            self.add(name, layout.index_path(name), layout.errors_path(name))
        self.describe(number)
        self.add(layout.inputs_path(NAME, key))
        path = layout.join(self.output, split.table)
        self.storage.write(path, table.encode())
        return dataclasses.replace(split, **changes)

    def all(self) -> set[str]:
        place = layout.join(self.output, "")
        return {
            info.path.removeprefix(place)
            for info in sorted(self.storage.scan(self.output, deep=True))
        }

    def garbage(self, split: Split, *given_up: int) -> list[str]:
        spent = frozenset(f"{number:016x}" for number in given_up)
        manifest = Manifest(name=NAME, splits={"train": split}, spent=spent)
        place = layout.join(self.output, "")
        steps = SplitFiles(self.output, manifest, "train").garbage()
        return [info.path.removeprefix(place) for step in steps for info in step]


@pytest.mark.parametrize("kind", ["tfds", "beam"])
def test_what_a_replacement_leaves_and_nothing_else(output: str, kind: str) -> None:
    files = Files(output)
    first = files.edition(1, kind=kind)
    old = files.all()
    second = files.edition(2, kind=kind)
    new = files.all() - old
    files.edition(3, kind=kind)  # A change that is not finished.
    strange = {"readme.txt", "index/other.index", "c4-test.array_record-00000-of-00001"}
    files.add(*strange)
    everything = files.all()
    assert not files.garbage(first)
    assert not files.garbage(Split.of_editions([first, second]))
    write = Write(output=output, name=NAME, split="train", base=1, replaces=True)
    kept = with_write(first, second, write, keep=True)
    assert not files.garbage(kept)
    found = files.garbage(without_replaced(kept), 1)
    assert {*found} == old
    # Whoever comes next finds all by the table.
    assert found[-1] == first.table
    assert {*files.garbage(rolled_back(kept, 1))} == set()
    assert {*files.garbage(without_replaced(rolled_back(kept, 1)), 2)} == new
    manifest = Manifest(
        name=NAME,
        splits={"train": without_replaced(kept)},
        spent=frozenset({first.source["job"]}),
    )
    SplitFiles(output, manifest, "train").delete_garbage()
    assert files.all() == everything - old
    SplitFiles(output, manifest, "train").delete_garbage()
    assert files.all() == everything - old


def test_shards_that_editions_share_stay(output: str) -> None:
    files = Files(output)
    first = files.edition(1)
    second = files.edition(2)
    # As after a removal: one shard is written again, the other one is shared.
    one, two = (read_table(output, split) for split in (first, second))
    shared = dataclasses.replace(two, paths=[two.paths[0], one.paths[1]])
    path = layout.join(output, second.table)
    files.storage.write(path, shared.encode())
    removed = {"edition": 1, "list": layout.removed_path(NAME, f"train.{mark_of(2)}")}
    split = Split.of_table(
        shared,
        shared.encode(),
        path=second.table,
        writer_options="",
        source={"job": f"{2:016x}", "file_list": layout.inputs_path(NAME, "train")},
        edition=2,
        write=mark_of(2),
    )
    split = dataclasses.replace(split, removed=removed)
    files.add(removed["list"])
    found = {*files.garbage(split, 1)}
    assert {path for path in found if one.paths[1] in path} == set()
    assert {one.paths[0], first.table, layout.job_path(NAME, "train")} <= found
    assert not found & {removed["list"], layout.inputs_path(NAME, "train")}


def test_nothing_is_deleted_where_a_table_cannot_be_read(output: str) -> None:
    files = Files(output)
    files.edition(1)
    second = files.edition(2)
    files.storage.delete(layout.join(output, second.table))
    with pytest.raises(StorageMissingError):
        [*files.garbage(second)]


def test_files_that_were_indexed_stay(output: str) -> None:
    files = Files(output)
    first = files.edition(1)
    second = files.edition(2, source={"indexed": 2})
    found = files.garbage(second, 1)
    assert {*found} == {
        first.table,
        *(path(NAME, "train") for path in (layout.job_path, layout.inputs_path)),
    }
