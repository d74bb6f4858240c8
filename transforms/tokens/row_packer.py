"""Documents of a shard, kept on disk until complete, then packed into rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.array_spool import ArraySpool
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import CorruptShardError, DataLossError
from gristmill.dataset.base.places import Places
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.dataset.packed.document_proofs import (
    ID_BYTES,
    crc32cs_of,
    document_counts,
    role_counts,
    roles_of,
    span_sums,
    spans_digest,
    trained_targets,
)
from gristmill.dataset.packed.join_documents import (
    RECOUNTED,
    JoinedDocuments,
    document_place,
    join_documents,
    piece_place,
)
from gristmill.dataset.packed.message_spans import STORED, MessageSpans
from gristmill.dataset.packed.row_format import RowBatch, RowFormat, encode_rows
from gristmill.dataset.packed.segment_index import SegmentIndex
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.tokens.best_fit import Packing, begins_of, plan_rows
from gristmill.transforms.tokens.documents import Documents

_BATCH_BYTES = 1 << 20
_CHUNK = 1 << 16
_CURE = (
    "check disk and memory of this machine, then run again; if it repeats, please "
    "report it"
)


class RowPacker:
    """Takes the documents of a shard, yields its rows, and proves them.

    The rows depend on the documents, their order and the options, not on the number
    added at once.

    Disk: the tokens, 2 or 4 bytes each, and 24 bytes a document; of conversations 24
    bytes, and 18 bytes a span of a message. Memory: at most 28 bytes a document and
    piece, while rows are planned, and 8 bytes a conversation.

    Args:
        options: Options with the tokenizer found.
        directory: Directory of its files, which have no names and vanish with the
            process.

    Raises:
        StorageError: The directory is missing or full.
    """

    def __init__(self, options: PackOptions, *, directory: str) -> None:
        if options.found is None:
            raise ValueError("the tokenizer of the job is not known yet")
        id_bytes = options.found.id_bytes
        self._method = options.method
        self._format = RowFormat(options.length, id_bytes, options.rows)
        truncates = options.truncate or options.method == "none"
        self._most_tokens = options.length if truncates else None
        self._spools: list[ArraySpool] = []
        types = ("<u2" if id_bytes == 2 else "<u4", "<u4", "<u4", "<i8", "<i8")
        try:
            for dtype in types:
                self._spools.append(ArraySpool(directory, dtype))
        except BaseException:
            self.close()
            raise
        self._ids, self._lengths, self._crc32cs, *self._sources = self._spools
        self._directory = directory
        self._messages: _Messages | None = None
        self._counts = PackedCounts()
        self._packing: Packing | None = None

    def close(self) -> None:
        """Deletes its files."""
        for spool in self._spools:
            spool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def add(self, documents: Documents, sources: Places) -> None:
        """Adds the next documents.

        Args:
            documents: Their tokens.
            sources: The source of each.

        Raises:
            StorageError: The disk is full.
        """
        ids, lengths = documents.ids, documents.lengths
        counts = PackedCounts(
            empty_documents=int(np.count_nonzero(lengths == 0)),
            special_tokens=documents.special_tokens,
            text_bytes=documents.text_bytes,
        )
        spans = documents.spans
        if spans is not None:
            spans.check(lengths)
        if len(sources.places) != len(lengths):
            places = len(sources.places)
            raise ValueError(f"{places:,} places of {len(lengths):,} documents")
        counts += documents.counts
        if counts.empty_documents:
            there = lengths > 0
            if spans is not None:
                spans = spans._replace(ends=spans.ends[there])
            sources, lengths = sources.taken(there), lengths[there]
        most = self._most_tokens
        if most is not None and lengths.max(initial=0) > most:
            beyond = lengths[lengths > most] - most
            special = np.minimum(beyond, documents.last_special_tokens)
            counts += PackedCounts(
                truncated_documents=len(beyond),
                truncated_tokens=int(beyond.sum()),
                special_tokens=-int(special.sum()),
            )
            ids, lengths = _truncated(ids, lengths, most)
            if spans is not None:
                spans = spans.within(lengths)
        crc32cs = crc32cs_of(ids, lengths)
        self._add_spans(spans, crc32cs, lengths)
        digest = RecordsDigest.of(crc32cs, lengths * ID_BYTES)
        self._counts += counts + PackedCounts(
            documents=len(lengths),
            tokens=len(ids),
            digest_low=digest.low,
            digest_high=digest.high,
        )
        self._ids.append(ids)
        self._lengths.append(lengths)
        self._crc32cs.append(crc32cs)
        for spool, column in zip(self._sources, sources, strict=True):
            spool.append(column)

    def _add_spans(
        self,
        spans: MessageSpans | None,
        crc32cs: npt.NDArray[np.uint32],
        lengths: npt.NDArray[np.int64],
    ) -> None:
        """Adds the spans of the next documents; all of them have spans, or none."""
        if spans is not None and self._messages is None and not len(self._lengths):
            self._messages = _Messages(self._directory)
            self._spools += self._messages.spools
        if len(lengths) and (spans is None) != (self._messages is None):
            raise ValueError("documents with spans of messages among others")
        if spans is not None and self._messages is not None:
            self._counts += self._messages.add(spans.joined(), crc32cs, lengths)

    def rows(self) -> Iterator[list[bytes]]:
        """Yields the encoded rows, about a MiB at a time. Packing happens at the first.

        To be called once, when all documents have been added.

        Raises:
            StorageError: Written data cannot be read back.
        """
        if self._packing is not None:
            raise ValueError("the rows were given already")
        lengths = self._lengths.read(0, len(self._lengths))
        packing = plan_rows(lengths, length=self._format.length, method=self._method)
        begins = begins_of(lengths)
        del lengths
        self._count(packing)
        messages = self._messages
        row_ends = packing.row_ends
        step = max(1, _BATCH_BYTES // (self._format.length * self._format.id_bytes))
        begin = 0
        for first_row in range(0, len(row_ends), step):
            ends = row_ends[first_row : first_row + step]
            pieces = slice(begin, int(ends[-1]))
            sizes, firsts = packing.lengths[pieces], packing.firsts[pieces]
            places = begins[packing.documents[pieces]] + firsts
            tokens = self._ids.gather(places, places + sizes).astype(np.uint32)
            batch = RowBatch(ends - begin, sizes, firsts, tokens)
            if messages is not None:
                spans = messages.of_pieces(packing.documents[pieces], firsts, sizes)
                batch = batch._replace(spans=spans)
                trained = trained_targets(spans)
                self._counts += PackedCounts(trained_targets=trained)
            yield encode_rows(self._format, batch)
            begin = pieces.stop

    def _count(self, packing: Packing) -> None:
        is_cut = np.zeros(self._counts.documents, bool)
        is_cut[packing.documents[packing.firsts > 0]] = True
        capacity = len(packing.row_ends) * self._format.length
        self._counts += PackedCounts(
            pieces=len(packing.documents),
            padding_tokens=capacity - self._counts.tokens,
            cut_documents=int(is_cut.sum()),
            most_pieces=int(np.diff(packing.row_ends, prepend=0).max(initial=0)),
        )
        # Lengths of pieces are in the rows.
        self._packing = packing._replace(lengths=packing.lengths[:0])

    def counts(self) -> PackedCounts:
        """Returns the counts of the rows, once there are rows."""
        return self._counts

    def segments(self) -> SegmentIndex:
        """Returns the segment index, once there are rows.

        Raises:
            StorageError: Written data cannot be read back.
        """
        if self._packing is None:
            raise ValueError("there are no rows yet")
        return SegmentIndex(
            row_ends=self._packing.row_ends,
            piece_documents=self._packing.documents,
            piece_firsts=self._packing.firsts,
            sources=Places(*(spool.mapped() for spool in self._sources)),
        )

    def prove(self, records: Iterable[Sequence[bytes]]) -> None:
        """Checks that rows hold every token of every document once, and nothing else.

        Args:
            records: The rows as read back from the finished shard, in their order and
                in batches of any size.

        Raises:
            DataLossError: They do not. It names the row, the document and its place.
            StorageError: Written data cannot be read back.
        """
        index = self.segments()
        try:
            joined = join_documents(records, row_format=self._format, index=index)
        except CorruptShardError as e:
            raise DataLossError(**e.facts() | {"cure": _CURE}) from e
        for begin in range(0, index.documents, _CHUNK):
            chunk = slice(begin, min(begin + _CHUNK, index.documents))
            self._compare(joined, chunk, index)
        for name in RECOUNTED:
            expected, got = (getattr(c, name) for c in (self._counts, joined.counts))
            if expected != got:
                raise DataLossError(
                    f"rows do not hold what was packed: {name.replace('_', ' ')}",
                    expected=f"{expected:,}",
                    got=f"{got:,}",
                    cure=_CURE,
                )

    def _compare(
        self, joined: JoinedDocuments, chunk: slice, index: SegmentIndex
    ) -> None:
        """Compares the added documents with those of the rows."""
        compared: list[tuple[str, ArraySpool, npt.NDArray[Any]]] = [
            ("{:,} tokens", self._lengths, joined.lengths),
            ("crc32c {:#010x}", self._crc32cs, joined.crc32cs),
        ]
        if self._messages is not None:
            sums = self._messages.sums
            compared.append(("spans of messages {:#018x}", sums, joined.span_sums))
        for text, spool, found in compared:
            expected = spool.read(chunk.start, chunk.stop)
            wrong = np.flatnonzero(expected != found[chunk])
            if not wrong.size:
                continue
            document = chunk.start + int(wrong[0])
            pieces = np.flatnonzero(index.piece_documents == document)
            where = document_place(index, document)
            if pieces.size:
                where = piece_place(index, int(pieces[0]))
            raise DataLossError(
                "a document is not in the rows as it was packed",
                where=where,
                expected=text.format(int(expected[wrong[0]])),
                got=text.format(int(found[document])),
                cure=_CURE,
            )


class _Messages:
    """The spans of the messages of a shard's documents, and their sums.

    Args:
        directory: Directory of its files.

    Attributes:
        spans: Rows of `STORED`.
        sums: uint64 [documents], `span_sums`.
    """

    def __init__(self, directory: str) -> None:
        self.spans = ArraySpool(directory, STORED)
        try:
            self.sums = ArraySpool(directory, "<u8")
        except BaseException:
            self.spans.close()
            raise
        self._counts: list[npt.NDArray[np.int64]] = [np.zeros(1, np.int64)]

    @property
    def spools(self) -> tuple[ArraySpool, ArraySpool]:
        return self.spans, self.sums

    def add(
        self,
        spans: MessageSpans,
        crc32cs: npt.NDArray[np.uint32],
        lengths: npt.NDArray[np.int64],
    ) -> PackedCounts:
        """Adds the spans of the next documents, and returns their counts."""
        sums = span_sums(spans)
        self.spans.append(spans.stored())
        self.sums.append(sums)
        self._counts.append(np.diff(spans.ends, prepend=0))
        digest = spans_digest(sums, crc32cs, lengths)
        counts = role_counts(spans) + document_counts(roles_of(spans))
        return counts + PackedCounts(digest_spans=digest)

    def of_pieces(
        self,
        documents: npt.NDArray[np.uint32],
        firsts: npt.NDArray[np.uint32],
        lengths: npt.NDArray[np.uint32],
    ) -> MessageSpans:
        """Returns the spans of pieces of documents."""
        if len(self._counts) > 1:
            self._counts = [np.cumsum(np.concatenate(self._counts))]
        (ends,) = self._counts
        begins, stops = ends[documents], ends[documents.astype(np.int64) + 1]
        stored = self.spans.gather(begins, stops)
        spans = MessageSpans.of_stored(np.cumsum(stops - begins), stored)
        return spans.of_pieces(np.arange(len(documents)), firsts, lengths)


def _truncated(
    ids: npt.NDArray[np.uint32], lengths: npt.NDArray[np.int64], most: int
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Returns documents truncated to a number of tokens."""
    ends = np.cumsum(lengths)
    is_kept = np.ones(len(ids), bool)
    for document in np.flatnonzero(lengths > most).tolist():
        end = int(ends[document])
        is_kept[end - int(lengths[document]) + most : end] = False
    return ids[is_kept], np.minimum(lengths, most)
