"""Writing the shards of one group of records.

What is written depends on the records and options alone. So an attempt that is
repeated, or runs twice at once, writes the same bytes under the same names.
"""

from __future__ import annotations

import array
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import NamedTuple, Self

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.shard_writer import ShardWriter
from gristmill.dataset.base.array_spool import ArraySpool
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import DataLossError, InputError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_files import ShardPlace
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.writing.write_split import (
    GroupTask,
    Key,
    PlannedWrite,
    WriteJob,
    content_hash,
    encode_key,
    group_of,
)

_BATCH_RECORDS = 1024
_BATCH_BYTES = 4 << 20


class RecordSpool:
    """Takes records in any order, and yields them by order key, then content hash.

    Memory: 28 bytes a record while they come, and some 130 at most while they are
    sorted; where records have order keys, 50 bytes more and the key. Disk: the
    records, in an unnamed file.

    Args:
        directory: Local directory of the file.

    Raises:
        StorageError: The directory is missing or full.
    """

    def __init__(self, directory: str):
        self._directory = directory
        self._keys: list[bytes] = []
        self._hashes = bytearray()
        self._offsets = array.array("Q", [0])
        self._crc32cs = array.array("I")
        self._data = ArraySpool(directory, np.uint8, kept="records")

    def close(self) -> None:
        """Deletes the file."""
        self._data.close()

    def __len__(self) -> int:
        return len(self._crc32cs)

    def add(self, record: bytes, place: bytes, order_key: bytes | None = None) -> None:
        """Takes one record.

        Args:
            record: The record.
            place: The hash of its content.
            order_key: What it is sorted by before its content. For all records or none.
        """
        self._data.append(np.frombuffer(record, np.uint8))
        self._offsets.append(self._offsets[-1] + len(record))
        self._crc32cs.append(google_crc32c.value(record))
        self._hashes += place
        if order_key is not None:
            self._keys.append(order_key)

    @property
    def _lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(np.frombuffer(self._offsets, np.uint64)).astype(np.int64)

    @property
    def digest(self) -> RecordsDigest:
        """Digest of all records."""
        return RecordsDigest.of(np.frombuffer(self._crc32cs, np.uint32), self._lengths)

    def order(self) -> npt.NDArray[np.int64]:
        """Returns int64 [records]: which record, as they came, is first, second, ..."""
        high, low = np.frombuffer(self._hashes, ">u8").reshape(-1, 2).T
        order = np.lexsort((low, high))
        if self._keys:
            # Both sorts are stable: equal keys keep the order of their contents.
            keys = self._keys
            order = np.array(sorted(order.tolist(), key=keys.__getitem__), np.int64)
        return order

    def cuts(self, order: npt.NDArray[np.int64], parts: int) -> list[int]:
        """Returns where to cut records into parts of roughly equal bytes.

        Args:
            order: int64 [records], as `order` gives it.
            parts: Number of parts.

        Returns:
            [parts + 1], positions in the order. A part has at most its share of the
            bytes and one record.
        """
        lengths = self._lengths[order]
        begins = np.cumsum(lengths) - lengths
        total = int(lengths.sum())
        targets = [total * part // parts for part in range(1, parts)]
        # A record belongs to the part of its first byte.
        inner = np.searchsorted(begins, targets, side="left").tolist()
        return [0, *inner, len(order)]

    def batches(
        self, order: npt.NDArray[np.int64]
    ) -> Iterator[tuple[list[bytes], list[int]]]:
        """Yields records with their checksums, some megabytes at a time.

        Args:
            order: int64 [n], which records.

        Raises:
            DataLossError: The file does not hold what was written to it.
            StorageError: The file cannot be read, or is shorter than it was.
        """
        lengths = self._lengths[order]
        begins = np.frombuffer(self._offsets, np.uint64)[order].astype(np.int64)
        crc32cs = np.frombuffer(self._crc32cs, np.uint32)[order]
        sums = np.cumsum(lengths)
        begin = 0
        while begin < len(order):
            done = int(sums[begin - 1]) if begin else 0
            # The record that reaches the size is the last of a batch.
            end = 1 + int(np.searchsorted(sums, done + _BATCH_BYTES))
            rows = slice(begin, min(end, begin + _BATCH_RECORDS))
            records = self._data.runs(begins[rows], begins[rows] + lengths[rows])
            expected = crc32cs[rows].tolist()
            if (found := [*map(google_crc32c.value, records)]) != expected:
                wrong = next(n for n, c in enumerate(found) if c != expected[n])
                size, place = len(records[wrong]), int(begins[rows][wrong])
                raise DataLossError(
                    "records changed on the way into a shard",
                    where=f"a file in {self._directory}, byte offset {place:,}",
                    expected=f"crc32c {expected[wrong]:#010x} of {size:,} bytes",
                    got=f"{found[wrong]:#010x}",
                    cure="check disk and memory of this machine, then run again",
                )
            yield records, expected
            begin += len(records)


Element = bytes | tuple[Key, bytes]

RECORD, KEYED_RECORD, TASK = b"rkt"
RECORD_BEGIN = 17  # After the hash of its content.
_RECORD, _KEYED_RECORD, _TASK = b"r", b"k", b"t"
_KEYED = struct.Struct("<cI")


def not_a_record(element: object, *, keyed: bool) -> InputError:
    """Returns the error for an element that cannot be written."""
    return InputError(
        "element cannot be written as a record",
        expected="(key, bytes)" if keyed else "bytes",
        got=f"{type(element).__name__} {element!r:.100}",
        cure="map elements to bytes first, such as with SerializeToString(); for "
        "(key, bytes), give keyed=True",
    )


def assign_record(record: bytes, groups: int) -> tuple[int, bytes]:
    """Returns the group of a record without key, and the element for it.

    Raises:
        InputError: It is no record.
    """
    if not isinstance(record, bytes):
        raise not_a_record(record, keyed=False)
    place = content_hash(record)
    return group_of(place, groups), b"".join((_RECORD, place, record))


def assign_pair(pair: tuple[Key, bytes], groups: int) -> tuple[int, bytes]:
    """Returns the group of a record with key, and the element for it.

    Raises:
        InputError: It is no such pair.
    """
    key, record = split_pair(pair)
    head = _KEYED.pack(_KEYED_RECORD, len(key))
    return group_of(content_hash(key), groups), b"".join((head, key, record))


def split_pair(pair: tuple[Key, bytes]) -> tuple[bytes, bytes]:
    """Returns the encoded key and the record of a pair.

    Raises:
        InputError: It is none.
    """
    if isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], bytes):
        return encode_key(pair[0]), pair[1]
    raise not_a_record(pair, keyed=True)


