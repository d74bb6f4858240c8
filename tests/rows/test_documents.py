"""Documents of records: what is taken of each, the fast path, errors with places."""

import dataclasses
import itertools
from unittest import mock

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset import (
    FastTokenizerDiffersError,
    GristmillError,
    InputError,
    UserFunctionError,
    encode_example,
)
from gristmill.dataset.base.example import BYTES, INTS, raw_features
from gristmill.transforms import PackOptions, RecordOptions
from gristmill.transforms.chat.conversation_reader import document_records
from gristmill.transforms.conversion.begin import list_inputs
from gristmill.transforms.sources.formats import TFRECORD, SourceSpec
from gristmill.transforms.tokens.document_column import OneFeature
from gristmill.transforms.tokens.documents import ComparedEncoder, DocumentReader
from gristmill.transforms.tokens.load_tokenizer import find_tokenizer, load_tokenizer
from tests.rows.tokenizer_files import TEXTS, tokenizer_json
from tests.support.conversion import job_of
from tests.support.examples import FLOATS, INT64S, UNUSUAL
from tests.support.told import told

TEXT = SourceSpec("text", "line")
MODULE = """
def encode(texts):
    assert texts
    if "fail" in texts:
        raise SystemExit(3)
    if "wrong" in texts:
        return [["a"] for _ in texts]
    if len(texts) > 1 and "together" in texts[0]:
        raise ValueError("not both")
    return [[ord(c) for c in text] for text in texts]
encode.vocabulary_size = 256
"""


@pytest.fixture
def named(tmp_path, monkeypatch):
    """The tokenizers that tests name: a file, and a function."""
    name = f"documents_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tokenizer_json())
    return {"file": path, "function": f"{name}:encode", None: None}


def place_of(number):
    return f"a.tfrecord, byte offset {number:,}"


def options_of(tokenizer, **given):
    return PackOptions(length=64, tokenizer=tokenizer and str(tokenizer), **given)


def read(records, tokenizer, source=TFRECORD, **given):
    options = options_of(tokenizer, **given)
    found = dataclasses.replace(options, found=find_tokenizer(options))
    return DocumentReader(found, source).read(records, place_of)


@pytest.mark.parametrize("fast", [False, True])
def test_documents_in_batches_have_the_tokenizers_own_ends_once(named, fast):
    """Also where the fast path leaves a text to the tokenizer."""
    content = tokenizer_json(special=("<s>", "</s>"), enclosed=True)
    named["file"].write_bytes(content)
    plain = tokenizers.Tokenizer.from_str(content.decode())
    plain.encode_special_tokens = True
    texts = [*TEXTS, *["text"] * 20, "a <s> b"]
    options = {"fast": fast, "add_special_tokens": True}
    special = 0
    for at in range(0, len(texts), 7):
        batch = texts[at : at + 7]
        records = [text.encode() for text in batch]
        made = read(records, named["file"], TEXT, **options)
        ids = [plain.encode(text).ids if text else [] for text in batch]
        assert made.ids.tolist() == [*itertools.chain(*ids)]
        assert made.lengths.tolist() == [*map(len, ids)]
        special += made.counts.special_tokens
    assert special == 2 * (len(texts) - 1)


BAD, IDS = b"caf\xe9 au lait", {"column": "ids"}
SMALL = IDS | {"vocabulary_size": 10}


@pytest.mark.parametrize(
    ("tokenizer", "options", "bad", "what", "fact"),
    [
        ("file", {}, {"text": BAD}, "not UTF-8", "byte 3 of the text"),
        ("file", {}, {"a": 1, "b": 2}, "no feature 'text'", "one of a, b"),
        ("file", {}, {"text": [1, 2]}, "tokens already", "`tokenizer`"),
        ("file", {}, {"text": [0.5]}, "holds no document", "floats"),
        ("file", {}, {"text": ["a", "b"]}, "several values", "2 values"),
        ("file", {}, b"\xff\xff", "not a tf.train.Example", "`column` -"),
        ("file", {"column": ""}, BAD, "not UTF-8", r"b'\xe9 au lai'"),
        (None, IDS, {"ids": "text"}, "is text, and there is no tok", "`tokenizer`"),
        (None, IDS, {"ids": [3, -1]}, "no token", "a negative number"),
        (None, IDS, {"ids": [3, 1 << 32]}, "no token", "0 to 4,294,967,295"),
        (None, SMALL, {"ids": [10]}, "not in the vocabulary", "below 10\n"),
        ("function", {}, {"text": "€"}, "not in the voc", "below 256\n"),
        ("function", {}, {"text": "fail"}, "SystemExit: 3", "of 4 bytes"),
        ("function", {}, {"text": "wrong"}, "not tokens", ":encode, for"),
    ],
    ids=range(14),
)
def test_documents_that_cannot_be_used(named, tokenizer, options, bad, what, fact):
    good = b"good" if options.get("column") == "" else {"text": "a", "ids": [1]}
    records = [
        each if isinstance(each, bytes) else encode_example(each)
        for each in (good, bad)
    ]
    kinds = InputError, UserFunctionError
    with told(kinds, what, fact, place_of(1), "to do:"):
        read(records, named[tokenizer], **options)


