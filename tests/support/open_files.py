"""The files and sockets that this process has open, and how large files may grow."""

import contextlib
import os
import resource

_FOLDER = "/proc/self/fd"


def open_files():
    """Returns the number of each descriptor, with the path or socket that it is."""
    found = set()
    for number in os.listdir(_FOLDER):
        with contextlib.suppress(FileNotFoundError):  # Closed meanwhile.
            found.add((number, os.readlink(f"{_FOLDER}/{number}")))
    return found


@contextlib.contextmanager
def files_of_at_most(size_bytes):
    """Lets no file of this process grow beyond some bytes: as a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
