"""Packed rows as a source: its records are the documents that were packed.

A record is a document's tokens as little-endian uint32, and its place is its number in
the shard. A file is read whole: the pieces of a document can be in any of its rows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import google_crc32c
import numpy as np

from gristmill.dataset.base.errors import CorruptShardError, DecodeError, InputError
from gristmill.dataset.formats.streams.record_batch import RecordBatch
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_index import parse_index
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.dataset.packed.counts import MADE, PackedCounts
from gristmill.dataset.packed.document_spool import DocumentSpool
from gristmill.dataset.packed.message_spans import MessageSpans
from gristmill.dataset.packed.row_format import RowFormat, decode_rows
from gristmill.dataset.packed.segment_index import SegmentIndex
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.sources.formats import RecordOptions, SourceSpec
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.range_reader import RangeReader, ReadRequest
from gristmill.transforms.sources.record_source import PartCount, Source
from gristmill.transforms.sources.shards.open_shard import OpenShard, open_shard
from gristmill.transforms.sources.shards.shard_list import ListedShard
from gristmill.transforms.sources.shards.shard_range import ShardRange
from gristmill.transforms.sources.shards.source_split import SourceSplit

_ID_BYTES = 4


class _Begun(NamedTuple):
    """A file being read."""

    opened: OpenShard
    segments: SegmentIndex


class DocumentRecords(list[bytes]):
    """The documents of packed rows as records.

    Attributes:
        spans: The spans of their messages; None if the rows have none.
    """

    spans: MessageSpans | None = None


class PackedShardReader(RangeReader[_Begun]):
    """Reads the documents of a file.

    Memory: as `DocumentSpool`.

    Args:
        request: The range, which is the whole file.
        shard: The file, with its dataset's entry.
        row_format: The encoding of its rows.
    """

    def __init__(self, request: ReadRequest, shard: ListedShard, row_format: RowFormat):
        super().__init__(request)
        self._shard, self._format = shard, row_format
        self._start = self._stop = 0
        self._whole = True

    def _waiting_bytes(self) -> int:
        return 0  # None of the records.

    def _open(self) -> _Begun:
        opened = open_shard(
            self._shard,
            version=self._file.version,
            rebuild=self._on_damage is not None,
        )
        return _Begun(opened, _segments(self._shard, self._file.version))

    def batches(self) -> Iterator[RecordBatch]:
        """Yields the documents that have a token, about a mebibyte at a time.

        Those with a piece in a damaged chunk are left out.

        Raises:
            CorruptShardError: The file is damaged, and there is no `on_damage`; or its
                rows do not match the segment index.
            StorageChangedError: The file was written meanwhile.
        """
        opened, segments = self._coming()
        if opened.records != segments.rows:
            raise CorruptShardError(
                "the segment index is not that of the shard",
                where=self.path,
                expected=f"{opened.records:,} rows",
                got=f"{segments.rows:,}",
                cure="restore both from a copy, or pack the documents again",
            )
        rows = ShardRange(opened, 0, opened.records, on_damage=self._on_damage)
        with DocumentSpool(segments, self._format, where=self.path) as spool:
            for batch in rows.batches():
                try:
                    decoded = decode_rows(self._format, batch.records)
                except DecodeError as e:
                    row = batch.places[0] + e.row
                    facts = e.facts() | {"where": f"{self.path}, row {row:,}"}
                    raise CorruptShardError(**facts) from e
                spool.add(batch.places[0], decoded)
            self._check_unchanged()
            removed = spool.removed_documents
            for numbers, lengths, ids, spans in spool.batches():
                if spans is not None:
                    spans = spans._replace(ends=spans.ends[lengths > 0])
                numbers, lengths = numbers[lengths > 0], lengths[lengths > 0]
                data = ids.astype("<u4", copy=False).tobytes()
                ends = (np.cumsum(lengths) * _ID_BYTES).tolist()
                records = [
                    data[begin:end]
                    for begin, end in zip([0, *ends[:-1]], ends, strict=False)
                ]
                crc32cs = list(map(google_crc32c.value, records))
                self._records += len(records)
                taken = DocumentRecords(records)
                taken.spans = spans
                yield RecordBatch(numbers.tolist(), taken, crc32cs)
        self._stop = len(np.unique(segments.piece_documents)) - removed


class PackedSource(Source):
    """Shards of a packed split; see `Source` for the methods.

    Args:
        spec: Names the split.
    """

    place_noun = "document"

    def __init__(self, spec: SourceSpec):
        super().__init__(spec)
        split = SourceSplit.of_spec(spec)
        if split is None or split.packed is None:
            raise ValueError("the source is none of packed rows")
        self._split = split
        rows = split.packed
        id_bytes = RowFormat.id_bytes_of(rows["vocabulary_size"])
        self._format = RowFormat(rows["length"], id_bytes, rows["rows"])

    def reader(self, request: ReadRequest) -> PackedShardReader:
        """Returns a reader of a file, which is the only range of it."""
        return PackedShardReader(request, self._shard(request.file), self._format)

    def _shard(self, file: InputFile) -> ListedShard:
        return self._split.shard(file.path, file.size_bytes)

    def counted(self, request: ReadRequest, stride_records: int) -> PartCount:
        """Counts the documents of a file. It can only be entered at the first."""
        file = request.file
        documents = _segments(self._shard(file), file.version).documents
        return PartCount(0, documents, documents, [0] if documents else [])

    def holds(self, span: SourceSpan, raw_bytes: int) -> bool:
        """Returns whether every document of the file was read."""
        return span.stop_bytes == span.records

    def described(self) -> dict[str, Any]:
        """Returns the facts about the inputs for `dataset.json`, besides their list."""
        packed = self._split.packed or {}
        return {
            "format": self.spec.format,
            "split": self._split.split,
            "shards_digest": self._split.shards_digest,
            **{name: packed[name] for name in ("documents", "tokens", "digest")},
        }


@functools.lru_cache(maxsize=2)
def _segments(shard: ListedShard, version: str | None) -> SegmentIndex:
    """Returns the segment index of a shard.

    Args:
        shard: The shard.
        version: Version of the shard, so that the index of another is not returned.

    Raises:
        InvalidDatasetError: It is damaged.
        StorageError: It cannot be read.
    """
    del version
    place = shard.path[: shard.dataset_chars]
    place += layout.segments_path(shard.path[shard.dataset_chars :])
    return SegmentIndex.decode(storage_for(place).read(place), where=place)


def original_places(
    segments: SegmentIndex, spans: Sequence[SourceSpan], files: InputFiles
) -> SegmentIndex:
    """Returns a segment index with places in the files of the first packing.

    It has the spans of all its source indexes, one after the other, which are then no
    longer needed.

    Args:
        segments: Index of a shard made from packed ones. Its places are the numbers of
            documents.
        spans: Spans of the shard's report.
        files: The packed shards.
    """
    places, counts = [segments.document_places[:0]], [segments.span_documents[:0]]
    begin = 0
    for span, end in zip(spans, segments.span_ends.tolist(), strict=True):
        before = _segments(_shard(files, span), files.versions[span.file_index])
        documents = segments.document_places[begin:end]
        places.append(before.document_places[documents])
        of_span = np.searchsorted(before.span_ends, documents, side="right")
        counts.append(np.bincount(of_span, minlength=len(before.span_documents)))
        begin = end
    return dataclasses.replace(
        segments,
        document_places=np.concatenate(places),
        span_documents=np.concatenate(counts),
    )


def earlier_counts(spans: Sequence[SourceSpan], files: InputFiles) -> PackedCounts:
    """Returns the counts from when the documents of packed shards were made.

    These are their text, the added tokens, and their losses so far.
    """
    total = PackedCounts()
    for span in spans:
        path = _shard(files, span).index_path
        assert path is not None  # It belongs to a dataset.
        report = parse_index(storage_for(path).read(path), path=path).report()
        if (counts := report.packed) is not None:
            total += PackedCounts(
                special_tokens=counts.special_tokens,
                text_bytes=counts.text_bytes,
                reference_shards=counts.reference_shards,
                truncated_documents=counts.truncated_documents,
                truncated_tokens=counts.truncated_tokens,
                **{name: getattr(counts, name) for name in MADE},
            )
    return total


def _shard(files: InputFiles, span: SourceSpan) -> ListedShard:
    file, split = files[span.file_index], SourceSplit.of_spec(files.spec)
    assert split is not None  # As `find_split` made it.
    return split.shard(file.path, file.size_bytes)


def make_source(spec: SourceSpec) -> PackedSource:
    """Returns the source of a spec."""
    return PackedSource(spec)


def find_spec(files: InputFiles, options: RecordOptions) -> SourceSpec:
    """Refuses files: only a dataset knows the documents of its rows.

    Raises:
        InputError: Always.
    """
    raise InputError(
        "packed rows are read from their dataset alone",
        where=files.paths[0],
        expected="the directory of a dataset that `gristmill pack` made",
        got="files",
        cure="give the directory",
    )
