"""The table of the kinds of files, which code and docs/reference/format.md share."""

from __future__ import annotations

import pathlib

import pytest

from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.layout import KINDS
from gristmill.dataset.storage.base import is_unfinished
from tests.support.columns import attach_numbers, examples
from tests.support.removals import remove_from

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "reference" / "format.md"
WRITE = "0123456789abcdef"
NAMES = {"NAME": "c4-en", "SPLIT": "train-a", "WRITE": WRITE, "COLUMN": "score"}
SHARD = f"c4-en-train-a.array_record-{WRITE}-00003-of-00064"
LIST = "part-00001-of-00004"
PARTS = {**NAMES, "LIST": LIST, "SHARD": SHARD, "KEY": "0123456789abcdef"}


def test_the_page_has_the_same_table() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text().splitlines()
        if line.startswith("| `")
    ]
    expected = [[f"`{kind.pattern}`", kind.what, kind.holds] for kind in KINDS]
    first = rows.index(expected[0])
    assert rows[first : first + len(KINDS)] == expected


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.pattern)
def test_a_path_is_of_one_kind(kind: layout.Kind) -> None:
    path = kind.path(**PARTS)
    found = kind.parse(path, NAME=PARTS["NAME"])
    assert found is not None
    assert found.items() <= PARTS.items()
    assert kind.path(**found) == path
    others = [one for one in KINDS if one is not kind and one.parse(path)]
    # Any name can be that of a shard which was indexed.
    assert [one for one in others if one is not layout.SHARD] == []
    assert path.startswith(kind.prefix(**PARTS))
    assert path.endswith(kind.suffix)


def test_splits_are_told_apart() -> None:
    path = layout.TABLE.path(NAME="c4", SPLIT="en-train")
    assert layout.TABLE.parse(path, NAME="c4", SPLIT="en-train")
    assert not layout.TABLE.parse(path, NAME="c4", SPLIT="train")
    assert not layout.TABLE.parse(path, NAME="c4-en", SPLIT="en-train")
    named = layout.parts_of("c4", f"train.{WRITE}")
    assert layout.TABLE.path(**named) == layout.table_path("c4", f"train.{WRITE}")


def test_what_holds_records_is_found_where_it_is_left() -> None:
    swept = {*layout.OF_SHARDS, layout.TEMPORARY, layout.UNFINISHED}
    assert {kind for kind in KINDS if kind.holds} <= swept


def test_storages_name_unfinished_files_so() -> None:
    path = layout.UNFINISHED.path(KEY="0123456789abcdef")
    assert is_unfinished(path)


def test_nothing_else_is_written(tmp_path: pathlib.Path) -> None:
    output = examples(tmp_path, [3, 4])
    attach_numbers(output, tmp_path, 7)
    remove_from(output, [2])
    for file in pathlib.Path(output).rglob("*"):
        path = file.relative_to(output).as_posix()
        found = [kind for kind in KINDS if kind.parse(path, NAME="d", SPLIT="train")]
        assert found or path in layout.DIRECTORIES, path
