"""Documents of a shard, kept on disk until complete, then packed into rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.array_spool import ArraySpool
from gristmill.dataset.base.errors import DataLossError, InputError
from gristmill.dataset.base.places import Places
from gristmill.dataset.metadata.features import FeatureSpec, encode_features
from gristmill.dataset.packed.counts import PackedCounts, PackedSplit
from gristmill.dataset.packed.example_rows import NAMES
from gristmill.dataset.packed.message_spans import (
    STORED,
    MessageSpans,
    counts_of,
    trained_counts,
)
from gristmill.dataset.packed.row_format import (
    MAX_POSITIONS,
    RowBatch,
    RowFormat,
    encode_rows,
)
from gristmill.dataset.packed.segment_index import SegmentIndex
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.tokens.best_fit import Packing, begins_of, plan_rows
from gristmill.transforms.tokens.documents import Documents

_BATCH_BYTES = 1 << 20


class RowPacker:
    """Collects the documents of a shard, and yields its rows.

    The rows depend on the documents, their order and the options, not on the number
    added at once. Disk: the tokens, 2 or 4 bytes each, 20 bytes per document, and 18
    bytes per span of a message. Memory: at most 28 bytes per document and piece while
    rows are planned, and 8 bytes per conversation.

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
        self._most_tokens = options.length if truncates else 1 << 62
        self._ends: tuple[int | None, int | None] = None, None
        types: list[npt.DTypeLike] = ["<u2" if id_bytes == 2 else "<u4"]
        types += ["<u4", "<i8", "<i8"]
        if options.chat is None:
            self._ends = options.found.bos_id, options.found.eos_id
        else:
            types.append(STORED)
        with contextlib.ExitStack() as files:
            spools = []
            for dtype in types:
                spools.append(ArraySpool(directory, dtype))
                files.callback(spools[-1].close)
            self.close = files.pop_all().close
        # Conversations have spans of messages.
        self._ids, self._lengths, *self._sources = spools[:4]
        self._spans = spools[4:]
        self._span_counts = [np.zeros(1, np.int64)]
        self._counts = PackedCounts()
        self._packing: Packing | None = None

    def add(self, documents: Documents, sources: Places) -> None:
        """Adds the next documents.

        Args:
            documents: Their tokens.
            sources: The source of each.

        Raises:
            StorageError: The disk is full.
        """
        ids, lengths, counts, last_special_tokens, spans = documents
        if counts.empty_documents:
            there = lengths > 0
            if spans is not None:
                spans = spans._replace(ends=spans.ends[there])
            sources, lengths = sources.taken(there), lengths[there]
        longest = int(lengths.max(initial=0))
        if longest > self._most_tokens:
            beyond = lengths[lengths > self._most_tokens] - self._most_tokens
            special = np.minimum(beyond, last_special_tokens)
            counts += PackedCounts(
                tokens=-int(beyond.sum()),
                truncated_documents=len(beyond),
                truncated_tokens=int(beyond.sum()),
                special_tokens=-int(special.sum()),
            )
            ids, lengths = _truncated(ids, lengths, self._most_tokens)
        elif longest > MAX_POSITIONS:
            raise InputError(
                "a document has too many tokens",
                expected=f"at most {MAX_POSITIONS:,}",
                got=f"{longest:,}",
                cure="cut it with --map, or give --truncate",
            )
        if spans is not None:
            self._spans[0].append(spans.stored())
            self._span_counts.append(counts_of(spans.ends))
        stops = np.cumsum(lengths)
        bos, eos = self._ends
        begun = 0 if bos is None else np.count_nonzero(ids[stops - lengths] == bos)
        ended = 0 if eos is None else np.count_nonzero(ids[stops - 1] == eos)
        self._counts += counts + PackedCounts(
            begun_documents=int(begun), ended_documents=int(ended)
        )
        self._ids.append(ids)
        self._lengths.append(lengths)
        for spool, column in zip(self._sources, sources, strict=True):
            spool.append(column)

    def rows(self) -> Iterator[list[bytes]]:
        """Yields the encoded rows, about a MiB at a time.

        Call it once, when all documents have been added.

        Raises:
            StorageError: Written data cannot be read back.
        """
        if self._packing is not None:
            raise ValueError("the rows were given already")
        lengths = self._lengths.read(0, len(self._lengths))
        packing = plan_rows(lengths, length=self._format.length, method=self._method)
        begins, row_ends = begins_of(lengths), packing.row_ends
        held = np.bincount(packing.documents, packing.lengths, minlength=len(lengths))
        if not np.array_equal(held, lengths):
            raise DataLossError(
                "the plan of rows has not all tokens of the documents",
                expected=f"{self._counts.tokens:,}",
                got=f"{int(held.sum()):,}",
                cure="check the memory of this machine, then run again; if it repeats, "
                "please report it",
            )
        self._counts += PackedCounts(
            pieces=len(packing.documents),
            padding_tokens=len(row_ends) * self._format.length - self._counts.tokens,
            most_pieces=int(np.diff(row_ends, prepend=0).max(initial=0)),
        )
        # The rows have the lengths of pieces.
        self._packing = packing._replace(lengths=packing.lengths[:0])
        del lengths, held
        span_ends = np.cumsum(np.concatenate(self._span_counts))
        step = max(1, _BATCH_BYTES // (self._format.length * self._format.id_bytes))
        begin = 0
        for first_row in range(0, len(row_ends), step):
            ends = row_ends[first_row : first_row + step]
            pieces = slice(begin, int(ends[-1]))
            documents = packing.documents[pieces].astype(np.int64)
            sizes, firsts = packing.lengths[pieces], packing.firsts[pieces]
            places = begins[documents] + firsts
            ids = self._ids.gather(places, places + sizes).astype(np.uint32)
            batch = RowBatch(ends - begin, sizes, firsts, ids)
            for spool in self._spans:
                first, stop = span_ends[documents], span_ends[documents + 1]
                stored = spool.gather(first, stop)
                spans = MessageSpans.of_stored(np.cumsum(stop - first), stored)
                spans = spans.cut(firsts, sizes)
                batch = batch._replace(spans=spans)
                self._counts += trained_counts(spans)
            yield encode_rows(self._format, batch)
            begin = pieces.stop

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


def _truncated(
    ids: npt.NDArray[np.uint32], lengths: npt.NDArray[np.int64], most: int
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Returns documents truncated to a number of tokens."""
    places = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return ids[places < most], np.minimum(lengths, most)


def described_rows(options: PackOptions, counts: PackedCounts) -> dict[str, Any]:
    """Returns the description of a finished split's rows for `dataset.json`."""
    assert options.found is not None  # The job was planned.
    found, chat = options.found, options.chat is not None
    return PackedSplit(
        rows=options.rows,
        length=options.length,
        id_bytes=found.id_bytes,
        vocabulary_size=found.vocabulary_size,
        method=options.method,
        counts=counts,
        supervised=counts.trained_tokens > 0,
        tokenizer=found.digest,
        bos_id=None if chat else found.bos_id,
        eos_id=None if chat else found.eos_id,
    ).encode()


def row_features(options: PackOptions) -> dict[str, Any] | None:
    """Returns the features of rows that are examples, None for others."""
    if options.rows != "example":
        return None
    spec = FeatureSpec(kind="int64", dtype="int32", shape=(options.length,))
    return encode_features(dict.fromkeys(NAMES, spec))
