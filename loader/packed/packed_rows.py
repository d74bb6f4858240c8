"""Decodes a batch of packed rows to the arrays of a language model."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import DecodeError, InputError, some_of
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.packed.counts import PackedSplit
from gristmill.dataset.packed.example_rows import NAMES
from gristmill.dataset.packed.message_spans import MessageSpans
from gristmill.dataset.packed.row_format import (
    RowFormat,
    RowsKind,
    decode_rows,
    read_heads,
    read_spans,
    read_tokens,
)
from gristmill.loader.base.indices import AnyArray, checked_count, not_opened
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.data.part import Part
from gristmill.loader.decode.examples import ExampleDecoder, FixedFeature, TokenDecoder
from gristmill.loader.packed.segment_arrays import (
    Int32Array,
    RowLayout,
    copy_of,
    new_array,
)

ARRAYS = (
    "inputs",
    "targets",
    "inputs_position",
    "targets_position",
    "inputs_segmentation",
    "targets_segmentation",
)
SUPERVISION = ("targets_mask", "targets_weights", "inputs_mask", "labels")
"""Arrays that are made only if `names` has a name for them."""

IGNORED = -100
"""The label of places that are not trained, as PyTorch has it."""

_STORED = ("length", "id_bytes", "rows")
_INT32_BYTES = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedRows:
    """Decodes a batch of packed rows to arrays [rows, length], int32 but for weights.

    They have the names that MaxText gives them:

    - `inputs`: the tokens; 0 after the last one of a row.
    - `targets`: the successor of each token in the same piece of a document; 0 for the
      last token of a piece and after it.
    - `inputs_segmentation`: the number of the piece in its row, from 1 on; 0 for
      padding. A 0 in `inputs` can be a token: only this array shows padding.
    - `targets_segmentation`: the same where there is a target, else 0.
    - `inputs_position`: the number of the token in its piece, from 0 on; 0 for padding.
    - `targets_position`: the same numbers.

    In rows of conversations, `targets_segmentation` is 0 also where the target is not
    trained on. Further arrays are made under the names that are given for them, of all
    rows:

    - `targets_mask`: 1 where there is a target that is trained on, else 0.
    - `targets_weights`: float32, its weight: 1 unless the data have others, else 0.
    - `inputs_mask`: 1 at each such token itself, for trainers that shift by themselves;
      0 at the first token of a piece.
    - `labels`: `targets` where they are trained on, else -100.

    It is configuration and pickles: give it to `feed(decode=...)`, or call it with a
    list of records.

    Attributes:
        length: Columns of the arrays: the tokens that a row can hold.
        id_bytes: Bytes of a stored token: 2, 3 or 4.
        rows: How rows are stored: "packed", or "example" for `tf.train.Example`.
        document_positions: Whether positions are those in the document, also in a piece
            that does not begin it.
        names: Other names of arrays, by those above; None leaves an array out. The
            arrays below the others have no name unless one is given.
        tokenizer: The digest of the rows' tokenizer, if it is known; a feed of rows of
            another one warns.
    """

    length: int
    id_bytes: int = 2
    rows: RowsKind = "packed"
    document_positions: bool = False
    names: Mapping[str, str | None] = dataclasses.field(
        default_factory=dict, hash=False
    )
    tokenizer: str = ""

    def __post_init__(self) -> None:
        checked_count(self.length, what="length")
        RowFormat(self.length, self.id_bytes, self.rows)
        object.__setattr__(self, "names", dict(self.names))
        for name in self.names:
            if name not in (*ARRAYS, *SUPERVISION):
                raise InputError(
                    f"packed rows have no array {name!r}",
                    expected=f"names for {', '.join((*ARRAYS, *SUPERVISION))}",
                    cure="correct the name",
                )
        given = [*self._given.values()]
        if not given or len(set(given)) < len(given):
            raise InputError(
                "each array of a batch needs a name of its own",
                expected="other names, and None for some",
                got=repr(self.names),
                cure="choose other names",
            )

    @classmethod
    def of(
        cls,
        dataset: Dataset | Mapping[str, Dataset],
        *others: Dataset,
        length: int | None = None,
        document_positions: bool = False,
        names: Mapping[str, str | None] | None = None,
    ) -> Self:
        """Creates the decoder of a packed dataset, or of all datasets of a mixture.

        Args:
            dataset: The dataset, or those of a mixture by name.
            others: More of them, whose rows must be stored in the same way.
            length: The length that they must have; by default that of the first.
            document_positions: As in the class.
            names: As in the class.

        Raises:
            InputError: A dataset holds no packed rows, or they are stored in another
                way.
            FormatVersionError: Another version of gristmill packed them.
        """
        first: dict[str, Any] = {}
        tokenizer = ""
        named = dataset.values() if isinstance(dataset, Mapping) else (dataset,)
        for part, split in splits_of((*named, *others)):
            if split is None or split.packed is None:
                cure = (
                    "open the dataset's directory; of files alone, say how rows are "
                    "stored: loader.PackedRows(length=2048)"
                    if split is None
                    else "pack it, or decode its records with a TokenDecoder or an "
                    "ExampleDecoder"
                )
                raise InputError(
                    "plain files do not say whether they hold packed rows"
                    if split is None
                    else "the dataset does not hold packed rows",
                    where=repr(part),
                    expected="a dataset that `gristmill pack` made",
                    cure=cure,
                )
            described = PackedSplit.parse(split.packed, where=repr(part))
            stored = {name: getattr(described, name) for name in _STORED}
            first, tokenizer = first or stored, tokenizer or described.tokenizer
            expected = first if length is None else {**first, "length": length}
            if stored != expected:
                raise InputError(
                    "the rows of the dataset are stored in another way",
                    where=repr(part),
                    expected=_shown(expected),
                    got=_shown(stored),
                    cure="give the length that it has, or pack the documents again "
                    "with another --length",
                )
        return cls(
            **first,
            document_positions=document_positions,
            names=names or {},
            tokenizer=tokenizer,
        )

    def __call__(self, records: Sequence[bytes]) -> dict[str, AnyArray]:
        """Decodes a batch.

        Raises:
            DecodeError: A record is not a packed row of this length, or has a token
                that int32 cannot hold.
        """
        inputs, layout, firsts, spans = self._read(records)
        out: dict[str, AnyArray] = {"inputs": inputs}
        if self._has("targets", "labels"):
            out["targets"] = layout.successors(inputs)
        if self._has("inputs_position", "targets_position"):
            numbers = layout.positions(firsts if self.document_positions else None)
            out["inputs_position"] = numbers
            if self._has("targets_position"):
                out["targets_position"] = copy_of(numbers)
        if self._has("inputs_segmentation", "targets_segmentation"):
            numbers = layout.segments()
            out["inputs_segmentation"] = numbers
            if self._has("targets_segmentation") and spans is None:
                out["targets_segmentation"] = numbers = copy_of(numbers)
                numbers.reshape(-1)[layout.last_tokens] = 0
            elif self._has("targets_segmentation") and spans is not None:
                values = layout.numbers()[spans.documents]
                out["targets_segmentation"] = layout.spread(spans, values)
        if self._has(*SUPERVISION):
            self._add_masks(out, layout, spans)
        return {key: out[name] for name, key in self._given.items()}

    def _add_masks(
        self,
        out: dict[str, AnyArray],
        layout: RowLayout,
        spans: MessageSpans | None,
    ) -> None:
        """Adds the arrays of `SUPERVISION` that are wanted."""
        ones = np.ones(len(layout.pieces) if spans is None else len(spans.roles), "i4")
        weights = ones.astype(np.float32) if spans is None else spans.weights
        if self._has("targets_mask", "labels"):
            out["targets_mask"] = mask = layout.spread(spans, ones)
            if self._has("labels"):
                out["labels"] = labels = copy_of(out["targets"])
                labels[mask == 0] = IGNORED
        if self._has("targets_weights"):
            out["targets_weights"] = layout.spread(spans, weights)
        if self._has("inputs_mask"):
            out["inputs_mask"] = layout.spread(spans, ones, shift=1)

    @property
    def _given(self) -> dict[str, str]:
        """The names of the arrays that are wanted."""
        given = dict(zip(ARRAYS, ARRAYS, strict=True)) | dict(self.names)
        return {name: key for name, key in given.items() if key is not None}

    def _has(self, *names: str) -> bool:
        given = self._given
        return any(name in given for name in names)

    def _read(
        self, records: Sequence[bytes]
    ) -> tuple[Int32Array, RowLayout, npt.NDArray[np.uint32], MessageSpans | None]:
        """Returns the tokens [rows, length], where they are, first positions, spans.

        Raises DecodeError as `__call__` does.
        """
        row_format = RowFormat(self.length, self.id_bytes, self.rows)
        tokens = new_array((len(records), self.length))
        if self.rows == "packed":
            heads = read_heads(row_format, records)
            layout = RowLayout.of(
                self.length, heads.row_ends, heads.lengths, heads.token_counts
            )
            starts = np.arange(len(records)) * self.length
            read_tokens(row_format, records, heads, tokens.reshape(-1), starts)
            firsts, spans = heads.firsts, read_spans(records, heads)
        else:
            row_ends, lengths, firsts, ids, spans = decode_rows(row_format, records)
            sums = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
            counts = np.diff(sums[row_ends], prepend=0)
            layout = RowLayout.of(self.length, row_ends, lengths, counts)
            tokens.reshape(-1)[layout.is_token()] = ids.view(np.int32)
            layout.clear_padding(tokens)
        # Beyond int32 they have become negative.
        if self.id_bytes >= _INT32_BYTES and (tokens < 0).any():
            row = int(np.argmax((tokens < 0).any(axis=1)))
            raise DecodeError(
                "row has a token that int32 cannot hold",
                row=row,
                expected="ids below 2^31",
                got=int(tokens[row].view(np.uint32).max()),
                cure="decode such rows by a function of your own: "
                "docs/reference/format.md has one",
            )
        return tokens, layout, firsts, spans


def splits_of(datasets: Iterable[Dataset]) -> Iterator[tuple[Part, Split | None]]:
    """Yields the editions of each dataset's parts; None for a part without any."""
    for dataset in datasets:
        if not isinstance(dataset, Dataset):
            raise not_opened(dataset)
        for part in dataset.stored.parts:
            for edition in part.editions or (None,):
                yield part, edition