def test_a_tokenizer_that_fails_on_several_names_the_first(named):
    with pytest.raises(UserFunctionError, match="0, or a document after it"):
        read([b"together", b"good"], named["function"], TEXT)


def test_a_fast_path_that_fails_differs(named):
    """What the libraries in Rust raise is not an Exception."""
    fast = mock.Mock(library="wrong 1.0", **{"encode.side_effect": GeneratorExit})
    encoder = ComparedEncoder(load_tokenizer(options_of(named["file"])), fast)
    with pytest.raises(FastTokenizerDiffersError, match=r"^wrong 1\.0 gives"):
        encoder.encode([b"a"], place_of)


@pytest.mark.parametrize(
    ("name", "known"), [("a.csv", "csv"), ("b.TSV.gz", "tsv"), ("c.json", "jsonl")]
)
def test_tables_are_not_taken_line_by_line(name, known, tmp_path):
    path = tmp_path / name
    # Nothing but the name tells that it is one.
    path.write_text('text\n"one,\ntwo"\nthree\n')
    packed = {"pack": options_of("t")}

    def listed(**more):
        return list_inputs(job_of(path, tmp_path / "out", **more)).spec.format

    for job, cure in ((packed, f"`input_format` {known},"), ({}, "text")):
        with told(InputError, "named as a table", cure, where=str(path)):
            listed(**job)
    for job in (
        {"records": RecordOptions(input_format="text")},
        {"pack": options_of("t", column="")},
        {**packed, "map": "os.path:basename"},
    ):
        assert listed(**job) == "text"


def test_records_that_are_asked_for():
    body, whole, ids = (options_of("t", column=c) for c in ("body", "", "ids"))
    asked = RecordOptions(input_format="jsonl", record="line")
    columns = RecordOptions(input_format="parquet", columns=("a", "b"))
    assert document_records(asked, body, mapped=True) == asked
    for records, pack, message in (
        (RecordOptions(input_format="csv"), whole, "`column` -"),
        (asked, body, r"no effect(.|\n)*got:      line"),
        (columns, ids, r"no effect(.|\n)*got:      a,b"),
    ):
        with pytest.raises(GristmillError, match=message):
            document_records(records, pack, mapped=False)


VALUES = st.one_of(
    st.binary(max_size=300),
    st.lists(st.binary(max_size=5), max_size=3),
    st.lists(INT64S, max_size=20),
    st.lists(FLOATS, max_size=5),
)
NAMES = st.sampled_from(["text", "text2", "tex", "", "é", "n" * 127])
CHANGES = st.lists(st.tuples(st.integers(0), st.sampled_from([0, 1, 10, 18, 127])))


@given(
    st.one_of(
        st.dictionaries(NAMES, VALUES, max_size=4).map(encode_example),
        st.sampled_from([*UNUSUAL.values()]),
    ),
    st.sampled_from(["text", "é", "x", "i", "b", "f"]),
    st.one_of(st.just([]), CHANGES),
)
def test_a_feature_is_what_the_whole_example_has(record, name, changes):
    """Of a damaged record it is the same, or none; another feature may be damaged."""
    damaged = bytearray(record)
    for at, byte in changes if record else ():
        damaged[at % len(record)] = byte
    found = OneFeature(name).find(bytes(damaged))
    try:
        expected = raw_features(bytes(damaged)).get(name.encode())
    except ValueError:
        return
    if found is not None:
        assert found == expected
    elif expected is not None and not (changes or record in UNUSUAL.values()):
        assert expected.kind not in (BYTES, INTS) or len(expected.parts) != 1
