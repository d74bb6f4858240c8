"""Tokenizers are found by their content, and give what their libraries give."""

import dataclasses
import itertools
import random
import sys

import numpy as np
import pytest
import sentencepiece
import tiktoken
import tokenizers
import toktok

from gristmill.dataset import InputError, MissingPackageError, UserFunctionError
from gristmill.transforms import PackOptions
from gristmill.transforms.tokens.load_tokenizer import (
    find_tokenizer,
    load_fast,
    load_texts,
    load_tokenizer,
)
from tests.rows.tokenizer_files import (
    END,
    TEXTS,
    published,
    published_ranks,
    rank_file,
    sentence_piece_model,
    tokenizer_json,
)
from tests.servers.gcs_server import GcsServer
from tests.support.told import told

JSON, PIECE, UNIGRAM = (
    tokenizer_json(),
    sentence_piece_model(),
    sentence_piece_model("unigram"),
)
RANKS = published("cl100k_base")
ENDED = tokenizer_json(special=("<s>", "</s>"), enclosed=True)


def options_of(path, **options):
    return PackOptions(length=64, tokenizer=path and str(path), **options)


@pytest.fixture
def written(tmp_path):
    """Writes a file of a tokenizer; returns options with it."""

    def write(content, **options):
        (tmp_path / "any.name").write_bytes(content)
        return options_of(tmp_path / "any.name", **options)

    return write


def encoded(options, texts=TEXTS):
    """Returns the ids of texts one by one, as found for a job."""
    found = dataclasses.replace(options, found=find_tokenizer(options))
    more = {} if options.fast else {"as_text": options.special_text == "text"}
    load = load_fast if options.fast else load_tokenizer
    ids, lengths = load(found).encode([text.encode() for text in texts], **more)
    assert (ids.dtype, lengths.dtype) == (np.uint32, np.int64)
    assert (len(lengths), lengths.sum()) == (len(texts), len(ids))
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def some_texts():
    """Returns texts of letters, digits, blanks and signs in any order."""
    rng = random.Random(1)
    alphabet = "aAbé日 \n\t\r'slt019.,!-_  \u00a0\u017f\u212a"
    made = ["".join(rng.choices(alphabet, k=rng.randrange(80))) for _ in range(60)]
    return [*TEXTS, *made, f"a {END} b", "a </s> b", "<s>", "<unk> the <0x41> rows"]


def of_hugging_face(content):
    plain = tokenizers.Tokenizer.from_str(content.decode())
    plain.encode_special_tokens = True  # As text.
    return lambda text: plain.encode(text).ids


def of_sentence_piece(content):
    return sentencepiece.SentencePieceProcessor(model_proto=content).encode


def of_ranks(_):
    return toktok._encoding("cl100k_base").encode_ordinary


# Content, its library, ids of texts, special token, its id, size of the vocabulary.
LIBRARIES = {
    "huggingface": (JSON, tokenizers, of_hugging_face, END, 5_000, 5_001),
    "tiktoken": (RANKS, tiktoken, of_ranks, END, 100_257, 100_277),
    "bpe": (PIECE, sentencepiece, of_sentence_piece, "</s>", 2, 330),
    "unigram": (UNIGRAM, sentencepiece, of_sentence_piece, "</s>", 2, 280),
}
WAYS = [
    *itertools.product(("huggingface", "tiktoken"), ("text", "token"), (False, True)),
    *(("bpe", "text", False), ("bpe", "text", True), ("unigram", "text", False)),
]


@pytest.mark.parametrize(("kind", "special_text", "fast"), WAYS)
def test_tokens_are_those_of_the_library(written, kind, special_text, fast):
    content, library, make, special, number, size = LIBRARIES[kind]
    options = written(content, eos=special, fast=fast, special_text=special_text)
    plain, expected = make(content), []
    for text in some_texts():
        before, *others = text.split(END) if special_text == "token" else [text]
        behind = [[number, *plain(other)] for other in others]
        expected.append([*plain(before), *itertools.chain(*behind)])
    assert encoded(options, some_texts()) == expected
    spec = find_tokenizer(options)
    assert spec.kind == (kind if make is not of_sentence_piece else "sentencepiece")
    assert spec.library == f"{library.__name__} {library.__version__}"
    assert spec.fast_library.startswith("gigatoken " if fast else "")
    assert (spec.vocabulary_size, spec.eos_id) == (size, number)
    assert spec.special_ids[special] == number


# The library panics: this token is not among the special ones.
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {},
}
DEEP = b'{"version": "1.0", "model": %b%b}' % (b"[" * 100_000, b"]" * 100_000)
NONE, UNUSABLE = "not the file of a tokenizer", "cannot be used: |no known encoding|not"


