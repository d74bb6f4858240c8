"""Columns that are being attached: killed, given up, and overtaken by others."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import (
    InvalidDatasetError,
)
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.commit.editions import without_replaced
from gristmill.dataset.commit.garbage import SplitFiles
from gristmill.dataset.metadata.column_table import (
    ColumnEntry,
    ColumnTable,
    column_entries,
    read_column_table,
)
from gristmill.dataset.metadata.manifest import open_manifest, read_table
from tests.support.columns import attach_numbers, examples
from tests.support.editions import files_of
from tests.support.removals import remove_from


@pytest.fixture
def output(tmp_path: pathlib.Path) -> str:
    return examples(tmp_path, [3, 4])


def test_columns_that_are_committed_after_another_commit_stay(
    tmp_path: pathlib.Path, output: str
) -> None:
    other = SplitFiles(
        output, open_manifest(output), "train"
    )  # It commits, then tidies.
    attach_numbers(output, tmp_path, 7)
    other.delete_garbage()
    assert loader.open(output).column("language")[:].tolist() == [
        "de" if number % 3 else "en" for number in range(7)
    ]


def test_states_that_are_kept_keep_their_columns(
    tmp_path: pathlib.Path, output: str
) -> None:
    attach_numbers(output, tmp_path, 7)
    remove_from(output, [0])
    # The columns of the state before go with it.
    assert len([path for path in files_of(output) if path.startswith("columns/")]) == 6
    split = open_manifest(output).splits["train"]
    parts = [*split.known.values()]
    assert [[*column_entries(part, output)] for part in parts] == [
        ["score", "language"]
    ] * 2
    assert without_replaced(split).parts == split.parts
    clean(output)
    assert len([path for path in files_of(output) if path.startswith("columns/")]) == 4
    assert loader.open(output).column("score")[:].tolist() == [
        n / 7 for n in range(1, 7)
    ]


def test_a_table_is_bound_to_its_shards(tmp_path: pathlib.Path, output: str) -> None:
    attach_numbers(output, tmp_path, 7)
    (part,) = open_manifest(output).splits["train"].parts
    entry = column_entries(part, output)["score"]
    shards = read_table(output, part)
    found = read_column_table(output, entry, shards)
    assert ColumnEntry.parse(entry.described()) == entry
    shards.columns["digest_low"][1] += 1
    with pytest.raises(InvalidDatasetError, match="attached to other records"):
        read_column_table(output, entry, shards)
    path = pathlib.Path(output) / entry.table
    data = path.read_bytes()
    for at in range(0, len(data), 7):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(InvalidDatasetError):
            read_column_table(output, entry)
    found.columns["records"] = found.columns["records"].astype(np.int32)
    with pytest.raises(InvalidDatasetError, match="damaged"):
        ColumnTable.decode(found.encode(), where="t")
    other = ColumnTable(
        paths=["../a"], columns={n: c[:1] for n, c in found.columns.items()}
    )
    other.columns["records"] = np.zeros(1, np.int64)
    with pytest.raises(InvalidDatasetError, match="outside of its own directory"):
        ColumnTable.decode(other.encode(), where="t")
