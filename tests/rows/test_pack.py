"""Packing documents into rows, from every source and on every runner."""

import contextlib
import csv
import dataclasses
import itertools
import json
import os
import pathlib
import random

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from hypothesis import given
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset import encode_example, open_manifest, read_table
from gristmill.dataset.metadata import layout
from gristmill.dataset.packed.counts import PackedSplit
from gristmill.dataset.packed.row_format import RowFormat, decode_rows
from gristmill.dataset.packed.segment_index import SegmentIndex
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.job_options import PackingOptions
from gristmill.transforms import ConvertFiles, PackOptions, TokenizerSpec
from gristmill.transforms.tokens.documents import Documents, counts_of_documents
from gristmill.transforms.tokens.row_packer import RowPacker
from gristmill.transforms.tokens.tokenizer import end_to_end
from tests.rows.command import run
from tests.rows.packed_rows import conversation, tokens_of
from tests.rows.packed_shards import CHAT, packed_shard, places_of
from tests.rows.tokenizer_files import published, tokenizer_json
from tests.support.conversion import contents
from tests.support.memory import peak_memory
from tests.support.pipelines import BUNDLES_TWICE, IN_MEMORY, WORKER_PROCESSES, counters
from tests.support.records import frames_of, read_array_records

MODULE = '''
def words(texts):
    return [[ord(letter) for letter in text] for text in texts]

words.vocabulary_size = 1000
words.special_ids = {"<s>": 1, "</s>": 2}

def half(record):
    """Drops a third of the documents, and makes two of another third."""
    number = sum(record) % 3
    return None if number == 0 else [record] * number
'''


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "my_words.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)


def texts_of(count):
    rng = random.Random(0)
    lengths = [int(rng.lognormvariate(3, 1)) for _ in range(count)]
    words = ("".join(rng.choices("abcdefgh ", k=length)) for length in lengths)
    return [f"{number}:{word}" for number, word in enumerate(words)]


TEXTS = texts_of(400)


def json_lines(values, name="text"):
    lines = "".join(json.dumps({"n": 7, name: value}) + "\n" for value in values)
    pathlib.Path("in.jsonl").write_text(lines)


def comma_separated(texts):
    with open("in.csv", "w") as file:
        csv.writer(file).writerows([("text", "n"), *((text, 7) for text in texts)])


def tfrecords(texts):
    examples = [encode_example({"text": text, "n": 7}) for text in texts]
    pathlib.Path("in.tfrecord").write_bytes(frames_of(examples))


def lines(texts):
    pathlib.Path("in.txt").write_text("\n".join(texts) + "\n")


ASKED = "--tokenizer my_words:words --length 64 --num-shards 3 --workers 1"


def pack(files="in.jsonl out", options="", code=0):
    return run(f"pack {files} {ASKED} {options}", code=code)


def split_of(output="out"):
    return open_manifest(output).splits["train"]


def packed_split(output="out"):
    return PackedSplit.parse(split_of(output).packed, where=output)


def documents_of(output="out"):
    """Joins the pieces of every document; returns its tokens, and its place."""
    packed = packed_split(output)
    form = RowFormat(packed.length, packed.id_bytes, packed.rows)
    found = []
    for path in read_table(output, split_of(output)).paths:
        rows = decode_rows(form, read_array_records(pathlib.Path(output, path)))
        place = pathlib.Path(output, layout.segments_path(path))
        index = SegmentIndex.decode(place.read_bytes(), where=str(place))
        np.testing.assert_array_equal(index.row_ends, rows.row_ends)
        joined = joined_pieces(rows, index)
        found += zip(joined, index.sources.places[: len(joined)].tolist(), strict=True)
    return found


def joined_pieces(rows, index):
    """Returns the tokens of each document, of which no piece is missing or twice."""
    np.testing.assert_array_equal(index.piece_firsts, rows.firsts)
    tokens = np.split(rows.tokens, np.cumsum(rows.lengths)[:-1])
    owners = index.piece_documents
    joined = {}
    for piece in np.lexsort((rows.firsts, owners)).tolist():
        ids = joined.setdefault(int(owners[piece]), [])
        assert rows.firsts[piece] == len(ids)
        ids += tokens[piece].tolist()
    assert [*joined] == [*range(len(joined))]
    return [*joined.values()]


def packed_ids(output="out"):
    return [ids for ids, _ in documents_of(output)]


