"""A check, after reading, that a file is still the one that was listed."""

from __future__ import annotations

from gristmill.dataset.base.errors import StorageChangedError
from gristmill.dataset.storage.base import changed_error
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.sources.input_files import InputFile


def check_unchanged(file: InputFile) -> None:
    """Checks that a file was not written while it was read.

    Raises:
        StorageChangedError: It was written.
    """
    storage = storage_for(file.path)
    # An object is read by its version. A local file can be written in place: then a
    # part of the data is old, and every checksum is right.
    if file.version is None or storage.remote:
        return
    found = storage.stat(file.path)
    expected = file.size_bytes, file.version
    if found is None or (found.size_bytes, found.version) != expected:
        raise changed_error(
            file.path,
            expected=f"{file.version}, {file.size_bytes:,} bytes",
            got=f"{found.version}, {found.size_bytes:,} bytes" if found else "",
            what="file was written again while it was read",
        )
    if file.noted_ns and found.noted_ns != file.noted_ns:
        raise StorageChangedError(
            "file changed while it was read, its size and time did not",
            where=file.path,
            expected="no change noted by the system (ctime)",
            got="one: other content, permissions or links",
            cure="run the same command again: it compares the records that "
            "finished shards were made of, and keeps the shards if they are the "
            "same",
        )
