"""Whether a decoder is for what datasets hold: packed rows, or other records."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.dataset.errors import InputError
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.packed.packed_split import PackedSplit
from gristmill.loader.dataset import Dataset
from gristmill.loader.decode.examples import ExampleDecoder
from gristmill.loader.decode.tokens import TokenDecoder
from gristmill.loader.packed.packed_rows import PackedRows, splits_of

_log = logging.getLogger(__name__)


def check_decode(decode: Any, datasets: Sequence[Dataset]) -> None:
    """Checks that a decoder is for what datasets hold, before anything is read.

    Plain files say nothing of their records, and functions of users nothing of theirs.
    Records that a `Writer` wrote can be packed rows too, so they are refused only
    beside a dataset that says so.

    Raises:
        InputError: A decoder of packed rows is given rows that are stored in another
            way, or other records beside them; or another decoder packed rows.
    """
    if not isinstance(decode, PackedRows | TokenDecoder | ExampleDecoder):
        return
    known = [(part, split) for part, split in splits_of(datasets) if split]
    if isinstance(decode, PackedRows):
        _check_rows(decode, known)
        return
    for part, split in known:
        if split.packed is not None and split.packed["rows"] == "packed":
            raise InputError(
                f"the dataset holds packed rows, which no {type(decode).__name__} "
                "decodes",
                where=repr(part),
                cure="decode them with loader.PackedRows.of(dataset)",
            )


def _check_rows(decode: PackedRows, known: Sequence[tuple[Dataset, Split]]) -> None:
    """Raises InputError unless all datasets that say so hold rows for a decoder."""
    tokenizers: dict[str, Dataset] = {}
    for part, split in known:
        if split.packed is not None:
            _check_stored(decode, part, split.packed)
            if digest := _tokenizer_of(split):
                tokenizers.setdefault(digest, part)
        elif any(other.packed is not None for _, other in known):
            raise InputError(
                "the dataset does not hold packed rows, and others beside it do",
                where=repr(part),
                expected="a dataset that `gristmill pack` made",
                cure="pack it, or leave it out of the mixture or of what is joined",
            )
    if len(tokenizers) > 1:
        # Not an error: one vocabulary can be in files of several kinds.
        _log.warning(
            "rows of different tokenizers, in which an id can be another token: %s",
            ", ".join(f"{part!r} of {digest}" for digest, part in tokenizers.items()),
        )


def _tokenizer_of(split: Split) -> str:
    """Returns the digest of a split's tokenizer, "" where that is not known."""
    found: Any = split.source
    for name in ("options", "pack", "found", "digest"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) else ""


def _check_stored(decode: PackedRows, part: Dataset, packed: Mapping[str, Any]) -> None:
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
            "PackedRows the greatest, or make them one with `gristmill repack`",
        )