@pytest.mark.parametrize(
    ("make", "source", "options"),
    [
        (lines, "in.txt", "--input-format text --pack none"),
        (comma_separated, "in.csv", "--input-format csv --bos <s> --eos 2"),
        (json_lines, "in.jsonl", "--eos </s> --pack concat --truncate"),
        (tfrecords, "in.tfrecord", "--rows example --bos 1"),
        (json_lines, "in.jsonl", "--rows example --pack none"),
        (json_lines, "in.jsonl", "--num-shards 1 --length 7"),
    ],
)
def test_the_ledger_adds_up(make, source, options):
    texts = [*TEXTS[:150], "", *TEXTS[150:200], ""]
    make(texts)
    pack(f"{source} out", options)
    run("verify out")
    bos, eos, length = "--bos" in options, "--eos" in options, packed_split().length
    whole = [[1] * bos + [*map(ord, text)] + [2] * eos for text in texts if text]
    cuts = "truncate" in options or "none" in options
    kept = [ids[:length] for ids in whole] if cuts else whole
    assert packed_ids() == kept
    counts, tokens = packed_split().counts, sum(map(len, kept))
    long = sum(len(ids) > length for ids in whole)
    assert counts == dataclasses.replace(
        counts,
        documents=len(whole),
        empty_documents=len(texts) - len(whole),
        tokens=tokens,
        text_bytes=sum(map(len, texts)),
        special_tokens=(bos + eos) * len(whole) - long * bool(eos and cuts),
        padding_tokens=split_of().records * length - tokens,
        truncated_documents=long if cuts else 0,
        truncated_tokens=sum(map(len, whole)) - tokens,
    )
    if "concat" not in options:
        assert (counts.pieces > counts.documents) == (long > 0 and not cuts)


@pytest.mark.slow
def test_a_function_before():
    lines(TEXTS)
    pack("in.txt out", "--input-format text --map my_words:half --workers 2")
    expected, at = [], 0
    copies = [sum(text.encode()) % 3 for text in TEXTS]
    for text, times in zip(TEXTS, copies, strict=True):
        expected += [([*map(ord, text)], at)] * times
        at += len(text) + 1
    assert documents_of() == expected
    assert split_of().dropped_records == copies.count(0)
    assert split_of().added_records == copies.count(2)


@pytest.mark.slow
@pytest.mark.parametrize("runner", [IN_MEMORY, BUNDLES_TWICE, WORKER_PROCESSES])
def test_runners_make_the_same_bytes_and_counts(runner):
    json_lines(TEXTS)
    pack("in.jsonl local")
    given = {"tokenizer": "my_words:words", "length": 64, "num_shards": 3}
    options = PackingOptions(input=("in.jsonl",), output="beam", name="local", **given)
    job = conversion_of(options)
    pipeline = beam.Pipeline(options=PipelineOptions([*runner]))
    _ = pipeline | ConvertFiles(jobs=tuple(job.jobs))
    (result := pipeline.run()).wait_until_finish()
    assert contents("beam") == contents("local")
    if runner == IN_MEMORY:
        found, packed = counters(result), split_of("beam").packed
        for name in ("documents", "tokens", "padding-tokens"):
            assert found[name] == packed[name.replace("-", "_")]


def test_another_tokenizer_is_another_job():
    json_lines(TEXTS)
    assert "committed already" not in pack()
    assert "committed already" in pack()
    with open("my_words.py", "a") as file:
        file.write("\n# Changed.\n")
    said = pack(code=2)
    assert "other options" in said
    assert "pack.found.digest changed: the tokenizer" in said
    pack(options="--length 65", code=2)
    pack(options="--length 65 --overwrite")
    assert packed_split().length == 65
    # Only rows that are examples have features.
    assert split_of().features is None
    plain = "convert in.jsonl out --num-shards 3 --workers 1"
    assert "pack was given, is not" in run(plain, code=2)
    assert packed_ids() == [[*map(ord, text)] for text in TEXTS]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("--tokenizer my_words:missing", 2, "cannot import"),
        ("--tokenizer nothing.json", 2, "nothing.json"),
        ("--map my_words:words", 1, "the --map function failed"),
    ],
)
def test_what_cannot_be_packed_writes_nothing(options, code, message):
    json_lines(TEXTS)
    assert message in pack(options=options, code=code)
    assert not os.path.exists("out")


