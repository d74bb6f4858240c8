"""The stages and sinks of a shard: records are mapped, then written or packed."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator
from typing import Self

import google_crc32c
import numpy as np

from gristmill.dataset.arrayrecord.shard_writer import ShardWriter, WrittenShard
from gristmill.dataset.base.errors import DataLossError
from gristmill.dataset.formats.streams.record_batch import RecordBatch
from gristmill.transforms.chat.document_reader import reader_of
from gristmill.transforms.conversion.shard_source import Batch, Tally
from gristmill.transforms.functions.user_functions import call, load_function
from gristmill.transforms.jobs.conversion_job import PreparedJob
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.sources.source import Source, source_of
from gristmill.transforms.tokens.row_packer import RowPacker

_MAPPED_BYTES = 1 << 20


def map_records(
    batches: Iterable[Batch], function: str, source: Source, tally: Tally
) -> Iterator[Batch]:
    """Yields the records that the user's function makes of others.

    Args:
        batches: The others.
        function: `module:function`.
        source: Names places in messages.
        tally: Counts what it returns.

    Raises:
        UserFunctionError: The function failed.
        DataLossError: A record is not the one that was read.
    """
    called = load_function(function)
    for given in batches:
        _check_records(given, source)
        path, batch, origins = given
        records: list[bytes] = []
        counts: list[int] = []
        size = first = 0
        for number, record in enumerate(batch.records):
            results = call(called, record, source=_place_of(given, source, number))
            if results:
                tally.added_records += len(results) - 1
                tally.changed_records += record not in results
            else:
                tally.dropped_records += 1
            records += results
            counts.append(len(results))
            size += sum(map(len, results))
            if size >= _MAPPED_BYTES or number == len(batch.records) - 1:
                some = slice(first, number + 1)
                places = np.repeat(np.asarray(batch.places[some], np.int64), counts)
                crc32cs = list(map(google_crc32c.value, records))
                yield Batch(
                    path,
                    RecordBatch(places.tolist(), records, crc32cs),
                    origins.taken(np.arange(first, number + 1)).repeated(counts),
                )
                records, counts, size, first = [], [], 0, number + 1


class RecordSink:
    """A shard of the records as they come. Use it in a `with` statement.

    Args:
        local: The file to write.
        prepared: The job.
        tally: Gets the sources of the records.
    """

    def __init__(self, local: str, prepared: PreparedJob, tally: Tally):
        self._writer = ShardWriter(local, options=prepared.job.writer)
        self._tally = tally

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._writer.__exit__(kind, error, traceback)

    def write(self, given: Batch) -> None:
        """Writes records.

        Raises:
            StorageError: They cannot be written.
        """
        self._writer.write(given.batch.records, given.batch.crc32cs)
        self._tally.places.append(given.origins)

    def finish(self) -> WrittenShard:
        """Finishes the file, and reads it back.

        Raises:
            DataLossError: It does not hold what was written.
        """
        return self._writer.finish()


class RowSink(RecordSink):
    """A shard of rows of tokens, packed of the documents that records are.

    Args:
        local: The file to write.
        prepared: The job.
        pack: How rows are made.
        tally: Counts tokens and rows.
    """

    def __init__(
        self, local: str, prepared: PreparedJob, pack: PackOptions, tally: Tally
    ):
        self._source = source_of(prepared.files.spec)
        self._reader = reader_of(pack, prepared.files.spec)
        super().__init__(local, prepared, tally)
        self._packer = RowPacker(pack, directory=os.path.dirname(local))

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self._packer.close()
        super().__exit__(kind, error, traceback)

    def write(self, given: Batch) -> None:
        """Tokenises and packs documents.

        Raises:
            FastTokenizerDiffersError: The fast tokenizer gives other ids.
            UserFunctionError: The user's tokenizer failed.
            DataLossError: A record is not the one that was read.
        """
        _check_records(given, self._source)
        place_of = functools.partial(_place_of, given, self._source)
        documents = self._reader.read(given.batch.records, place_of)
        self._packer.add(documents, given.origins)

    def finish(self) -> WrittenShard:
        """Writes the rows, and reads the file back.

        Raises:
            DataLossError: It does not hold what was written.
            StorageError: They cannot be written.
        """
        for rows in self._packer.rows():
            self._writer.write(rows, list(map(google_crc32c.value, rows)))
        written = self._writer.finish()
        self._tally.packed = self._packer.counts()
        self._tally.segments = self._packer.segments().encode()
        return written


def _place_of(given: Batch, source: Source, number: int) -> str:
    return f"{given.path}, {source.place_text(given.batch.places[number])}"


def _check_records(given: Batch, source: Source) -> None:
    """Checks that records are those whose checksums were read: what follows has others.

    Raises DataLossError if one is not.
    """
    batch = given.batch
    found = list(map(google_crc32c.value, batch.records))
    if found == batch.crc32cs:
        return
    both = zip(batch.crc32cs, found, strict=True)
    at, (expected, got) = next(
        (n, one) for n, one in enumerate(both) if len({*one}) > 1
    )
    raise DataLossError(
        "a record changed on the way into a shard",
        where=_place_of(given, source, at),
        expected=f"crc32c {expected:#010x}",
        got=f"{got:#010x}",
        cure="check the memory of this machine, then run again",
    )
