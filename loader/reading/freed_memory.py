"""Lets the process keep memory that batches free, for the batches that follow.

glibc gives blocks above 128 KiB back to the system when they are freed, and the end of
the heap when so much of it is free. The next batch gets its memory page by page, each
one zeroed by the kernel: for records of 100 KB that took two thirds of the time to read
them. Both limits grow by themselves when a larger block is freed, to 32 and 64 MiB at
most (mallopt(3), M_MMAP_THRESHOLD). So such a block is freed before the first batch.
"""

from __future__ import annotations

import functools

# The largest that counts is 32 MiB with its header.
_BLOCK_BYTES = (32 << 20) - (64 << 10)


@functools.cache
def keep_freed_memory() -> None:
    """Raises the limits of this process, to what they can reach by themselves.

    The block is never touched, so it takes no memory. Limits that were set, such as
    by MALLOC_TRIM_THRESHOLD_, stay as they are; with another allocator nothing happens.
    """
    bytearray(_BLOCK_BYTES)