def test_a_document_on_which_the_tokenizer_fails_is_left_out():
    pathlib.Path("o200k_base.tiktoken").write_bytes(published("o200k_base"))
    json_lines(["one", "a" + " " * 1_000_000 + "b", "two"])
    options = "--tokenizer o200k_base.tiktoken --eos none"
    assert "backtracking" in pack(options=options, code=2)
    pack(options=f"{options} --on-corrupt skip")
    (line,) = pathlib.Path("out/errors").iterdir()
    region = json.loads(line.read_text())
    at = len(json.dumps({"n": 7, "text": "one"})) + 1
    assert (region["reason"], region["begin_bytes"]) == ("document", at)
    counts = packed_split().counts
    assert (counts.documents, counts.empty_documents) == (2, 1)


@given(
    st.integers(0, 1 << 32),
    st.sampled_from(["best-fit", "concat", "none"]),
    st.booleans(),
)
def test_every_token_keeps_its_place_and_message(seed, method, is_chat):
    chance = random.Random(seed)
    truncate = not is_chat and chance.random() < 0.3
    options = {"length": 8, "method": method, "truncate": truncate}
    options |= CHAT if is_chat else {}
    sizes = [chance.choice((0, 1, 3, 7, 20)) for _ in range(chance.randrange(12))]
    # Token t of document d is 20 d + t.
    documents = [
        ([*range(20 * d, 20 * d + n)], conversation(chance, n))
        for d, n in enumerate(sizes)
    ]
    batch, index, counts, described, records = packed_shard(documents, **options)
    # Added in parts of any size, they are the same.
    cuts = [0, *sorted(chance.choices(range(len(sizes) + 1), k=3)), len(sizes)]
    parts = [documents[a:b] for a, b in itertools.pairwise(cuts)]
    again = packed_shard(*parts, **options)
    assert (again.records, again.counts) == (records, counts)
    limit = 8 if truncate or method == "none" else 20
    kept = [(ids[:limit], said) for ids, said in documents if ids]
    assert joined_pieces(batch, index) == [ids for ids, _ in kept]
    trained = targets = 0
    if batch.spans is not None:
        for piece, found in enumerate(tokens_of(batch.spans, batch.lengths)):
            _, said = kept[index.piece_documents[piece]]
            first = int(batch.firsts[piece])
            assert found == said[first : first + len(found)]
            marks = [each is not None and each.trained for each in found]
            trained, targets = trained + sum(marks), targets + sum(marks[1:])
    assert counts.tokens == sum(min(size, limit) for size in sizes)
    assert counts.tokens + counts.truncated_tokens == sum(sizes)
    assert counts.tokens + counts.padding_tokens == 8 * len(records)
    assert (counts.trained_tokens, counts.trained_targets) == (trained, targets)
    assert described.counts == counts
    assert described.supervised == (trained > 0)


