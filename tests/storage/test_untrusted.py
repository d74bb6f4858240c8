"""What a dataset says of itself, changed by somebody who also makes the sums fit."""

import contextlib
import functools
import hashlib
import io
import json
import pathlib
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset.base.errors import GristmillError, InvalidDatasetError
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.tfds import parse_info
from tests.support.datasets import convert
from tests.support.json_changes import changes
from tests.support.records import text_records

FILES = [text_records(9, seed=1), text_records(5, seed=2), []]
TOTALS = (
    *("records", "raw_bytes", "file_bytes", "dropped_records", "added_records"),
    *("skipped_regions", "skipped_bytes"),
)
INFO = {
    "name": "d",
    "fileFormat": "array_record",
    "splits": [
        {
            "name": "train",
            "shardLengths": ["9", "5"],
            "numBytes": "100",
            "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        },
        {"name": "test", "shardLengths": ["3"]},
    ],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> pathlib.Path:
    return pathlib.Path(convert(tmp_path_factory.mktemp("untrusted"), FILES))


@pytest.fixture(scope="module")
def document(place: pathlib.Path) -> dict[str, Any]:
    return json.loads((place / "dataset.json").read_bytes())


@pytest.fixture(scope="module")
def table(place: pathlib.Path, document: dict[str, Any]) -> bytes:
    return (place / document["splits"]["train"]["table"]).read_bytes()


def sealed(document: Any) -> bytes:
    """Returns the text of a dataset.json whose sums and digest fit, if they can."""
    with contextlib.suppress(AttributeError, KeyError, TypeError):
        lines = [
            f"{name} {split['records']} {split['records_digest']} "
            f"{split['shards_digest']}\n"
            for name, split in sorted(document["splits"].items())
        ]
        text = "".join(lines).encode("utf-8", "surrogatepass")
        document["content_digest"] = "sha256:" + hashlib.sha256(text).hexdigest()
        for total in TOTALS[:3]:
            document[total] = sum(split[total] for split in document["splits"].values())
    return json.dumps(document).encode()


def read_all(place: pathlib.Path) -> None:
    """Does with a dataset what a trainer does, and shows what is shown of it."""
    dataset = loader.open(place)
    for use in (
        lambda: dataset[:],
        lambda: dataset.stored.offset_bytes(0),
        lambda: [dataset.shard(i) for i in range(dataset.facts.shards)],
        lambda: loader.global_batches(dataset, batch_size=2).locate(0, 1),
        lambda: (repr(dataset), dataset.facts),
    ):
        with contextlib.suppress(GristmillError):
            use()


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_changed_manifest_is_an_error_of_ours_or_can_be_used(
    place, document, table, data
):
    changed = data.draw(changes(document))
    (place / "dataset.json").write_bytes(sealed(changed))
    try:
        read_all(place)
    except GristmillError as e:
        # It can be printed, whatever it quotes.
        str(e).encode("utf-8", "backslashreplace")


@pytest.mark.parametrize("path", ["index/\ud800", "\ud800", "a\0b"])
def test_a_table_at_a_path_that_no_file_can_have_is_refused(document, path):
    changed = json.loads(json.dumps(document))
    changed["splits"]["train"]["table"] = path
    with pytest.raises(InvalidDatasetError, match="or one that cannot be"):
        Manifest.decode(sealed(changed), where="dataset.json")


@st.composite
def changed_columns(draw, columns: dict[str, Any]) -> dict[str, Any]:
    """Draws the columns of a table with one or two changes."""
    columns = {name: column.copy() for name, column in columns.items()}
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(sorted(columns)))
        column = columns[name]
        how = draw(st.sampled_from(["value", "value", "type", "shape", "drop", "ends"]))
        if how == "value" and column.size and column.dtype.kind in "iu":
            low, high = np.iinfo(column.dtype).min, np.iinfo(column.dtype).max
            values = [value for value in (0, 1, 2, 255, 2**62) if value <= high]
            at = draw(st.integers(0, column.size - 1))
            column.flat[at] = draw(st.sampled_from([*values, low, high]))
        elif how == "type":
            types = ["f8", "i4", "u1", "S5", "U3", "?", "M8[s]"]
            with np.errstate(invalid="ignore"):
                columns[name] = column.astype(draw(st.sampled_from(types)))
        elif how == "shape":
            columns[name] = column.reshape(1, *column.shape)
        elif how == "drop":
            del columns[name]
        elif how == "ends":
            flat = np.atleast_1d(column)
            columns[name] = draw(st.sampled_from([flat[:-1], np.append(flat, flat)]))
    return columns


PATHS = [
    *(b"\xff\xfe", "\ud800".encode("utf-8", "surrogatepass"), b"a\0", b"", b"../x"),
    *(b"dataset.json", b"index", b"a" * 5000, b"a\nb", b"gs://b/c", b"/etc/passwd"),
]


def write_table(place: pathlib.Path, document: Any, columns: dict[str, Any]) -> None:
    """Writes a table, and a dataset.json that says of it what it says of itself."""
    file = io.BytesIO()
    np.savez(file, **columns)
    data, changed = file.getvalue(), json.loads(json.dumps(document))
    split = changed["splits"]["train"]
    (place / split["table"]).write_bytes(data)
    split |= {"table_bytes": len(data), "table_crc32c": google_crc32c.value(data)}
    with contextlib.suppress(GristmillError):
        table = ShardTable.decode(data, where="table")
        split |= {
            "shards": len(table),
            "records_digest": table.digest().hex,
            "shards_digest": table.shards_digest,
            **{name: table.total(name) for name in TOTALS},
        }
    (place / "dataset.json").write_bytes(sealed(changed))


@given(data=st.data())
def test_a_changed_table_is_an_error_of_ours_or_can_be_used(
    place, document, table, data
):
    with np.load(io.BytesIO(table)) as columns:
        changed = data.draw(changed_columns(dict(columns)))
    write_table(place, document, changed)
    try:
        read_all(place)
    except GristmillError as e:
        str(e).encode("utf-8", "backslashreplace")
    finally:
        (place / document["splits"]["train"]["table"]).write_bytes(table)


@pytest.mark.parametrize("path", PATHS, ids=repr)
def test_a_table_with_strange_paths(place, document, table, path):
    with np.load(io.BytesIO(table)) as columns:
        names = [path, b"b", b"c"]
        changed = {
            **columns,
            "path_blob": np.frombuffer(b"".join(names), np.uint8),
            "path_ends": np.cumsum(list(map(len, names))).astype("<i8"),
        }
    write_table(place, document, changed)
    with pytest.raises(GristmillError) as raised:
        loader.open(place)[0]
    str(raised.value).encode("utf-8", "backslashreplace")
    (place / document["splits"]["train"]["table"]).write_bytes(table)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_changed_description_of_tfds_is_an_error_of_ours_or_can_be_used(data):
    text = json.dumps(data.draw(changes(INFO))).encode()
    with contextlib.suppress(GristmillError):
        _, splits = parse_info(
            text,
            "dataset_info.json",
            "array_record",
            functools.partial(InvalidDatasetError, cure="none"),
        )
        for split in splits.values():
            assert len(split.files) == len(split.file_records)
