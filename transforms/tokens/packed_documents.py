"""Documents of a job and their tokenizer, for text and for packed rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata.features import FeatureSpec, encode_features
from gristmill.dataset.packed.counts import PackedCounts, PackedSplit
from gristmill.dataset.packed.example_rows import SUPERVISION, WEIGHT
from gristmill.transforms.jobs.pack_options import PackOptions, TokenizerSpec
from gristmill.transforms.sources.formats import SourceSpec
from gristmill.transforms.sources.shards.packed import DocumentRecords
from gristmill.transforms.sources.shards.source_split import SourceSplit
from gristmill.transforms.tokens.documents import DocumentReader, Documents
from gristmill.transforms.tokens.tokenizers import find_tokenizer

_ID_BYTES = 4


def with_tokenizer(options: PackOptions, source: SourceSpec) -> PackOptions:
    """Returns options with the tokenizer found; for packed rows, with theirs.

    Args:
        options: Options of the rows.
        source: Rules for making the records.

    Raises:
        InputError: The tokenizer cannot be used, or rows that are packed again would
            have other tokens.
    """
    packed = _packed(source)
    if packed is None:
        return dataclasses.replace(options, found=find_tokenizer(options))
    for option, given in (
        ("--tokenizer", options.tokenizer),
        ("--bos", options.bos),
        ("--eos", options.eos),
        ("--vocabulary-size", options.vocabulary_size),
    ):
        if given:
            raise InputError(
                f"{option} has no effect on rows that are packed again",
                expected="documents that keep their tokens",
                got=f"{option} {given}",
                cure="leave it out, or pack the text again with `gristmill pack`",
            )
    return dataclasses.replace(
        options, column="", found=TokenizerSpec(**packed["found"])
    )


def document_reader(
    options: PackOptions, source: SourceSpec, **more: bool
) -> DocumentReader | PackedDocuments:
    """Returns the reader of documents from the records of a shard.

    Args:
        options: Options with the tokenizer found.
        source: Rules for making the records.
        **more: Further arguments of `DocumentReader`.
    """
    if _packed(source) is not None:
        return PackedDocuments(options)
    return DocumentReader(options, source, **more)


class PackedDocuments:
    """Reads the documents of packed rows, in place of a `DocumentReader`.

    Args:
        options: Options with the tokenizer found.
    """

    def __init__(self, options: PackOptions) -> None:
        found = options.found
        self._eos_id = None if found is None else found.eos_id
        self._length = options.length
        self._truncates = options.truncate or options.method == "none"

    def read(
        self, records: Sequence[bytes], place_of: Callable[[int], str]
    ) -> Documents:
        """Returns the documents of records, one for each, all with tokens.

        No token is added. A document that is truncated loses the one that was added at
        its end, but not twice.
        """
        del place_of
        lengths = np.fromiter(map(len, records), np.int64, len(records)) // _ID_BYTES
        ids = np.frombuffer(b"".join(records), "<u4")
        spans = records.spans if isinstance(records, DocumentRecords) else None
        if self._eos_id is None or not self._truncates:
            return Documents(ids, lengths, 0, 0, spans=spans)
        long = lengths > self._length
        without = ids[np.cumsum(lengths)[long] - 1] != self._eos_id
        return Documents(ids, lengths, 0, int(without.sum()), 1, spans=spans)


def _packed(source: SourceSpec) -> dict[str, Any] | None:
    """Returns the description of packed rows, None for other sources."""
    split = SourceSplit.of_spec(source)
    return None if split is None else split.packed


_EXAMPLE_FEATURES = ("inputs", "inputs_position", "inputs_segmentation")


def described_rows(options: PackOptions, counts: PackedCounts) -> dict[str, Any]:
    """Returns the description of a finished split's rows for `dataset.json`."""
    assert options.found is not None  # The job was planned.
    return PackedSplit(
        rows=options.rows,
        length=options.length,
        id_bytes=options.found.id_bytes,
        vocabulary_size=options.found.vocabulary_size,
        method=options.method,
        counts=counts,
        supervised=counts.is_supervised,
    ).encode()


def row_features(options: PackOptions, counts: PackedCounts) -> dict[str, Any] | None:
    """Returns the features of rows that are examples, None for others."""
    if options.rows != "example":
        return None
    spec = FeatureSpec(kind="int64", dtype="int32", shape=(options.length,))
    names = _EXAMPLE_FEATURES + SUPERVISION * counts.is_supervised
    found = dict.fromkeys(names, spec)
    if counts.is_supervised:
        weight = dataclasses.replace(spec, kind="float", dtype="float32")
        found[WEIGHT] = dataclasses.replace(weight, optional=True)
    return encode_features(found)
