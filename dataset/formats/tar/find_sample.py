"""Finding a sample of a tar by its number in a range that has been read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import BinaryIO, NamedTuple

from gristmill.dataset.base.errors import CorruptRecordError
from gristmill.dataset.base.example import decode_example
from gristmill.dataset.formats.streams.inflated_stream import (
    Compression,
    InflatedStream,
    Readable,
)
from gristmill.dataset.formats.tar.sample_reader import SampleReader
from gristmill.dataset.formats.tar.samples import KEY
from gristmill.dataset.storage.lookup import storage_for


class FoundSample(NamedTuple):
    """A sample, and where it is.

    Attributes:
        key: Its key.
        offset: Offset of its first header, in the (decompressed) file.
        members: Contents by extension.
    """

    key: bytes
    offset: int
    members: Mapping[str, bytes]

    def gave(self, record: bytes) -> bool:
        """Returns whether a record was made from this sample."""
        if record in (self.key, *self.members.values()):
            return True
        known = {KEY: self.key, **self.members}
        try:
            features = decode_example(record)
        except ValueError:
            return False
        return all(features[name] == [known.get(name)] for name in features)


def find_sample(
    path: str,
    start: int,
    number: int,
    *,
    compression: Compression = "none",
    regions: Sequence[tuple[int, int]] = (),
) -> FoundSample | None:
    """Returns a sample of a tar; None if it is missing or the tar has changed.

    Reads the tar from `start` on, a compressed one from its start.

    Args:
        path: The file.
        start: Offset of the range's first sample, in the (decompressed) file.
        number: Number of the sample from there on, without those in `regions`.
        compression: How the file is compressed.
        regions: Regions that were set aside: half-open, in the (decompressed) file.

    Raises:
        StorageError: The file cannot be read.
    """
    storage = storage_for(path)
    known = storage.stat(path)
    if known is None:
        return None
    plain = compression == "none"
    behind = dict(regions)
    seen: list[tuple[bytes, Mapping[str, bytes]]] = []

    def note(key: bytes, members: Mapping[str, bytes]) -> bytes:
        seen[:] = [(key, members)]
        return b""

    with storage.open(path, offset=start if plain else 0) as file:
        stream: Readable | BinaryIO = file
        if not plain:
            stream = InflatedStream(file, path=path, compression=compression)
        reader = SampleReader(
            stream,
            path=path,
            make=note,
            offset=start if plain else 0,
            size_bytes=known.size_bytes if plain else None,
        )
        reader.skip(start)
        while True:
            if reader.offset in behind:
                reader.skip(behind[reader.offset])
            try:
                sample = reader.next_sample()
            except CorruptRecordError:
                sample = None
            if sample is None:
                if reader.offset in behind:
                    continue
                return None
            if number == 0:
                ((key, members),) = seen
                return FoundSample(key, sample[0], members)
            number -= 1
