"""Paths that users give, and patterns of the names of objects and of local files.

A path that cannot be inspected is an error: Python's `glob` silently skips it, and a
conversion would succeed with fewer files.
"""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import itertools
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence

from gristmill.dataset.base.errors import InputError, StorageError
from gristmill.dataset.storage.base import explained

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


def is_remote(path: str) -> bool:
    """Returns whether a path is in a bucket."""
    return "://" in path


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
            "path cannot be the name of an object",
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
    """Returns a function that tells whether a pattern would match a file.

    Args:
        pattern: A path or pattern; a directory stands for the files directly in it.
        directory: Directory of the files. The function takes names relative to it.

    Returns:
        None if the pattern can match nothing there.
    """
    if is_remote(pattern) != is_remote(directory):
        return None
    if not is_remote(pattern):
        return _local_matcher_below(pattern, directory)
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
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


def path_text(path: StrPath, what: str) -> str:
    """Returns a path as text.

    Args:
        path: A path such as "data/c4", "gs://bucket/c4" or pathlib.Path("data/c4").
        what: Its role, for messages.

    Raises:
        InputError: It is empty, is not a path, cannot be the name of a file, lacks a
            bucket or a slash, or has a scheme that is not supported.
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
    if has_bucket(text):
        split_path(text)
    if not is_file_name(text):
        raise InputError(
            f"the {what} is not a valid path",
            got=ascii(text),
            cure="give a path without null characters, as the file system has it",
        )
    return text


def has_bucket(path: str) -> bool:
    """Returns whether a path is in a bucket. Raises InputError for other schemes."""
    scheme = _SCHEME.match(path)
    if scheme is None or scheme[1] == "gs":
        return scheme is not None
    raise InputError(
        f"{scheme[1]}:// paths are not supported",
        where=path,
        expected="a local path or gs://BUCKET/NAME",
        cure="copy the data to a local disk or a mounted bucket",
    )


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


# Comparing a million names would take minutes.
_MOST_NAMES = 10_000


def near_paths(path: str) -> list[str]:
    """Returns local files and directories that a path without any may mean."""
    if is_remote(path):
        return []
    parent, name = os.path.split(path.rstrip("/"))
    while parent and not os.path.isdir(parent):
        parent, name = os.path.split(parent)
    names: list[str] = []
    with contextlib.suppress(OSError), os.scandir(parent or ".") as found:
        names = [entry.name for entry in itertools.islice(found, _MOST_NAMES)]
    near = difflib.get_close_matches(name, names, n=3)
    return [os.path.join(parent, one) for one in near]


def matching(pattern: str) -> Iterator[str]:
    """Yields the files and directories that a pattern matches, possibly twice.

    Args:
        pattern: A path with `*`, `?`, `[...]`, and `**` for any depth. Names that begin
            with a dot are matched only by patterns that do.

    Raises:
        StorageError: A directory cannot be listed, or a match does not exist.
    """
    # A plain name wins: files may have '[' in their names.
    if os.path.lexists(pattern):
        yield pattern
    elif has_magic(pattern):
        yield from _expanded(*os.path.split(pattern))


def _expanded(parent: str, name: str) -> Iterator[str]:
    for directory in matching(parent) if parent else [""]:
        if not stat.S_ISDIR(status_of_match(directory).st_mode):
            continue
        if name == "**":
            yield directory
            yield from _all_below(directory)
        elif has_magic(name):
            fits = re.compile(fnmatch.translate(name)).match
            hidden = name.startswith(".")
            for entry in _entries(directory):
                if fits(entry.name) and (hidden or not entry.name.startswith(".")):
                    yield os.path.join(directory, entry.name)
        elif _is_there(path := os.path.join(directory, name)):
            yield path


def _all_below(directory: str) -> Iterator[str]:
    for entry in _entries(directory):
        if entry.name.startswith("."):
            continue
        path = os.path.join(directory, entry.name)
        yield path
        # A listing does not say what a link points to.
        if entry.is_dir(follow_symlinks=False) or (
            entry.is_symlink() and stat.S_ISDIR(status_of_match(path).st_mode)
        ):
            yield from _all_below(path)


def _entries(directory: str) -> list[os.DirEntry[str]]:
    with (
        explained("list the directory", directory),
        os.scandir(directory or ".") as entries,
    ):
        return list(entries)


def _local_matcher_below(pattern: str, directory: str) -> Callable[[str], bool] | None:
    # Links are resolved in the directory, and in the plain part of the pattern.
    parts = pattern.split("/")
    plain = next((i for i, part in enumerate(parts) if has_magic(part)), len(parts))
    for end in range(len(parts), plain, -1):
        if os.path.lexists("/".join(parts[:end])):
            plain = end  # A plain name wins, as for `matching`.
            break
    root = os.path.realpath("/".join(parts[:plain]) or ("/" if plain else "."))
    base, below = os.path.realpath(directory), root.rstrip("/") + "/"
    inside = base.rstrip("/") + "/"
    if not (inside.startswith(below) or below.startswith(inside)):
        return None

    def matches(name: str) -> bool:
        place = inside + name
        if plain == len(parts):
            return root in (place, os.path.dirname(place))
        rest = place.removeprefix(below).split("/")
        return place.startswith(below) and _fits(parts[plain:], rest)

    return matches


def _fits(patterns: Sequence[str], parts: Sequence[str]) -> bool:
    """Returns whether the parts of a path match a pattern's, as in `matching`."""
    if not patterns or not parts:
        return not parts and all(pattern == "**" for pattern in patterns)
    hidden = parts[0].startswith(".")
    if patterns[0] == "**":
        return _fits(patterns[1:], parts) or (not hidden and _fits(patterns, parts[1:]))
    return (
        (patterns[0].startswith(".") or not hidden)
        and fnmatch.fnmatchcase(parts[0], patterns[0])
        and _fits(patterns[1:], parts[1:])
    )


def _is_there(path: str) -> bool:
    with explained("inspect the file", path):
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True


def status_of_match(path: str) -> os.stat_result:
    """Returns the `stat` of a file that a pattern matched.

    Raises StorageError if it does not exist: a dangling link, for example.
    """
    with explained("inspect the file", path):
        try:
            return os.stat(path or ".")
        except FileNotFoundError as e:
            link = os.readlink(path) if os.path.islink(path) else None
            raise StorageError(
                "a file that matches the pattern does not exist",
                where=path,
                got=f"a link to {link}" if link else "deleted since it was listed",
                cure="fetch it (git-annex: `git annex get`), mount its disk, or give "
                "patterns that leave it out",
            ) from e
