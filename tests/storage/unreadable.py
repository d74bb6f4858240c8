"""Files that the disk cannot read."""

import os

from gristmill.dataset.storage.open_file import OpenFile


def fail_reads(file: OpenFile) -> None:
    """Lets every read of an open file fail with EIO, as the kernel's own answer."""
    # Memory that is not there: the first page of a process never is.
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        os.dup2(memory, file.descriptor)
    finally:
        os.close(memory)
