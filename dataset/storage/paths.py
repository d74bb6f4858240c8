"""Paths given by users: text, or any `os.PathLike`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.storage.object_names import split_path

StrPath = str | os.PathLike[str]


def path_text(path: StrPath, what: str) -> str:
    """Returns a path as text.

    Args:
        path: A path such as "data/c4", "gs://bucket/c4" or pathlib.Path("data/c4").
        what: Its role, for messages.

    Raises:
        InputError: It is empty, is not a path, cannot be the name of a file, or lacks a
            bucket or a slash.
    """
    text: object = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise InputError(
            f"the {what} is not a path",
            expected="text, or an object such as pathlib.Path",
            got=repr(path),
            cure="give a path as text that is known when it is given: no ValueProvider "
            "(a Flex template gives values), and no PCollection",
        )
    if not text:
        raise InputError(
            f"the path of the {what} is empty",
            expected="a path, such as . for the current directory",
            cure="give one; in a script, see whether the variable that holds it is set",
        )
    if re.match("gs:/($|[^/])", text):
        raise InputError(
            f"the {what} is a gs:// path that lacks a slash",
            expected="gs://BUCKET/NAME",
            got=repr(path),
            cure="add it; give paths in buckets as text, as pathlib joins slashes",
        )
    if text.startswith("gs://"):
        split_path(text)
    if not is_file_name(text):
        raise InputError(
            f"the {what} is a path that no file can have",
            got=ascii(text),
            cure="give a path without null characters, as the file system has it",
        )
    return text


def path_texts(paths: StrPath | Iterable[StrPath], what: str) -> tuple[str, ...]:
    """Returns one or several paths as texts. Raises as `path_text` does."""
    if isinstance(paths, (str, os.PathLike)) or not isinstance(paths, Iterable):
        paths = (paths,)
    return tuple(path_text(path, what) for path in paths)


def is_file_name(text: str) -> bool:
    """Returns whether a file can have a path: all its characters have bytes."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