def record_of(element: bytes) -> bytes:
    """Returns the record of an element that is one."""
    if element[0] == RECORD:
        return element[RECORD_BEGIN:]
    return key_and_record(element)[1]


def key_and_record(element: bytes) -> tuple[bytes, bytes]:
    """Returns the encoded key and the record of an element with key."""
    begin = _KEYED.size
    end = begin + _KEYED.unpack_from(element)[1]
    return element[begin:end], element[end:]


def encode_task(task: GroupTask) -> bytes:
    """Returns the element for a task."""
    return _TASK + task.pack()


def task_of(element: bytes) -> GroupTask | None:
    """Returns the task of an element, None if it is a record."""
    return GroupTask.unpack(element[1:]) if element[0] == TASK else None


class GroupResult(NamedTuple):
    """What became of a group.

    Attributes:
        write: The write that it belongs to.
        reports: What was counted, one shard after the other. None of a write that is
            committed already.
        resumed: Whether the shards were there already.
    """

    write: PlannedWrite
    reports: tuple[ShardReport, ...]
    resumed: bool = False


def write_group(job: WriteJob, group: int, elements: Iterable[bytes]) -> GroupResult:
    """Writes all shards of a group, unless they are there already.

    Memory: some 130 bytes a record of the group (180 and the key with keys), and a few
    megabytes. Disk: the group's records, and one shard.

    Args:
        job: The job.
        group: Number of the group.
        elements: Its records in any order, and its task anywhere among them, as
            `assign_record` and `encode_task` make them. They are read once, or not at
            all if they are a list, and the shards are there.

    Raises:
        DataLossError: The records are not those that were counted for the plan.
        JobChangedError: Another write has taken over the output.
        StorageError: Reading or writing failed.
    """
    found = None
    if isinstance(elements, list):
        tasks = (task for element in reversed(elements) if (task := task_of(element)))
        found = next((_Found.of(job, task) for task in tasks), None)
        if found is not None and found.result is not None:
            return found.result
    # The task, which says the edition, may come last.
    temporary = layout.temporary_dir(job.output, job.name, job.split)
    storage = storage_for(job.output)
    with (
        storage.temporary(temporary) as path,
        closing(RecordSpool(os.path.dirname(path))) as spool,
    ):
        for element in elements:
            if element[0] == RECORD:
                spool.add(element[RECORD_BEGIN:], element[1:RECORD_BEGIN])
            elif element[0] == KEYED_RECORD:
                key, record = key_and_record(element)
                spool.add(record, content_hash(record), key)
            elif found is None:
                found = _Found.of(job, GroupTask.unpack(element[1:]))
        if found is None:
            raise DataLossError(
                "a group of records came without its task",
                where=f"{job.output}, split {job.split}, group {group}",
                got=spool.digest.summary,
                cure="run again; if it repeats, please report it",
            )
        return found.result or _write(found, group, spool)


