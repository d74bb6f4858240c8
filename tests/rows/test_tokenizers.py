"""Tokenizers are found by their content, and give what their libraries give."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tiktoken
import tiktoken.load
import tokenizers
import toktok

from gristmill.dataset.base.errors import InputError, UserFunctionError
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.tokens.load_tokenizer import (
    find_tokenizer,
    load_fast,
    load_texts,
    load_tokenizer,
)
from gristmill.transforms.tokens.tokenizer import Tokenizer
from tests.servers.gcs_server import GcsServer
from tests.support.tokenizer_files import (
    END,
    TEXTS,
    published,
    published_ranks,
    rank_file,
    sentence_piece_model,
    tokenizer_json,
)


def options_of(path: pathlib.Path | str, **options: Any) -> PackOptions:
    return PackOptions(length=64, tokenizer=str(path), **options)


def written(folder: pathlib.Path, name: str, content: bytes) -> pathlib.Path:
    path = folder / name
    path.write_bytes(content)
    return path


def encoded(
    options: PackOptions, texts=TEXTS, *, fast: bool = False
) -> list[list[int]]:
    """Returns the ids of texts one by one, as found for a job."""
    found = dataclasses.replace(options, found=find_tokenizer(options))
    given = [text.encode() for text in texts]
    if fast:
        ids, lengths = load_fast(found).encode(given)
    else:
        as_text = options.special_text == "text"
        ids, lengths = load_tokenizer(found).encode(given, as_text=as_text)
    assert ids.dtype == np.uint32
    assert lengths.dtype == np.int64
    assert len(lengths) == len(texts)
    assert lengths.sum() == len(ids)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def some_text(seed: int, count: int = 60) -> list[str]:
    """Returns texts of letters, digits, blanks and signs in any order."""
    rng = random.Random(seed)
    alphabet = "aAbé日 \n\t\r'slt019.,!-_  \u00a0\u017f\u212a"
    return ["".join(rng.choices(alphabet, k=rng.randrange(80))) for _ in range(count)]


@pytest.mark.parametrize("special_text", ["text", "token"])
@pytest.mark.parametrize("fast", [False, True])
def test_hugging_face(tmp_path, fast, special_text):
    path = written(tmp_path, "any.name", tokenizer_json())
    options = options_of(path, fast=fast, special_text=special_text)
    plain = tokenizers.Tokenizer.from_file(str(path))
    plain.encode_special_tokens = special_text == "text"
    texts = [*TEXTS, *some_text(1)]
    expected = [plain.encode(text, add_special_tokens=False).ids for text in texts]
    assert encoded(options, texts, fast=fast) == expected
    has_token = [5_000] in [ids[-3:-2] for ids in expected]  # Of END in a text.
    assert has_token == (special_text == "token")
    spec = find_tokenizer(options)
    assert spec.kind == "huggingface"
    assert spec.digest == "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
    assert spec.library == f"tokenizers {tokenizers.__version__}"
    assert spec.fast_library == ("gigatoken 0.10.0" if fast else "")
    assert spec.vocabulary_size == 5_001
    assert spec.special_ids == {END: 5_000}


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sentence_piece(tmp_path, kind, fast):
    path = written(tmp_path, "tokenizer.model", sentence_piece_model(kind))
    options = options_of(path, bos="<s>", eos="</s>", fast=fast)
    if fast and kind == "unigram":
        with pytest.raises(InputError, match="no fast path"):
            find_tokenizer(options)
        return
    plain = sentencepiece.SentencePieceProcessor(model_file=str(path))
    # What looks like a special token in a text is text.
    texts = [*TEXTS, *some_text(2), "a </s> b", "<s>", "<unk> the <0x41> rows"]
    assert encoded(options, texts, fast=fast) == plain.encode(texts, out_type=int)
    spec = find_tokenizer(options)
    assert spec.kind == "sentencepiece"
    assert spec.library == f"sentencepiece {sentencepiece.__version__}"
    assert spec.vocabulary_size == len(plain)
    assert spec.special_ids == {"<unk>": 0, "<s>": 1, "</s>": 2}
    assert (spec.bos_id, spec.eos_id) == (1, 2)


@pytest.mark.parametrize(("fast", "special_text"), [(0, "text"), (1, "token")])
def test_tiktoken(tmp_path, fast, special_text):
    path = written(tmp_path, "renamed.model", published("cl100k_base"))
    options = options_of(path, eos=END, fast=bool(fast), special_text=special_text)
    texts = [*TEXTS, *some_text(3), f"a {END} b"]
    known = toktok._encoding("cl100k_base")
    expected = []
    for text in texts:
        before, *others = text.split(END) if special_text == "token" else [text]
        ids = [*known.encode_ordinary(before)]
        for other in others:
            ids += [100_257, *known.encode_ordinary(other)]
        expected.append(ids)
    assert encoded(options, texts, fast=fast) == expected
    spec = find_tokenizer(options)
    assert spec.kind == "tiktoken"
    assert spec.library == f"tiktoken {tiktoken.__version__}"
    assert spec.vocabulary_size == 100_277
    assert spec.eos_id == 100_257


PIECE = sentence_piece_model()


@pytest.mark.parametrize(
    ("content", "got", "cure"),
    [
        (b"PAR1" + bytes(40), "Parquet", "check the path"),
        (b'{"a": 1, "b": 2}', "JSON with the fields a, b", "give the file tokenizer"),
        (b'{"model": 7, "!": 0}', "JSON with the fields model, !", "give the file"),
        (b'{"model": 7,', "JSON", "give the file tokenizer"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS", "fetch the file"),
        (b"\n\x02ab", "begin with", "check the path"),
        (b"", "begin with b''", "check the path"),
    ],
)
def test_files_of_something_else(tmp_path, content, got, cure):
    path = written(tmp_path, "tokenizer.json", content)
    with pytest.raises(InputError, match="not the file of a tokenizer") as raised:
        find_tokenizer(options_of(path))
    assert got in raised.value.got
    assert raised.value.cure.startswith(cure)
    assert raised.value.where == str(path)


def broken(**parts: object) -> bytes:
    """Returns a file on which the library panics."""
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}
    fields = {"version": "1.0", "added_tokens": [], "model": model} | parts
    if "mod" in parts:
        del fields["model"]
    return json.dumps(fields).replace('"[[', "[[").replace(']]"', "]]").encode()


TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {},
}
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "content",
    [
        b'{"model": {"type": "no such"}}',
        b'{"model": {',
        PIECE[: len(PIECE) // 2 + 1],
        broken(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        broken(post_processor=TEMPLATE),
        broken(model=DEEP),
        broken(mod=DEEP),
        rank_file(published_ranks("cl100k_base")[:500]),
    ],
    ids=range(8),
)
def test_files_that_the_library_cannot_read(tmp_path, content):
    path = written(tmp_path, "tokenizer", content)
    what = "cannot be used: |no known encoding|not the file of a tokenizer"
    with pytest.raises(InputError, match=what) as raised:
        find_tokenizer(options_of(path, add_special_tokens=True))
    assert raised.value.where == str(path)
    assert raised.value.cure


def test_a_limit_of_length_in_the_file_cuts_no_text(tmp_path):
    content = tokenizer_json(
        truncation={
            "direction": "Right",
            "max_length": 2,
            "strategy": "LongestFirst",
            "stride": 0,
        },
        padding={
            "strategy": {"Fixed": 64},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "!",
        },
    )
    path = written(tmp_path, "cut.json", content)
    plain = written(tmp_path, "plain.json", tokenizer_json())
    assert encoded(options_of(path)) == encoded(options_of(plain))


def test_bos_and_eos(tmp_path):
    path = written(tmp_path, "t.json", tokenizer_json(template=["<s>", "$A", "</s>"]))
    spec = find_tokenizer(options_of(path, bos="<s>", eos="5001"))
    assert (spec.bos_id, spec.eos_id) == (5_000, 5_001)
    spec = find_tokenizer(options_of(path, bos="0"))
    assert (spec.bos_id, spec.eos_id) == (0, None)
    with pytest.raises(InputError, match="no token for `eos`") as raised:
        find_tokenizer(options_of(path, eos="<|s|>"))
    assert "<s>" in raised.value.expected
    assert "an id below 5,002" in raised.value.expected
    with pytest.raises(InputError, match="`bos` is not in the vocabulary") as raised:
        find_tokenizer(options_of(path, bos="5002"))
    assert raised.value.got == "5002"


def test_special_tokens_of_the_tokenizer(tmp_path):
    path = written(tmp_path, "t.json", tokenizer_json(template=["<s>", "$A", "</s>"]))
    options = options_of(path, add_special_tokens=True)
    for option, token in (("bos", "<s>"), ("eos", "</s>")):
        twice = dataclasses.replace(options, **{option: token})
        with pytest.raises(InputError, match=f"`{option}` would be added twice"):
            find_tokenizer(twice)
    other = written(tmp_path, "other.json", tokenizer_json())
    model = written(tmp_path, "t.model", PIECE)
    for file, what in ((other, "has no effect"), (model, "is for a tokenizer.json")):
        with pytest.raises(InputError, match=what):
            find_tokenizer(options_of(file, add_special_tokens=True))
    with pytest.raises(InputError, match=r"token is for tokenizers"):
        find_tokenizer(options_of(model, special_text="token"))


def test_no_fast_path(tmp_path):
    lower = {"type": "Lowercase"}
    path = written(tmp_path, "t.json", tokenizer_json(normalizer=lower))
    with pytest.raises(InputError, match="no fast path") as raised:
        find_tokenizer(options_of(path, fast=True))
    assert "Lowercase" in raised.value.got
    assert raised.value.cure == "leave out --fast"


def test_special_tokens_are_those_that_say_so(tmp_path):
    fields = json.loads(tokenizer_json(template=["<s>", "$A", "</s>"]))
    fields["added_tokens"][0]["special"] = False
    path = written(tmp_path, "t.json", json.dumps(fields).encode())
    spec = find_tokenizer(options_of(path, bos="<s>"))
    assert (spec.bos_id, spec.special_ids) == (5_000, {"</s>": 5_001})


def test_tokens_at_random_are_refused(tmp_path):
    fields = json.loads(tokenizer_json())
    fields["model"]["dropout"] = 0.1
    path = written(tmp_path, "t.json", json.dumps(fields).encode())
    with pytest.raises(InputError, match="at random") as raised:
        find_tokenizer(options_of(path))
    assert (raised.value.where, raised.value.got) == (str(path), "0.1")


def test_tokens_that_are_there_already():
    spec = find_tokenizer(PackOptions(length=8, bos="1", eos="2"))
    assert (spec.kind, spec.digest, spec.library) == ("ids", "", "")
    assert (spec.bos_id, spec.eos_id, spec.vocabulary_size) == (1, 2, 1 << 32)
    with pytest.raises(InputError, match="and there is no tokenizer"):
        find_tokenizer(PackOptions(length=8, eos="</s>"))
    with pytest.raises(InputError, match="`eos` is not in the vocabulary") as raised:
        find_tokenizer(PackOptions(length=8, eos="7", vocabulary_size=7))
    assert (raised.value.expected, raised.value.got) == ("an id below 7", "7")
    assert raised.value.cure == "correct it, or --vocabulary-size"


def test_another_file_or_library_than_planned(tmp_path):
    path = written(tmp_path, "t.json", tokenizer_json())
    options = options_of(path, fast=True)
    spec = find_tokenizer(options)
    path.write_bytes(tokenizer_json(4_000))
    other = dataclasses.replace(spec, digest="sha256:00")
    with pytest.raises(InputError, match="not the one that the job") as raised:
        load_tokenizer(dataclasses.replace(options, found=other))
    assert raised.value.expected == "sha256:00"
    # Planned again, it is the one that is there.
    again = find_tokenizer(dataclasses.replace(options, found=spec))
    assert again.vocabulary_size == 4_001
    path.write_bytes(tokenizer_json())
    for load, library in ((load_tokenizer, "library"), (load_fast, "fast_library")):
        other = dataclasses.replace(spec, **{library: "tokenizers 0.1"})
        with pytest.raises(InputError, match="another version") as raised:
            load(dataclasses.replace(options, found=other))
        assert raised.value.expected == "tokenizers 0.1"


def test_a_tokenizer_in_a_bucket(monkeypatch):
    with GcsServer("models") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.objects.put("models", "a/tokenizer.json", tokenizer_json())
        spec = find_tokenizer(options_of("gs://models/a/tokenizer.json"))
        assert spec.vocabulary_size == 5_001
        with pytest.raises(InputError, match="is a directory"):
            find_tokenizer(options_of("gs://models/a"))


@pytest.mark.parametrize(
    ("package", "content", "fast", "extra"),
    [
        ("tokenizers", tokenizer_json, False, "tokenizers"),
        ("sentencepiece", sentence_piece_model, False, "tokenizers"),
        ("tiktoken", lambda: published("cl100k_base"), False, "tokenizers"),
        ("gigatoken", tokenizer_json, True, "gigatoken"),
    ],
)
def test_missing_packages(tmp_path, package, content, fast, extra):
    path = written(tmp_path, "file", content())
    program = f"""
