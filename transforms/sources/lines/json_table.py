"""JSON lines as a table of Arrow columns."""

from __future__ import annotations

import functools
import json
import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json

from gristmill.transforms.sources.lines.json_numbers import JsonNumbers, Number
from gristmill.transforms.sources.lines.json_text import parsed_line, refuse_constant
from gristmill.transforms.sources.lines.json_types import difference
from gristmill.transforms.sources.lines.parser import (
    MOST_BYTES,
    NEWLINE,
    RETURN,
    SPACE,
    TAB,
    BadLineError,
    Lines,
    Positions,
    check_text,
    first_bad,
)

_BLANK = np.zeros(256, np.bool_)
_BLANK[[NEWLINE, RETURN, SPACE, TAB]] = True
# pyarrow takes these for numbers. JSON does not.
_NO_NUMBERS = [
    re.compile(rb"NaN\s*[,\]}]"),
    re.compile(rb"Inf(?:inity)?\s*[,\]}]"),
]

# Errors of a block or a line that cannot be read.
_ERRORS = (pa.ArrowException, ValueError, RecursionError, BadLineError)


class JsonRows:
    """Reads one object a line, strictly: anything not valid is an error.

    pyarrow parses whole blocks. It takes more than JSON lines allow: objects that go
    over several lines, several of them in a line, NaN, bytes that are not UTF-8. All of
    these are found by checks of the whole block, and by the count of rows.

    Args:
        schema: Types of the fields to be read, by name.
        only: Whether lines may have other fields, which are passed over.
    """

    def __init__(self, schema: pa.Schema, *, only: bool = False):
        self._schema = schema
        self._only = only
        self._numbers = JsonNumbers(
            schema, functools.partial(parsed_line, number=Number)
        )
        # pyarrow takes infinity for a number of 32 bits.
        self._read = pa.schema([(one.name, _as_doubles(one.type)) for one in schema])
        self._options = pyarrow.json.ParseOptions(
            explicit_schema=self._read,
            newlines_in_values=False,
            unexpected_field_behavior="ignore" if only else "error",
        )

    def rows(self, lines: Lines) -> tuple[pa.RecordBatch, Positions]:
        """Returns the rows of non-blank lines, and the line of each.

        Raises:
            BadLineError: The first line that is not such an object.
        """
        try:
            return self._fitted(lines)
        except _ERRORS:
            index = first_bad(lines, self._fitted, errors=_ERRORS)
            raise self._explained(lines, index) from None

    def _fitted(self, lines: Lines) -> tuple[pa.RecordBatch, Positions]:
        """Returns the rows, with numbers as required by the schema."""
        try:
            return self._parsed(lines)
        except _ERRORS:
            fitted = self._numbers.fitted(lines)
            if fitted is None:
                raise
        return self._parsed(fitted)

    def _parsed(self, lines: Lines) -> tuple[pa.RecordBatch, Positions]:
        """Returns the rows, or raises ValueError if any line is bad."""
        check_text(lines)
        rows = _objects(lines)
        data = lines.data
        if len(data) > MOST_BYTES:
            raise ValueError("too long")
        if not len(rows):
            return pa.RecordBatch.from_pylist([], schema=self._read), rows
        _check_numbers(lines)
        self._numbers.check(lines)
        table = pyarrow.json.read_json(
            pa.py_buffer(data),
            read_options=pyarrow.json.ReadOptions(
                use_threads=False, block_size=len(data) + 1
            ),
            parse_options=self._options,
        )
        if len(table) != len(rows):
            raise ValueError("not one object a line")
        if not self._schema.names:
            return pa.RecordBatch.from_pylist([{}] * len(rows), self._schema), rows
        (batch,) = table.combine_chunks().to_batches()
        return batch, rows

    def _explained(self, lines: Lines, index: int) -> BadLineError:
        """Returns the fault of a bad line, in terms of JSON."""
        line = lines.line(index)
        try:
            check_text(lines.part(index, index + 1))
        except BadLineError as error:
            error.index = index
            return error

        def bad(what: str, expected: str, got: str) -> BadLineError:
            return BadLineError(index, what, expected=expected, got=got)

        if len(line) > MOST_BYTES:
            expected = f"a line of at most {MOST_BYTES:,} bytes"
            return bad("JSON line is too long", expected, f"{len(line):,} bytes")
        try:
            found = parsed_line(line)
        except json.JSONDecodeError as error:
            got = f"no JSON from character {error.pos + 1:,} of it on: {error.msg}"
            return bad("line is not valid JSON", "one JSON object", got)
        except (ValueError, RecursionError) as error:
            return bad("line is not valid JSON", "one JSON object", str(error))
        wrong = difference(found, self._schema, only=self._only)
        if wrong is not None:
            return BadLineError(
                index,
                "line does not have the fields of the job's schema",
                expected=wrong[0],
                got=wrong[1],
                cure="give the field its type, as in --columns '*,score:float' (or "
                "int, or string), or take only some fields, as in --columns a,b",
            )
        try:
            self._numbers.check(lines.part(index, index + 1))
        except ValueError as error:
            return BadLineError(
                index,
                "line has a whole number that a float32 does not hold",
                expected="another number, or a type for its field",
                got=str(error),
                cure="give the field its type: --columns '*,id:int' keeps whole "
                "numbers of id, --columns '*,id:float' rounds all to 32 bits",
            )
        try:
            self._fitted(lines.part(index, index + 1))
        except (pa.ArrowException, ValueError) as error:
            return bad("line cannot be read as JSON", "one JSON object", str(error))
        return bad("lines cannot be read together", "one JSON object a line", "others")


def _objects(lines: Lines) -> Positions:
    """Returns the non-blank lines; each of these begins and ends as an object.

    With as many rows as lines, each line is one object then: within JSON, no brace
    opens right after one that closes, so that a line that ends in the one and is
    followed by the other ends between objects.
    """
    data = np.frombuffer(lines.data, np.uint8)
    last = lines.ends - 1
    starts = lines.starts
    first = starts.copy()
    last = _moved(data, last, -1, starts)
    first = _moved(data, first, 1, lines.ends - 1)
    kept = np.flatnonzero(~_is_space(data[last]))
    wrong = (data[first[kept]] != ord("{")) | (data[last[kept]] != ord("}"))
    if wrong.any():
        raise ValueError("not an object")
    return kept


def _is_space(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    blank: npt.NDArray[np.bool_] = _BLANK[data]
    return blank


def _moved(
    data: npt.NDArray[np.uint8], places: Positions, by: int, limits: Positions
) -> Positions:
    """Returns places moved past blanks, up to limits."""
    places = places.copy()
    moving = np.arange(len(places))
    while len(moving):
        at = places[moving]
        moving = moving[_is_space(data[at]) & (at != limits[moving])]
        places[moving] += by
    return places


def _as_doubles(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_as_doubles(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(one.name, _as_doubles(one.type)) for one in kind])
    return pa.float64() if kind == pa.float32() else kind


def _check_numbers(lines: Lines) -> None:
    """Raises ValueError for a line with a number that JSON does not have."""
    for pattern in _NO_NUMBERS:
        for match in pattern.finditer(lines.data):
            line = lines.line(lines.index_at(match.start()))
            json.loads(line, parse_constant=refuse_constant)
