"""The identity of a dataset's records, independent of where it is stored."""

from __future__ import annotations

from typing import NamedTuple

from gristmill.loader.base.state_fields import StateFields


class Content(NamedTuple):
    """The identity of a dataset's records, in their order.

    Attributes:
        edition: The last edition of its split, if it has editions.
        records: Number of records.
        records_digest: Order-independent digest of all records, if known.
        order_digest: As in `Dataset.order_digest`; None for an earlier edition whose
            files are gone.
    """

    edition: int | None
    records: int
    records_digest: str | None
    order_digest: str | None

    def is_same(self, other: Content) -> bool:
        """Returns whether the records are the same, in any edition.

        If one has no digest of the order, the other fields decide.
        """
        if self.order_digest is not None and other.order_digest is not None:
            return self[1:] == other[1:]
        digests = self.records_digest, other.records_digest
        same = None in digests or digests[0] == digests[1]
        return same and self.records == other.records


def content_of(entry: StateFields, *, edition: bool) -> Content:
    """Returns the content that an entry of a state names.

    Args:
        entry: The entry.
        edition: Whether the entry names the edition.

    Raises:
        InputError: A field is missing or has the wrong type.
    """
    number = None
    if edition and entry.get("edition") is not None:
        number = entry.integer("edition", least=1)
    digests = (
        None if entry.get(field) is None else entry.text(field)
        for field in ("records_digest", "order_digest")
    )
    return Content(number, entry.integer("records", least=1), *digests)
