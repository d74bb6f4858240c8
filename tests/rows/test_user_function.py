"""A function of the user's as a tokenizer: what it must tell and return."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gristmill.dataset.base.errors import InputError, UserFunctionError
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.tokens.tokenizers import find_tokenizer, load_tokenizer

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
    options = PackOptions(length=8, tokenizer=f"{module}:letters", bos="<s>", eos="0")
    spec = find_tokenizer(options)
    assert spec.kind == "function"
    assert spec.digest.startswith("sha256:")
    assert spec.library == f"{module}:letters"
    assert spec.vocabulary_size == 300
    assert (spec.bos_id, spec.eos_id) == (256, 0)
    tokenizer = load_tokenizer(dataclasses.replace(options, found=spec))
    ids, lengths = tokenizer.encode([b"ab", b"", "é".encode()])
    assert ids.tolist() == [97, 98, 233]
    assert lengths.tolist() == [2, 0, 1]


def test_a_class_is_called_once(module):
    options = PackOptions(length=8, tokenizer=f"{module}:Words")
    ids, lengths = load_tokenizer(options).encode([b"a b c", b"a"])
    assert ids.dtype == np.uint32
    assert ids.tolist() == [0, 1, 2, 0]
    assert lengths.tolist() == [3, 1]
    options = PackOptions(length=8, tokenizer=f"{module}:NeedsMore")
    with pytest.raises(InputError, match="class of the tokenizer") as raised:
        find_tokenizer(options)
    assert raised.value.got.startswith("TypeError: ")


def test_it_must_tell_how_large_its_vocabulary_is(module):
    with pytest.raises(InputError, match="how large") as raised:
        find_tokenizer(PackOptions(length=8, tokenizer=f"{module}:silent"))
    assert raised.value.cure == "add a line: silent.vocabulary_size = 50257"


@pytest.mark.parametrize("name", ["beyond", "no_number", "listed"])
def test_special_tokens_are_in_the_vocabulary(module, name):
    with pytest.raises(InputError, match="special_ids") as raised:
        find_tokenizer(PackOptions(length=8, tokenizer=f"{module}:{name}", eos="</s>"))
    assert "</s>" in raised.value.got
    assert raised.value.expected.endswith("below 300")


@pytest.mark.parametrize(
    ("name", "got"),
    [
        ("too_few", "1 sequences"),
        ("floats", "float64 of shape (1,)"),
        ("negative", "ids from -1 to 5"),
        ("nested", "int64 of shape (1, 1)"),
        ("nothing", "TypeError: "),
    ],
)
def test_what_it_must_return(module, name, got):
    options = PackOptions(length=8, tokenizer=f"{module}:{name}")
    with pytest.raises(UserFunctionError, match="values that are not tokens") as raised:
        load_tokenizer(options).encode([b"a", b"b"])
    assert raised.value.got.startswith(got)
    assert raised.value.where == f"{module}:{name}"
