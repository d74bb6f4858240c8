"""JSON as a source: one object a line, or those of an array, as rows and as records."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json

from gristmill.dataset.base.errors import InputError, RowError, some_of
from gristmill.transforms.sources.formats import RecordOptions, SourceSpec
from gristmill.transforms.sources.input_files import InputFiles
from gristmill.transforms.sources.lines.json_values import (
    JSON_TEXT,
    ArrayReader,
    DifferentTypesError,
    UnfitError,
    column_value,
    has_gap,
    joined,
    leaf_types,
    type_of,
    with_leaves,
)
from gristmill.transforms.sources.lines.line_schema import (
    LineSchema,
    Sample,
    TableLines,
    TableSource,
    column_of,
    sample_lines,
    wanted_columns,
)
from gristmill.transforms.sources.lines.line_source import (
    NEWLINE,
    REPAIR,
    RETURN,
    SPACE,
    TAB,
    LineReader,
    Lines,
    Positions,
    check_text,
    newline_ends,
    split_lines,
)
from gristmill.transforms.sources.lines.strict_json import Number, parsed_line
from gristmill.transforms.tables.example_rows import NO_RECORDS_CURE, null_error
from gristmill.transforms.tables.table_features import (
    NumbersSeen,
    is_lost,
    leaves_of,
    whole_number,
)

_log = logging.getLogger(__name__)
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
_ERRORS = (pa.ArrowException, ValueError, RecursionError, UnfitError)


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
        self._read = with_leaves(fields, _read_type)
        self._options = pyarrow.json.ParseOptions(
            explicit_schema=self._read,
            newlines_in_values=False,
            unexpected_field_behavior="ignore" if only else "error",
        )

    def texts(self, lines: Lines, kept: Positions) -> list[bytes]:
        texts = split_lines(lines)
        if len(kept) < len(texts):
            texts = [texts[line] for line in kept.tolist()]
        return [text.strip(b" \t\r") for text in texts] if self._strips else texts

    def cure(self, column: str, cure: str) -> str:
        if not self.features or not column:
            return cure
        column = column.partition(".")[0]
        return f"keep it as JSON, with --columns '*,{column}:json'; or {cure}"

    def rows(self, lines: Lines) -> tuple[pa.RecordBatch, Positions]:
        """Returns the rows of non-blank lines, and the line of each.

        Raises:
            RowError: The first line that is not such an object.
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
            except RowError as error:
                raise error.of(row=index) from None
            rows.append(index)
        batch = pa.RecordBatch.from_pylist(found, self._read)
        return batch, np.array(rows, np.int64)

    def _parsed(self, lines: Lines) -> tuple[pa.RecordBatch, Positions]:
        """Returns the rows, or raises one of `_ERRORS` if any line is in doubt."""
        check_text(lines)
        rows = _object_lines(lines)
        data = lines.data
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
        """Returns the values of one line; raises RowError."""
        check_text(line)
        try:
            return self._value(line.line(0))
        except (ValueError, RecursionError, UnfitError) as error:
            # Fields that are passed over are only what pyarrow takes: nested deeply.
            if self._at_once:
                with contextlib.suppress(*_ERRORS):
                    return self._parsed(line)[0].to_pylist()[0]
            raise _fault(error) from None


