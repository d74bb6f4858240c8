"""The name of the sample at a place of a tar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import BinaryIO

from gristmill.dataset.formats.streams.inflated_stream import (
    Compression,
    InflatedStream,
    Readable,
)
from gristmill.dataset.formats.tar.sample_reader import SampleReader
from gristmill.dataset.storage.lookup import storage_for


def sample_at(path: str, place: int, compression: Compression = "none") -> bytes | None:
    """Returns the name of the sample of a tar that begins at a place.

    None if the tar is missing or has no such sample. A compressed one is read from its
    start.

    Args:
        path: The file.
        place: Offset of the sample's first header, in the (decompressed) file.
        compression: How the file is compressed.

    Raises:
        StorageError: The file cannot be read.
        CorruptRecordError: It is damaged there.
    """
    storage = storage_for(path)
    known = storage.stat(path)
    if known is None:
        return None
    plain = compression == "none"
    found: list[bytes] = []

    def note(key: bytes, members: Mapping[str, bytes]) -> bytes:
        del members
        found.append(key)
        return b""

    with storage.open(path, offset=place if plain else 0) as file:
        stream: Readable | BinaryIO = file
        if not plain:
            stream = InflatedStream(file, path=path, compression=compression)
        reader = SampleReader(
            stream,
            path=path,
            make=note,
            offset=place if plain else 0,
            size_bytes=known.size_bytes if plain else None,
        )
        reader.skip(place)
        sample = reader.next_sample()
    return found[0] if sample is not None and sample[0] == place else None
