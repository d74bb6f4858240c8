"""What identifies the records of a dataset, wherever it is stored."""

from __future__ import annotations

from typing import NamedTuple

from gristmill.loader.base.state_fields import StateFields


class Content(NamedTuple):
    """What identifies the records of a dataset, in their order.

    Attributes:
        edition: The last edition of its split, where it has editions.
        records: How many there are.
        records_digest: Order-independent digest of all records, where known.
        order_digest: What `Dataset.order_digest` is; None of an earlier edition whose
            files are not there any more.
    """

    edition: int | None
    records: int
    records_digest: str | None
    order_digest: str | None

    def is_same(self, other: Content) -> bool:
        """Returns whether the records are the same, whatever edition they are of.

        Where one has no digest of the order, by all that both have.
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
        edition: Whether it names the edition.

    Raises:
        InputError: A field is missing, or of another kind.
    """
    number = None
    if edition and entry.get("edition") is not None:
        number = entry.integer("edition", least=1)
    digests = (
        None if entry.get(field) is None else entry.text(field)
        for field in ("records_digest", "order_digest")
    )
    return Content(number, entry.integer("records", least=1), *digests)
