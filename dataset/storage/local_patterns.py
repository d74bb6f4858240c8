"""What a pattern matches on this machine; what cannot be looked at is an error.

Python's `glob` is silent about that: a conversion would succeed with fewer files.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterator

from gristmill.dataset.errors import StorageError
from gristmill.dataset.storage.object_names import has_magic
from gristmill.dataset.storage.os_errors import explained


def matching(pattern: str) -> Iterator[str]:
    """Yields what a pattern matches, files and directories; some of it twice.

    Args:
        pattern: A path with `*`, `?`, `[...]`, and `**` for any depth. What begins with
            a dot has to be matched by one.

    Raises:
        StorageError: A directory cannot be listed, or a match is not there.
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
        # Only of a link does the listing not say what it is.
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


def _is_there(path: str) -> bool:
    with explained("look at the file", path):
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True


def status_of_match(path: str) -> os.stat_result:
    """Returns what is known of a file that a pattern matched.

    Raises:
        StorageError: It is not there, as behind a link that leads nowhere.
    """
    with explained("look at the file", path):
        try:
            return os.stat(path or ".")
        except FileNotFoundError as e:
            link = os.readlink(path) if os.path.islink(path) else None
            raise StorageError(
                "a file that the pattern matches is not there",
                where=path,
                got=f"a link to {link}" if link else "deleted since it was listed",
                cure="fetch it (git-annex: `git annex get`), mount its disk, or give "
                "patterns that leave it out",
            ) from e
