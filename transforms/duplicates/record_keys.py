"""The bytes by which records are compared: a text, that normalised, or the record."""

from __future__ import annotations

import dataclasses
import hashlib
import unicodedata
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.jobs.duplicate_comparison import Comparison
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.sources.formats import RecordOptions, SourceSpec
from gristmill.transforms.tokens.document_column import DocumentColumn
from gristmill.transforms.tokens.documents import with_column
from gristmill.transforms.tokens.tokenizers.tokenizer import PlaceOf


def records_for(records: RecordOptions, by: Comparison) -> RecordOptions:
    """Returns options by which a table gives no more than the text, if that is all.

    Args:
        records: The user's options, with the format of the files.
        by: What is compared.
    """
    return with_column(records, by.column) if by.column else records


@dataclasses.dataclass(frozen=True)
class RecordKeys:
    """Takes the bytes of records by which they are compared.

    Attributes:
        by: What is compared.
        source: Rules for making the records.
    """

    by: Comparison
    source: SourceSpec

    def __post_init__(self) -> None:
        options = PackOptions(length=2, column=self.by.column)
        object.__setattr__(self, "_texts", DocumentColumn(options, self.source).texts)

    def keys(self, records: Sequence[bytes], place_of: PlaceOf) -> Sequence[bytes]:
        """Returns these bytes of each record.

        Args:
            records: The records.
            place_of: Returns the place of a record, by its number among these.

        Raises:
            InputError: A record has no such text, or it is not UTF-8.
        """
        if self.by.kind == "record":
            return records
        try:
            texts: Sequence[bytes] = self._texts(records, place_of)  # type: ignore[attr-defined]
        except InputError as e:  # Its cure is for packing, which has other options.
            kind = self.by.kind
            cure = (
                f"compare by {kind}:NAME, another feature, by {kind}:-, a record that "
                "is text as a whole, or by record, its bytes; or leave out rows where "
                "the text is null with --nulls skip"
            )
            raise InputError(e.what, e.where, e.expected, e.got, cure) from e
        return texts if self.by.kind == "text" else [*map(normalised, texts)]

    def digests(
        self, records: Sequence[bytes], place_of: PlaceOf
    ) -> npt.NDArray[np.uint64]:
        """Returns a digest of these bytes of each record: uint64 [records, 2]."""
        digest = hashlib.sha256  # Processors have instructions for it.
        keys = self.keys(records, place_of)
        data = b"".join([digest(key).digest()[:16] for key in keys])
        return np.frombuffer(data, "<u8").reshape(-1, 2)


def normalised(text: bytes) -> bytes:
    """Returns a text by NFKC, in lower case, with single spaces between words.

    >>> normalised("  ﬁne DAY ".encode())
    b'fine day'
    """
    found = text.decode()
    if not found.isascii():
        found = unicodedata.normalize("NFKC", found)
    return " ".join(found.lower().split()).encode()
