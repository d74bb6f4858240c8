"""Reading through the official reader what gristmill's own decoder leaves to it."""

from __future__ import annotations

from collections.abc import Iterator

from gristmill.dataset.errors import CorruptShardError, InputError

_BATCH_BYTES = 16 << 20


def read_with_official_reader(
    path: str, begin: int, end: int, *, mean_bytes: int
) -> Iterator[list[bytes]]:
    """Yields records of an ArrayRecord file, some 16 MiB at a time.

    Args:
        path: A local file.
        begin: Number of the first record.
        end: Number of the record after the last.
        mean_bytes: About how large a record is.

    Raises:
        InputError: The file is not local.
        CorruptShardError: The reader cannot read it.
    """
    # Imported here because few files need it.
    from array_record.python.array_record_module import ArrayRecordReader

    if "://" in path:
        raise InputError(
            "file with transposed chunks is not on a local disk",
            where=path,
            expected="a local path: only the official reader decodes such chunks",
            cure="copy the file to a local disk or a mounted bucket",
        )
    step = max(1, min(100_000, _BATCH_BYTES // max(mean_bytes, 1)))
    try:
        reader = ArrayRecordReader(path)
        try:
            for first in range(begin, end, step):
                # Closing it while the caller works on a batch would end the file.
                yield [bytes(r) for r in reader.read(first, min(first + step, end))]
        finally:
            reader.close()
    except (RuntimeError, ValueError, IndexError) as e:
        raise CorruptShardError(
            "the official reader cannot read this ArrayRecord file",
            where=f"{path}, records {begin:,} to {end:,}",
            got=str(e),
            cure="restore the file from a copy, or write it again",
        ) from e
