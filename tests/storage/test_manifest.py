"""dataset.json: what comes back, what later versions add, and lies that are refused."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset.base.errors import (
    FormatVersionError,
    GristmillError,
    InvalidDatasetError,
    NotADatasetError,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import (
    Manifest,
    open_manifest,
    read_manifest,
    read_table,
)
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.metadata.tfds import parse_info
from tests.feed.json_changes import changes
from tests.support.datasets import convert
from tests.support.records import frames_of, text_records, write_array_records
from tests.support.shards import report

SECOND, THIRD = (f"train.{number:016d}" for number in (2, 3))


def table_of(shards: int) -> ShardTable:
    return ShardTable.of([report(shard) for shard in range(shards)])


def split_of(count: int, /, number: int = 1, **changes: Any) -> Split:
    """Returns a split of one write."""
    table, write = table_of(count), f"{number:016d}" if number > 1 else ""
    split = Split.of_table(
        table,
        table.encode(),
        path=layout.table_path("c4", layout.write_key("train", write)),
        writer_options="group_size:1,zstd:3,max_parallelism:1",
        source={"patterns": ["in/*.tfrecord"], "options": {"map": None}},
    )
    return dataclasses.replace(split, edition=number, write=write, **changes)


# Writes of one, two and three shards.
PARTS = [split_of(number, number) for number in (1, 2, 3)]
GROWN = dataclasses.replace(
    Split.of_editions([PARTS[2], PARTS[1]], extra={"later": {"a": None}}),
    replaced=(Split.of_editions(PARTS), PARTS[0]),
    last_edition=7,
)
MANIFEST = Manifest(
    name="c4",
    splits={"train": GROWN, "test": split_of(1, features={"text": {"kind": "bytes"}})},
    created_by="gristmill 0.1.0",
    features={"text": {"dtype": "string"}},
    extra={"later": [1]},
)


def decode(data: bytes) -> Manifest:
    return Manifest.decode(data, where="c4/dataset.json")


@pytest.mark.parametrize(
    "splits",
    [
        MANIFEST.splits,
        {"train": split_of(2, source={"patterns": ["caf\udce9/\ud83d*", "tür"]})},
        {
            "train": dataclasses.replace(
                PARTS[1],
                removed={"edition": 1, "records": 2, "list": f"index/{SECOND}.npz"},
            )
        },
    ],
    ids=["editions", "not-utf8", "removed"],
)
def test_everything_comes_back(splits: dict[str, Split]) -> None:
    manifest = dataclasses.replace(MANIFEST, splits=splits)
    data = manifest.encode()
    assert decode(data) == manifest
    assert decode(data).encode() == data
    # Strict UTF-8 and plain JSON, whatever is in it.
    assert json.loads(data.decode("utf-8"))["format_version"] == 1


def test_writes_of_a_split() -> None:
    assert MANIFEST.editions.keys() == {SECOND, THIRD, "test"}
    assert MANIFEST.known.keys() == {"train", SECOND, THIRD, "test"}
    assert MANIFEST.find(THIRD) == PARTS[2]
    assert MANIFEST.find(f"train.{4:016d}") is None
    assert [*map(Split.of_editions(PARTS).edition_of, range(6))] == [1, 2, 2, 3, 3, 3]


def test_unknown_fields_survive_at_both_levels() -> None:
    document = json.loads(MANIFEST.encode())
    document["tags"] = ["a", {"b": 1}]
    document["extra"] = "not ours"
    document["splits"]["train"]["sealed"] = {"by": "x"}
    document["splits"]["test"]["extra"] = [1, 2]
    assert json.loads(decode(json.dumps(document).encode()).encode()) == document


def test_no_split_at_all() -> None:
    """What was begun was given up, and nothing is committed."""
    manifest = dataclasses.replace(
        MANIFEST, splits={}, spent=frozenset({"0123456789abcdef"})
    )
    assert decode(manifest.encode()) == manifest
    nothing = dataclasses.replace(manifest, spent=frozenset())
    with pytest.raises(InvalidDatasetError, match="no split"):
        decode(nothing.encode())


def changed(path: str, value: Any) -> bytes:
    """Returns a manifest with one value replaced, digest and all else kept."""
    place = document = json.loads(MANIFEST.encode())
    *parents, last = (int(part) if part.isdigit() else part for part in path.split("."))
    for parent in parents:
        place = place[parent]
    if value is ...:
        del place[last]
    else:
        place[last] = value(place[last]) if callable(value) else value
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("format", "other", "not one of gristmill's"),
        ("format", ..., "not one of gristmill's"),
        *(
            ("format_version", v, "another version")
            for v in (0, 2, None, True, "1", 1.5)
        ),
        *(("name", value, "name") for value in (..., "a/b")),
        ("name", 5, ""),
        ("splits", ..., "splits"),
        ("splits", [], ""),
        ("splits", {"a/b": {}}, "split name"),
        *(("splits.test", value, "") for value in (5, "text")),
        ("splits.test.records", ..., "records"),
        *(("splits.test.records", value, "count") for value in (-1, True, 1 << 62)),
        ("splits.test.records_digest", 5, "text"),
        ("splits.test.records_digest", "0" * 32, "content_digest"),
        *(("splits.test.source", value, "source") for value in ([], ...)),
        ("splits.test.features", ["text"], "features"),
        *(("splits.test.table", path, "outside") for path in ("../o.npz", "/etc/p")),
        *(
            ("splits.test.table", path, "or one that cannot be")
            for path in ("index/\ud800", "a\0b")
        ),
        ("splits.test.file_bytes", 0, "the file_bytes of dataset.json does not"),
        ("features", "text", ""),
        ("records", 44, "the records of dataset.json does not fit"),
        ("raw_bytes", ..., "the raw_bytes of dataset.json does not fit"),
        ("content_digest", ..., "content_digest"),
        ("splits.train.records", 1, "records of a split"),
        ("splits.train.records_digest", "0" * 32, "records_digest of a"),
        ("splits.train.editions", lambda old: old[::-1], "shards_digest of a split"),
        ("splits.train.editions", [], "table"),
        ("splits.train.editions", {}, "editions must be a list"),
        ("splits.train.editions", lambda old: [*old, None], "NoneType"),
        ("splits.train.shards", ..., "shards"),
        ("splits.train.last_edition", "x", "last_edition"),
        ("splits.train.replaced", {}, "replaced"),
        ("splits.train.replaced.1.records", -1, "must be a count"),
        ("splits.train.replaced.1.table", "../a.npz", "outside"),
        (
            "splits.train.editions.1",
            lambda old: old | {"editions": [old] * 2},
            "editions",
        ),
        ("splits.train.editions.1.table", ..., "table"),
        ("splits.train.editions.1.table", "../a.npz", "outside"),
        ("splits.train.editions.1.records", -1, "must be a count"),
        ("splits.train.editions.0.edition", 2, "have one number"),
        ("splits.train.editions.0.edition", True, "must be a count"),
        *(
            ("splits.train.editions.0.removed", value, "removed")
            for value in ([], {"edition": "1"})
        ),
    ],
)
def test_contradictions_are_refused(path: str, value: Any, says: str) -> None:
    with pytest.raises((InvalidDatasetError, FormatVersionError)) as caught:
        decode(changed(path, value))
    assert "c4/dataset.json" in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, MANIFEST.encode()[:-3]],
    ids=range(7),
)
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidDatasetError, match=r"dataset\.json is not"):
        decode(data)


def commit(root: pathlib.Path, **changes: Any) -> Split:
    split = split_of(3, **changes)
    (root / "index").mkdir(exist_ok=True)
    (root / split.table).write_bytes(table_of(3).encode())
    manifest = Manifest(name="c4", splits={"train": split})
    (root / layout.DATASET_JSON).write_bytes(manifest.encode())
    return split


def test_another_table_is_refused(tmp_path: pathlib.Path) -> None:
    split = commit(tmp_path)
    assert open_manifest(str(tmp_path)) == read_manifest(str(tmp_path))
    good = table_of(3).encode()
    assert read_table(str(tmp_path), split).encode() == good
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    for data in (good[:-1], good + b"\0", bytes(flipped), table_of(2).encode(), b""):
        (tmp_path / split.table).write_bytes(data)
        with pytest.raises(InvalidDatasetError, match=r"(?s)not the one.*crc32c"):
            read_table(str(tmp_path), split)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("shards", 4), ("raw_bytes", 5), ("skipped_regions", 5)),
        ("records_digest", "0" * 32),
    ],
)
def test_a_table_with_other_totals_is_refused(tmp_path, field: str, value: Any) -> None:
    split = commit(tmp_path, **{field: value})
    with pytest.raises(InvalidDatasetError, match="contradicts"):
        read_table(str(tmp_path), split)


# What is said of a path that holds no dataset: what is there, what to do.


def unfinished(path: pathlib.Path) -> None:
    (path / "index").mkdir(parents=True)
    (path / "index" / "c4-train.job.json").write_text("{}")


def with_neighbour(path: pathlib.Path) -> None:
    (path.parent / "raw-x").mkdir()


NO_DATASET: dict[str, tuple[Callable[[pathlib.Path], object], tuple[str, ...]]] = {
    "nothing": (lambda path: None, ("check the path; `gristmill convert`",)),
    "a directory": (pathlib.Path.mkdir, ("gristmill index",)),
    "unfinished": (unfinished, ("unfinished conversion", "gristmill convert")),
    "a typo": (with_neighbour, ("there is no such directory", "raw-x")),
    "TFRecord": (
        lambda path: path.write_bytes(frames_of([b"a"])),
        ("a file: TFRecord", "`gristmill convert`"),
    ),
    "zeros": (
        lambda path: path.write_bytes(b"\0" * 99),
        ("got:      a file\n", "give a directory"),
    ),
    "ArrayRecord": (
        lambda path: write_array_records(path, [b"a"]),
        ("a file: ArrayRecord", "`gristmill index`"),
    ),
}


@pytest.mark.parametrize(("make", "says"), NO_DATASET.values(), ids=NO_DATASET)
def test_no_dataset(tmp_path: pathlib.Path, make, says: tuple[str, ...]) -> None:
    path = tmp_path / "in" / "raw_x"
    path.parent.mkdir()
    make(path)
    with pytest.raises(NotADatasetError) as caught:
        open_manifest(str(path))
    for part in (f"where:    {path}", *says):
        assert part in str(caught.value)


# What a dataset says of itself, changed by somebody who also makes the sums fit.


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    files = [text_records(9, seed=1), text_records(5, seed=2), []]
    return pathlib.Path(convert(tmp_path_factory.mktemp("untrusted"), files))


@pytest.fixture(scope="module")
def document(place: pathlib.Path) -> dict[str, Any]:
    return json.loads((place / "dataset.json").read_bytes())


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
        for total in ("records", "raw_bytes", "file_bytes"):
            document[total] = sum(split[total] for split in document["splits"].values())
    return json.dumps(document).encode()


def use(place: pathlib.Path) -> None:
    """Does with a dataset what a trainer does, and shows what is shown of it."""
    dataset = loader.open(place)
    for each in (
        lambda: dataset[:],
        lambda: dataset.stored.offset_bytes(0),
        lambda: [dataset.shard(i) for i in range(dataset.facts.shards)],
        lambda: loader.global_batches(dataset, batch_size=2).locate(0, 1),
        lambda: (repr(dataset), dataset.facts),
    ):
        with contextlib.suppress(GristmillError):
            each()


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_changed_manifest_is_an_error_of_ours_or_can_be_used(
    place: pathlib.Path, document: dict[str, Any], data: st.DataObject
) -> None:
    (place / "dataset.json").write_bytes(sealed(data.draw(changes(document))))
    try:
        use(place)
    except GristmillError as e:
        # It can be printed, whatever it quotes.
        str(e).encode("utf-8", "backslashreplace")


TFDS_INFO = {
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


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_changed_description_of_tfds_is_an_error_of_ours_or_can_be_used(
    data: st.DataObject,
) -> None:
    text = json.dumps(data.draw(changes(TFDS_INFO))).encode()
    with contextlib.suppress(GristmillError):
        _, splits = parse_info(
            text,
            "dataset_info.json",
            "array_record",
            functools.partial(InvalidDatasetError, cure="none"),
        )
        for split in splits.values():
            assert len(split.files) == len(split.file_records)
