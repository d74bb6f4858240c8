"""Documents of records: what is taken of each, tokens, counts, errors with places."""

from __future__ import annotations

import dataclasses
import pathlib
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import (
    FastTokenizerDiffersError,
    InputError,
    UserFunctionError,
)
from gristmill.dataset.base.example import BYTES, INTS, encode_example, raw_features
from gristmill.transforms.chat.document_inputs import document_records
from gristmill.transforms.conversion.begin import list_inputs
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.sources.formats import TFRECORD, RecordOptions, SourceSpec
from gristmill.transforms.tokens.document_column import OneFeature
from gristmill.transforms.tokens.documents import (
    ComparedEncoder,
    DocumentReader,
    Documents,
)
from gristmill.transforms.tokens.load_tokenizer import (
    find_tokenizer,
    load_fast,
    load_tokenizer,
)
from gristmill.transforms.tokens.tokenizer import Encoded, end_to_end
from tests.support.conversion import job_of
from tests.support.examples import FLOATS, INT64S, message
from tests.support.tokenizer_files import TEXTS, tokenizer_json

TEXT = SourceSpec("text", "line")


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tokenizer_json())
    return path


def place_of(number: int) -> str:
    return f"a.tfrecord, byte offset {number:,}"


def reader_of(
    tokenizer: pathlib.Path | str | None,
    source: SourceSpec = TFRECORD,
    **given: Any,
) -> DocumentReader:
    name = None if tokenizer is None else str(tokenizer)
    options = PackOptions(length=64, tokenizer=name, **given)
    options = dataclasses.replace(options, found=find_tokenizer(options))
    return DocumentReader(options, source)


def read(records: Sequence[bytes], *given: Any, **options: Any) -> Documents:
    found = reader_of(*given, **options).read(records, place_of)
    assert (found.ids.dtype, found.lengths.dtype) == (np.uint32, np.int64)
    assert found.lengths.sum() == len(found.ids) == found.counts.tokens
    return found


def parts(documents: Documents) -> list[list[int]]:
    stops = np.cumsum(documents.lengths)[:-1]
    return [part.tolist() for part in np.split(documents.ids, stops)]


def refused(records: Sequence[bytes], *given: Any, **options: Any) -> InputError:
    with pytest.raises(InputError) as raised:
        read(records, *given, **options)
    return raised.value


EXAMPLES = [encode_example({"text": text, "id": [7]}) for text in TEXTS]
LINES = [text.encode() for text in TEXTS]


@pytest.mark.parametrize(
    ("records", "source", "options"),
    [
        (EXAMPLES, TFRECORD, {}),
        (LINES, TFRECORD, {"column": ""}),
        (LINES, TEXT, {}),
        (LINES, SourceSpec("parquet", "column:text"), {}),
        (LINES, SourceSpec("jsonl", "line"), {"column": ""}),
        (EXAMPLES, SourceSpec("jsonl", "line"), {}),
    ],
)
@pytest.mark.parametrize("fast", [False, True])
def test_text(file, records, source, options, fast):
    plain = tokenizers.Tokenizer.from_file(str(file))
    plain.encode_special_tokens = True
    expected = [plain.encode(text, add_special_tokens=False).ids for text in TEXTS]
    found = read(records, file, source, fast=fast, **options)
    assert parts(found) == expected
    assert found.counts.text_bytes == sum(map(len, LINES))
    assert found.counts.special_tokens == 0
    # Cut into batches in any way.
    reader = reader_of(file, source, fast=fast, **options)
    found = [parts(reader.read(records[at : at + 4], place_of)) for at in (0, 4, 8)]
    assert [*found[0], *found[1], *found[2]] == expected


def test_special_text_unknown_tokens_and_bytes_are_counted(file):
    texts = [b"a<|endoftext|>b<|endoftext|>", b"plain", b"b'abc'"]
    reader = reader_of(file, TEXT)
    found = reader.read(texts, place_of)
    assert found.counts.special_texts == 2
    assert 5_000 not in found.ids
    assert reader.bytes_texts == 1
    as_token = read(texts, file, TEXT, special_text="token")
    assert as_token.counts.special_texts == 2
    assert as_token.ids.tolist().count(5_000) == 2


