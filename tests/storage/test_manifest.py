"""dataset.json: what comes back, what later versions add, and lies that are refused."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import pathlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset import (
    FeatureSpec,
    FormatVersionError,
    GristmillError,
    InvalidDatasetError,
    Manifest,
    NotADatasetError,
    ShardTable,
    Split,
    open_manifest,
    read_manifest,
    read_table,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.features import (
    encode_features,
    joined_descriptions,
    joined_features,
    parse_features,
)
from gristmill.dataset.metadata.tfds import parse_info
from gristmill.dataset.storage.local import LocalStorage
from tests.feed.json_changes import changes
from tests.support.datasets import convert
from tests.support.records import frames_of, text_records, write_array_records
from tests.support.shards import report
from tests.support.told import told

SECOND, THIRD = (f"train.{number:016d}" for number in (2, 3))


def table_of(shards):
    return ShardTable.of([report(shard) for shard in range(shards)])


def split_of(count, /, number=1, **changes):
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
REMOVED = {"edition": 1, "records": 2, "list": f"index/{SECOND}.npz"}


def decode(data):
    return Manifest.decode(data, where="c4/dataset.json")


@pytest.mark.parametrize(
    ("splits", "spent"),
    [
        (MANIFEST.splits, set()),
        (
            {"train": split_of(2, source={"patterns": ["caf\udce9/\ud83d*", "tür"]})},
            {"0123456789abcdef"},
        ),
        ({"train": dataclasses.replace(PARTS[1], removed=REMOVED)}, set()),
        # What was begun was given up, and nothing is committed.
        ({}, {"0123456789abcdef"}),
    ],
    ids=["editions", "not-utf8", "removed", "none"],
)
def test_everything_comes_back(splits, spent):
    manifest = dataclasses.replace(MANIFEST, splits=splits, spent=frozenset(spent))
    data = manifest.encode()
    assert decode(data) == manifest
    assert decode(data).encode() == data
    # Strict UTF-8 and plain JSON, whatever is in it.
    document = json.loads(data.decode("utf-8"))
    assert document["format_version"] == 1
    # What later versions add survives.
    document |= {"tags": ["a", {"b": 1}], "extra": "not ours"}
    for split in document["splits"].values():
        split |= {"sealed": {"by": "x"}, "extra": [1, 2]}
    assert json.loads(decode(json.dumps(document).encode()).encode()) == document


def changed(path, value):
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


# A field, the JSON that stands there (`-` is nothing), and what is said of it.
LIES = r"""
format                          "other" | -                 not one of gristmill's
format_version                  0 | 2 | null | true | "1"   another version
name                            - | "a/b" | 5
splits                          - | [] | {"a/b": {}}
splits                          {}                          no split
splits.test                     5 | "text"
splits.test.records             -                           records
splits.test.records             -1 | true | 5000000000000000000  count
splits.test.records_digest      5                           text
splits.test.records_digest      "00"                        content_digest
splits.test.source              [] | -                      source
splits.test.features            ["text"]                    features
splits.test.table               "../o.npz" | "/etc/p"       outside
splits.test.table               "index/\ud800" | "a\u0000"  or one that cannot be
splits.test.file_bytes          0               the file_bytes of dataset.json does not
features                        "text"
records                         44              the records of dataset.json does not fit
raw_bytes                       -               the raw_bytes of dataset.json does not
content_digest                  -                           content_digest
splits.train.records            1                           records of a split
splits.train.records_digest     "00"                        records_digest of a
splits.train.editions           []                          table
splits.train.editions           {}                          editions must be a list
splits.train.shards             -                           shards
splits.train.last_edition       "x"                         last_edition
splits.train.replaced           {}                          replaced
splits.train.replaced.1.records -1                          must be a count
splits.train.replaced.1.table   "../a.npz"                  outside
splits.train.editions.1         null                        NoneType
splits.train.editions.1.table   -                           table
splits.train.editions.1.table   "../a.npz"                  outside
splits.train.editions.1.records -1                          must be a count
splits.train.editions.0.edition 2                           have one number
splits.train.editions.0.edition true                        must be a count
splits.train.editions.0.removed [] | {"edition": "1"}       removed
"""


def lies():
    """Yields fields, values and messages of the table, and what no JSON says."""
    for line in LIES.strip().splitlines():
        path, rest = line.split(maxsplit=1)
        values, *says = re.split(" {2,}", rest)
        for value in values.split(" | "):
            yield path, ... if value == "-" else json.loads(value), *(says or [""])
    for change, says in (
        (lambda old: old[::-1], "shards_digest of a split"),
        (lambda old: [old[0], old[1] | {"editions": old}], "editions"),
    ):
        yield "splits.train.editions", change, says


@pytest.mark.parametrize(("path", "value", "says"), [*lies()])
def test_contradictions_are_refused(path, value, says):
    with told((InvalidDatasetError, FormatVersionError), "c4/dataset.json", says):
        decode(changed(path, value))


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, MANIFEST.encode()[:-3]],
    ids=range(7),
)
def test_other_files_are_refused(data):
    with pytest.raises(InvalidDatasetError, match=r"dataset\.json is not"):
        decode(data)


def test_another_table_is_refused(tmp_path):
    (tmp_path / "index").mkdir()
    good, root = table_of(3).encode(), str(tmp_path)

    def commit(**changes):
        split = split_of(3, **changes)
        (tmp_path / split.table).write_bytes(good)
        manifest = Manifest(name="c4", splits={"train": split})
        (tmp_path / layout.DATASET_JSON).write_bytes(manifest.encode())
        return split

    split = commit()
    assert open_manifest(root) == read_manifest(root)
    assert read_table(root, split).encode() == good
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    for data in (good[:-1], good + b"\0", bytes(flipped), table_of(2).encode(), b""):
        (tmp_path / split.table).write_bytes(data)
        with pytest.raises(InvalidDatasetError, match=r"(?s)not the one.*crc32c"):
            read_table(root, split)
    for wrong in (
        *({"shards": 4}, {"raw_bytes": 5}, {"skipped_regions": 5}),
        {"records_digest": "0" * 32},
    ):
        with pytest.raises(InvalidDatasetError, match="contradicts"):
            read_table(root, commit(**wrong))


# What is said of a path that holds no dataset: what is there, what to do.


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("nothing", "check the path; `gristmill convert`"),
        ("raw-x/a", "(?s)there is no such directory.*raw-x"),
        ("raw_x/.hidden", "gristmill index"),
        ("raw_x/index/c4-train.job.json", "(?s)unfinished conversion.*gristmill conv"),
        ("raw_x/index/c4-train.shards.npz", "without a dataset.json(.|\n)*plain files"),
        ("raw_x/index/notes.txt", "got:      none\n"),
        ("TFRecord", "(?s)a file: TFRecord.*`gristmill convert`"),
        ("ArrayRecord", "(?s)a file: ArrayRecord.*`gristmill index`"),
        ("zeros", "(?s)got:      a file\n.*give a directory"),
    ],
)
def test_no_dataset(tmp_path, kind, says):
    """A path says what is there, with names like it."""
    path = tmp_path / "raw_x"
    if kind == "ArrayRecord":
        write_array_records(path, [b"a"])
    elif kind in ("TFRecord", "zeros"):
        path.write_bytes(frames_of([b"a"]) if kind == "TFRecord" else bytes(99))
    elif kind != "nothing":
        LocalStorage().write(f"{tmp_path}/{kind}", b"{}")
    with told(NotADatasetError, match=says, where=str(path)):
        open_manifest(str(path))


# What a dataset says of itself, changed by somebody who also makes the sums fit.


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    files = [text_records(9, seed=1), text_records(5, seed=2), []]
    return pathlib.Path(convert(tmp_path_factory.mktemp("untrusted"), files))


@pytest.fixture(scope="module")
def document(place):
    return json.loads((place / "dataset.json").read_bytes())


def sealed(document):
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


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_changed_manifest_is_an_error_of_ours_or_can_be_used(place, document, data):
    (place / "dataset.json").write_bytes(sealed(data.draw(changes(document))))
    try:
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
def test_a_changed_description_of_tfds_is_an_error_of_ours_or_can_be_used(data):
    text = json.dumps(data.draw(changes(TFDS_INFO))).encode()
    error = functools.partial(InvalidDatasetError, cure="none")
    with contextlib.suppress(GristmillError):
        _, splits = parse_info(text, "dataset_info.json", "array_record", error)
        for split in splits.values():
            assert len(split.files) == len(split.file_records)


# Features: descriptions that are kept and joined.

DTYPES = {
    "bytes": ["bytes"],
    "float": ["float16", "float32"],
    "int64": ["bool", "int8", "uint16", "int32", "int64", "uint64"],
}
SPECS = st.sampled_from([*DTYPES]).flatmap(
    lambda kind: st.builds(
        FeatureSpec,
        kind=st.just(kind),
        dtype=st.sampled_from(DTYPES[kind]),
        shape=st.sampled_from([(), (None,), (3,), (None, 2), (2, 3)]),
        optional=st.booleans(),
        type=st.text(max_size=5),
        names=st.lists(st.text(max_size=3), max_size=3).map(tuple),
    )
)


@given(st.dictionaries(st.text(max_size=5), SPECS, max_size=5))
def test_features_survive_json_and_a_second_part_of_the_same(features):
    fields = json.loads(json.dumps(encode_features(features)))
    assert [*parse_features(fields).items()] == [*features.items()]
    assert joined_features([features]) == joined_features([features] * 2) == features


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        *(({"kind": kind}, "unknown kind") for kind in ("int32", ["bytes"])),
        ({"dtype": "float32"}, "no dtype"),
        *(({"shape": shape}, "impossible shape") for shape in ([-1], [True])),
        ({"shape": [2, None]}, "only the first dimension"),
        *(({key: "ab"}, "must be lists") for key in ("shape", "names")),
        (None, ""),
    ],
)
def test_bad_descriptions_name_the_feature(changed, message):
    good = {"kind": "int64", "dtype": "int64", "shape": []}
    with pytest.raises(ValueError, match=f"feature 'x'.*{message}"):
        parse_features({"x": changed and good | changed})


def test_descriptions_are_joined():
    x, short = (
        FeatureSpec(kind="int64", dtype=dtype, shape=()) for dtype in ("int64", "int8")
    )
    optional = dataclasses.replace(short, optional=True)
    assert joined_features([{"x": x}, {"x": x, "y": short}]) == {"x": x, "y": optional}
    assert joined_features([{"x": x}, None]) is None
    # Those of a later version are kept where they are the same.
    later = {"x": {"kind": "complex"}}
    assert joined_descriptions([later, later]) == later
    narrow, wide = (encode_features({"x": each}) for each in (short, x))
    assert joined_descriptions([later, narrow]) is None
    assert joined_descriptions([None, {}]) is None
    assert joined_descriptions([narrow, wide]) == wide
