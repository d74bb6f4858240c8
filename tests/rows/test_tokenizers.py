"""Tokenizers are found by their content, and give what their libraries give."""

import dataclasses
import hashlib
import json
import random
import subprocess
import sys

import numpy as np
import pytest
import sentencepiece
import tiktoken
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

PIECE = sentence_piece_model()
ENDED = tokenizer_json(template=["<s>", "$A", "</s>"])
MAKERS = {
    "json": tokenizer_json,
    "tiktoken": lambda: published("cl100k_base"),
    "model": sentence_piece_model,
}


def options_of(path, **options):
    return PackOptions(length=64, tokenizer=str(path), **options)


@pytest.fixture
def written(tmp_path):
    """Writes a file of a tokenizer; returns options with it."""

    def write(content, name="any.name", **options):
        (tmp_path / name).write_bytes(content)
        return options_of(tmp_path / name, **options)

    return write


def encoded(options, texts=TEXTS):
    """Returns the ids of texts one by one, as found for a job."""
    found = dataclasses.replace(options, found=find_tokenizer(options))
    given = [text.encode() for text in texts]
    if options.fast:
        ids, lengths = load_fast(found).encode(given)
    else:
        as_text = options.special_text == "text"
        ids, lengths = load_tokenizer(found).encode(given, as_text=as_text)
    assert (ids.dtype, lengths.dtype) == (np.uint32, np.int64)
    assert len(lengths) == len(texts)
    assert lengths.sum() == len(ids)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def some_text(seed):
    """Returns texts of letters, digits, blanks and signs in any order."""
    rng = random.Random(seed)
    alphabet = "aAbé日 \n\t\r'slt019.,!-_  \u00a0\u017f\u212a"
    return ["".join(rng.choices(alphabet, k=rng.randrange(80))) for _ in range(60)]


@pytest.mark.parametrize("special_text", ["text", "token"])
@pytest.mark.parametrize("fast", [False, True])
def test_hugging_face(written, fast, special_text):
    content = tokenizer_json()
    options = written(content, fast=fast, special_text=special_text)
    plain = tokenizers.Tokenizer.from_file(options.tokenizer)
    plain.encode_special_tokens = special_text == "text"
    texts = [*TEXTS, *some_text(1)]
    expected = [plain.encode(text, add_special_tokens=False).ids for text in texts]
    assert encoded(options, texts) == expected
    has_token = [5_000] in [ids[-3:-2] for ids in expected]  # Of END in a text.
    assert has_token == (special_text == "token")
    spec = find_tokenizer(options)
    assert spec.kind == "huggingface"
    assert spec.digest == "sha256:" + hashlib.sha256(content).hexdigest()
    assert spec.library == f"tokenizers {tokenizers.__version__}"
    assert spec.fast_library.startswith("gigatoken " if fast else "")
    assert (spec.vocabulary_size, spec.special_ids) == (5_001, {END: 5_000})


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_sentence_piece(written, kind, fast):
    content = sentence_piece_model(kind)
    options = written(content, bos="<s>", eos="</s>", fast=fast)
    if fast and kind == "unigram":
        with pytest.raises(InputError, match="no fast path"):
            find_tokenizer(options)
        return
    plain = sentencepiece.SentencePieceProcessor(model_proto=content)
    # What looks like a special token in a text is text.
    texts = [*TEXTS, *some_text(2), "a </s> b", "<s>", "<unk> the <0x41> rows"]
    assert encoded(options, texts) == plain.encode(texts, out_type=int)
    spec = find_tokenizer(options)
    assert spec.kind == "sentencepiece"
    assert spec.library == f"sentencepiece {sentencepiece.__version__}"
    assert spec.vocabulary_size == len(plain)
    assert spec.special_ids == {"<unk>": 0, "<s>": 1, "</s>": 2}
    assert (spec.bos_id, spec.eos_id) == (1, 2)


@pytest.mark.parametrize(("fast", "special_text"), [(False, "text"), (True, "token")])
def test_tiktoken(written, fast, special_text):
    content = published("cl100k_base")
    options = written(content, eos=END, fast=fast, special_text=special_text)
    known = toktok._encoding("cl100k_base")
    texts, expected = [*TEXTS, *some_text(3), f"a {END} b"], []
    for text in texts:
        before, *others = text.split(END) if special_text == "token" else [text]
        expected.append([*known.encode_ordinary(before)])
        for other in others:
            expected[-1] += [100_257, *known.encode_ordinary(other)]
    assert encoded(options, texts) == expected
    spec = find_tokenizer(options)
    assert spec.kind == "tiktoken"
    assert spec.library == f"tiktoken {tiktoken.__version__}"
    assert (spec.vocabulary_size, spec.eos_id) == (100_277, 100_257)


