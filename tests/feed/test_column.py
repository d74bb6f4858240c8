"""A column of an opened dataset, as an array."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import (
    InputError,
    InvalidDatasetError,
    ReplacedError,
)
from tests.servers.buckets import upload
from tests.servers.gcs_server import GcsServer
from tests.support.columns import attach, attach_numbers, example, examples
from tests.support.editions import add_edition
from tests.support.removals import remove_from

RECORDS = 9_000


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("column")
    found = examples(folder, [RECORDS - 10, 0, 10])
    attach_numbers(found, folder, RECORDS)
    return found


@pytest.mark.parametrize(
    "index",
    [
        0,
        -1,
        slice(None),
        slice(8_980, None, 3),
        slice(5, 2, -1),
        [8_999, 0, 4, 4, -2],
        [],
        np.array([[1], [2]]).ravel(),
        np.arange(RECORDS) % 1_000 == 7,
    ],
)
def test_it_is_indexed_as_an_array(output: str, index: Any) -> None:
    column = loader.open(output).column("score")
    whole = np.arange(RECORDS) / RECORDS
    assert np.array_equal(column[index], whole[index])
    assert (len(column), column.shape, column.dtype) == (RECORDS, (RECORDS,), "float64")
    assert repr(column) == "<Column score: float64 of 9,000 records>"


def test_editions_and_joined_datasets(tmp_path: pathlib.Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    output = examples(first, [4, 4])
    attach_numbers(output, first, 8)
    add_edition(first, output, 2, [example(n) for n in range(8, 10)])
    opened = loader.open(output)
    with pytest.raises(InputError, match="not all editions have the column") as caught:
        opened.column("score")
    assert "editions 1, 2" in str(caught.value)
    assert not opened.columns
    assert loader.open(output, edition=1).column("score")[-1] == 7 / 8
    attach_numbers(output, first, 10, overwrite=True)
    opened = loader.open(output)
    assert opened.column("score")[:].tolist() == [n / 10 for n in range(10)]
    first_values = loader.open(output, edition=1).column("score")[:]
    assert first_values.tolist() == [n / 10 for n in range(8)]
    other = examples(second, [5])
    attach_numbers(other, second, 5)
    both = loader.open([output, other])
    assert both.column("score")[[9, 10, 14]].tolist() == [0.9, 0.0, 0.8]
    numbers = {"id": [f"doc{n}" for n in range(5)], "score": [*range(5)]}
    attach(other, second, numbers, overwrite=True)
    with pytest.raises(InputError, match="joined datasets have the column 'score'"):
        loader.open([output, other]).column("score")
    with pytest.raises(InputError, match="has no column 'nothing'"):
        opened.column("nothing")


def test_removed_records_leave_their_values(tmp_path: pathlib.Path) -> None:
    output = examples(tmp_path, [5, 5, 5])
    attach_numbers(output, tmp_path, 15)
    remove_from(output, [0, 7, 8])
    left = [n / 15 for n in range(15) if n not in (0, 7, 8)]
    assert loader.open(output).column("score")[:].tolist() == left
    assert loader.open(output, edition=1).column("score")[7] == 7 / 15
    remove_from(output, [1], erase=True)  # Of those that are left: record 2.
    now = loader.open(output)
    assert now.column("score")[:].tolist() == [left[0], *left[2:]]
    with pytest.raises(InputError, match="is not there any more"):
        loader.open(output, edition=2)
    kept = [path.name for path in (pathlib.Path(output) / "columns").iterdir()]
    assert len(kept) == 2 * 3


def test_a_column_whose_edition_is_gone_says_so(tmp_path: pathlib.Path) -> None:
    """Also where another edition has what was attached with it."""
    output = examples(tmp_path, [5, 5])
    add_edition(tmp_path, output, 2, [example(n) for n in range(10, 12)])
    attach_numbers(output, tmp_path, 12)
    column = loader.open(output).column("score")
    remove_from(output, [0], erase=True)
    assert column[11] == 11 / 12
    with pytest.raises(ReplacedError, match="open the dataset again"):
        column[1]


def test_values_of_other_records_are_refused(tmp_path: pathlib.Path) -> None:
    outputs = []
    for name, counts in (("a", [5, 2]), ("b", [5, 3])):
        output = examples(tmp_path / name, counts)
        attach_numbers(output, tmp_path / name, sum(counts))
        outputs.append(pathlib.Path(output))
    mine, other = outputs
    # The files of another dataset's shard, in place of ours.
    (own,) = (mine / "columns").glob("*00001-of-00002.score-*")
    (theirs,) = (other / "columns").glob("*00001-of-00002.score-*")
    own.write_bytes(theirs.read_bytes())
    column = loader.open(mine).column("score")
    assert column[4] == 4 / 7
    with pytest.raises(InvalidDatasetError):
        column[5]
    # Its table, described by `dataset.json`.
    fields = json.loads((mine / "dataset.json").read_text())
    entry = fields["splits"]["train"]["columns"]["score"]
    given = json.loads((other / "dataset.json").read_text())
    entry |= given["splits"]["train"]["columns"]["score"]
    (mine / "dataset.json").write_text(json.dumps(fields))
    (mine / entry["table"]).write_bytes((other / entry["table"]).read_bytes())
    with pytest.raises(InvalidDatasetError, match="attached to other records"):
        loader.open(mine).column("score")
    entry["dtype"] = "complex"
    (mine / "dataset.json").write_text(json.dumps(fields))
    with pytest.raises(InvalidDatasetError, match="bad description of the column"):
        loader.open(mine).column("score")


@pytest.mark.parametrize("records", [5_000, 20_000])
def test_a_bucket_is_asked_once_for_each_shard(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    output = examples(tmp_path, [records // 2, 0, records // 2])
    attach_numbers(output, tmp_path, records)
    chance = np.random.default_rng(1)
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        upload(server, output, "out")
        column = loader.open("gs://bucket/out").column("score")
        asked = []
        for _ in range(3):
            server.requests.clear()
            wanted = chance.integers(0, records, 200)
            assert np.array_equal(column[wanted], wanted / records)
            asked.append(sum(server.requests.values()))
    # With the first bytes of a file come all of a small one.
    later = 2 if records > 5_000 else 0
    assert asked == [2 + later, later, later]
