"""JSON lines as a table of Arrow columns, and as records."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json

from gristmill.transforms.sources.lines.json_values import (
    JSON_TEXT,
    Number,
    UnfitError,
    column_value,
    leaf_types,
    parsed_line,
)
from gristmill.transforms.sources.lines.line_reader import (
    MOST_BYTES,
    NEWLINE,
    RETURN,
    SPACE,
    TAB,
    BadLineError,
    Lines,
    Positions,
    check_text,
    split_lines,
)
from gristmill.transforms.sources.lines.line_schema import TableLines

_BLANK = np.zeros(256, np.bool_)
_BLANK[[NEWLINE, RETURN, SPACE, TAB]] = True
# pyarrow takes these for numbers. JSON does not.
_NO_NUMBERS = (
    re.compile(rb"NaN\s*[,\]}]"),
    re.compile(rb"Inf(?:inity)?\s*[,\]}]"),
)
# Only whole numbers this long can change as doubles.
_LONG = re.compile(rb"[\[:,\s-]\d{16}")

# Errors of lines that cannot be read.
_ERRORS = (pa.ArrowException, ValueError, RecursionError, BadLineError, UnfitError)


class JsonLines(TableLines):
    """Makes a record from each JSON object; skips blank lines.

    It reads one object a line, strictly: anything not valid is an error. pyarrow parses
    whole blocks. It takes more than JSON lines allow: objects that go over several
    lines, several of them in a line, NaN, bytes that are not UTF-8. All of these are
    found by checks of the whole block, and by the count of rows. Where it refuses a
    block, Python's `json` reads the lines one by one: some values change, as 2.0
    becomes an integer in a column of these, and the first bad line is named.

    Args:
        fields: Types of the fields to be read, by name.
        record: As for `TableLines`.
        skip_nulls: As for `TableLines`.
        only: Whether lines may have other fields, which are passed over.
        strips: Whether lines that are records lose blanks at their ends.
    """

    format_name = "JSON lines"

    def __init__(
        self,
        fields: pa.Schema,
        record: str = "line",
        *,
        skip_nulls: bool = False,
        only: bool = False,
        strips: bool = False,
    ):
        super().__init__(fields, record, skip_nulls=skip_nulls)
        self._names, self._only, self._strips = fields.names, only, strips
        self._kind = pa.struct(fields)
        types = leaf_types(self._kind)
        self._at_once = JSON_TEXT not in types
        self._doubtful = (*_NO_NUMBERS, *[_LONG] * (pa.float64() in types))
        self._read = pa.schema([(one.name, _read_type(one.type)) for one in fields])
        self._options = pyarrow.json.ParseOptions(
            explicit_schema=self._read,
            newlines_in_values=False,
            unexpected_field_behavior="ignore" if only else "error",
        )

    def texts(self, lines: Lines, kept: Positions) -> list[bytes]:
        """Returns some lines as records."""
        texts = split_lines(lines)
        if len(kept) < len(texts):
            texts = [texts[line] for line in kept.tolist()]
        return [text.strip(b" \t\r") for text in texts] if self._strips else texts

    def cure(self, column: str, cure: str) -> str:
        """Returns the cure for a value of a column that no record can hold."""
        if not self.features or not column:
            return cure
        column = column.partition(".")[0]
        return f"keep it as JSON, with --columns '*,{column}:json'; or {cure}"

    def rows(self, lines: Lines) -> tuple[pa.RecordBatch, Positions]:
        """Returns the rows of non-blank lines, and the line of each.

        Raises:
            BadLineError: The first line that is not such an object.
        """
        if self._at_once:
            with contextlib.suppress(*_ERRORS):
                return self._parsed(lines)
        rows, found = [], []
        for index in range(len(lines.ends)):
            if not lines.line(index).strip(b" \t\r"):
                continue
            try:
                found.append(self._row(lines.part(index, index + 1)))
            except BadLineError as error:
                error.index = index
                raise
            rows.append(index)
        batch = pa.RecordBatch.from_pylist(found, self._read)
        return batch, np.array(rows, np.int64)

    def _parsed(self, lines: Lines) -> tuple[pa.RecordBatch, Positions]:
        """Returns the rows, or raises one of `_ERRORS` if any line is in doubt."""
        check_text(lines)
        rows = _objects(lines)
        data = lines.data
        if len(data) > MOST_BYTES:
            raise ValueError("too long")
        if not len(rows):
            return pa.RecordBatch.from_pylist([], self._read), rows
        for pattern in self._doubtful:
            for match in pattern.finditer(data):
                self._value(lines.line(lines.index_at(match.end() - 1)))
        table = pyarrow.json.read_json(
            pa.py_buffer(data),
            read_options=pyarrow.json.ReadOptions(
                use_threads=False, block_size=len(data) + 1
            ),
            parse_options=self._options,
        )
        if len(table) != len(rows):
            raise ValueError("not one object a line")
        if not self._names:
            return pa.RecordBatch.from_pylist([{}] * len(rows), self._read), rows
        (batch,) = table.combine_chunks().to_batches()
        return batch, rows

    def _value(self, line: bytes) -> Any:
        value = parsed_line(line, number=Number)
        return column_value(value, self._kind, only=self._only)

    def _row(self, line: Lines) -> Any:
        """Returns the values of one line; raises BadLineError."""
        check_text(line)
        if len(line.data) > MOST_BYTES:
            expected, got = f"at most {MOST_BYTES:,} bytes", f"{len(line.data):,} bytes"
            raise BadLineError(0, "JSON line is too long", expected=expected, got=got)
        try:
            return self._value(line.line(0))
        except (ValueError, RecursionError, UnfitError) as error:
            # Fields that are passed over are only what pyarrow takes: nested deeply.
            if self._at_once:
                with contextlib.suppress(*_ERRORS):
                    return self._parsed(line)[0].to_pylist()[0]
            raise _fault(error) from None


def _fault(error: Exception) -> BadLineError:
    if isinstance(error, UnfitError):
        if error.is_lost:
            return BadLineError(
                0,
                "line has a whole number that a float32 does not hold",
                expected=error.expected,
                got=error.got,
                cure="give the field its type: --columns '*,id:float' rounds all "
                "numbers of id to 32 bits, --columns '*,id:string' keeps their texts, "
                "and --columns '*,id:int' keeps whole numbers if all of them are",
            )
        return BadLineError(
            0,
            "line does not have the fields of the job's schema",
            expected=error.expected,
            got=error.got,
            cure="give the field its type, as in --columns '*,score:float' (or int, "
            "string, or json for any values, as JSON), or take only some fields, as in "
            "--columns a,b",
        )
    got = str(error)
    if isinstance(error, json.JSONDecodeError):
        got = f"no JSON from character {error.pos + 1:,} of it on: {error.msg}"
    return BadLineError(
        0, "line is not valid JSON", expected="one JSON object", got=got
    )


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
    kept = np.flatnonzero(~_BLANK[data[last]])
    wrong = (data[first[kept]] != ord("{")) | (data[last[kept]] != ord("}"))
    if wrong.any():
        raise ValueError("not an object")
    return kept


def _moved(
    data: npt.NDArray[np.uint8], places: Positions, by: int, limits: Positions
) -> Positions:
    """Returns places moved past blanks, up to limits."""
    places = places.copy()
    moving = np.arange(len(places))
    while len(moving):
        at = places[moving]
        moving = moving[_BLANK[data[at]] & (at != limits[moving])]
        places[moving] += by
    return places


def _read_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type in which a column is read."""
    if pa.types.is_list(kind):
        return pa.list_(_read_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(one.name, _read_type(one.type)) for one in kind])
    if kind == JSON_TEXT:
        return pa.large_string()
    # pyarrow takes infinity for a number of 32 bits.
    return pa.float64() if kind == pa.float32() else kind
