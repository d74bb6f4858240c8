"""Local files that a pattern matches; a path that cannot be inspected is an error.

Python's `glob` silently skips such paths: a conversion would succeed with fewer files.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence

from gristmill.dataset.base.errors import StorageError
from gristmill.dataset.storage.base import explained
from gristmill.dataset.storage.paths import has_magic


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


def matcher_below(pattern: str, directory: str) -> Callable[[str], bool] | None:
    """The version of `lookup.matcher_below` for local files.

    Links are resolved in the directory, and in the plain part of the pattern.
    """
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
    """Returns whether the parts of a path fit those of a pattern, as in `matching`."""
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