@pytest.mark.parametrize(
    ("content", "what", "got", "cure"),
    [
        (b"PAR1" + bytes(40), NONE, "Parquet", "check the path"),
        (b'{"a": 1, "b": 2}', NONE, "JSON with the fields a, b", "give the file"),
        (b'{"model": 7,', NONE, "JSON", "give the file"),
        (b"version https://git-lfs.github.com/spec/v1\n", NONE, "LFS", "fetch the"),
        (b"", NONE, "begin with b''", "check the path"),
        (b'{"model": {"type": "no such"}}', UNUSABLE, "", ""),
        (PIECE[: len(PIECE) // 2 + 1], UNUSABLE, "", ""),
        (tokenizer_json(103, post_processor=TEMPLATE), UNUSABLE, "", ""),
        (DEEP, UNUSABLE, "", ""),
        (rank_file(published_ranks("cl100k_base")[:500]), UNUSABLE, "", ""),
    ],
    ids=range(10),
)
def test_files_that_are_no_tokenizer(written, content, what, got, cure):
    options = written(content, add_special_tokens=True)
    cure = f"  to do:    {cure}"
    with told(InputError, got, cure, match=what, where=options.tokenizer):
        find_tokenizer(options)


DROPPING = JSON.replace(b'"dropout": null', b'"dropout": 0.1')
LOWER = tokenizer_json(normalizer={"type": "Lowercase"})
OWN = {"add_special_tokens": True}


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (ENDED, {"eos": "<|s|>"}, r"no token for `eos`(.|\n)*<s>.* an id below 5,002"),
        (ENDED, {"bos": "5002"}, r"`bos` is not in the voc(.|\n)*got:      5002"),
        (ENDED, OWN | {"bos": "<s>"}, "`bos` would be added twice"),
        (ENDED, OWN | {"eos": "</s>"}, "`eos` would be added twice"),
        (JSON, OWN, "has no effect"),
        (PIECE, OWN, "is for a tokenizer.json"),
        (PIECE, {"special_text": "token"}, "token is for tokenizers"),
        (UNIGRAM, {"fast": True}, "no fast path"),
        (LOWER, {"fast": True}, r"no fast path(.|\n)*Lowercase(.|\n)*leave out"),
        (DROPPING, {}, r"at random(.|\n)*got:      0.1"),
        (None, {"eos": "</s>"}, "and there is no tokenizer"),
        (None, {"eos": "7", "vocabulary_size": 7}, r"below 7\n(.|\n)*vocabulary.size"),
    ],
    ids=range(12),
)
def test_options_that_do_not_fit_a_tokenizer(written, content, options, message):
    with pytest.raises(InputError, match=message):
        find_tokenizer((written if content else options_of)(content, **options))


def test_a_limit_of_length_in_the_file_cuts_no_text(written):
    limited = tokenizers.Tokenizer.from_str(JSON.decode())
    limited.enable_truncation(2)
    limited.enable_padding(length=64)
    assert encoded(written(limited.to_str().encode())) == encoded(written(JSON))


def test_another_file_or_library_than_planned(written):
    options = written(JSON, fast=True)
    spec = find_tokenizer(options)
    for load, name, value, message in (
        (load_tokenizer, "library", "tokenizers 0.1", "another version"),
        (load_fast, "fast_library", "gigatoken 0.1", "another version"),
        (load_tokenizer, "digest", "sha256:00", "not the one that the job"),
    ):
        other = dataclasses.replace(spec, **{name: value})
        with told(InputError, match=message, expected=value):
            load(dataclasses.replace(options, found=other))
    written(tokenizer_json(4_000))
    # Planned again, it is the one that is there.
    again = find_tokenizer(dataclasses.replace(options, found=spec))
    assert again.vocabulary_size == 4_001


def test_a_tokenizer_in_a_bucket(monkeypatch):
    with GcsServer("models") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.objects.put("models", "a/tokenizer.json", JSON)
        spec = find_tokenizer(options_of("gs://models/a/tokenizer.json"))
        assert spec.vocabulary_size == 5_001
        with pytest.raises(InputError, match="is a directory"):
            find_tokenizer(options_of("gs://models/a"))


