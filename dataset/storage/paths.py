"""Paths that users give, names of objects, and patterns of names."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable

from gristmill.dataset.base.errors import InputError

_PATH = re.compile(r"gs://([^/]*)(?:/(.*))?", re.DOTALL | re.IGNORECASE)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]*")
_MAGIC = re.compile(r"[*?\[]")
_TOKEN = re.compile(
    r"(?P<tree>(?:(?<=/)|^)\*\*/)"
    r"|(?P<deep>\*\*+)"
    r"|(?P<star>\*)"
    r"|(?P<one>\?)"
    r"|\[(?P<not>!?)(?P<set>\]?[^\]]*)\]"
    r"|(?P<text>.)",
    re.DOTALL,
)


def split_path(path: str) -> tuple[str, str]:
    """Returns bucket and object name of a path.

    The name is taken literally: `#`, `%`, `?` and blanks have no special meaning.

    >>> split_path("gs://bucket/a dir/b#1")
    ('bucket', 'a dir/b#1')

    Raises:
        InputError: The path names no bucket, or no object can have the name.
    """
    match = _PATH.fullmatch(path)
    if match is None or not _BUCKET.fullmatch(match[1]):
        raise InputError(
            "path names no bucket",
            where=path,
            expected="gs://BUCKET/NAME; patterns stand for names, not for buckets",
            got=repr(match[1]) if match else "another kind of path",
            cure="check the path",
        )
    name = match[2] or ""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InputError(
            "path is one that no object can have",
            expected="characters of Unicode: names of objects are UTF-8",
            got=ascii(path),
            cure="check the path; give the file a name that is text",
        ) from None
    return match[1], name


def has_magic(name: str) -> bool:
    """Returns whether a name could be a pattern."""
    return _MAGIC.search(name) is not None


def listing_of(pattern: str) -> tuple[str, bool]:
    """Returns the listing for a pattern: a prefix, and whether to go below it.

    All names that can match begin with it; names below have one more `/`.

    >>> listing_of("in/part-*.tfrecord"), listing_of("in/*/part-*")
    (('in/part-', False), ('in/', True))
    """
    match = _MAGIC.search(pattern)
    if match is None:
        return pattern, False
    rest = pattern[match.start() :]
    return pattern[: match.start()], "/" in rest or "**" in rest


def matcher_below(pattern: str, directory: str) -> Callable[[str], bool] | None:
    """The version of `lookup.matcher_below` for objects."""
    bucket, name = split_path(pattern)
    other, folder = split_path(directory)
    base = (folder.rstrip("/") + "/").lstrip("/")
    prefix, _ = listing_of(name)
    if bucket != other or not (prefix.startswith(base) or base.startswith(prefix)):
        return None
    matches = compile_pattern(name).fullmatch

    def found(relative: str) -> bool:
        place = base + relative
        parent = place.rpartition("/")[0]
        return parent == name.rstrip("/") or matches(place) is not None

    return found


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compiles a pattern with the rules of gsutil, for `fullmatch`.

    `*` and `?` stop at `/`; `**` does not, and `**/` also stands for no directory at
    all; `[abc]`, `[a-c]` and `[!abc]` are one character; an unclosed `[` is literal.
    """
    parts = []
    for match in _TOKEN.finditer(pattern):
        if match["tree"]:
            parts.append("(?:.*/)?")
        elif match["deep"]:
            parts.append(".*")
        elif match["star"]:
            parts.append("[^/]*")
        elif match["one"]:
            parts.append("[^/]")
        elif match["set"]:
            inner = re.sub(r"([\\\[\]^&~|])", r"\\\1", match["set"])
            parts.append(f"(?!/)[{'^' if match['not'] else ''}{inner}]")
        else:
            parts.append(re.escape(match[0]))
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error as e:
        raise InputError(
            "pattern cannot be read",
            where=pattern,
            got=str(e),
            cure="write ranges in [] from low to high",
        ) from e


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