def _fault(error: Exception) -> RowError:
    if isinstance(error, UnfitError):
        if error.is_lost:
            return RowError(
                "line has a whole number that a float32 does not hold",
                expected=error.expected,
                got=error.got,
                cure="give the field its type: --columns '*,id:float' rounds all "
                "numbers of id to 32 bits, --columns '*,id:string' keeps their texts, "
                "and --columns '*,id:int' keeps whole numbers if all of them are",
            )
        return RowError(
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
    return RowError(
        "line is not valid JSON", expected="one JSON object", got=got, cure=REPAIR
    )


def _object_lines(lines: Lines) -> Positions:
    """Returns the non-blank lines; each of these begins and ends as an object.

    With as many rows as lines, each line is one object then: within JSON, no brace
    opens right after one that closes, so that a line that ends in the one and is
    followed by the other ends between objects.
    """
    data = np.frombuffer(lines.data, np.uint8)
    last = _moved(data, lines.ends - 1, -1, lines.starts)
    first = _moved(data, lines.starts, 1, lines.ends - 1)
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


def _read_type(kind: pa.DataType, name: str) -> pa.DataType:
    """Returns the type in which values are read."""
    del name
    if kind == JSON_TEXT:
        return pa.large_string()
    # pyarrow takes infinity for a number of 32 bits.
    return pa.float64() if kind == pa.float32() else kind


_READERS: dict[str, type[LineReader]] = {"json": ArrayReader, "jsonl": LineReader}


class JsonSource(TableSource):
    """Objects of JSON; see `Source`."""

    def __init__(self, spec: SourceSpec):
        self.reader = _READERS[spec.format]
        named = wanted_columns(spec.columns).names is not None
        parser = JsonLines(
            LineSchema.from_text(spec.schema).fields,
            spec.record,
            skip_nulls=spec.nulls == "skip",
            only=named or spec.record != "example",
            strips=spec.format == "json",
        )
        super().__init__(spec, parser)

    def notes(self) -> list[str]:
        """Returns a note on the fields that become texts, too."""
        asked = wanted_columns(self.spec.columns).types
        names = [
            one.name
            for one in self._parser.fields
            if one.name not in asked and JSON_TEXT in leaf_types(one.type)
        ]
        if not names:
            return super().notes()
        return [
            *super().notes(),
            f"{some_of(names)}: kept as JSON text, as no features hold such values; "
            "--columns leaves fields out",
        ]

    @classmethod
    def find_spec(cls, files: InputFiles, options: RecordOptions) -> SourceSpec:
        """Returns the rules for records, with types from the first lines of files.

        Raises:
            InputError: These lines have no types in common, or no such column.
        """
        record = options.record
        fields, column = pa.schema([]), column_of(record)
        if record != "line":
            wanted = wanted_columns(options.columns)
            if column:
                wanted = wanted._replace(names=(column, column.partition(".")[0]))
            reader = _READERS[options.input_format]
            samples = sample_lines(files, newline_ends, reader)
            found = _common_types(
                samples,
                lambda name: wanted.has(name) and name not in wanted.types,
                as_text=record == "example",
            )
            if column:
                one = column if column in found else column.partition(".")[0]
                wanted = wanted._replace(names=(one,))
                if found.get(one) == pa.null():
                    found[one] = pa.string()  # Any other would be refused.
            fields = _with_integers(wanted.of(found), samples)
            if late := [name for name in fields.names if name not in found]:
                _log.warning(
                    "--columns: no line at the start of the files has %s; records "
                    "have it only where a later line does",
                    some_of(late),
                )
        try:
            JsonLines(fields, record)
        except InputError as error:  # Its type is one that no record can hold.
            if not column:
                raise
            cure = f"{NO_RECORDS_CURE}; or keep whole lines with --record line"
            raise InputError(**{**error.facts(), "cure": cure}) from error
        if column and options.nulls == "fail":
            _check_nulls(samples, column)
        return options.spec(LineSchema(fields).to_text())


def _values(
    samples: Iterable[Sample], number: type[str] | None = None
) -> Iterator[tuple[str, Any]]:
    """Yields the value of each line of samples, or its error, with its place."""
    for path, lines, item in samples:
        for at, line in enumerate(lines, 1):
            try:
                found = parsed_line(line, number)
            except (ValueError, RecursionError) as error:
                found = error
            yield f"{path}, {item} {at:,}", found


def _objects(
    samples: Iterable[Sample], number: type[str] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the objects in samples, each with its place.

    A line that is not an object is left to the conversion, which names it.
    """
    return (one for one in _values(samples, number) if isinstance(one[1], dict))


def _common_types(
    samples: Iterable[Sample], wanted: Callable[[str], bool], *, as_text: bool
) -> dict[str, pa.DataType]:
    """Returns the types of the wanted fields of all objects in samples.

    Args:
        samples: The samples.
        wanted: Returns whether to take a field, by its name.
        as_text: Whether lists and objects that no features hold become texts.
    """
    types: dict[str, pa.DataType] = {}
    for where, found in _objects(samples):
        for name, value in found.items():
            known = types.get(name, pa.null())
            if not wanted(name):
                types.setdefault(name, pa.null())
            elif known != JSON_TEXT:
                nested = isinstance(value, list | dict) or pa.types.is_nested(known)
                try:
                    types[name] = joined(known, type_of(value, name), name)
                except DifferentTypesError as error:
                    if not (nested and as_text):
                        raise _no_type(error.field, error.got, where) from None
                    types[name] = JSON_TEXT
                except RecursionError:
                    got = "one that is nested too deeply"
                    raise _no_type(name, got, where) from None
    if not types and not any(True for _ in _objects(samples)):
        where, value = next(_values(samples), ("all", ValueError("no line")))
        got = f"JSON of another kind, a {type(value).__name__}"
        raise InputError(
            "no JSON object is in the first lines of the input files",
            where=where,
            expected="a JSON object in each line",
            got=_fault(value).got if isinstance(value, Exception) else got,
            cure="check the files, or their format with --input-format",
        )
    nested_types = {n: kind for n, kind in types.items() if pa.types.is_nested(kind)}
    if as_text and nested_types:
        for _, found in _objects(samples):
            for name, kind in nested_types.items():
                if has_gap(found.get(name), kind):
                    types[name] = JSON_TEXT
        for name, kind in nested_types.items():
            if not _has_features(name, kind):
                types[name] = JSON_TEXT
    return types


def _has_features(name: str, kind: pa.DataType) -> bool:
    try:
        [*leaves_of(pa.schema([(name, kind)]))]
    except InputError:
        return False
    return True


def _check_nulls(samples: Iterable[Sample], column: str) -> None:
    """Raises InputError if a column is null in some objects of samples."""
    rows, nulls = 0, []
    for where, found in _objects(samples):
        value: Any = found
        for name in [column] if column in found else column.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        rows += 1
        if value is None:
            nulls.append(where)
    if nulls:
        raise null_error(column, nulls=len(nulls), rows=rows, where=nulls[0])


def _with_integers(fields: pa.Schema, samples: Iterable[Sample]) -> pa.Schema:
    """Returns fields, as integers where a float32 cannot hold the values.

    Raises:
        InputError: One has fractions as well.
    """
    if pa.float64() not in leaf_types(pa.struct(fields)):
        return fields
    seen = NumbersSeen()
    for where, found in _objects(samples, Number):
        for field in fields:
            _see(found.get(field.name), field.type, field.name, seen, where)
    integers = seen.integers()
    return with_leaves(
        fields, lambda kind, name: pa.int64() if name in integers else kind
    )


def _see(
    value: Any,
    kind: pa.DataType,
    name: str,
    seen: NumbersSeen,
    where: str,
) -> None:
    if pa.types.is_struct(kind) and isinstance(value, dict):
        for one in kind:
            _see(value.get(one.name), one.type, f"{name}.{one.name}", seen, where)
    elif pa.types.is_list(kind) and isinstance(value, list):
        for item in value:
            _see(item, kind.value_type, name, seen, where)
    elif kind == pa.float64() and isinstance(value, Number):
        whole = whole_number(value)
        lost = whole is not None and is_lost(whole)
        seen.add(name, [value] * lost, [value] * (whole is None), where)


def _no_type(field: str, got: str, where: str) -> InputError:
    texts = ""
    if "a string" in got and ("a number" in got or "an integer" in got):
        texts = f"take numbers as texts, with --columns '*,{field}:string'; or "
    column = field.partition(".")[0]
    return InputError(
        f"values of the field {field!r} have no common type",
        where=where,
        expected="values of one type in all lines",
        got=got,
        cure=f"{texts}keep any values as JSON, with --columns '*,{column}:json'; or "
        "leave the field out with --columns, or keep lines as they are with --record "
        "line",
    )