@pytest.mark.parametrize(
    ("package", "content", "extra"),
    [
        ("tokenizers", tokenizer_json(101), "tokenizers"),
        ("sentencepiece", PIECE, "tokenizers"),
        ("tiktoken", RANKS, "tokenizers"),
        ("gigatoken", tokenizer_json(102), "gigatoken"),
    ],
    ids=str,
)
def test_missing_packages(written, monkeypatch, package, content, extra):
    monkeypatch.setitem(sys.modules, package, None)
    with told(
        MissingPackageError,
        f"the package {package} is not installed",
        f"pip install '.[{extra}]', in the clone",
    ):
        find_tokenizer(written(content, fast=package == "gigatoken"))


MODULE = """
import numpy as np

def letters(texts):
    return [[ord(c) for c in text] for text in texts]
letters.special_ids = {"<s>": 256}

class Words:
    vocabulary_size = 1 << 17
    special_ids = {}
    def __call__(self, texts):
        return [np.arange(len(text.split()), dtype=np.int64) for text in texts]

class NeedsMore:
    def __init__(self, path):
        pass

def silent(texts):
    return letters(texts)

def gives(values):
    function = lambda texts: values(texts)
    function.vocabulary_size = 300
    return function

def has(special_ids):
    function = gives(letters)
    function.special_ids = special_ids
    return function

letters.vocabulary_size = 300
too_few = gives(lambda texts: letters(texts)[1:])
floats = gives(lambda texts: [[0.5] for _ in texts])
negative = gives(lambda texts: [[-1, 5] for _ in texts])
nested = gives(lambda texts: [[[1]] for _ in texts])
nothing = gives(lambda texts: None)
beyond = has({"</s>": 300})
no_number = has({"</s>": "2"})
listed = has(["</s>"])
of_numpy = has({"</s>": np.int64(299)})
of_numpy.vocabulary_size = np.int64(300)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    name = f"tokenizer_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_a_function(module):
    options = options_of(f"{module}:letters", bos="<s>", eos="0")
    spec = find_tokenizer(options)
    assert (spec.kind, spec.library) == ("function", f"{module}:letters")
    assert spec.digest.startswith("sha256:")
    assert (spec.vocabulary_size, spec.bos_id, spec.eos_id) == (300, 256, 0)
    assert encoded(options, ["ab", "", "é"]) == [[97, 98], [], [233]]
    # A class is called once.
    assert encoded(options_of(f"{module}:Words"), ["a b c", "a"]) == [[0, 1, 2], [0]]
    assert encoded(options_of(f"{module}:of_numpy"), ["a"]) == [[97]]
    with pytest.raises(InputError, match="cannot turn tokens back into text"):
        load_texts(f"{module}:letters")


@pytest.mark.parametrize(
    ("name", "what", "fact"),
    [
        ("NeedsMore", "class of the tokenizer", "got:      TypeError: "),
        ("silent", "how large", "add a line: silent.vocabulary_size = 50257"),
        ("beyond", "special_ids", "below 300"),
        ("no_number", "special_ids", "'</s>': '2'"),
        ("listed", "special_ids", "'</s>'"),
        ("too_few", "values that are not tokens", "got:      1 sequences"),
        ("floats", "values that are not tokens", "float64 of shape (1,)"),
        ("negative", "values that are not tokens", "ids from -1 to 5"),
        ("nested", "values that are not tokens", "int64 of shape (1, 1)"),
        ("nothing", "values that are not tokens", "TypeError: "),
    ],
)
def test_what_a_function_must_tell_and_return(module, name, what, fact):
    with told(
        (InputError, UserFunctionError), fact, match=what, where=f"{module}:{name}"
    ):
        encoded(options_of(f"{module}:{name}"), ["a", "b"])


@pytest.mark.parametrize("kind", ["huggingface", "tiktoken", "bpe"])
def test_texts_of_tokens_add_up(written, kind):
    content, _, _, special, number, _ = LIBRARIES[kind]
    options = written(content)
    shown = load_texts(options.tokenizer)
    blank = " " * (kind == "bpe")  # Before the first word.
    for said in TEXTS if kind != "bpe" else ["the quick brown fox 日本語"]:
        (ids,) = encoded(options, [said])
        found = shown.texts(ids)
        assert len(found) == len(ids)
        assert "".join(found) == blank + said
    assert shown.texts([1 << 30, number]) == [None, special]


def test_pieces_that_name_a_byte_stand_for_it(tmp_path):
    vocabulary = {"<0x0A>": 0, "\u2581a": 1, "<0xC3>": 2, "<0xA9>": 3, "<unk>": 4}
    model = tokenizers.models.BPE(vocab=vocabulary, merges=[], byte_fallback=True)
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    shown = load_texts(str(tmp_path / "tokenizer.json"))
    assert shown.texts([*range(5)]) == ["\n", " a", "", "é", "<unk>"]