def broken(**parts):
    """Returns a file on which the library panics."""
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}
    fields = {"version": "1.0", "added_tokens": [], "model": model}
    return json.dumps(fields | parts).replace('"[[', "[[").replace(']]"', "]]").encode()


DEEP = "[" * 100_000 + "]" * 100_000
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {},
}
NONE = "not the file of a tokenizer"
UNUSABLE = "cannot be used: |no known encoding|" + NONE
CHARSMAP = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
GIVE, CHECK = "give the file", "check the path"


@pytest.mark.parametrize(
    ("content", "what", "got", "cure"),
    [
        (b"PAR1" + bytes(40), NONE, "Parquet", CHECK),
        (b'{"a": 1, "b": 2}', NONE, "JSON with the fields a, b", GIVE),
        (b'{"model": 7, "!": 0}', NONE, "JSON with the fields model, !", GIVE),
        (b'{"model": 7,', NONE, "JSON", GIVE),
        (b"version https://git-lfs.github.com/spec/v1\n", NONE, "Git LFS", "fetch the"),
        (b"\n\x02ab", NONE, "begin with", CHECK),
        (b"", NONE, "begin with b''", CHECK),
        (b'{"model": {"type": "no such"}}', UNUSABLE, "", ""),
        (b'{"model": {', UNUSABLE, "", ""),
        (PIECE[: len(PIECE) // 2 + 1], UNUSABLE, "", ""),
        (broken(normalizer=CHARSMAP), UNUSABLE, "", ""),
        (broken(post_processor=TEMPLATE), UNUSABLE, "", ""),
        (broken(model=DEEP), UNUSABLE, "", ""),
        (broken(mod=DEEP).replace(b'"model"', b'"other"'), UNUSABLE, "", ""),
        (rank_file(published_ranks("cl100k_base")[:500]), UNUSABLE, "", ""),
    ],
    ids=range(15),
)
def test_files_that_are_no_tokenizer(written, content, what, got, cure):
    options = written(content, add_special_tokens=True)
    with pytest.raises(InputError, match=what) as raised:
        find_tokenizer(options)
    error = raised.value
    assert got in str(error.got)
    assert error.cure
    assert error.cure.startswith(cure)
    assert error.where == options.tokenizer


def changed(**model):
    fields = json.loads(tokenizer_json())
    fields["model"] |= model
    return json.dumps(fields).encode()


LOWER = tokenizer_json(normalizer={"type": "Lowercase"})
OWN = {"add_special_tokens": True}


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (ENDED, {"eos": "<|s|>"}, r"no token for `eos`(.|\n)*<s>.* an id below 5,002"),
        (ENDED, {"bos": "5002"}, r"`bos` is not in the voc(.|\n)*got:      5002"),
        (ENDED, OWN | {"bos": "<s>"}, "`bos` would be added twice"),
        (ENDED, OWN | {"eos": "</s>"}, "`eos` would be added twice"),
        (tokenizer_json(), OWN, "has no effect"),
        (PIECE, OWN, "is for a tokenizer.json"),
        (PIECE, {"special_text": "token"}, "token is for tokenizers"),
        (LOWER, {"fast": True}, r"no fast path(.|\n)*Lowercase(.|\n)*leave out"),
        (changed(dropout=0.1), {}, r"at random(.|\n)*got:      0.1"),
    ],
)
def test_options_that_do_not_fit_a_tokenizer(written, content, options, message):
    with pytest.raises(InputError, match=message):
        find_tokenizer(written(content, **options))


def test_a_limit_of_length_in_the_file_cuts_no_text(written):
    cut = {"max_length": 2, "strategy": "LongestFirst", "stride": 0}
    pad = {"strategy": {"Fixed": 64}, "pad_id": 0, "pad_type_id": 0, "pad_token": "!"}
    limits = {
        "truncation": cut | {"direction": "Right"},
        "padding": pad | {"direction": "Right", "pad_to_multiple_of": None},
    }
    expected = encoded(written(tokenizer_json()))
    assert encoded(written(tokenizer_json(**limits))) == expected


