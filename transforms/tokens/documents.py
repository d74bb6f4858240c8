"""Documents made from records: tokens, with those added to each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.sources.formats import SourceSpec
from gristmill.transforms.tokens.compared_encoder import ComparedEncoder
from gristmill.transforms.tokens.document_column import DocumentColumn
from gristmill.transforms.tokens.tokenizers import Encoded, load_fast, load_tokenizer
from gristmill.transforms.tokens.tokenizers.tokenizer import (
    Ends,
    IdArray,
    LengthArray,
    PlaceOf,
    add_ends,
)


class Documents(NamedTuple):
    """Documents as tokens.

    Attributes:
        ids: uint32 [tokens], those of one document after the other, added ones
            included.
        lengths: int64 [documents], tokens of each; 0 for an empty one.
        text_bytes: Size of the text that was tokenised, as UTF-8.
        special_tokens: Number of added tokens.
        last_special_tokens: Number of added tokens at the end of each document.
    """

    ids: IdArray
    lengths: LengthArray
    text_bytes: int
    special_tokens: int
    last_special_tokens: int = 0


class DocumentReader:
    """Makes documents of the records of one shard, in their order.

    Args:
        options: Options with the tokenizer found by planning.
        source: Rules for making the records.
        fast: Whether the fast path may be used, if the options allow it.

    Raises:
        InputError: The tokenizer is not the one that was found.
        MissingPackageError: Its library is not installed.
        StorageError: Its file cannot be read.
    """

    def __init__(
        self,
        options: PackOptions,
        source: SourceSpec,
        *,
        fast: bool = True,
    ) -> None:
        if options.found is None:
            raise ValueError("the tokenizer of the job is not known yet")
        self._size = options.found.vocabulary_size
        self._column = DocumentColumn(options, source)
        self._encoder: ComparedEncoder | None = None
        if options.tokenizer is not None:
            self._encoder = ComparedEncoder(
                load_tokenizer(options),
                load_fast(options) if fast and options.fast else None,
            )
        given = options.found.bos_id, options.found.eos_id
        bos, eos = (() if token is None else (token,) for token in given)
        self._ends = Ends(bos, eos)

    def read(self, records: Sequence[bytes], place_of: PlaceOf) -> Documents:
        """Returns the documents of records, one for each.

        No token is added to a document without its own tokens.

        Args:
            records: The next records.
            place_of: Returns the place of a record, by its number among these.

        Raises:
            InputError: A record has no document, or one on which the tokenizer fails,
                or tokens outside the vocabulary.
            UserFunctionError: The tokenizer is a function of the user's, and fails.
            FastTokenizerDiffersError: The fast path gives other tokens.
        """
        text_bytes = 0
        own = Ends()
        if self._encoder is None:
            encoded = self._column.tokens(records, place_of)
        else:
            texts = self._column.texts(records, place_of)
            text_bytes = sum(map(len, texts))
            encoded = self._encoder.encode(texts, place_of)
            own = self._encoder.own_ends
        if int(encoded.ids.max(initial=0)) >= self._size:
            raise self._beyond(encoded, place_of)
        added = (own.tokens + self._ends.tokens) * int(
            np.count_nonzero(encoded.lengths)
        )
        last = len(own.after) + len(self._ends.after)
        ids, lengths = add_ends(encoded, self._ends)
        return Documents(ids, lengths, text_bytes, added, last)

    def _beyond(self, encoded: Encoded, place_of: PlaceOf) -> InputError:
        at = int(np.argmax(encoded.ids >= self._size))
        stops = np.cumsum(encoded.lengths)
        return InputError(
            "a token is not in the vocabulary",
            where=place_of(int(np.searchsorted(stops, at, side="right"))),
            expected=f"ids below {self._size:,}",
            got=f"{encoded.ids[at]:,}",
            cure="correct the tokens, or --vocabulary-size"
            if self._encoder is None
            else "correct the tokenizer, or the vocabulary_size that it tells",
        )
