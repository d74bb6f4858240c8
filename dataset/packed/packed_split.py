"""The description of a split of packed rows in `dataset.json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from gristmill.dataset.base.errors import FormatVersionError, InvalidDatasetError
from gristmill.dataset.packed.counts import PackedCounts

FORMAT = 1
SUPERVISED_FORMAT = 2
"""The format of rows with spans of messages, which earlier versions refuse."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedSplit:
    """A split of packed rows.

    Attributes:
        rows: `packed`, rows as docs/reference/format.md describes them; `example`, a
            `tf.train.Example` each.
        length: Maximum tokens of a row.
        id_bytes: Bytes that an id needs: 2, 3 or 4. Also the bytes of a token in a
            `packed` row, before compression.
        vocabulary_size: Upper bound of ids, exclusive.
        method: How documents were put into rows, such as `best-fit`.
        counts: Counts of the rows of all shards.
        supervised: Whether the rows have spans of messages.
    """

    rows: str
    length: int
    id_bytes: int
    vocabulary_size: int
    method: str
    counts: PackedCounts
    supervised: bool = False

    def encode(self) -> dict[str, Any]:
        """Returns the description for `dataset.json`."""
        own = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("counts", "supervised")
        }
        known = SUPERVISED_FORMAT if self.supervised else FORMAT
        return {"format": known, **own, **self.counts.as_dict()}

    @classmethod
    def parse(cls, fields: Mapping[str, Any], *, where: str) -> Self:
        """Parses a description.

        Args:
            fields: The description in `dataset.json`.
            where: The dataset, for messages.

        Raises:
            FormatVersionError: Its format is unknown.
            InvalidDatasetError: It is invalid.
        """
        if (known := fields.get("format")) not in (FORMAT, SUPERVISED_FORMAT):
            raise FormatVersionError.unknown(
                "packed rows", where=where, expected=SUPERVISED_FORMAT, got=known
            )
        try:
            found = cls(
                rows=str(fields["rows"]),
                length=int(fields["length"]),
                id_bytes=int(fields["id_bytes"]),
                vocabulary_size=int(fields["vocabulary_size"]),
                method=str(fields["method"]),
                counts=PackedCounts.of_dict(fields),
                supervised=known == SUPERVISED_FORMAT,
            )
        except (KeyError, TypeError, ValueError) as e:
            raise _invalid(where, f"{type(e).__name__}: {e}") from e
        if wrong := {k: v for k, v in found.encode().items() if fields.get(k, v) != v}:
            raise _invalid(where, f"values of another kind: {sorted(wrong)}")
        if found.length < 1:
            raise _invalid(where, f"rows of {found.length} tokens")
        return found


def _invalid(where: str, got: str) -> InvalidDatasetError:
    return InvalidDatasetError(
        "description of packed rows cannot be read",
        where=where,
        got=got,
        cure="restore dataset.json from a copy, or pack the documents again",
    )
