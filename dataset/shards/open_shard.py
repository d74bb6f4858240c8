"""The opening of a shard with its index, and the refusal of another one.

All that open a shard of a dataset compare it and its index here with what the dataset
describes.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from gristmill.dataset.arrayrecord.footer import Footer, read_footer
from gristmill.dataset.base.errors import CorruptShardError
from gristmill.dataset.metadata.shard_index import ShardIndex, parse_index
from gristmill.dataset.storage.lookup import storage_for

_CURE = (
    "restore the shard and its index from a copy, or run the conversion again; if the "
    "dataset was replaced meanwhile, open it again"
)


class ShardFacts(NamedTuple):
    """What is known of a shard, None for what is not.

    Attributes:
        records: Its records.
        file_bytes: Its size.
        file_crc32c: The crc32c of its bytes.
    """

    records: int | None = None
    file_bytes: int | None = None
    file_crc32c: int | None = None

    def __str__(self) -> str:
        crc32c = self.file_crc32c
        facts = (
            None if self.records is None else f"{self.records:,} records",
            None if self.file_bytes is None else f"{self.file_bytes:,} bytes",
            None if crc32c is None else f"crc32c {crc32c:#010x}",
        )
        return ", ".join(fact for fact in facts if fact is not None)

    def differs(self, other: ShardFacts) -> bool:
        """Returns whether a fact is another one, of those that both know."""
        pairs = zip(self, other, strict=True)
        return any(None not in pair and pair[0] != pair[1] for pair in pairs)

    def known_in(self, other: ShardFacts) -> ShardFacts:
        """Returns the facts that another knows as well."""
        pairs = zip(self, other, strict=True)
        return ShardFacts(*(None if known is None else fact for fact, known in pairs))


def check_shard(described: ShardFacts, found: ShardFacts, *, where: str) -> None:
    """Raises CorruptShardError if a shard is not the one that a dataset describes."""
    if described.differs(found):
        raise CorruptShardError(
            "shard is not the one that the dataset describes",
            where=where,
            expected=described.known_in(found),
            got=found.known_in(described),
            cure=_CURE,
        )


def check_index(index: ShardIndex, described: ShardFacts) -> None:
    """Raises CorruptShardError if an index is not the one of a shard."""
    found = ShardFacts(index.records, index.file_bytes, index.file_crc32c)
    if described.differs(found):
        raise CorruptShardError(
            "shard index is not the one of this shard",
            where=index.path,
            expected=described,
            got=found.known_in(described),
            cure=_CURE,
        )


def read_index(path: str, described: ShardFacts) -> ShardIndex:
    """Reads the whole index of a shard.

    Raises:
        CorruptShardError: It is that of another shard.
        InvalidDatasetError: It is damaged.
        StorageError: It cannot be read.
    """
    index = parse_index(storage_for(path).read(path), path=path)
    index.check()
    check_index(index, described)
    return index


def stored_footer(path: str, size_bytes: int, *, hashed: bool = True) -> Footer:
    """Reads the footer of a shard of a size, by ranges.

    Raises:
        CorruptShardError: The file has another size, or its footer is damaged.
        StorageError: It cannot be read.
    """
    read = functools.partial(storage_for(path).read, path)
    return read_footer(read, size_bytes, path=path, hashed=hashed)
