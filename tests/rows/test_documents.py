"""Documents of records: what is taken of each, the fast path, errors with places."""

import dataclasses

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import (
    FastTokenizerDiffersError,
    GristmillError,
    InputError,
    UserFunctionError,
)
from gristmill.dataset.base.example import BYTES, INTS, encode_example, raw_features
from gristmill.transforms.chat.conversation_reader import document_records
from gristmill.transforms.conversion.begin import list_inputs
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.sources.formats import TFRECORD, RecordOptions, SourceSpec
from gristmill.transforms.tokens.document_column import OneFeature
from gristmill.transforms.tokens.documents import ComparedEncoder, DocumentReader
from gristmill.transforms.tokens.load_tokenizer import (
    find_tokenizer,
    load_fast,
    load_tokenizer,
)
from gristmill.transforms.tokens.tokenizer import Encoded, end_to_end
from tests.rows.tokenizer_files import TEXTS, tokenizer_json
from tests.support.conversion import job_of
from tests.support.examples import FLOATS, INT64S, UNUSUAL

TEXT = SourceSpec("text", "line")
MODULE = """
def encode(texts):
    assert texts
    if b"fail" in "".join(texts).encode():
        raise SystemExit(3)
    if any("wrong" in text for text in texts):
        return [["a"] for _ in texts]
    if len(texts) > 1 and "together" in texts[0]:
        raise ValueError("not both")
    return [[ord(c) for c in text] for text in texts]
encode.vocabulary_size = 256
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tokenizer_json())
    return path


@pytest.fixture
def function(tmp_path, monkeypatch):
    name = f"documents_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return f"{name}:encode"


def place_of(number):
    return f"a.tfrecord, byte offset {number:,}"


def reader_of(tokenizer, source=TFRECORD, **given):
    name = None if tokenizer is None else str(tokenizer)
    options = PackOptions(length=64, tokenizer=name, **given)
    found = dataclasses.replace(options, found=find_tokenizer(options))
    return DocumentReader(found, source)


def parts(documents):
    return [part.tolist() for part in np.split(documents.ids, np.cumsum(documents[1]))]


@pytest.mark.parametrize("fast", [False, True])
def test_documents_in_batches_have_the_tokenizers_own_ends_once(file, fast):
    """Also where the fast path leaves a text to the tokenizer."""
    file.write_bytes(tokenizer_json(template=["<s>", "$A", "</s>"]))
    plain = tokenizers.Tokenizer.from_file(str(file))
    plain.encode_special_tokens = True
    texts = [*TEXTS, *["text"] * 20, "a <s> b"]
    records = [text.encode() for text in texts]
    reader = reader_of(file, TEXT, fast=fast, add_special_tokens=True)
    expected = [plain.encode(text).ids for text in texts]
    assert (expected[0][0], expected[0][-1]) == (5_000, 5_001)
    found, special = [], 0
    for at in range(0, len(records), 7):
        documents = reader.read(records[at : at + 7], place_of)
        found += parts(documents)[:-1]
        special += documents.counts.special_tokens
    assert found == [ids if len(ids) > 2 else [] for ids in expected]
    assert special == 2 * (len(texts) - 1)


BAD = b"caf\xe9 au lait"
TEXT_ERRORS = [
    ({"text": BAD}, "not UTF-8", "byte 3 of the text"),
    ({"a": 1, "b": 2}, "no feature 'text'", "one of a, b"),
    ({}, "no feature 'text'", "without features"),
    ({"text": [1, 2]}, "tokens already", "`tokenizer`"),
    ({"text": [0.5]}, "holds no document", "floats"),
    ({"text": ["a", "b"]}, "several values", "2 values"),
    (b"\xff\xff", "not a tf.train.Example", "`column` -"),
]
IDS_ERRORS = [
    ({"ids": "text"}, "is text, and there is no tok", "`tokenizer`"),
    ({"ids": [3, -1]}, "no token", "a negative number"),
    ({"ids": [3, 1 << 32]}, "no token", "0 to 4,294,967,295"),
    ({"ids": [3, 1 << 62]}, "no token", "0 to 4,294,967,295"),
    ({"other": [3]}, "no feature 'ids'", "one of other"),
]
SMALL = {"column": "ids", "vocabulary_size": 10}


@pytest.mark.parametrize(
    ("tokenizer", "options", "good", "bad", "what", "fact"),
    [
        *(("file", {}, {"text": "good"}, *each) for each in TEXT_ERRORS),
        *((None, {"column": "ids"}, {"ids": [1]}, *each) for each in IDS_ERRORS),
        ("file", {"column": ""}, b"good", BAD, "not UTF-8", r"b'\xe9 au lai'"),
        (
            None,
            SMALL,
            {"ids": [9]},
            {"ids": [10]},
            "not in the vocabulary",
            "below 10\n",
        ),
        ("function", {}, {"text": ""}, {"text": "€"}, "not in the voc", "below 256\n"),
        (
            "function",
            {},
            {"text": "a"},
            {"text": "fail"},
            "SystemExit: 3",
            "of 4 bytes",
        ),
        (
            "function",
            {},
            {"text": "a"},
            {"text": "wrong"},
            "not tokens",
            ":encode, for",
        ),
    ],
)
def test_documents_that_cannot_be_used(
    request, tokenizer, options, good, bad, what, fact
):
    named = tokenizer and request.getfixturevalue(tokenizer)
    records = [
        each if isinstance(each, bytes) else encode_example(each)
        for each in (good, bad)
    ]
    with pytest.raises((InputError, UserFunctionError)) as raised:
        reader_of(named, **options).read(records, place_of)
    assert what in raised.value.what
    assert fact in str(raised.value)
    assert place_of(1) in raised.value.where
    assert raised.value.cure


def test_a_tokenizer_that_fails_on_several_names_the_first(function):
    with pytest.raises(UserFunctionError, match="0, or a document after it"):
        reader_of(function, TEXT).read([b"together", b"good"], place_of)


class Wrong:
    """The fast path, with other tokens in some documents, as if it were wrong."""

    library = "wrong 1.0"

    def __init__(self, fast, documents):
        self.fast, self.documents, self.seen = fast, documents, 0

    def encode(self, texts):
        ids, lengths = self.fast.encode(texts)
        ids, starts = ids.copy(), np.cumsum(lengths) - lengths
        for number in self.documents:
            if 0 <= number - self.seen < len(texts):
                ids[starts[number - self.seen]] += 1
        self.seen += len(texts)
        return Encoded(ids, lengths)


class Failing:
    library, kind = "failing 1.0", "tiktoken"

    def __init__(self, error, only_on=""):
        self.error, self.only_on = error, only_on

    def encode(self, texts, **_):
        if not isinstance(self.error, BaseException):
            return self.error
        if not self.only_on or any(text and not text.strip() for text in texts):
            raise self.error
        return end_to_end([np.arange(len(text), dtype=np.uint32) for text in texts])


class Panic(BaseException):
    """What the libraries in Rust raise is not an Exception."""


def test_a_fast_path_that_differs_is_noticed(file):
    """The library leaves out a step of this tokenizer, and does not say so."""
    file.write_bytes(tokenizer_json(digits=True))
    records = [b"no digit in here"] * 15 + [b"the number is 1234 here"]
    with pytest.raises(
        FastTokenizerDiffersError, match=r"gigatoken \S+ gives"
    ) as raised:
        reader_of(file, TEXT, fast=True).read(records, place_of)
    assert raised.value.where == f"document 15 of the shard, {place_of(15)}"
    assert "from token 4 on" in raised.value.expected
    assert raised.value.expected != raised.value.got


@pytest.mark.parametrize(
    ("wrong", "batch", "noticed"),
    [
        (range(100, 3000, 100), 70, 500),
        ([15], 7, 15),
        ([16, 450, 499, 501, 999], 450, None),
        ([1500], 1000, 1500),
    ],
)
def test_which_documents_are_compared(file, wrong, batch, noticed):
    """The first 16 of a shard and one in 500 after these, in batches of any size."""
    options = PackOptions(length=8, tokenizer=str(file))
    encoder = ComparedEncoder(load_tokenizer(options), Wrong(load_fast(options), wrong))
    found = None
    try:
        for at in range(0, 2000, batch):
            texts = [b"document %d" % n for n in range(at, min(at + batch, 2000))]
            encoder.encode(texts, lambda number, at=at: f"place {at + number}")
    except FastTokenizerDiffersError as error:
        found = error.where
    where = f"document {noticed or 0:,} of the shard, place {noticed}"
    assert found == (where if noticed else None)


@pytest.mark.parametrize("error", [ValueError("no"), Panic("no"), "too few"])
def test_a_fast_path_that_fails(file, error):
    tokenizer = load_tokenizer(PackOptions(length=8, tokenizer=str(file)))
    error = tokenizer.encode([b"a"]) if error == "too few" else error
    with pytest.raises(FastTokenizerDiffersError, match=r"^failing 1\.0 gives"):
        ComparedEncoder(tokenizer, Failing(error)).encode([b"a", b"b"], place_of)


def test_a_text_on_which_the_tokenizer_fails_has_no_tokens_where_that_is_accepted():
    texts, told = [b"a", b"  ", b"bc", b"   "], []
    failing = Failing(Panic("stack overflow"), only_on="blanks")
    encoder = ComparedEncoder(failing, tell=lambda *each: told.append(each))
    assert encoder.encode(texts, place_of).lengths.tolist() == [1, 0, 2, 0]
    assert [(n, error.where) for n, error in told] == [(n, place_of(n)) for n in (1, 3)]
    with pytest.raises(InputError, match="stack overflow") as raised:
        ComparedEncoder(failing).encode(texts, place_of)
    assert "--on-corrupt skip" in raised.value.cure


@pytest.mark.parametrize(
    ("name", "known"), [("a.csv", "csv"), ("b.TSV.gz", "tsv"), ("c.json", "jsonl")]
)
def test_tables_are_not_taken_line_by_line(name, known, tmp_path):
    path = tmp_path / name
    # Nothing but the name tells that it is one.
    path.write_text('text\n"one,\ntwo"\nthree\n')
    pack = PackOptions(length=8, tokenizer="t.json")
    plain, job = (
        job_of(path, tmp_path / "out"),
        job_of(path, tmp_path / "out", pack=pack),
    )
    for refused, cure in (
        (job, f"--input-format {known},"),
        (plain, "--input-format text"),
    ):
        with pytest.raises(InputError, match="named as a table") as raised:
            list_inputs(refused)
        assert raised.value.where == str(path)
        assert cure in raised.value.cure
    named = {"records": RecordOptions(input_format="text")}
    lines = {"pack": dataclasses.replace(pack, column="")}
    for base, more in ((job, named), (job, lines), (plain, named)):
        assert list_inputs(dataclasses.replace(base, **more)).spec.format == "text"
    mapped = dataclasses.replace(job, map="os.path:basename")
    assert list_inputs(mapped).spec.format == "text"
    path.rename(tmp_path / "a.txt")
    assert list_inputs(job_of(tmp_path / "a.txt", "out")).spec.format == "text"


def test_records_that_are_asked_for():
    body, whole, ids = (
        PackOptions(length=8, tokenizer="t", column=c) for c in ("body", "", "ids")
    )
    asked = RecordOptions(input_format="jsonl", record="line")
    columns = RecordOptions(input_format="parquet", columns=("a", "b"))
    assert document_records(asked, whole, mapped=False) == asked
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
NAMES = st.sampled_from(["text", "text2", "tex", "", "é", "n" * 127, "n" * 128])


@given(st.dictionaries(NAMES, VALUES, max_size=4), st.sampled_from(["text", "é", "x"]))
def test_a_feature_is_what_the_whole_example_has(features, name):
    record = encode_example(features)
    expected = raw_features(record).get(name.encode())
    found = OneFeature(name).find(record)
    if found is not None:
        assert found == expected
    elif expected is not None and "n" * 128 not in features:
        assert expected.kind not in (BYTES, INTS) or len(expected.parts) != 1


@given(st.randoms(use_true_random=False), st.binary(max_size=200))
def test_damaged_records_give_nothing_else(rng, text):
    record = bytearray(encode_example({"a": [1, 2], "text": text, "z": 0.5}))
    for _ in range(rng.randint(1, 3)):
        record[rng.randrange(len(record))] = rng.choice((0, 1, 10, 18, 26, 127, 255))
    damaged = bytes(record[: rng.randint(0, 2 * len(record))])
    found = OneFeature("text").find(damaged)
    try:
        features = raw_features(damaged)
    except ValueError:
        return  # Another feature may be what is damaged.
    assert found is None or found == features[b"text"]


@pytest.mark.parametrize("record", UNUSUAL.values(), ids=UNUSUAL)
@pytest.mark.parametrize("name", ["i", "b", "f"])
def test_unusual_records_give_nothing_else(name, record):
    found = OneFeature(name).find(record)
    assert found is None or found == raw_features(record)[name.encode()]