def test_bos_and_eos(written):
    fields = json.loads(ENDED)
    fields["added_tokens"][0]["special"] = False
    unsaid = json.dumps(fields).encode()
    for content, options, ids, special in (
        (ENDED, {"bos": "<s>", "eos": "5001"}, (5_000, 5_001), ["<s>", "</s>"]),
        (ENDED, {"bos": "0"}, (0, None), ["<s>", "</s>"]),
        (unsaid, {"bos": "<s>"}, (5_000, None), ["</s>"]),
    ):
        spec = find_tokenizer(written(content, **options))
        assert (spec.bos_id, spec.eos_id) == ids
        assert [*spec.special_ids] == special


def test_tokens_that_are_there_already():
    spec = find_tokenizer(PackOptions(length=8, bos="1", eos="2"))
    assert (spec.kind, spec.digest, spec.library) == ("ids", "", "")
    assert (spec.bos_id, spec.eos_id, spec.vocabulary_size) == (1, 2, 1 << 32)
    for options, message in (
        ({"eos": "</s>"}, "and there is no tokenizer"),
        (
            {"eos": "7", "vocabulary_size": 7},
            r"`eos` is not in the voc(.|\n)*an id below 7\n(.|\n)*or .*vocabulary.size",
        ),
    ):
        with pytest.raises(InputError, match=message):
            find_tokenizer(PackOptions(length=8, **options))


def test_another_file_or_library_than_planned(written):
    options = written(tokenizer_json(), fast=True)
    spec = find_tokenizer(options)
    written(tokenizer_json(4_000))
    # Planned again, it is the one that is there.
    again = find_tokenizer(dataclasses.replace(options, found=spec))
    assert again.vocabulary_size == 4_001
    for load, name, value, message in (
        (load_tokenizer, "digest", "sha256:00", "not the one that the job"),
        (load_tokenizer, "library", "tokenizers 0.1", "another version"),
        (load_fast, "fast_library", "gigatoken 0.1", "another version"),
    ):
        if name != "digest":
            written(tokenizer_json())
        other = dataclasses.replace(spec, **{name: value})
        with pytest.raises(InputError, match=message) as raised:
            load(dataclasses.replace(options, found=other))
        assert raised.value.expected == value


def test_a_tokenizer_in_a_bucket(monkeypatch):
    with GcsServer("models") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.objects.put("models", "a/tokenizer.json", tokenizer_json())
        spec = find_tokenizer(options_of("gs://models/a/tokenizer.json"))
        assert spec.vocabulary_size == 5_001
        with pytest.raises(InputError, match="is a directory"):
            find_tokenizer(options_of("gs://models/a"))


@pytest.mark.parametrize(
    ("package", "kind", "extra"),
    [
        ("tokenizers", "json", "tokenizers"),
        ("sentencepiece", "model", "tokenizers"),
        ("tiktoken", "tiktoken", "tokenizers"),
        ("gigatoken", "json", "gigatoken"),
    ],
)
def test_missing_packages(written, package, kind, extra):
    path, fast = written(MAKERS[kind]()).tokenizer, package == "gigatoken"
    program = f"""
import sys
sys.modules[{package!r}] = None
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.tokens.load_tokenizer import find_tokenizer
from gristmill.dataset.base.errors import MissingPackageError
try:
    find_tokenizer(PackOptions(length=8, tokenizer={path!r}, fast={fast}))
except MissingPackageError as error:
    print(error)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"the package {package} is not installed" in done.stdout, done.stderr
    assert f"pip install 'gristmill[{extra}]'" in done.stdout


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
    with pytest.raises((InputError, UserFunctionError), match=what) as raised:
        encoded(options_of(f"{module}:{name}"), ["a", "b"])
    assert fact in str(raised.value)
    assert raised.value.where == f"{module}:{name}"


@pytest.mark.parametrize(
    ("kind", "number", "text"),
    [("json", 5_000, END), ("tiktoken", 100_257, END), ("model", 1, "<s>")],
)
def test_texts_of_tokens_add_up(written, kind, number, text):
    options = written(MAKERS[kind]())
    shown = load_texts(options.tokenizer)
    blank = " " if kind == "model" else ""  # Before the first word.
    for said in TEXTS if kind != "model" else ["the quick brown fox 日本語"]:
        (ids,) = encoded(options, [said])
        found = shown.texts(ids)
        assert len(found) == len(ids)
        assert "".join(found) == blank + said
    assert shown.texts([1 << 30, number]) == [None, text]


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
    assert shown.texts([0xC3]) == ["\ufffd"]
    assert shown.texts([0xC3, 255, 0x41]) == ["\ufffd", None, "A"]
    assert shown.decode([0xC3, 255, 0x41]) == "\ufffd<255>A"
