"""Columns: types of values, their files, and commands that change a dataset."""

import json
import pathlib

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset import (
    ColumnWriter,
    GristmillError,
    InvalidDatasetError,
    open_manifest,
)
from gristmill.dataset.columns.column_file import NUMBERS, ColumnType
from gristmill.dataset.commit.garbage import SplitFiles
from gristmill.dataset.metadata.column_table import (
    ColumnTable,
    column_entries,
    read_column_table,
    write_column_table,
)
from gristmill.pipelines.anywhere import verify
from tests.changes.changes import run
from tests.support.columns import attach_numbers, example, examples
from tests.support.editions import files_of
from tests.support.records import frames_of


@pytest.fixture
def output(tmp_path):
    found = examples(tmp_path, [5, 6])
    attach_numbers(found, tmp_path, 11)
    return found


def column_files(output):
    return [path for path in files_of(output) if path.startswith("columns/")]


def values_of(output):
    opened = loader.open(output)
    return [opened.column(name)[:].tolist() for name in ("score", "language")]


def texts(*values):
    out = np.empty(len(values), object)
    out[:] = values
    return out


def test_values_of_every_type_come_back(tmp_path):
    counts = [1, 0, 2_600]
    output, total = examples(tmp_path, counts), sum(counts)
    chance = np.random.default_rng(7)
    types = {"text": "text"}
    long = "x" * 50_000
    own = ["", "Gr\u00fc\u00dfe", "\0end\0", long, "\ud800"]
    values = {"text": texts(*own, *map(str, range(total - len(own))))}
    for kind in NUMBERS:
        for shape in ((), (3,), (2, 2), (0,)):
            name = f"{kind}_{len(types)}"
            types[name] = (kind, shape)
            most = 2 if kind == "bool" else 100
            values[name] = chance.integers(0, most, (total, *shape)).astype(kind)
    with ColumnWriter(output, types) as writer:
        writer.write(values)
    opened = loader.open(output)
    assert [*opened.columns] == [*types]
    for name, wanted in values.items():
        found = opened.column(name)[:]
        assert found.dtype == wanted.dtype, name
        assert np.array_equal(found, wanted), name


WRONG_TYPES = """\
{}
{"dtype": "complex64", "shape": []}
{"dtype": "float32", "shape": [-1]}
{"dtype": "float32", "shape": [1099511627776]}
{"dtype": "float32", "shape": [true]}
{"dtype": "text", "shape": [2]}
"""


@pytest.mark.parametrize("fields", WRONG_TYPES.splitlines())
def test_types_that_cannot_be(fields):
    with pytest.raises((ValueError, TypeError)):
        ColumnType.parse(json.loads(fields))


def test_a_changed_byte_of_any_file_is_found(output):
    for name in column_files(output):
        path = pathlib.Path(output, name)
        data = path.read_bytes()
        wrong = [
            data[:n] + bytes([data[n] ^ 32]) + data[n + 1 :]
            for n in range(len(name) % 3, len(data), 3)
        ]
        for changed in (*wrong, data[:-1], data[:60], b"", data + b"\0"):
            path.write_bytes(changed)
            with pytest.raises(GristmillError):
                values_of(output)
        assert verify(output, workers=1).findings
        path.write_bytes(data)
    assert verify(output, workers=1).findings == ()


def test_verify_names_what_is_wrong(output):
    (values,) = pathlib.Path(output).glob("columns/*00000-of-*.score-*")
    data = values.read_bytes()
    flipped = data[:-1] + bytes([data[-1] ^ 1])
    for changed, said, quick_code in (
        (data + b"\0", "column has the wrong size", 3),
        (flipped, "column is not the file that was written", 0),  # No file is read.
        (None, "column is missing", 3),
    ):
        values.unlink()
        if changed:
            values.write_bytes(changed)
        told = run(f"verify {output}", code=3)
        assert f"columns/{values.name}" in told
        assert said in told
        quick = run(f"verify {output} --quick", code=quick_code)
        assert (said in quick) == bool(quick_code)


def test_a_table_names_files_of_its_own_directory_only(output):
    (part,) = open_manifest(output).splits["train"].parts
    entry = column_entries(part, output)["score"]
    columns = read_column_table(output, entry).columns
    outside = ColumnTable(paths=["../a", "b"], columns=columns)
    about = entry.table, entry.kind, outside
    written = write_column_table(output, *about, source=entry.source)
    with pytest.raises(InvalidDatasetError, match="outside of its own directory"):
        read_column_table(output, written)


def test_appended_records_have_no_values(tmp_path, output):
    more = tmp_path / "more.tfrecord"
    more.write_bytes(frames_of([example(11), example(12)]))
    said = run(f"append {output} {more}")
    assert "edition 2 of train has no values of the columns language, score" in said
    shown = run(f"inspect {output}")
    assert "column score: float64" in shown
    assert "only of edition 1: attach it again" in shown
    attach_numbers(output, tmp_path, 13, overwrite=True)
    assert loader.open(output).column("score")[12] == 12 / 13
    assert "only of edition" not in run(f"inspect {output}")
    # Going back keeps the values of the edition.
    run(f"rollback {output} 1")
    assert loader.open(output).column("score")[10] == 10 / 13


def test_columns_that_are_committed_after_another_commit_stay(tmp_path):
    output = examples(tmp_path, [3, 4])
    # It commits, then tidies.
    other = SplitFiles(output, open_manifest(output), "train")
    attach_numbers(output, tmp_path, 7)
    other.delete_garbage()
    assert values_of(output)[0] == [n / 7 for n in range(7)]