def test_bos_and_eos_are_added_to_what_has_tokens(file):
    found = read(EXAMPLES, file, bos="0", eos="<|endoftext|>")
    plain = parts(read(EXAMPLES, file))
    assert parts(found) == [[0, *ids, 5_000] if ids else [] for ids in plain]
    assert [] in plain
    assert found.counts.special_tokens == 2 * (len(TEXTS) - 1)
    assert found.last_special_tokens == 1


@pytest.mark.parametrize("fast", [False, True])
def test_the_tokenizers_own_ends_are_added_once(file, fast):
    """Also to text that the fast path leaves to the tokenizer."""
    file.write_bytes(tokenizer_json(template=["<s>", "$A", "</s>"]))
    plain = tokenizers.Tokenizer.from_file(str(file))
    plain.encode_special_tokens = True
    texts = [*TEXTS, *["text"] * 20, "a <s> b"]
    records = [text.encode() for text in texts]
    options = {"fast": fast, "add_special_tokens": True}
    found = read(records, file, TEXT, **options)
    expected = [plain.encode(text).ids for text in texts]
    assert parts(found) == [ids if len(ids) > 2 else [] for ids in expected]
    assert (expected[0][0], expected[0][-1]) == (5_000, 5_001)
    assert found.counts.special_tokens == 2 * (len(texts) - 1)


def test_tokens_that_are_there_already():
    lists = [[5, 300, 70_000], [], [(1 << 32) - 1], list(range(200))]
    records = [encode_example({"ids": np.array(ids, np.int64)}) for ids in lists]
    records.append(encode_example({"ids": []}))
    found = read(records, None, column="ids")
    assert parts(found) == [*lists, []]
    assert (found.counts.text_bytes, found.counts.special_tokens) == (0, 0)
    found = read(records, None, column="ids", eos="2")
    assert parts(found) == [[*ids, 2] if ids else [] for ids in (*lists, [])]
    assert found.counts.special_tokens == 3
    assert parts(read([], None, column="ids"))[0] == []


BAD = b"caf\xe9 au lait"


@pytest.mark.parametrize(
    ("record", "options", "what", "fact"),
    [
        (encode_example({"text": BAD}), {}, "not UTF-8", "byte 3 of the text"),
        (encode_example({"a": 1, "b": 2}), {}, "no feature 'text'", "one of a, b"),
        (encode_example({}), {}, "no feature 'text'", "without features"),
        (encode_example({"text": [1, 2]}), {}, "tokens already", "`tokenizer`"),
        (encode_example({"text": [0.5]}), {}, "holds no document", "floats"),
        (encode_example({"text": ["a", "b"]}), {}, "several values", "2 values"),
        (b"\xff\xff", {}, "not a tf.train.Example", "`column` -"),
        (BAD, {"column": ""}, "not UTF-8", r"b'\xe9 au lai'"),
    ],
)
def test_records_that_hold_no_text(file, record, options, what, fact):
    good = encode_example({"text": "good"})
    error = refused([good, record], file, **options)
    assert what in error.what
    assert fact in str(error)
    assert error.where.startswith("a.tfrecord, byte offset 1")
    assert error.cure


@pytest.mark.parametrize(
    ("record", "what", "fact"),
    [
        (
            encode_example({"ids": "text"}),
            "is text, and there is no tok",
            "`tokenizer`",
        ),
        (encode_example({"ids": [3, -1]}), "no token", "a negative number"),
        (encode_example({"ids": [3, 1 << 32]}), "no token", "0 to 4,294,967,295"),
        (encode_example({"ids": [3, 1 << 62]}), "no token", "0 to 4,294,967,295"),
        (encode_example({"other": [3]}), "no feature 'ids'", "one of other"),
    ],
)
def test_records_that_hold_no_tokens(record, what, fact):
    good = encode_example({"ids": [1]})
    error = refused([good, record], None, column="ids")
    assert what in error.what
    assert fact in str(error)
    assert error.where == place_of(1)


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
def function(tmp_path, monkeypatch):
    name = f"documents_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return f"{name}:encode"


