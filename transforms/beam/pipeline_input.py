"""Checks and display data for the input and the options of a transform."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import apache_beam as beam
from apache_beam.options.value_provider import ValueProvider
from apache_beam.transforms.display import DisplayDataItem

from gristmill.dataset.base.errors import InputError, some_of


def set_types(
    transform: beam.PTransform[Any, Any], *, gives: Any, takes: Any = None
) -> None:
    """Sets the element types that Beam checks where a pipeline is built.

    Beam cannot read them from the annotations of `expand`, which are strings.
    """
    transform.with_output_types(gives)
    if takes is not None:
        transform.with_input_types(takes)


def check_known(transform: beam.PTransform[Any, Any]) -> None:
    """Checks that the options of a transform, a dataclass, are known values.

    Raises:
        InputError: An option is a ValueProvider or a PCollection, or holds one, or is a
            path that Beam cannot encode.
    """
    for field in dataclasses.fields(transform):  # type: ignore[arg-type]
        value = getattr(transform, field.name)
        held = value if isinstance(value, (list, tuple)) else (value,)
        if any(isinstance(one, (ValueProvider, beam.pvalue.PValue)) for one in held):
            raise InputError(
                f"{field.name} of {type(transform).__name__} is not known yet",
                expected="a value",
                got=repr(value),
                cure="give values that are known where the pipeline is built: no "
                "ValueProvider (a Flex template gives values), and no PCollection",
            )
        for one in held:
            if isinstance(one, str | os.PathLike) and str(one) != printable(str(one)):
                raise InputError(
                    f"{field.name} of {type(transform).__name__} is not UTF-8, which "
                    "Beam requires",
                    got=ascii(str(one)),
                    cure="give a pattern that matches it, or rename it"
                    if field.name in ("inputs", "files")
                    else "rename it",
                )


def check_begin(
    applied_to: object, name: str, cure: str = "apply it to a pipeline of its own"
) -> None:
    """Checks that a transform that reads its own input is applied to a pipeline.

    Args:
        applied_to: The argument of `expand`.
        name: The transform's name.
        cure: What to do instead.

    Raises:
        InputError: It is applied to something else.
    """
    if not isinstance(applied_to, beam.pvalue.PBegin):
        raise InputError(
            f"{name} takes no PCollection",
            expected=f"pipeline | {name}(...)",
            got=repr(applied_to),
            cure=cure,
        )


def check_collection(applied_to: object, name: str, of: str) -> None:
    """Checks that a transform of elements is applied to a PCollection.

    Args:
        applied_to: The argument of `expand`.
        name: The transform's name.
        of: Description of the elements.

    Raises:
        InputError: It is applied to something else.
    """
    if not isinstance(applied_to, beam.PCollection):
        raise InputError(
            f"{name} needs a PCollection of {of}",
            expected=f"pipeline | beam.Create(...) | {name}(...), or a reader",
            got=repr(applied_to),
            cure="apply it to the elements that it shall take",
        )


def displayed(**options: Any) -> dict[str, Any]:
    """Returns options as Beam's display data, without those that are not set.

    Of many paths the first three are shown. Labels are the names of the options.
    """
    shown = {name: _shown(value) for name, value in options.items()}
    return {
        name: DisplayDataItem(value, label=name.replace("_", " ").capitalize())
        for name, value in shown.items()
        if value not in (None, "")
    }


def fields_of(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass, by name."""
    return {
        field.name: getattr(value, field.name) for field in dataclasses.fields(value)
    }


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, (list, tuple, dict)):
        text = some_of([*map(str, value)])
    elif dataclasses.is_dataclass(value):
        default = {field.name: field.default for field in dataclasses.fields(value)}
        given = {n: v for n, v in fields_of(value).items() if v != default[n]}
        text = ", ".join(f"{name}={one}" for name, one in given.items())
    else:
        text = str(value)
    return printable(text)


def printable(text: str) -> str:
    """Returns a text that UTF-8 holds, as Beam requires: names of files can be any."""
    return text.encode("utf-8", "backslashreplace").decode()


class FieldsShown:
    """A transform that is a dataclass, and shows its fields."""

    def display_data(self) -> dict[str, Any]:
        """Returns the display data for a runner's page."""
        return displayed(**fields_of(self))
