"""Columns: types of values, their files, and commands that change a dataset."""

import json
import pathlib

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset import (
    ColumnWriter,
    FormatVersionError,
    GristmillError,
    InvalidDatasetError,
    RecordsDigest,
    open_manifest,
)
from gristmill.dataset.columns.column_file import (
    NUMBERS,
    ColumnType,
    decode_column,
    encode_column,
)
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.commit.garbage import SplitFiles
from gristmill.dataset.metadata.column_table import (
    ColumnTable,
    column_entries,
    read_column_table,
)
from gristmill.pipelines.anywhere import verify
from tests.changes.changes import run
from tests.support.columns import attach_numbers, example, examples
from tests.support.editions import files_of
from tests.support.records import flip, frames_of
from tests.support.removals import remove_from


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


@pytest.mark.parametrize(
    ("dtype", "values"),
    [("float64", np.arange(40.0)), ("text", texts("a", "bc", "", "de"))],
)
def test_every_changed_byte_of_a_file_is_found(dtype, values):
    kind = ColumnType(dtype)
    records = RecordsDigest(records=len(values), raw_bytes=9, low=3, high=4)
    data = encode_column(kind, values, records)
    changed = [
        data[:n] + bytes([data[n] ^ 32]) + data[n + 1 :] for n in range(len(data))
    ]
    changed += [data[:n] for n in (0, 1, 60, len(data) - 1)]
    for wrong in (*changed, data + b"\0"):
        with pytest.raises((InvalidDatasetError, FormatVersionError)):
            decode_column(wrong, path="c", kind=kind, records=records)


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
        path = f"{output}/{name}"
        size_bytes = pathlib.Path(path).stat().st_size
        for at in (3, size_bytes // 2, size_bytes - 3):
            flip(path, at)
            with pytest.raises(GristmillError):
                values_of(output)
            assert verify(output, workers=1).findings
            flip(path, at)
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
    table = read_column_table(output, column_entries(part, output)["score"])
    outside = ColumnTable(paths=["../a", "b"], columns=table.columns)
    with pytest.raises(InvalidDatasetError, match="outside of its own directory"):
        ColumnTable.decode(outside.encode(), where="t").check_paths(where="t")


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


def test_states_that_are_kept_keep_their_columns(output):
    remove_from(output, [0])
    assert len(column_files(output)) == 6  # Of two states, one shard is of both.
    assert loader.open(output, edition=1).column("score")[0] == 0
    clean(output)
    assert len(column_files(output)) == 4
    assert values_of(output)[0] == [n / 11 for n in range(1, 11)]
