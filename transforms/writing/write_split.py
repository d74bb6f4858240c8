"""A write of records in groups: planning, beginning and committing it.

A hash spreads records over groups; a group that is too large for a shard is cut into
several. The bytes of each group are counted before anything is written, so that every
shard has its final name from the start:

```
groups  |-- 0 --|-------- 1 --------|- 2 -|
shards  |   0   |   1   |  2  |  3  |  4  |      of 5
```
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
import pickle
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.file_writer import (
    check_versions,
    settled,
    with_versions,
)
from gristmill.dataset.arrayrecord.writer_options import (
    WriterOptions,
    positive,
)
from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.digest import DIGEST_ROW, RecordsDigest
from gristmill.dataset.base.errors import DataLossError, InputError, JobChangedError
from gristmill.dataset.commit.commit import commit_dataset, write_table
from gristmill.dataset.commit.garbage import tidy_split
from gristmill.dataset.commit.listings import check_split
from gristmill.dataset.commit.ownership import check_removal
from gristmill.dataset.commit.write import (
    Output,
    Write,
    option_differences,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import (
    Manifest,
    open_manifest,
)
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.metadata.shard_table import ShardCollector, total_digest
from gristmill.dataset.metadata.splits import Split
from gristmill.transforms.planning.shard_plan import DEFAULT_SHARD_BYTES

_log = logging.getLogger(__name__)

# A hash makes groups of uneven size. With an aim below the bound, few are cut in two.
_AIM = 0.9

Key = int | str | bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class WriteJob:
    """The output and the options of a write.

    Attributes:
        output: The dataset's directory.
        name: The dataset's name, part of the file names.
        split: The split to write.
        num_shards: Number of groups; None to derive it from the bytes.
        shard_bytes: Maximum bytes of records in a shard, give or take one record; None
            for no bound.
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
        positive("num_shards", self.num_shards)
        positive("shard_bytes", self.shard_bytes)
        if self.num_shards is None and self.shard_bytes is None:
            object.__setattr__(self, "shard_bytes", DEFAULT_SHARD_BYTES)

    @property
    def write(self) -> Write:
        """The write, without an id."""
        return Write(output=self.output, name=self.name, split=self.split)

    def groups(self, raw_bytes: int) -> int:
        """Returns the number of groups for records of this total size."""
        if self.num_shards is not None:
            return self.num_shards
        assert self.shard_bytes is not None
        return max(1, math.ceil(raw_bytes / (_AIM * self.shard_bytes)))

    def options(self) -> dict[str, Any]:
        """Returns the options that decide the bytes of the shards, as plain values."""
        fields = dataclasses.asdict(self)
        del fields["output"]
        return fields


# A gathered count: the group, and its digest.
COUNT_ROW = np.dtype([("group", "<i8"), ("digest", DIGEST_ROW)])
_PACKED_COUNT = struct.Struct("<q32s")
_TASK = struct.Struct("<qq32s")
_BLOCK_GROUPS = 1 << 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedWrite:
    """A write whose shards are planned; its size does not depend on their number.

    Attributes:
        job: The job, with the versions of its writer.
        content: Digest of all that decides the bytes of the shards, 16 hex digits.
        shards: Number of shards.
        total: Digest of all records.
        own: The write, with its id once the output is taken.
        committed: Whether the dataset holds exactly this already.
    """

    job: WriteJob
    content: str
    shards: int
    total: RecordsDigest
    own: Write
    committed: bool = False

    def shard_path(self, shard: int) -> str:
        """Returns the path of a shard, relative to the dataset."""
        return layout.shard_name(self.job.name, self.own.key, shard, self.shards)


