"""The job of finding exact duplicates, whose sink is the column `duplicate_of`.

A step writes the sorted digests of a shard's records. The commit compares them in
partitions, and writes the column. Records are equal if 128 bits of SHA-256 are.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import unicodedata
from collections.abc import Callable, Sequence
from math import isqrt
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.columns import Done, Gathered
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.columns.column_file import ColumnType
from gristmill.dataset.commit.attached_split import (
    AttachedSplit,
    Attachment,
    ShardTask,
    gather_row,
    gathered_rows,
    write_values,
)
from gristmill.dataset.commit.listings import walk
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.column_table import column_entries
from gristmill.dataset.metadata.layout import VALUES
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.storage.base import explained
from gristmill.dataset.storage.directory_lock import scratch_directory
from gristmill.dataset.storage.lookup import delete_all, storage_for
from gristmill.transforms.columns.attach_job import batches_of, begin_columns
from gristmill.transforms.jobs.job import Begun
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.sources.formats import SourceSpec
from gristmill.transforms.tokens.document_column import DocumentColumn
from gristmill.transforms.tokens.tokenizer import PlaceOf

COLUMN = "duplicate_of"
_KIND = ColumnType("int64")
_KINDS = ("text", "record", "normalised")
# The files of digests, kept until the commit.
_DIGESTS = "digests"
_ENTRY = np.dtype([("high", "<u8"), ("low", "<u8"), ("number", "<i8")])
_FOUND = np.dtype([("number", "<i8"), ("kept", "<i8")])

Array = npt.NDArray[Any]


class Comparison(NamedTuple):
    """The part of records that is compared.

    Attributes:
        kind: `text`, `normalised` (NFKC, lower case, white space collapsed) or
            `record`, the stored bytes.
        column: The feature that holds the text; "" if the whole record is text.
    """

    kind: str = "record"
    column: str = ""

    @classmethod
    def parse(cls, given: str) -> Self:
        """Returns the comparison for `text`, `text:FEATURE`, `text:-` and so on.

        Raises:
            InputError: It is none of these.
        """
        kind, colon, own = given.partition(":")
        if kind not in _KINDS or (colon and (kind == "record" or not own)):
            raise InputError(
                "records cannot be compared by this",
                expected="record, text, normalised, text:FEATURE or normalised:FEATURE",
                got=ascii(given),
                cure="give one of these",
            )
        if kind == "record":
            return cls(kind)
        own = own or "text"
        return cls(kind, "" if own == "-" else own)

    def __str__(self) -> str:
        if self.kind == "record":
            return self.kind
        return f"{self.kind}:{self.column or '-'}"

    def keys(self) -> Callable[[Sequence[bytes], PlaceOf], Sequence[bytes]]:
        """Returns a function from records to the bytes to compare.

        It raises InputError for a record without the text, or whose text is not UTF-8.
        """
        if self.kind == "record":
            return lambda records, place_of: records
        options = PackOptions(length=2, column=self.column)
        column = DocumentColumn(options, SourceSpec(format="arrayrecord"))

        def texts(records: Sequence[bytes], place_of: PlaceOf) -> Sequence[bytes]:
            try:
                found = column.texts(records, place_of)
            except InputError as e:  # Its cure names the options of packing.
                cure = (
                    f"give --by {self.kind}:NAME for another feature, {self.kind}:- if "
                    "each record is text as a whole, or record for its bytes; or "
                    "convert again with --nulls skip, which leaves out rows where the "
                    "text is null"
                )
                raise InputError(e.what, e.where, e.expected, e.got, cure) from e
            return found if self.kind == "text" else [*map(normalised, found)]

        return texts


def normalised(text: bytes) -> bytes:
    """Returns a text by NFKC, in lower case, with single spaces between words.

    >>> normalised("  ﬁne DAY ".encode())
    b'fine day'
    """
    found = text.decode()
    if not found.isascii():
        found = unicodedata.normalize("NFKC", found)
    return " ".join(found.lower().split()).encode()


class DuplicatesResult(NamedTuple):
    """The result of a search for duplicates.

    Attributes:
        manifest: The dataset after the commit.
        split: The split.
        by: The comparison.
        duplicates: Number of records that duplicate an earlier one.
        done_before: Whether the column existed already.
    """

    manifest: Manifest
    split: str
    by: str
    duplicates: int
    done_before: bool = False

    @property
    def records(self) -> int:
        """The number of records."""
        return self.manifest.splits[self.split].records

    @property
    def kept(self) -> int:
        """The number of records without their duplicates."""
        return self.records - self.duplicates


_FACTS = (("entries", "<i8"),)


class Digested(NamedTuple):
    """A shard whose digests are written, and their number of entries."""

    shard: ShardTask
    entries: int

    def gather(self, gathered: Gathered) -> None:
        """Adds the number of entries."""
        gather_row(gathered, "digests", _FACTS, self.shard, self.entries)

    @property
    def done(self) -> Done:
        """The work done, for progress and metrics."""
        shard, said = self.shard, f"digests of {self.shard.digest.records} records"
        return Done(shard.shard, said, shard.file_bytes, shard.digest)


@dataclasses.dataclass(frozen=True)
class DuplicatesJob:
    """The job of finding duplicates.

    Attributes:
        dataset: The dataset's directory.
        by: The comparison, for `Comparison.parse`.
        split: The split; None for the only one.
        overwrite: Whether to replace a column `duplicate_of`.
        block_bits: Binary logarithm of the records to compare at a time.
    """

    dataset: str
    by: str = "text"
    split: str | None = None
    overwrite: bool = False
    block_bits: int = 21

    def begin(self) -> Begun[ShardTask]:
        """Describes the column; raises InputError if there is another one."""
        by = Comparison.parse(self.by)
        target = AttachedSplit(self.dataset, self.split, overwrite=self.overwrite)
        if target.split.packed is not None and by.kind != "record":
            raise InputError(
                "packed rows have no text to compare",
                where=f"{self.dataset}, split {target.name}",
                cure="find duplicates among the documents, and pack with --select "
                "'duplicate_of < 0'; or compare whole rows with --by record",
            )
        how = ["unique", str(by)]
        attachment = target.attachment({COLUMN: _KIND}, how, {"by": str(by)})
        return dataclasses.replace(begin_columns(target, attachment), label="comparing")

    @property
    def step(self) -> Callable[[ShardTask], Digested]:
        """`write_digests`."""
        return functools.partial(write_digests, by=Comparison.parse(self.by))

    @property
    def commit(self) -> Callable[[Gathered], DuplicatesResult]:
        """`commit_duplicates`."""
        return functools.partial(commit_duplicates, block_bits=self.block_bits)


def _digests_path(task: ShardTask) -> str:
    path = layout.column_path(task.shard, _DIGESTS, task.attachment.write.id)
    return layout.join(task.attachment.write.output, path)


def write_digests(shard: ShardTask, *, by: Comparison) -> Digested:
    """Writes an entry for the first record of each digest in a shard, by digest.

    After the entries comes, for each record, the row of the first one like it. So a
    record that is repeated millions of times has one entry per shard.
    """
    keys, sha256 = (
        by.keys(),
        hashlib.sha256,
    )  # Fast: processors have instructions for it.
    digests = []
    for batch in batches_of(shard):
        place_of = functools.partial(_place_of, shard, batch.places)
        found = [sha256(key).digest()[:16] for key in keys(batch.records, place_of)]
        digests.append(b"".join(found))
    high, low = np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2).T
    order, begins = _grouped(high, low)
    entries = np.empty(len(begins), _ENTRY)
    rows = order[begins]
    entries["high"], entries["low"] = high[rows], low[rows]
    entries["number"] = shard.first_record + rows
    firsts = np.empty(len(order), "<u4")
    firsts[order] = np.repeat(rows, np.diff(np.append(begins, len(order))))
    data = entries.tobytes() + firsts.tobytes()
    shard.attachment.publish(shard.shard, _DIGESTS, data)
    return Digested(shard, len(entries))


def _place_of(shard: ShardTask, places: Sequence[int], row: int) -> str:
    return f"{shard.shard}, record {places[row]:,}"


def _grouped(high: Array, low: Array) -> tuple[Array, npt.NDArray[np.int64]]:
    """Returns the stable order by digest, and the start of each digest in it."""
    order = np.argsort(high, kind="stable")
    changes = high[order][1:] != high[order][:-1]
    sorted_low = low[order]
    if (changes < (sorted_low[1:] != sorted_low[:-1])).any():
        # Two digests have the same upper half.
        order = np.lexsort((low, high))
        sorted_high, sorted_low = high[order], low[order]
        changes = sorted_high[1:] != sorted_high[:-1]
        changes |= sorted_low[1:] != sorted_low[:-1]
    return order, np.flatnonzero(np.append(np.full(min(len(order), 1), True), changes))


def _resolved(entries: Array) -> Array:
    """Returns the duplicates among a partition's entries of all shards, by number."""
    order, begins = _grouped(entries["high"], entries["low"])
    numbers = entries["number"][order]
    found = np.empty(len(order), _FOUND)
    found["number"] = numbers
    found["kept"] = np.repeat(numbers[begins], np.diff(np.append(begins, len(order))))
    found = found[found["kept"] != found["number"]]
    lost: Array = found[np.argsort(found["number"])]
    return lost


