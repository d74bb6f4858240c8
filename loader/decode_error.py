"""The error of a record that does not decode, which names the record's place."""

from __future__ import annotations

from typing import Any, Self

from gristmill.dataset.errors import GristmillError


class DecodeError(GristmillError, ValueError):
    """A record of a batch is not what the decoder was told to expect.

    Decoders know a record by its place in the batch alone. Who knows more of it, such
    as a feed, raises `error.of(...)`.

    Attributes:
        row: Place of the record in the batch that was given to the decoder.
    """

    def __init__(self, what: str, *, row: int = 0, **facts: Any) -> None:
        self.row = row
        self._what, self._facts = what, facts
        super().__init__(what, **{"where": f"record {row:,} of the batch", **facts})

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._what, self.row, self._facts)

    def of(self, record: str) -> Self:
        """Returns this error with the record named, such as `record 7 of c4`."""
        return type(self)(self._what, row=self.row, **{**self._facts, "where": record})


def _restore(what: str, row: int, facts: dict[str, Any]) -> DecodeError:
    return DecodeError(what, row=row, **facts)