import sys
sys.modules[{package!r}] = None
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.tokens.load_tokenizer import find_tokenizer
from gristmill.dataset.base.errors import MissingPackageError
try:
    find_tokenizer(PackOptions(length=8, tokenizer={str(path)!r}, fast={fast}))
except MissingPackageError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert f"the package {package} is not installed" in done.stdout, done.stderr
    assert f"pip install 'gristmill[{extra}]'" in done.stdout


MODULE = """
import numpy as np

def letters(texts):
    return [[ord(c) for c in text] for text in texts]
letters.vocabulary_size = 300
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

def too_few(texts):
    return letters(texts)[1:]
def floats(texts):
    return [[0.5] for _ in texts]
def negative(texts):
    return [[-1, 5] for _ in texts]
def nested(texts):
    return [[[1]] for _ in texts]
def nothing(texts):
    return None
def beyond(texts):
    return letters(texts)
beyond.special_ids = {"</s>": 300}
def no_number(texts):
    return letters(texts)
no_number.special_ids = {"</s>": "2"}
def listed(texts):
    return letters(texts)
listed.special_ids = ["</s>"]
for also in (beyond, no_number, listed):
    also.vocabulary_size = 300
def of_numpy(texts):
    return letters(texts)
of_numpy.vocabulary_size = np.int64(300)
of_numpy.special_ids = {"</s>": np.int64(299)}

for wrong in (too_few, floats, negative, nested, nothing):
    wrong.vocabulary_size = 300
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
    with pytest.raises((InputError, UserFunctionError), match=what) as raised:
        encoded(options_of(f"{module}:{name}"), ["a", "b"])
    assert fact in str(raised.value)
    assert raised.value.where == f"{module}:{name}"


@pytest.mark.parametrize("kind", ["json", "tiktoken", "model"])
def test_texts_of_tokens_add_up(tmp_path, kind):
    content = {
        "json": tokenizer_json,
        "tiktoken": lambda: published("cl100k_base"),
        "model": sentence_piece_model,
    }
    path = written(tmp_path, "tokenizer", content[kind]())
    shown = load_texts(str(path))
    for text in TEXTS if kind != "model" else ["the quick brown fox 日本語"]:
        (ids,) = encoded(options_of(path), [text])
        found = shown.texts(ids)
        assert len(found) == len(ids)
        said = "".join(map(str, found))
        assert (said.strip() if kind == "model" else said) == text
    assert shown.texts([1 << 30]) == [None]
    special = {"json": (5_000, END), "tiktoken": (100_257, END), "model": (1, "<s>")}
    assert shown.texts([special[kind][0]]) == [special[kind][1]]


def test_pieces_that_name_a_byte_stand_for_it(tmp_path):
    vocabulary = {"<0x0A>": 0, "\u2581a": 1, "<0xC3>": 2, "<0xA9>": 3, "<unk>": 4}
    model = tokenizers.models.BPE(vocab=vocabulary, merges=[], byte_fallback=True)
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    shown = load_texts(str(tmp_path / "tokenizer.json"))
    assert shown.texts([0, 1, 2, 3, 4]) == ["\n", " a", "", "é", "<unk>"]


class Halves(Tokenizer):
    """A token for each byte, and none for 255."""

    def ids_of(self, texts, *, as_text):
        return [text.encode() for text in texts]

    def id_of(self, token):
        return None

    def bytes_of(self, token):
        return bytes([token]) if token < 255 else None


def test_a_character_is_in_its_last_token():
    shown = Halves()
    assert shown.texts([*"é!".encode()]) == ["", "é", "!"]
    # What is cut is told.
    assert shown.texts([*"é".encode()][:1]) == ["\ufffd"]
    assert shown.texts([0xC3, 255, 0x41]) == ["\ufffd", None, "A"]
    assert shown.decode([0xC3, 255, 0x41]) == "\ufffd<255>A"