def test_a_tokenizer_that_fails_names_the_document(function):
    with pytest.raises(UserFunctionError) as raised:
        read([b"good", b"fail"], function, TEXT)
    assert raised.value.what == "the tokenizer failed: SystemExit: 3"
    assert raised.value.where == place_of(1)
    assert raised.value.got == "a document of 4 bytes"
    with pytest.raises(UserFunctionError) as raised:
        read([b"good", b"good", b"wrong"], function, TEXT)
    assert raised.value.where == f"{function}, for {place_of(2)}"
    with pytest.raises(UserFunctionError) as raised:
        read([b"together", b"good"], function, TEXT)
    assert raised.value.where == f"{place_of(0)}, or a document after it"


def test_tokens_beyond_the_vocabulary(function):
    error = refused([b"good", b"", "go€od".encode()], function, TEXT)
    assert error.what == "a token is not in the vocabulary"
    assert (error.expected, error.got) == ("ids below 256", "8,364")
    assert error.where == place_of(2)
    record = encode_example({"ids": [0, 9, 10]})
    error = refused([record], None, column="ids", vocabulary_size=10)
    assert error.what == "a token is not in the vocabulary"
    assert (error.expected, error.got) == ("ids below 10", "10")
    assert error.cure == "correct the tokens, or --vocabulary-size"


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
    library = "failing 1.0"

    def __init__(self, error):
        self.error = error

    def encode(self, texts):
        if isinstance(self.error, BaseException):
            raise self.error
        return self.error


class Panic(BaseException):
    """What the libraries in Rust raise is not an Exception."""


def test_a_fast_path_that_differs_is_noticed(file):
    """The library leaves out a step of this tokenizer, and does not say so."""
    file.write_bytes(tokenizer_json(digits=True))
    records = [b"no digit in here"] * 15 + [b"the number is 1234 here"]
    reader = reader_of(file, TEXT, fast=True)
    with pytest.raises(FastTokenizerDiffersError) as raised:
        reader.read(records, place_of)
    error = raised.value
    assert error.what == (
        f"gigatoken 0.10.0 gives other tokens than tokenizers {tokenizers.__version__}"
    )
    assert error.where == f"document 15 of the shard, {place_of(15)}"
    assert "from token 4 on" in error.expected
    assert error.expected != error.got


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
    if error == "too few":
        error = tokenizer.encode([b"a"])
    encoder = ComparedEncoder(tokenizer, Failing(error))
    with pytest.raises(FastTokenizerDiffersError, match=r"^failing 1\.0 gives"):
        encoder.encode([b"a", b"b"], place_of)


class FailingAt:
    """A tokenizer that fails on a text of blanks."""

    kind, library = "tiktoken", "failing 1.0"

    def encode(self, texts, *, as_text):
        if any(text and not text.strip() for text in texts):
            raise Panic("stack overflow")
        return end_to_end([np.arange(len(text), dtype=np.uint32) for text in texts])


def test_a_text_on_which_the_tokenizer_fails_has_no_tokens_where_that_is_accepted():
    texts, told = [b"a", b"  ", b"bc", b"   "], []
    encoder = ComparedEncoder(FailingAt(), tell=lambda *each: told.append(each))
    assert encoder.encode(texts, place_of).lengths.tolist() == [1, 0, 2, 0]
    assert [(number, error.where) for number, error in told] == [
        (1, place_of(1)),
        (3, place_of(3)),
    ]
    with pytest.raises(InputError, match="stack overflow") as raised:
        ComparedEncoder(FailingAt()).encode(texts, place_of)
    assert "--on-corrupt skip" in raised.value.cure


BODY = PackOptions(length=8, tokenizer="t.json", column="body")
WHOLE = PackOptions(length=8, tokenizer="t.json", column="")