def _shown(stored: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in stored.items())


_log = logging.getLogger(__name__)


def check_decode(decode: Any, datasets: Sequence[Dataset]) -> None:
    """Checks that a decoder is for what datasets hold, before anything is read.

    Nothing is known of plain files, and of functions as decoders. Records of a
    `Writer`, of a `--map` function or of an index can be packed rows too: they are
    refused only beside a dataset that declares packed rows.

    Raises:
        InputError: A decoder of packed rows is given rows that are stored in another
            way, or other records; or another decoder packed rows, or records that
            lack a feature; or it is the class of a decoder.
    """
    kinds = PackedRows | TokenDecoder | ExampleDecoder
    if isinstance(decode, type) and issubclass(decode, kinds):
        made = ".of(dataset)" if hasattr(decode, "of") else "(length=...)"
        raise InputError(
            "decode is the class of a decoder",
            expected="a decoder that is made for the dataset",
            got=f"loader.{decode.__name__}",
            cure=f"give loader.{decode.__name__}{made}",
        )
    if not isinstance(decode, kinds):
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
    has_rows = any(split.packed is not None for _, split in known)
    for part, split in known:
        if split.packed is not None:
            _check_stored(decode, part, split.packed)
            if digest := str(split.packed.get("tokenizer", "")):
                tokenizers.setdefault(digest, repr(part))
        elif has_rows or _is_other(decode, split):
            raise InputError(
                "the dataset does not hold packed rows"
                + ", and others beside it do" * has_rows,
                where=repr(part),
                expected="a dataset that `gristmill pack` made",
                cure="pack it, or leave it out; or decode its records with a "
                "TokenDecoder or an ExampleDecoder; for packed rows that came from "
                "elsewhere, give a function that calls the PackedRows",
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
