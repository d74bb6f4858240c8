"""Files that processes have left on the disks of this machine.

A bucket has none of it: an object exists once all of it has arrived, and temporary
files are on the machine that writes them.
"""

from __future__ import annotations

import contextlib
import os
import shutil

from gristmill.dataset.storage.base import explained, is_unfinished
from gristmill.dataset.storage.directory_lock import delete_unused, unless_in_use
from gristmill.dataset.storage.paths import is_remote


def delete_unfinished(directory: str) -> None:
    """Deletes what killed processes left of `write`s directly in a directory.

    A `write` of a live process still succeeds.
    """
    if is_remote(directory):
        return
    with (
        explained("delete unfinished files", directory),
        contextlib.suppress(FileNotFoundError),
    ):
        for name in os.listdir(directory):
            if is_unfinished(name):
                with contextlib.suppress(FileNotFoundError):
                    delete_unused(os.path.join(directory, name))


def is_in_use(directory: str) -> bool:
    """Returns whether a process of this machine has `temporary` files there."""
    if is_remote(directory):
        return False
    with explained("look into the directory", directory):
        try:
            with unless_in_use(directory) as free:
                return not free
        except (FileNotFoundError, NotADirectoryError):
            return False


def delete_tree(directory: str) -> None:
    """Deletes a directory with all its files, unless it `is_in_use`."""
    if is_remote(directory):
        return
    with (
        explained("delete the directory", directory),
        contextlib.suppress(FileNotFoundError),
        unless_in_use(directory) as free,
    ):
        if free and not os.path.islink(directory):
            shutil.rmtree(directory)


def free_bytes(directory: str) -> int | None:
    """Returns the free space for a directory, None if unknown."""
    if is_remote(directory):
        return None
    place = os.path.abspath(directory)
    while not os.path.exists(place):
        place = os.path.dirname(place)
    with explained("find out the free space", place):
        about = os.statvfs(place)
    return about.f_bavail * about.f_frsize