@pytest.mark.parametrize(
    ("name", "known"), [("a.csv", "csv"), ("b.TSV.gz", "tsv"), ("c.json", "jsonl")]
)
def test_tables_are_not_taken_line_by_line(name, known, tmp_path):
    path = tmp_path / name
    # Nothing but the name tells that it is one.
    path.write_text('text\n"one,\ntwo"\nthree\n')
    pack = PackOptions(length=8, tokenizer="t.json")
    job = job_of(path, tmp_path / "out", pack=pack)
    with pytest.raises(InputError, match="named as a table") as raised:
        list_inputs(job)
    assert raised.value.where == str(path)
    assert f"--input-format {known}," in raised.value.cure
    plain = dataclasses.replace(job, pack=None)
    with pytest.raises(InputError, match="named as a table") as raised:
        list_inputs(plain)
    assert "--input-format text" in raised.value.cure
    named = RecordOptions(input_format="text")
    assert list_inputs(dataclasses.replace(plain, records=named)).spec.format == "text"
    named_text = path.rename(f"{path}.txt")
    assert list_inputs(job_of(named_text, tmp_path / "out")).spec.format == "text"
    named_text.rename(path)
    lines = dataclasses.replace(pack, column="")
    for more in ({"pack": lines}, {"records": named}, {"map": "os.path:basename"}):
        found = list_inputs(dataclasses.replace(job, **more))
        assert found.spec.format == "text"


def test_records_that_are_asked_for():
    with pytest.raises(InputError, match="`column` -"):
        document_records(RecordOptions(input_format="csv"), WHOLE, mapped=False)
    asked = RecordOptions(input_format="jsonl", record="line")
    assert document_records(asked, WHOLE, mapped=False) == asked
    assert document_records(asked, BODY, mapped=True) == asked
    with pytest.raises(InputError, match="no effect") as raised:
        document_records(asked, BODY, mapped=False)
    assert raised.value.got == "line"
    columns = RecordOptions(input_format="parquet", columns=("a", "b"))
    with pytest.raises(InputError, match="no effect") as raised:
        document_records(columns, PackOptions(length=8, column="ids"), mapped=False)
    assert raised.value.got == "a,b"


VALUES = st.one_of(
    st.binary(max_size=300),
    st.lists(st.binary(max_size=5), max_size=3),
    st.lists(INT64S, max_size=20),
    st.lists(FLOATS, max_size=5),
)
NAMES = st.sampled_from(["text", "text2", "tex", "", "é", "n" * 127, "n" * 128])


@given(st.dictionaries(NAMES, VALUES, max_size=4), st.sampled_from(["text", "é", "x"]))
def test_it_is_what_the_whole_example_has(features, name):
    record = encode_example(features)
    expected = raw_features(record).get(name.encode())
    found = OneFeature(name).find(record)
    if found is not None:
        assert found == expected
    elif expected is not None and "n" * 128 not in features:
        assert expected.kind not in (BYTES, INTS) or len(expected.parts) != 1


@given(st.randoms(use_true_random=False), st.binary(max_size=200))
def test_damaged_records_give_nothing_else(rng: random.Random, text: bytes):
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


def test_of_several_the_last_counts():
    def entry(text: bytes) -> bytes:
        value = message(1, message(1, text))
        return message(1, message(1, b"text") + message(2, value))

    record = message(1, entry(b"one") + entry(b"two"))
    assert raw_features(record)[b"text"].parts == [b"two"]
    assert OneFeature("text").find(record) == (BYTES, [b"two"])
    # A name after its value, or twice.
    value = message(2, message(1, message(1, b"three")))
    turned = message(1, message(1, value + message(1, b"text")))
    assert raw_features(turned)[b"text"].parts == [b"three"]
    assert OneFeature("text").find(turned) is None
    twice = message(1, b"a") + value + message(1, b"text")
    assert OneFeature("text").find(message(1, entry(b"") + message(1, twice))) is None