class _Found(NamedTuple):
    """What there is of a group; the result, if that is all of it."""

    task: GroupTask
    write: PlannedWrite
    places: list[ShardPlace]
    result: GroupResult | None

    @classmethod
    def of(cls, job: WriteJob, task: GroupTask) -> Self:
        write = PlannedWrite.of(job, task.reference)
        if write.committed:
            return cls(task, write, [], GroupResult(write, ()))
        paths = map(write.shard_path, task.shards)
        places = [ShardPlace.at(job.output, path) for path in paths]
        there = [place.finished(write.own.id) for place in places]
        finished = tuple(report for report in there if report is not None)
        whole = len(finished) == len(places)
        result = GroupResult(write, finished, True) if whole else None
        return cls(task, write, places, result)


def _write(found: _Found, group: int, spool: RecordSpool) -> GroupResult:
    task, write, places, _ = found
    if spool.digest != task.counted:
        raise DataLossError(
            "records of a group are not those that were counted before",
            where=f"{write.job.output}, split {write.job.split}, group {group}",
            expected=task.counted.summary,
            got=spool.digest.summary,
            cure="make sure that the steps before give the same records when they "
            "are repeated, or put a beam.Reshuffle() before the write",
        )
    order = spool.order()
    cuts = spool.cuts(order, len(places))
    reports = []
    for part, (shard, place) in enumerate(zip(task.shards, places, strict=True)):
        rows = order[slice(*cuts[part : part + 2])]
        reports.append(_write_shard(write, shard, place, spool, rows))
    return GroupResult(write, tuple(reports))


def _write_shard(
    write: PlannedWrite,
    shard: int,
    place: ShardPlace,
    spool: RecordSpool,
    order: npt.NDArray[np.int64],
) -> ShardReport:
    job = write.job
    with storage_for(job.output).temporary(write.temporary_dir) as local:
        with ShardWriter(local, options=job.writer) as writer:
            for records, crc32cs in spool.batches(order):
                writer.write(records, crc32cs)
            written = writer.finish()
        report = ShardReport(
            path=place.path,
            shard_index=shard,
            job=write.own.id,
            file_bytes=written.file_bytes,
            file_crc32c=written.file_crc32c,
            read=written.digest,
            written=written.digest,
        )
        write.own.check_current()  # Another write may have begun.
        place.publish(local, written, report)
    return report
