"""The plan of a write: which group of records makes which shards.

Records are spread over groups by a hash; a group that would be larger than a shard may
be is cut into several. How many bytes each group has is counted before anything is
written, so that every shard has its final name from the start:

```
groups  |-- 0 --|-------- 1 --------|- 2 -|
shards  |   0   |   1   |  2  |  3  |  4  |      of 5
```
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from typing import Any

import numpy as np

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.commit.aside import Aside
from gristmill.dataset.commit.write_marker import WriteMarker
from gristmill.dataset.digest import RecordsDigest
from gristmill.dataset.errors import InputError
from gristmill.dataset.metadata import layout
from gristmill.transforms.planning.shard_plan import DEFAULT_SHARD_BYTES, check_positive

# A hash makes groups of uneven size. With an aim below the bound, only few of them have
# to be cut in two.
_AIM = 0.9

Key = int | str | bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class WriteJob:
    """What to write where.

    Attributes:
        output: The dataset's directory.
        name: The dataset's name, part of the file names.
        split: The split to write.
        num_shards: Number of groups; None for as many as the bytes ask for.
        shard_bytes: Most bytes of records in a shard, give or take one record; None for
            no bound.
        keyed: Whether records come with keys.
        writer: How shards are encoded.
    """

    output: str
    name: str
    split: str
    num_shards: int | None
    shard_bytes: int | None
    keyed: bool
    writer: WriterOptions

    def __post_init__(self) -> None:
        layout.check_name(self.name)
        layout.check_split(self.split)
        check_positive(num_shards=self.num_shards, shard_bytes=self.shard_bytes)
        if self.num_shards is None and self.shard_bytes is None:
            object.__setattr__(self, "shard_bytes", DEFAULT_SHARD_BYTES)

    def groups(self, raw_bytes: int) -> int:
        """Returns the number of groups for records of so many bytes together."""
        if self.num_shards is not None:
            return self.num_shards
        assert self.shard_bytes is not None
        return max(1, math.ceil(raw_bytes / (_AIM * self.shard_bytes)))

    def options(self) -> dict[str, Any]:
        """Returns what decides the bytes of the shards, as plain values."""
        fields = dataclasses.asdict(self)
        del fields["output"]
        return fields | {"writer": self.writer.as_dict()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WritePlan:
    """A job, and the records of each group as they were counted.

    Attributes:
        job: The job.
        digests: [groups], digest of the records of each group.
        committed: Whether the dataset holds exactly this already.
        replaces_in: The dataset's directory, if the job's output is a directory in it:
            the new files replace those of a split at the commit.
    """

    job: WriteJob
    digests: tuple[RecordsDigest, ...]
    committed: bool = False
    replaces_in: str | None = None

    @property
    def dataset(self) -> str:
        """The dataset's directory."""
        return self.replaces_in or self.job.output

    def parts(self, group: int) -> int:
        """Returns how many shards a group makes: one at least."""
        digest, bound = self.digests[group], self.job.shard_bytes
        if bound is None:
            return 1
        return max(1, min(-(-digest.raw_bytes // bound), digest.records))

    @functools.cached_property
    def _first_shards(self) -> list[int]:
        parts = [self.parts(group) for group in range(len(self.digests))]
        return [0, *np.cumsum(parts).tolist()]

    @property
    def shards(self) -> int:
        """Number of shards."""
        return self._first_shards[-1]

    def shards_of(self, group: int) -> range:
        """Returns the numbers of the shards that a group makes."""
        return range(*self._first_shards[group : group + 2])

    def shard_path(self, shard: int) -> str:
        """Returns the path of a shard, relative to the dataset."""
        return layout.shard_name(self.job.name, self.job.split, shard, self.shards)

    @functools.cached_property
    def total(self) -> RecordsDigest:
        """Digest of all records."""
        return RecordsDigest.total(self.digests)

    @property
    def marker(self) -> WriteMarker:
        """The marker by which the output belongs to this plan."""
        job = self.job
        return WriteMarker(
            output=job.output,
            name=job.name,
            split=job.split,
            fingerprint=self.fingerprint,
            dataset=self.dataset,
        )

    @property
    def aside(self) -> Aside:
        """The directory beside the split that it replaces."""
        return Aside(
            dataset=self.dataset,
            name=self.job.name,
            split=self.job.split,
            fingerprint=self.fingerprint,
        )

    @functools.cached_property
    def fingerprint(self) -> str:
        """16 hex digits over all that decides the bytes of the shards."""
        hasher = hashlib.sha256(json.dumps(self.job.options(), sort_keys=True).encode())
        for digest in self.digests:
            hasher.update(
                f"{digest.records} {digest.raw_bytes} {digest.hex}\n".encode()
            )
        return hasher.hexdigest()[:16]


def content_hash(record: bytes) -> bytes:
    """Returns 16 bytes that stand for a record, the same on every machine."""
    return hashlib.blake2b(record, digest_size=16).digest()


def encode_key(key: Key) -> bytes:
    """Returns a key as bytes that sort as the keys do, kinds apart.

    >>> sorted([encode_key(5), encode_key(-1), encode_key(300)])[0] == encode_key(-1)
    True

    Raises:
        InputError: It is no key.
    """
    if isinstance(key, bytes):
        return b"b" + key
    if isinstance(key, str):
        return b"s" + key.encode("utf-8", "surrogatepass")
    if isinstance(key, (int, np.integer)) and -(1 << 63) <= key < 1 << 63:
        return b"i" + (int(key) + (1 << 63)).to_bytes(8, "big")
    raise InputError(
        "key cannot decide where a record goes",
        expected="an integer of 64 bits, a text, or bytes",
        got=f"{type(key).__name__} {key!r:.100}",
        cure="map the records to (key, record) with such a key",
    )


def group_of(token: bytes, groups: int) -> int:
    """Returns the group of a record.

    Args:
        token: Its encoded key, or else the record itself.
        groups: Number of groups.
    """
    return int.from_bytes(content_hash(token)[:8], "big") % groups