@pytest.mark.slow
def test_many_documents_in_little_memory():
    """Memory grows with documents, by little, and not with tokens."""
    encoded = end_to_end([[7] * 120] * 1000)
    part = Documents(*encoded, counts_of_documents(encoded))
    spec = TokenizerSpec(kind="ids", digest="", library="", vocabulary_size=60_000)
    packer = RowPacker(PackOptions(found=spec, length=2048), directory=".")
    with peak_memory() as peak, contextlib.closing(packer):
        for _ in range(100):
            packer.add(part, places_of(1000))
        for _ in packer.rows():
            pass
    # 17 of 120 tokens in each row.
    padding_tokens = -(-100_000 // 17) * 2048 - 120 * 100_000
    assert packer.counts().padding_tokens == padding_tokens
    assert peak.bytes < 100_000 * 28 + (12 << 20)


BEFORE = {"type": "Whitespace"}
KNOWN = {"type": "WordLevel", "vocab": {"<unk>": 0, "the": 1}, "unk_token": "<unk>"}
WORDS = {"version": "1.0", "model": KNOWN, "added_tokens": [], "pre_tokenizer": BEFORE}


@pytest.mark.parametrize(
    ("text", "tokenizer", "what", "accept"),
    [
        ("", tokenizer_json(), "no document has a token", None),
        ("ÄÖÜ ß", json.dumps(WORDS).encode(), "not in the vocabulary", "unknown"),
        (str(b"the sun"), tokenizer_json(), "Python's notation of bytes", "bytes"),
    ],
    ids=["empty", "unknown", "bytes"],
)
def test_documents_that_do_not_fit(text, tokenizer, what, accept):
    json_lines([text] * 3)
    pathlib.Path("tokenizer.json").write_bytes(tokenizer)
    said = pack(options="--tokenizer tokenizer.json", code=2)
    assert what in said
    assert "in.jsonl, byte offset 0" in said
    if accept is not None:
        pack(options=f"--tokenizer tokenizer.json --accept {accept}")


@pytest.mark.parametrize(("known", "tried"), [(0, True), (1, False)])
def test_a_tokenizer_of_another_language_is_told_by_the_first_documents(known, tried):
    json_lines(["the the"] * known + ["the ÄÖÜ ß"] * 12)
    pathlib.Path("tokenizer.json").write_text(json.dumps(WORDS))
    said = pack(options="--tokenizer tokenizer.json", code=2)
    assert "most of the text is not in the vocabulary" in said
    counts = "20 of 30 tokens of those tried" if tried else "24 of 38 tokens\n"
    assert f"got:      {counts}" in said
    assert pathlib.Path("out").exists() != tried
    pack(options="--tokenizer tokenizer.json --accept unknown")


def test_the_fast_path_gives_the_rows_of_the_tokenizer_or_names_a_document():
    """Of this tokenizer each digit is a token, which the fast path does not know.

    The first 16 documents of a shard are compared, and one in 500 after these.
    """
    pathlib.Path("tokenizer.json").write_bytes(tokenizer_json(digits=True))
    options = "--tokenizer tokenizer.json --num-shards 1"
    json_lines(["and words"] * 1_600)
    pack("in.jsonl plain", options)
    pack("in.jsonl fast", f"{options} --fast")
    assert [*loader.open("fast")] == [*loader.open("plain")]
    for number, first in ((0, 0), (15, 15), (16, 500), (501, 1_000), (1_501, None)):
        wrong = range(number, 1_600)
        json_lines(["of 1984" if n in wrong else "and words" for n in range(1_600)])
        found = f"in.jsonl out{number}"
        if first is None:
            pack(found, f"{options} --fast")
            continue
        said = pack(found, f"{options} --fast", code=1)
        assert "leave out --fast" in said
        assert f"document {first:,} of the shard, in.jsonl, byte offset" in said
        assert not os.path.exists(f"out{number}/dataset.json")


@pytest.mark.parametrize("special", ["text", "token"])
def test_text_like_a_special_token_is_counted(special):
    json_lines(["a <|endoftext|> b", "plain"])
    pathlib.Path("tokenizer.json").write_bytes(tokenizer_json())
    options = f"--tokenizer tokenizer.json --special-text {special} --num-shards 1"
    assert "1 text like a special token" in pack(options=options)
    data = loader.open("out")
    (row,) = loader.PackedRows.of(data)(list(data))["inputs"]
    assert (5_000 in row) == (special == "token")


def test_another_tokenizer_than_the_one_that_packed(caplog):
    """No command shows the tokens of one as the text of another; a decoder warns."""
    json_lines(["the sun"] * 4)
    for name, tokens in (("a", 5_000), ("b", 4_000)):
        pathlib.Path(f"{name}.json").write_bytes(tokenizer_json(tokens))
        pack(f"in.jsonl {name}", f"--tokenizer {name}.json")
    for command in (
        "head a",
        "trace a --batch-size 1 --seed 1 --step 0 --row 0 --show",
        "view a --html out.html",
    ):
        run(f"{command} --tokenizer a.json")
        said = run(f"{command} --tokenizer b.json", code=2)
        assert "packed with another tokenizer" in said
        assert "b.json" in said
    assert "the sun" in run("head a --tokenizer a.json")
    decode = loader.PackedRows.of(loader.open("a"))
    for name in "ab":
        batches = loader.global_batches(loader.open(name), batch_size=1)
        with batches.feed(decode=decode, host=(0, 1)):
            assert ("rows of different tokenizers" in caplog.text) == (name == "b")


def test_documents_are_not_removed_from_rows():
    """Their records are, and packed again."""
    documents = [[100 * n + i for i in range(n)] for n in range(1, 20)]
    json_lines(documents, "ids")
    pathlib.Path("unwanted").write_text("in.jsonl@line:3\n")
    options = "--column ids --vocabulary-size 5000 --length 16"
    run("convert in.jsonl records")
    run(f"pack records rows {options}")
    before = contents("rows")
    for named in (("--records", "unwanted"), ("--where", "n > 1")):
        said = run("remove rows", *named, code=2)
        assert "documents cannot be removed from packed rows" in said
        assert "gristmill remove on records" in said
        assert "--overwrite" in said
    assert contents("rows") == before
    run("remove records --records unwanted --erase")
    run(f"pack records rows {options} --overwrite")
    assert packed_ids("rows") == documents[:2] + documents[3:]
    run("verify rows")
    run(f"pack in.jsonl own {options}")
    said = run("remove own --records unwanted", code=2)
    assert "remove the documents from the inputs" in said
