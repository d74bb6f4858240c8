"""Fields of a state, checked on access, as checkpoints get cut and changed.

Among them is the content of a dataset: the identity of its records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gristmill.dataset.base.errors import InputError
from gristmill.loader.base.indices import POSITION_LIMIT, checked_integer


class _NoField:
    def __repr__(self) -> str:
        return "no such field"


NO_FIELD = _NoField()
"""In place of the value of a field that is missing, for messages."""


class StateFields:
    """An object of a state, whose fields are read by name.

    All methods raise InputError, which names the field, if it is missing or invalid.

    Args:
        value: The supposed object.
        place: Its place in the whole state; "" for the whole.
    """

    def __init__(self, value: object, place: str = ""):
        self._place = place
        if not isinstance(value, Mapping):
            raise field_error(place, "an object with named fields", value)
        self.value = value

    def place(self, field: str) -> str:
        """Returns the place of a field in the whole state."""
        return f"{self._place}.{field}" if self._place else field

    def only(self, *fields: str) -> None:
        """Refuses fields with other names."""
        for field in self.value:
            if field not in fields:
                raise field_error(self.place(field), "no such field", self.value[field])

    def get(self, field: str) -> Any:
        """Returns a field as it is."""
        if field not in self.value:
            raise field_error(self.place(field), "a value")
        return self.value[field]

    def integer(
        self, field: str, *, least: int | None = 0, most: int = POSITION_LIMIT
    ) -> int:
        """Returns a field that is an integer in [least, most], by default any."""
        value = self.get(field)
        expected = "an integer" + ("" if least is None else f" from {least} to {most}")
        try:
            number = checked_integer(value, what=field)
        except InputError:
            raise field_error(self.place(field), expected, value) from None
        if least is not None and not least <= number <= most:
            raise field_error(self.place(field), expected, value)
        return number

    def boolean(self, field: str) -> bool:
        """Returns a field that is true or false."""
        value = self.get(field)
        if not isinstance(value, (bool, np.bool_)):
            raise field_error(self.place(field), "true or false", value)
        return bool(value)

    def text(self, field: str) -> str:
        """Returns a field that is a text."""
        value = self.get(field)
        if not isinstance(value, str):
            raise field_error(self.place(field), "a text", value)
        return value

    def fields(self, field: str) -> StateFields:
        """Returns a field that is an object."""
        return StateFields(self.get(field), self.place(field))

    def items(self, field: str) -> list[Any]:
        """Returns a field that is a list."""
        value = self.get(field)
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
            raise field_error(self.place(field), "a list", value)
        return list(value)

    def objects(self, field: str) -> list[StateFields]:
        """Returns a field that is a list of objects."""
        return [
            StateFields(item, f"{self.place(field)}[{number}]")
            for number, item in enumerate(self.items(field))
        ]


def is_same(own: object, other: object) -> bool:
    """Returns whether a value of a state equals ours, whatever its type."""
    try:
        return bool(own == other)
    except ValueError:  # Arrays are neither equal nor different.
        return False


def field_error(place: str, expected: str, got: object = NO_FIELD) -> InputError:
    """Returns the error about a field of a state that is missing or invalid."""
    return InputError(
        "a field of the state is missing, or is not what it must be",
        where=place or "the state",
        expected=expected,
        got=f"{got!r:.200}",
        cure="give the whole state as it was saved, or restore the checkpoint from a "
        "copy",
    )


class Content(NamedTuple):
    """The identity of a dataset's records, in their order.

    Attributes:
        edition: The last edition of its split, if it has editions; of joined datasets
            that of each.
        records: Number of records.
        records_digest: Order-independent digest of all records, if known.
        order_digest: As in `Dataset.order_digest`.
    """

    edition: int | tuple[int | None, ...] | None
    records: int
    records_digest: str | None
    order_digest: str

    def is_same(self, other: Content) -> bool:
        """Returns whether the records are the same, in any edition."""
        return self[1:] == other[1:]
