"""Tokens as text: together they are the text that was tokenised."""

from __future__ import annotations

import pathlib

import pytest
from tokenizers import Tokenizer, models

from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.tokens.tokenizers import load_tokenizer
from gristmill.transforms.tokens.tokenizers.token_texts import (
    TokenTexts,
    load_token_texts,
)
from tests.support.tokenizer_files import (
    END,
    TEXTS,
    published,
    sentence_piece_model,
    tokenizer_json,
)


def ids_of(path: pathlib.Path, text: str) -> list[int]:
    tokenizer = load_tokenizer(PackOptions(length=2, tokenizer=str(path)))
    return tokenizer.encode([text.encode()]).ids.tolist()


@pytest.mark.parametrize("kind", ["json", "tiktoken"])
def test_texts_of_tokens_add_up(tmp_path: pathlib.Path, kind: str) -> None:
    path = tmp_path / "cl100k_base.tiktoken"
    path.write_bytes(tokenizer_json() if kind == "json" else published("cl100k_base"))
    shown = load_token_texts(str(path))
    for text in TEXTS:
        ids = ids_of(path, text)
        found = shown.texts(ids)
        assert len(found) == len(ids)
        assert "".join(map(str, found)) == text
    assert shown.texts([1 << 30]) == [None]
    assert shown.digest.startswith("sha256:")


def test_pieces_of_sentence_piece_have_blanks(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(sentence_piece_model())
    shown = load_token_texts(str(path))
    text = "the quick brown fox 日本語"
    found = shown.texts(ids_of(path, text))
    assert "".join(map(str, found)).strip() == text
    assert shown.texts([1 << 30, -1]) == [None, None]
    assert shown.texts([1]) == ["<s>"]


def test_special_tokens_have_their_names(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tokenizer_json())
    assert load_token_texts(str(path)).texts([5_000]) == [END]


def test_pieces_that_name_a_byte_stand_for_it(tmp_path: pathlib.Path) -> None:
    vocabulary = {"<0x0A>": 0, "\u2581a": 1, "<0xC3>": 2, "<0xA9>": 3, "<unk>": 4}
    model = models.BPE(vocab=vocabulary, merges=[], byte_fallback=True)
    Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    shown = load_token_texts(str(tmp_path / "tokenizer.json"))
    assert shown.texts([0, 1, 2, 3, 4]) == ["\n", " a", "", "é", "<unk>"]


class Halves:
    """A token for each byte, and none for 255."""

    def bytes_of(self, token: int) -> bytes | None:
        return bytes([token]) if token < 255 else None


def test_a_character_is_in_its_last_token() -> None:
    shown = TokenTexts(Halves(), name="halves")
    assert shown.texts([*"é!".encode()]) == ["", "é", "!"]
    # What is cut is told.
    assert shown.texts([*"é".encode()][:1]) == ["\ufffd"]
    assert shown.texts([0xC3, 255, 0x41]) == ["\ufffd", None, "A"]