class _Spool:
    """Duplicates and their originals, kept on a local disk by blocks of numbers."""

    def __init__(self, directory: str, block_bits: int):
        self._directory, self._bits = directory, block_bits
        self._block = functools.lru_cache(maxsize=2)(self._read)

    def add(self, found: Array) -> None:
        blocks = found["number"] >> self._bits
        with explained("keep duplicates", self._directory):
            for rows in np.split(found, np.flatnonzero(np.diff(blocks)) + 1):
                if len(rows):
                    block = int(rows["number"][0]) >> self._bits
                    with open(self._path(block), "ab") as file:
                        file.write(rows.tobytes())

    def between(self, first: int, stop: int) -> Array:
        """Returns the rows of the records [first, stop)."""
        found = [np.empty(0, _FOUND)]
        for block in range(first >> self._bits, ((stop - 1) >> self._bits) + 1):
            rows = self._block(block)
            begin, end = np.searchsorted(rows["number"], [first, stop])
            found.append(rows[begin:end])
        return np.concatenate(found)

    def _path(self, block: int) -> str:
        return os.path.join(self._directory, str(block))

    def _read(self, block: int) -> Array:
        path = self._path(block)
        if not os.path.exists(path):
            return np.empty(0, _FOUND)
        with explained("read duplicates", self._directory):
            rows = np.fromfile(path, _FOUND)
        found: Array = rows[np.argsort(rows["number"])]
        return found