class GroupTask(NamedTuple):
    """One group to write, which passes the shuffle with the records of the group.

    Attributes:
        write: The write.
        shards: The numbers of the shards that the group makes.
        counted: Digest of its records, counted before the shuffle.
    """

    write: PlannedWrite
    shards: range
    counted: RecordsDigest

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Returns a task of `WritePlan.tasks`."""
        first, parts, digest = _TASK.unpack_from(data)
        write = pickle.loads(data[_TASK.size :])
        return cls(write, range(first, first + parts), RecordsDigest.unpack(digest))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class WritePlan:
    """A write, with the counted records of each group.

    Attributes:
        write: The write.
        digests: `DIGEST_ROW` [groups], digests of the records of each group.
        parts: int64 [groups], how many shards each makes: one at least.
    """

    write: PlannedWrite
    digests: npt.NDArray[Any]
    parts: npt.NDArray[np.int64]

    @classmethod
    def of(cls, job: WriteJob, counts: bytes, *, groups: int) -> Self:
        """Plans a write.

        Args:
            job: The job.
            counts: Rows of `COUNT_ROW` in any order; a group may have several, or none.
            groups: Number of groups.
        """
        counted = np.frombuffer(counts, COUNT_ROW)
        digests = np.zeros(groups, DIGEST_ROW)
        for name in DIGEST_ROW.names or ():
            np.add.at(digests[name], counted["group"], counted["digest"][name])
        parts = np.ones(groups, np.int64)
        if job.shard_bytes is not None:
            full = -(-digests["raw_bytes"] // job.shard_bytes)
            parts = np.maximum(1, np.minimum(full, digests["records"]))
        write = PlannedWrite(
            job=job,
            content=_fingerprint(job, digests),
            shards=int(parts.sum()),
            total=total_digest(*(digests[name] for name in DIGEST_ROW.names or ())),
            own=job.write,
        )
        return cls(write=write, digests=digests, parts=parts)

    def tasks(self) -> Iterator[tuple[int, bytes]]:
        """Yields every group with its task, for `GroupTask.unpack`."""
        write, firsts = pickle.dumps(self.write), np.cumsum(self.parts) - self.parts
        for group, (first, parts) in enumerate(zip(firsts, self.parts, strict=True)):
            digest = self.digests[group].tobytes()
            yield group, _TASK.pack(int(first), int(parts), digest) + write


def _fingerprint(job: WriteJob, digests: npt.NDArray[Any]) -> str:
    hasher = hashlib.sha256(json.dumps(job.options(), sort_keys=True).encode())
    for begin in range(0, len(digests), _BLOCK_GROUPS):
        rows = digests[begin : begin + _BLOCK_GROUPS].tolist()
        text = "".join(
            f"{n} {size} {high:016x}{low:016x}\n" for n, size, low, high in rows
        )
        hasher.update(text.encode())
    return hasher.hexdigest()[:16]


def pack_count(group: int, digest: bytes) -> bytes:
    """Returns a row of `COUNT_ROW`, given the packed digest of a group."""
    return _PACKED_COUNT.pack(group, digest)


def content_hash(record: bytes) -> bytes:
    """Returns 16 bytes that identify a record on any machine."""
    return hashlib.blake2b(record, digest_size=16).digest()


def encode_key(key: Key) -> bytes:
    """Returns a key as bytes that sort as the keys do, kinds apart.

    >>> sorted([encode_key(5), encode_key(-1), encode_key(300)])[0] == encode_key(-1)
    True

    Raises:
        InputError: It is not a key.
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


def group_of(place: bytes, groups: int) -> int:
    """Returns the group of a record.

    Args:
        place: `content_hash` of its encoded key, or else of the record itself.
        groups: Number of groups.
    """
    return int.from_bytes(place[:8], "big") % groups


def begin_write(
    job: WriteJob, counts: bytes, *, groups: int, overwrite: bool = False
) -> WritePlan:
    """Plans the shards, and describes the write beside its output.

    Repeating it while the shards of the same plan are written, or after their commit,
    changes nothing.

    Args:
        job: The job.
        counts: The records of the groups, as `WritePlan.of` takes them.
        groups: Number of groups.
        overwrite: Whether to replace the split in the output.

    Raises:
        InputError: The output holds unknown files with the names of shards.
        JobChangedError: The output holds the split with other records or options.
    """
    output = Output.read(job.write, replaces=overwrite)
    there = output.there
    if there is not None:
        writer = settled(job.writer, there.source.get("options", {}).get("writer"))
        own_job = dataclasses.replace(job, writer=writer)
        plan = WritePlan.of(own_job, counts, groups=groups)
        made = len(there.parts) == 1 and there.source.get("content")
        # With `overwrite`, files that were lost since are written again.
        if made == plan.write.content and not check_split(job.output, there):
            own = dataclasses.replace(
                job.write, id=there.source["job"], mark=there.write, base=there.edition
            )
            write = dataclasses.replace(plan.write, own=own, committed=True)
            return dataclasses.replace(plan, write=write)
    job = dataclasses.replace(job, writer=with_versions(job.writer))
    check_versions(job.writer, where=job.output)
    plan = WritePlan.of(job, counts, groups=groups)
    if there is not None:
        if not overwrite:
            raise _not_own(plan.write, there)
        check_removal(job.output, output.manifest, job.split)
    found = output.next_write(
        plan.write.content,
        replaces=overwrite,
        shards={plan.write.shard_path(shard) for shard in range(plan.write.shards)},
    )
    fields = {"name": job.name, "split": job.split, "shards": plan.write.shards}
    own = found.describe({"write": fields, "options": job.options()})
    write = dataclasses.replace(plan.write, own=own)
    _log.info(
        "%s: split %s: %d records become %d shards, write %s",
        *(job.output, job.split, write.total.records, write.shards, own.id),
    )
    return dataclasses.replace(plan, write=write)


