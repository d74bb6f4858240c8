"""Columns that are being attached: killed, given up, and overtaken by others."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import (
    InvalidDatasetError,
    JobChangedError,
    StorageChangedError,
)
from gristmill.dataset.columns.column_file import ColumnType, encode_column
from gristmill.dataset.commit.attached_split import Attachment
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.commit.commit import commit
from gristmill.dataset.commit.editions import without_replaced
from gristmill.dataset.commit.garbage import find_leftovers
from gristmill.dataset.commit.listings import Listings
from gristmill.dataset.commit.write import Write
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.column_table import (
    ColumnEntry,
    ColumnTable,
    column_entries,
    read_column_table,
    write_column_table,
)
from gristmill.dataset.metadata.manifest import Manifest, read_table
from gristmill.dataset.metadata.open_manifest import open_manifest
from tests.support.columns import attach_numbers, example, examples
from tests.support.editions import add_edition, files_of
from tests.support.removals import remove_from
from tests.support.watched import at_storage

KIND = ColumnType("int64")


@pytest.fixture
def output(tmp_path: pathlib.Path) -> str:
    return examples(tmp_path, [3, 4])


def attachment_to(output: str, key: str = "0", **options: Any) -> Attachment:
    split = open_manifest(output).splits["train"]
    mark = key * 16
    write = Write(output=output, name="d", split="train", id=mark, mark=mark, **options)
    return Attachment(
        write=write,
        editions={part.edition: part.shards_digest for part in split.parts},
        columns=("rank",),
    )


def write(attachment: Attachment) -> dict[int, dict[str, ColumnEntry]]:
    """Writes values and tables, as far as there is no commit."""
    made = {}
    first = 0
    for part in open_manifest(attachment.write.output).splits["train"].parts:
        shards, files = read_table(attachment.write.output, part), []
        for shard, path in enumerate(shards.paths):
            count = int(shards.records[shard])
            values = np.arange(first, first + count)
            data = encode_column(KIND, values, shards.digest(shard))
            files.append(attachment.publish(path, "rank", data))
            first += count
        table = ColumnTable.of(files, shards)
        path = attachment.table_path(layout.write_key("train", part.write), "rank")
        entry = write_column_table(
            attachment.write.output, path, KIND, table, source={"by": "test"}
        )
        made[part.edition] = {"rank": entry}
    return made


def leftovers(output: str) -> list[str]:
    found = find_leftovers(output, open_manifest(output), Listings(output))
    return sorted(found)


def test_a_killed_attachment_is_finished_or_given_up(output: str) -> None:
    whole = files_of(output)
    attachment = attachment_to(output)
    attachment.begin()
    made = write(attachment)
    # Killed here: neither readers nor other commands take notice.
    assert not loader.open(output).columns
    assert leftovers(output) == ["index/d-train.0000000000000000.job.json"]
    assert clean(output).files == 0
    assert len(files_of(output)) == len(whole) + 2 + 1 + 1
    shown = clean(output, unfinished=True, delete=False)
    done = clean(output, unfinished=True)
    assert done == shown
    assert done.files == 4
    assert files_of(output).keys() == whole.keys()
    with pytest.raises(JobChangedError, match="given up"):
        attachment.commit(made)
    again = attachment_to(output, "1")
    again.begin()
    again.commit(write(again))
    assert loader.open(output).column("rank")[:].tolist() == [*range(7)]
    assert not leftovers(output)


def test_who_is_given_up_at_the_commit_fails(
    output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attachment = attachment_to(output)
    attachment.begin()
    made = write(attachment)
    # It finds its description. Then another command deletes it.
    at_storage(
        monkeypatch,
        "stat",
        ".job.json",
        lambda: clean(output, unfinished=True),
        after=True,
    )
    with pytest.raises(JobChangedError):
        attachment.commit(made)
    assert not loader.open(output).columns
    assert not any("rank" in path for path in files_of(output))


def other_edition(folder: pathlib.Path, output: str) -> None:
    add_edition(folder, output, 2, [example(9)])


def other_column(folder: pathlib.Path, output: str) -> None:
    other = attachment_to(output, "1")
    other.begin()
    other.commit(write(other))


def fewer_records(folder: pathlib.Path, output: str) -> None:
    remove_from(output, [2])


def other_split(folder: pathlib.Path, output: str) -> None:
    def change(old: Manifest | None) -> Manifest:
        assert old is not None
        splits = {"test": old.splits["train"]}
        return dataclasses.replace(old, splits=splits)

    commit(output, change, delete=False)


@pytest.mark.parametrize(
    "change", [other_edition, other_column, fewer_records, other_split]
)
def test_a_split_that_others_change_is_refused(
    tmp_path: pathlib.Path, output: str, change: Callable[[pathlib.Path, str], None]
) -> None:
    attachment = attachment_to(output)
    attachment.begin()
    made = write(attachment)
    change(tmp_path, output)
    before = (pathlib.Path(output) / "dataset.json").read_bytes()
    with pytest.raises(StorageChangedError):
        attachment.commit(made)
    assert (pathlib.Path(output) / "dataset.json").read_bytes() == before


def test_other_columns_and_splits_may_be_attached_meanwhile(
    tmp_path: pathlib.Path, output: str
) -> None:
    attachment = attachment_to(output)
    attachment.begin()
    made = write(attachment)
    attach_numbers(output, tmp_path, 7)
    attachment.commit(made)
    assert [*loader.open(output).columns] == ["score", "language", "rank"]


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
