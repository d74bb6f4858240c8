"""The part of records that is the same in duplicates: a text, or the whole record."""

from __future__ import annotations

from typing import NamedTuple, Self

from gristmill.dataset.base.errors import InputError

KINDS = ("text", "record", "normalised")


class Comparison(NamedTuple):
    """What is the same in records that are duplicates.

    Attributes:
        kind: `text`, `normalised` (NFKC, lower case, white space collapsed) or
            `record`, the stored bytes.
        column: The column or feature that holds the text; "" if the record is it.
    """

    kind: str = "record"
    column: str = ""

    @classmethod
    def parse(cls, given: str, *, column: str = "text") -> Self:
        """Returns the comparison that `text`, `text:COLUMN` and so on stand for.

        Args:
            given: One of `KINDS`, or it and a column; - for the whole record.
            column: The column, where none is given.

        Raises:
            InputError: It is nothing of this.
        """
        kind, colon, own = given.partition(":")
        if kind not in KINDS or (colon and (kind == "record" or not own)):
            raise InputError(
                "records cannot be compared by this",
                expected="record, text, normalised, text:COLUMN or normalised:COLUMN",
                got=ascii(given),
                cure="give one of these",
            )
        if kind == "record":
            return cls(kind)
        own = own or column
        return cls(kind, "" if own == "-" else own)

    def __str__(self) -> str:
        if self.kind == "record":
            return self.kind
        return f"{self.kind}:{self.column or '-'}"