def _not_own(write: PlannedWrite, there: Split) -> JobChangedError:
    """Returns the error for a split that another write has made."""
    job = write.job
    options, old = job.options(), there.source.get("options", {})
    # A conversion has options of its own.
    before = {name: old.get(name, value) for name, value in options.items()}
    changed = option_differences(before, options)
    if there.records_digest != write.total.hex:
        changed.append(
            f"there were {there.records:,} records, digest {there.records_digest}; "
            f"there are {write.total.records:,}, digest {write.total.hex}"
        )
    return JobChangedError(
        "the output holds this split already, from another source",
        where=f"{job.output}, split {job.split}",
        got="; ".join(changed) or None,
        cure="choose another split or output, or replace it with overwrite=True",
    )


class GroupResult(NamedTuple):
    """The result of writing a group.

    Attributes:
        write: The write.
        reports: The counts of each shard; empty for a write that is committed already.
        resumed: Whether the shards existed already.
    """

    write: PlannedWrite
    reports: tuple[ShardReport, ...]
    resumed: bool = False

    def gather(self, gathered: Gathered) -> None:
        """Adds the reports, and notes the write."""
        gathered.notes["write"][""] = self.write
        collector = gathered.rows.setdefault("", ShardCollector())
        for report in self.reports:
            collector.add(report)


class WriteResult(NamedTuple):
    """The result of a write.

    Attributes:
        output: The dataset's directory.
        split: The split.
        shards: Number of its shards.
        records: Number of its records.
        raw_bytes: Their size in bytes.
        file_bytes: Size of the shards.
        committed_before: Whether the same split was committed already.
    """

    output: str
    split: str
    shards: int
    records: int
    raw_bytes: int
    file_bytes: int
    committed_before: bool


def commit_write(gathered: Gathered, *, keep_replaced: bool = False) -> WriteResult:
    """Checks that all records are in the shards, and commits the dataset.

    Args:
        gathered: The results of all groups; a shard may occur twice.
        keep_replaced: Whether to keep the replaced split, for a rollback.

    Raises:
        DataLossError: Shards are missing, or do not hold all records.
        JobChangedError: Another write has taken over the output.
        StorageChangedError: It has written the table meanwhile.
    """
    write: PlannedWrite = gathered.notes["write"][""]
    job, own = write.job, write.own
    if write.committed:
        manifest = open_manifest(job.output)
        tidy_split(job.output, manifest, job.split)
        return _result(write, manifest)
    table = gathered.rows[""].table()
    written = table.digest()
    if len(table) != write.shards or written != write.total:
        missing = np.setdiff1d(np.arange(write.shards), table.numbers)
        raise DataLossError(
            "not all records arrived in the shards",
            where=f"{job.output}, split {job.split}"
            + (f", {write.shard_path(int(missing[0]))}" if len(missing) else ""),
            expected=f"{write.shards:,} shards, {write.total.summary}",
            got=f"{len(table):,} shards, {written.summary}",
            cure="run again; if it repeats, please report it",
        )
    made = write_table(
        own,
        table,
        writer_options=job.writer.described,
        source={"content": write.content, "options": job.options()},
    )
    manifest = commit_dataset(
        *(job.output, job.name, {own: made}),
        keep_replaced=keep_replaced,
    )
    return _result(write, manifest)


def _result(write: PlannedWrite, manifest: Manifest) -> WriteResult:
    split = manifest.splits[write.job.split]
    _log.info(
        "%s: committed%s; split %s: %d records in %d shards, %d bytes",
        *(write.job.output, " before" * write.committed, write.job.split),
        *(split.records, split.shards, split.file_bytes),
    )
    return WriteResult(
        output=write.job.output,
        split=write.job.split,
        shards=split.shards,
        records=split.records,
        raw_bytes=split.raw_bytes,
        file_bytes=split.file_bytes,
        committed_before=write.committed,
    )
