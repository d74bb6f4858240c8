"""Paths as users give them."""

from __future__ import annotations

import pathlib

import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.storage.paths import path_text, path_texts


class Elsewhere:
    """A path of another library, such as those of etils."""

    def __fspath__(self) -> str:
        return "gs://bucket/c4"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("data/c4", "data/c4"),
        (" ", " "),
        (pathlib.Path("data/c4/"), "data/c4"),
        (pathlib.Path(""), "."),
        ("gs://bucket/c4", "gs://bucket/c4"),
        (Elsewhere(), "gs://bucket/c4"),
    ],
)
def test_text_and_objects(given, text):
    assert path_text(given, "input") == text
    assert path_texts(given, "input") == (text,)
    assert path_texts([given, given], "input") == (text, text)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "the path of the output is empty"),
        (b"data", "the output is not a path"),
        (None, "the output is not a path"),
        (7, "the output is not a path"),
        ("\ud800", r"that no file can have\n  got:      '\\ud800'"),
        ("a\0b", "that no file can have"),
        (pathlib.Path("gs://bucket/c4"), "pathlib joins slashes"),
        ("gs:/bucket/c4", "a gs:// path that lacks a slash"),
        ("gs:/", "a gs:// path that lacks a slash"),
        ("gs://", "path names no bucket"),
        ("gs:///c4", "path names no bucket"),
    ],
)
def test_what_is_no_path(given, message):
    with pytest.raises(InputError, match=message):
        path_text(given, "output")
    with pytest.raises(InputError, match=message):
        path_texts([given], "output")


def test_what_is_neither_a_path_nor_several():
    with pytest.raises(InputError, match="the file is not a path"):
        path_texts(None, "file")  # type: ignore[arg-type]
