"""A check that a decoder fits datasets: packed rows, or other records."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.packed.counts import PackedSplit
from gristmill.dataset.packed.example_rows import NAMES
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.data.part import Part
from gristmill.loader.decode.examples import ExampleDecoder, FixedFeature
from gristmill.loader.decode.tokens import TokenDecoder
from gristmill.loader.packed.packed_rows import PackedRows, splits_of

_log = logging.getLogger(__name__)


def check_decode(decode: Any, datasets: Sequence[Dataset]) -> None:
    """Checks that a decoder is for what datasets hold, before anything is read.

    Nothing is known of plain files, and of functions as decoders. Records of a
    `Writer`, of a `--map` function or of an index can be packed rows too: they are
    refused only beside a dataset that declares packed rows.

    Raises:
        InputError: A decoder of packed rows is given rows that are stored in another
            way, or other records; or another decoder packed rows, or records that
            lack a feature.
    """
    if not isinstance(decode, PackedRows | TokenDecoder | ExampleDecoder):
        return
    known = [(part, split) for part, split in splits_of(datasets) if split]
    if isinstance(decode, PackedRows):
        _check_rows(decode, known)
        return
    for part, split in known:
        _check_features(decode, part, split)
        if split.packed is not None and split.packed["rows"] == "packed":
            raise InputError(
                f"the dataset holds packed rows, which no {type(decode).__name__} "
                "decodes",
                where=repr(part),
                cure="decode them with loader.PackedRows.of(dataset)",
            )


def _check_rows(decode: PackedRows, known: Sequence[tuple[Part, Split]]) -> None:
    """Raises InputError if datasets that are described hold no rows for a decoder."""
    tokenizers = {decode.tokenizer: "the decoder"} if decode.tokenizer else {}
    for part, split in known:
        if split.packed is not None:
            _check_stored(decode, part, split.packed)
            if digest := str(split.packed.get("tokenizer", "")):
                tokenizers.setdefault(digest, repr(part))
        elif any(other.packed is not None for _, other in known):
            raise InputError(
                "the dataset does not hold packed rows, and others beside it do",
                where=repr(part),
                expected="a dataset that `gristmill pack` made",
                cure="pack it, or leave it out of the mixture or of what is joined",
            )
        elif _is_other(decode, split):
            raise InputError(
                "the dataset does not hold packed rows",
                where=repr(part),
                expected="a dataset that `gristmill pack` made",
                got="records as a conversion read them",
                cure="pack it, or decode its records with a TokenDecoder or an "
                "ExampleDecoder; for packed rows that came from elsewhere, give a "
                "function that calls the PackedRows",
            )
    if len(tokenizers) > 1:
        # Not an error: one vocabulary can be in files of several kinds.
        _log.warning(
            "rows of different tokenizers, in which an id can be another token: %s",
            ", ".join(f"{part} of {digest}" for digest, part in tokenizers.items()),
        )


def _is_other(decode: PackedRows, split: Split) -> bool:
    """Returns whether a split is known to hold no packed rows.

    A conversion keeps the records of files, and refuses a dataset of packed rows.
    """
    if split.features is not None:
        return decode.rows != "example" or not split.features.keys() >= {*NAMES}
    converted = "job" in split.source and split.function is None
    return converted and decode.rows != "example"


def _check_features(
    decode: TokenDecoder | ExampleDecoder, part: Part, split: Split
) -> None:
    """Raises InputError if records are known to have other features than decoded."""
    if split.features is None:
        return
    missing = []
    if isinstance(decode, ExampleDecoder):
        missing = [
            name
            for name, feature in decode.features.items()
            if isinstance(feature, FixedFeature)
            and feature.default is None
            and name not in split.features
        ]
        if not missing:
            return
    raise InputError(
        f"the records have no feature {missing[0]!r}"
        if missing
        else "the records are tf.train.Example, and are decoded as tokens alone",
        where=repr(part),
        expected=f"one of {some_of([*split.features], 20)}",
        cure="correct the name, or give the feature a default"
        if missing
        else "decode them by an ExampleDecoder",
    )


def _check_stored(decode: PackedRows, part: Part, packed: Mapping[str, Any]) -> None:
    """Raises InputError if the rows of a dataset are stored in another way."""
    found = PackedSplit.parse(packed, where=repr(part))
    rows, length, id_bytes = found.rows, found.length, found.id_bytes
    same = rows == decode.rows and (rows == "example" or id_bytes == decode.id_bytes)
    if not same or length > decode.length:
        raise InputError(
            "the rows of the dataset are stored in another way than they are decoded",
            where=repr(part),
            expected=f"at most {decode.length:,} tokens a row, {decode.id_bytes} bytes "
            f"each, rows {decode.rows}",
            got=f"{length:,} tokens a row, {id_bytes} bytes each, rows {rows}",
            cure="loader.PackedRows.of(dataset) knows it; for several lengths give "
            "PackedRows the greatest, or pack the documents again with one --length",
        )
