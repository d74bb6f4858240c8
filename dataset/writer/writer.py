"""`Writer`: records of a Python loop as a split of a committed dataset."""

from __future__ import annotations

import array
import concurrent.futures
import contextlib
import operator
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import google_crc32c
import numpy as np

from gristmill.dataset.arrayrecord.chunks import MAX_CHUNK_DECODED_BYTES
from gristmill.dataset.arrayrecord.shard_writer import ShardWriter
from gristmill.dataset.arrayrecord.writer_options import (
    WriterOptions,
    positive,
)
from gristmill.dataset.base.errors import DataLossError, InputError, StorageError
from gristmill.dataset.base.places import Places
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.features import FeatureSpec, encode_features
from gristmill.dataset.metadata.manifest import read_table
from gristmill.dataset.storage.paths import StrPath
from gristmill.dataset.writer.parts import (
    Part,
    PartsJob,
    begin_parts,
    checked_part,
    commit_job,
    part_column,
    unbegun_write,
)

DEFAULT_SHARD_BYTES = 256 << 20
# As many are encoded together: fewer cost more time a record, more take more memory.
_BATCH_RECORDS = 1024
_BATCH_BYTES = 1 << 20
_NOT_BEGUN = "its `with` statement has not begun"


class Writer:
    """Writes records one by one, and commits them as a split of a dataset.

    ::

        with Writer("c4", split="train") as writer:
            for record in records:
                writer.write(record)

    When the `with` statement ends, the split is committed, with the shards, indexes,
    digests and table of a conversion. If an error leaves it, or the process is killed,
    nothing is visible. Finished shards are kept in the dataset's directory: a writer
    with the same arguments and `resume` continues after them, and any other one deletes
    them.

    With `parts`, several writers, in processes or machines that share the output, each
    write a part of the split. `commit_parts` then commits all parts together, in the
    order of their numbers.

    Each finished shard is read again and compared with what was written. The same
    records in the same order give the same bytes, whether or not the writer was
    restarted. For one thread at a time.

    While records come, the shard before them is checked and published, in a thread.

    Memory: a few mebibytes, and for each record of a shard some 120 bytes if it has a
    chunk of its own (`group_size` 1), some 40 in groups of 16. Local disk: two shards,
    also where the output is in a bucket.

    Args:
        path: The dataset's directory, local or `gs://`. Its other splits stay.
        name: The dataset's name; by default the last part of the directory.
        split: The split to write.
        part: Number of the part that this writer writes, from 0.
        parts: In how many parts the split is written; by default it is written by this
            writer alone, which commits it.
        shard_bytes: Maximum bytes of records in a shard; a larger record has its own.
        records_per_shard: Maximum records in a shard.
        writer: How shards are encoded.
        features: The features of the records, if they are `tf.train.Example`, so that
            `loader.ExampleDecoder.of` decodes them.
        sources: The files that records come from, for `gristmill trace`: the format of
            each, such as `jsonl`, `parquet` or `tfrecord`, by its path. `write` then
            takes the source of each record.
        resume: Whether to continue after the shards that an earlier writer with the
            same arguments has finished; `position_records` says where.
        overwrite: Whether to replace this split in the output, once the new one is
            finished. A finished part is written again.
        keep_replaced: Whether to keep the replaced split, for a rollback, until
            `gristmill clean`. With several parts, tell `commit_parts`.

    Raises:
        InputError: An argument cannot be used.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        name: str | None = None,
        split: str = "train",
        part: int | None = None,
        parts: int | None = None,
        shard_bytes: int = DEFAULT_SHARD_BYTES,
        records_per_shard: int | None = None,
        writer: WriterOptions | None = None,
        features: Mapping[str, FeatureSpec] | None = None,
        sources: Mapping[str, str] | None = None,
        resume: bool = False,
        overwrite: bool = False,
        keep_replaced: bool = False,
    ):
        self._part_number, count = checked_part(part, parts)
        self._commits = parts is None
        self._job = PartsJob(
            write=unbegun_write(path, name, split),
            parts=count,
            shard_bytes=positive("shard_bytes", shard_bytes),
            records_per_shard=positive("records_per_shard", records_per_shard),
            writer=writer or WriterOptions(),
            features=_described(features),
            sources=_checked_sources(sources),
        )
        self._file_numbers = {path: n for n, path in enumerate(sources or {})}
        self._resume = resume
        self._overwrite = overwrite
        self._keep_replaced = keep_replaced
        self._part: Part | None = None
        # Open from the first record of a shard until it is published.
        self._shard: ShardWriter | None = None
        self._shard_files = contextlib.ExitStack()
        self._local = ""
        # Checks and publishes one shard while the next one is written.
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "gristmill-shard")
        self._publishing: concurrent.futures.Future[None] | None = None
        self._kept_records = 0  # In shards that are published.
        self._records = 0  # In the shard that is open, and not in it yet.
        self._raw_bytes = 0
        self._batch: list[bytes] = []
        self._batch_bytes = 0
        self._places = array.array("q")  # File and place of each record of the shard.
        self._closed: str | None = _NOT_BEGUN

    @property
    def position_records(self) -> int:
        """The number of records in the part so far, which is that of the next one.

        After a restart with `resume`, this is the number of records in finished shards:
        seek there, and continue. If the split is committed, it is all of its part.
        """
        return self._kept_records + self._records

    def __enter__(self) -> Self:
        """Takes the output.

        Raises:
            InputError: The output holds files of unknown origin, or a dataset of
                another name.
            JobChangedError: It holds this split already, or parts with other options.
            StorageError: Storage failed.
        """
        if self._closed != _NOT_BEGUN:
            raise self._refused()
        job, committed = begin_parts(
            self._job, resume=self._resume, overwrite=self._overwrite
        )
        self._job = job
        if committed is not None:
            table = read_table(job.write.output, committed)
            place = layout.join(job.write.output, committed.table)
            own = part_column(table, where=place) == self._part_number
            self._kept_records = int(table.records[own].sum())
            self._closed = "the split is committed"
            return self
        self._part = Part(
            job, self._part_number, resume=self._resume, overwrite=self._overwrite
        )
        self._kept_records = self._part.records
        self._closed = "its part is finished" if self._part.finished else None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Commits the split, or finishes the part; after an error does neither."""
        part = self._part
        if error is not None or part is None:
            publishing = self._publishing
            self._abandon("its `with` statement has ended")
            if error is not None and publishing is not None:
                failed = publishing.exception()
                if failed is not None and failed is not error:
                    error.add_note(f"The shard before could not be kept: {failed}")
            return
        if not part.finished:
            if self._closed is not None:
                raise self._refused()
            with self._or_abandoned():
                self._wait_for_shard()
                # A split has a shard, if only an empty one.
                if self._records or not part.shards:
                    self._finish_shard()
                self._wait_for_shard()
                self._check_complete(part)
                part.finish()
            self._pool.shutdown()
        self._closed = "its `with` statement has ended"
        if self._commits:
            commit_job(self._job, keep_replaced=self._keep_replaced)

    def write(self, record: bytes, *, source: tuple[str, int] | None = None) -> None:
        """Appends a record.

        Args:
            record: The record.
            source: The file that it comes from, one of `sources`, and the place there:
                the byte offset in the decompressed file; in Parquet and ArrayRecord
                files, and any that have no bytes of a record, its number.

        Raises:
            InputError: It is not bytes, or has 2 GiB or more; its source is missing or
                unknown to the writer; or the writer is closed.
            JobChangedError: Another writer has taken over the output.
            StorageError: It cannot be written. Nothing can be written then: restart.
        """
        if self._closed is not None:
            raise self._refused()
        if type(record) is not bytes:
            raise InputError(
                "record is not bytes",
                where=f"{self._job.write.where}, record {self.position_records:,}",
                got=f"{type(record).__name__} {record!r:.60}",
                cure="encode it first, such as with gristmill.dataset.encode_example",
            )
        size = len(record)
        if size > MAX_CHUNK_DECODED_BYTES:
            raise InputError(
                "record is too large",
                where=f"{self._job.write.where}, record {self.position_records:,}",
                expected=f"at most {MAX_CHUNK_DECODED_BYTES:,} bytes",
                got=f"{size:,}",
                cure="cut it into several records",
            )
        has_sources = self._job.sources is not None or source is not None
        place = self._checked_source(source) if has_sources else None
        if self._records and self._raw_bytes + size > self._job.shard_bytes:
            self._finish_shard()
        if place is not None:
            self._places.extend(place)
        self._batch.append(record)
        self._records += 1
        self._raw_bytes += size
        self._batch_bytes += size
        if self._records == self._job.records_per_shard:
            self._finish_shard()
        elif self._batch_bytes >= _BATCH_BYTES or len(self._batch) >= _BATCH_RECORDS:
            self._flush()

    def _checked_source(self, source: Any) -> tuple[int, int]:
        """Returns the number of a record's source file, and its place there."""
        with contextlib.suppress(KeyError, TypeError, ValueError):
            path, place = source
            file, place = self._file_numbers[path], operator.index(place)
            if 0 <= place < 1 << 62:
                return file, place
        raise InputError(
            "not the source of a record",
            where=f"{self._job.write.where}, record {self.position_records:,}",
            expected="source=(path, place), a path of the writer's sources, and a place"
            if self._job.sources
            else "none: the writer was given no sources",
            got=f"source={source!r:.100}",
            cure='give the writer all files, as sources={"a.jsonl": "jsonl"}, and each '
            "record its file and byte offset, or number",
        )

    def _flush(self) -> None:
        """Passes the held records to the encoder."""
        with self._or_abandoned():
            if self._shard is None:
                temporary = self._job.write.temporary()
                self._local = self._shard_files.enter_context(temporary)
                self._shard = ShardWriter(self._local, options=self._job.writer)
            batch = self._batch
            self._shard.write(batch, list(map(google_crc32c.value, batch)))
            self._batch, self._batch_bytes = [], 0

    def _finish_shard(self) -> None:
        """Has the open shard checked and published, after the one before it."""
        self._flush()
        with self._or_abandoned():
            self._wait_for_shard()
            files = self._shard_files.pop_all()
            shard, self._shard = self._shard, None
            assert shard is not None
            places, self._places = self._places, array.array("q")
            self._publishing = self._pool.submit(
                self._publish, shard, self._local, files, places
            )
        self._kept_records += self._records
        self._records = self._raw_bytes = 0

    def _publish(
        self,
        shard: ShardWriter,
        local: str,
        files: contextlib.ExitStack,
        places: array.array[int],
    ) -> None:
        with files:
            assert self._part is not None
            sources = None
            if self._job.sources is not None:
                sources = Places(*np.array(places, np.int64).reshape(-1, 2).T)
            try:
                self._part.publish(local, shard.finish(), sources)
            except StorageError:
                # Another command may have taken over, and deleted this work.
                self._part.check_current()
                raise

    def _wait_for_shard(self) -> None:
        """Waits until the shard before is published; raises its error."""
        publishing, self._publishing = self._publishing, None
        if publishing is not None:
            publishing.result()

    def _check_complete(self, part: Part) -> None:
        """Raises DataLossError if shards hold another number of records than came."""
        if part.records != self._kept_records:
            raise DataLossError(
                "finished shards do not hold the records that were written",
                where=self._job.write.where,
                expected=f"{self._kept_records:,} records",
                got=f"{part.records:,}",
                cure="run again; if it repeats, please report it",
            )

    @contextlib.contextmanager
    def _or_abandoned(self) -> Any:
        """Closes the writer at an error, after which records would be missing."""
        try:
            yield
        except BaseException:
            self._abandon("an error has ended it")
            raise

    def _abandon(self, why: str) -> None:
        self._closed = why
        shard, self._shard = self._shard, None
        self._batch = []
        if shard is not None:
            shard.abandon()
        self._shard_files.close()
        # The shard before is whole, and kept if possible.
        self._pool.shutdown()

    def _refused(self) -> InputError:
        return InputError(
            f"the writer takes no records: {self._closed}",
            where=f"{self._job.write.where}, record {self.position_records:,}",
            cure="write within `with Writer(...)`; to continue after an error, use a "
            "new Writer with resume=True; to write a finished split again, "
            "overwrite=True",
        )


def _described(features: Mapping[str, FeatureSpec] | None) -> dict[str, Any] | None:
    for name, spec in (features or {}).items():
        if not (isinstance(name, str) and isinstance(spec, FeatureSpec)):
            raise InputError(
                "features are not described",
                expected="a gristmill.dataset.FeatureSpec for each, by its name",
                got=f"{name!r}: {spec!r:.60}",
                cure="describe each feature with a FeatureSpec, or leave features out",
            )
    return None if features is None else encode_features(features)


def _checked_sources(sources: Mapping[str, str] | None) -> dict[str, str] | None:
    pairs = sources.items() if isinstance(sources, Mapping) else ()
    if sources is not None and not (
        pairs and all(isinstance(text, str) and text for one in pairs for text in one)
    ):
        raise InputError(
            "sources are not described",
            expected="the format of each file by its path, such as "
            "{'a.jsonl': 'jsonl'}",
            got=f"{sources!r:.60}",
            cure="give a dictionary, or leave sources out",
        )
    return None if sources is None else dict(sources)