def _values(task: ShardTask, entries: int, spool: _Spool) -> Array:
    """Returns the column of a shard whose file of digests has this many entries."""
    numbers = np.arange(task.first_record, task.stop_record)
    found = spool.between(task.first_record, task.stop_record)
    kept = numbers.copy()
    kept[found["number"] - task.first_record] = found["kept"]
    path, begin = _digests_path(task), entries * _ENTRY.itemsize
    data = storage_for(path).read(path, begin, begin + 4 * len(numbers))
    values: Array = kept[np.frombuffer(data, "<u4")]
    values[values == numbers] = -1
    return values


def commit_duplicates(gathered: Gathered, *, block_bits: int) -> DuplicatesResult:
    """Compares the digests, and commits the column; see `AttachedSplit.commit`."""
    attachment: Attachment = gathered.notes["begun"][""]
    target = AttachedSplit.of(attachment)
    if target.is_done(attachment):
        return _result(target, target.manifest, done_before=True)
    target.check_editions(attachment)
    rows = [
        gathered_rows(gathered, "digests", _FACTS, part) for part in target.split.parts
    ]
    entries = np.concatenate([np.empty(0, np.int64), *(one["entries"] for one in rows)])
    read = np.zeros_like(entries)
    # Digests are partitioned by their upper bits.
    bits = (max(target.split.records - 1, 0) >> block_bits).bit_length()
    duplicates = 0
    with scratch_directory() as directory:
        spool = _Spool(directory, block_bits)
        for partition in range(1 << bits):
            blocks = [np.empty(0, _ENTRY)]
            for at, task in enumerate(target.tasks(attachment)):
                begin, end = int(read[at]), int(entries[at])
                blocks.append(_entries(task, begin, end, partition, bits))
                read[at] += len(blocks[-1])
            spool.add(_resolved(np.concatenate(blocks)))
        for at, task in enumerate(target.tasks(attachment)):
            values = _values(task, int(entries[at]), spool)
            duplicates += int((values >= 0).sum())
            write_values(task, {COLUMN: values}).gather(gathered)
    manifest = target.commit(attachment, gathered, duplicates=duplicates)
    known = {"COLUMN": _DIGESTS, "KEY": attachment.write.id}
    left = walk(target.dataset, (VALUES,), known)
    delete_all(one.info for one in left)
    return _result(target, manifest)


def _entries(task: ShardTask, begin: int, end: int, partition: int, bits: int) -> Array:
    """Returns the part of a shard's entries [begin, end) that is in a partition."""
    path, parts = _digests_path(task), (1 << bits) - partition
    stop = partition + 1 << 64 - bits
    found = np.empty(0, _ENTRY)
    while begin < end and (not len(found) or found["high"][-1] < stop):
        # Digests are spread evenly, so a second request is rare.
        share = (end - begin) // parts
        some = end if parts == 1 else min(end, begin + share + 4 * isqrt(share) + 16)
        data = storage_for(path).read(
            path, begin * _ENTRY.itemsize, some * _ENTRY.itemsize
        )
        found, begin = np.concatenate([found, np.frombuffer(data, _ENTRY)]), some
    if parts == 1:
        return found
    return found[: np.searchsorted(found["high"], np.uint64(stop))]


def _result(
    target: AttachedSplit, manifest: Manifest, *, done_before: bool = False
) -> DuplicatesResult:
    part = manifest.splits[target.name].parts[0]
    source = column_entries(part, target.dataset)[COLUMN].source
    return DuplicatesResult(
        *(manifest, target.name, source["by"], source["duplicates"], done_before)
    )
