"""Writing the shards of one group of records.

The output depends only on the records and the options, so repeated or concurrent
attempts write the same bytes under the same names.
"""

from __future__ import annotations

import array
import functools
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.shard_writer import ShardWriter
from gristmill.dataset.base.array_spool import ArraySpool
from gristmill.dataset.base.digest import RecordsDigest, check_crc32cs
from gristmill.dataset.base.errors import DataLossError, InputError
from gristmill.dataset.metadata.shard_files import ShardPlace
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.transforms.writing.write_split import (
    GroupResult,
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
    """Collects records in any order, and yields them by order key, then content hash.

    Memory: 28 bytes per record while they are added, and some 130 while they are
    sorted; with order keys, 50 bytes more and the key. Disk: the records, in an unnamed
    file.

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

    def add(self, record: bytes, place: bytes, order_key: bytes | None = None) -> None:
        """Adds one record.

        Args:
            record: The record.
            place: The hash of its content.
            order_key: The key to sort by before the content; for all records or none.
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
        """Returns the sorted order of the records: int64 [records]."""
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
            place_of = functools.partial(self._place_of, begins[rows].tolist())
            check_crc32cs(records, expected, place_of)
            yield records, expected
            begin += len(records)

    def _place_of(self, offsets: Sequence[int], record: int) -> str:
        return f"a file in {self._directory}, byte offset {offsets[record]:,}"


Element = bytes | tuple[Key, bytes]

# The kinds of a group's elements: a record with its content hash, or with its key; or
# the task.
_RECORD, _KEYED_RECORD, _TASK = b"rkt"
_HEAD = struct.Struct("<BI")


def split_element(element: Any, *, keyed: bool) -> tuple[bytes, bytes]:
    """Returns the encoded key, empty unless `keyed`, and the record of an element.

    Raises:
        InputError: It is not such an element.
    """
    pair = element if keyed else (b"", element)
    if isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], bytes):
        return encode_key(pair[0]), pair[1]
    raise InputError(
        "element cannot be written as a record",
        expected="(key, bytes)" if keyed else "bytes",
        got=f"{type(element).__name__} {element!r:.100}",
        cure="map elements to bytes first, such as with SerializeToString(); for "
        "(key, bytes), give keyed=True",
    )


def assign_record(
    element: Any, groups: int, *, keyed: bool = False
) -> tuple[int, bytes]:
    """Returns the group of an element, and its encoding for `write_group`."""
    key, record = split_element(element, keyed=keyed)
    place = content_hash(key if keyed else record)
    head = _HEAD.pack(*((_KEYED_RECORD, len(key)) if keyed else (_RECORD, len(place))))
    return group_of(place, groups), b"".join((head, key if keyed else place, record))


def record_of(element: bytes) -> bytes:
    """Returns the record of an encoded element."""
    return _parts(element)[1]


def _parts(element: bytes) -> tuple[bytes, bytes]:
    begin = _HEAD.size
    end = begin + _HEAD.unpack_from(element)[1]
    return element[begin:end], element[end:]


def encode_task(task: bytes) -> bytes:
    """Returns the element for a task of `WritePlan.tasks`."""
    return bytes([_TASK]) + task


def write_group(job: WriteJob, group: int, elements: Iterable[bytes]) -> GroupResult:
    """Writes all shards of a group, unless they exist already.

    Memory: some 130 bytes per record of the group (with keys 180 and the key), and a
    few megabytes. Disk: the group's records, and one shard.

    Args:
        job: The job.
        group: Number of the group.
        elements: Its records in any order, and its task anywhere among them, from
            `assign_record` and `encode_task`. They are read once, and not to their end
            if the shards exist.

    Raises:
        DataLossError: The records are not those counted for the plan.
        JobChangedError: Another write has taken over the output.
        StorageError: Reading or writing failed.
    """
    task: GroupTask | None = None
    places: list[ShardPlace] = []
    with (
        job.write.temporary() as path,
        closing(RecordSpool(os.path.dirname(path))) as spool,
    ):
        for element in elements:
            if element[0] == _TASK:
                task = GroupTask.unpack(element[1:])
                write = task.write
                if write.committed:
                    return GroupResult(write, ())
                paths = map(write.shard_path, task.shards)
                places = [ShardPlace.at(job.output, path) for path in paths]
                found = [place.finished(write.own.id) for place in places]
                finished = tuple(report for report in found if report is not None)
                if len(finished) == len(places):
                    return GroupResult(write, finished, resumed=True)
                continue
            key, record = _parts(element)
            if element[0] == _RECORD:
                spool.add(record, key)
            else:
                spool.add(record, content_hash(record), key)
        where = f"{job.output}, split {job.split}, group {group}"
        if task is None:
            raise DataLossError(
                "a group of records came without its task",
                where=where,
                got=spool.digest.summary,
                cure="run again; if it repeats, please report it",
            )
        if spool.digest != task.counted:
            raise DataLossError(
                "records of a group are not those that were counted before",
                where=where,
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
            reports.append(_write_shard(task.write, shard, place, spool, rows))
        return GroupResult(task.write, tuple(reports))


def _write_shard(
    write: PlannedWrite,
    shard: int,
    place: ShardPlace,
    spool: RecordSpool,
    order: npt.NDArray[np.int64],
) -> ShardReport:
    job = write.job
    with write.own.temporary() as local:
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
