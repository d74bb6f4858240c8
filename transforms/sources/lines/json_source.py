"""JSON as a source: one object a line, or those of an array."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.transforms.sources.formats import RecordOptions, SourceSpec
from gristmill.transforms.sources.input_files import InputFiles
from gristmill.transforms.sources.lines.json_array import ArrayReader
from gristmill.transforms.sources.lines.json_lines import JsonLines
from gristmill.transforms.sources.lines.json_values import (
    JSON_TEXT,
    DifferentTypesError,
    Number,
    has_gap,
    joined,
    leaf_types,
    parsed_line,
    type_of,
)
from gristmill.transforms.sources.lines.line_reader import LineReader, newline_ends
from gristmill.transforms.sources.lines.line_schema import (
    LineSchema,
    Sample,
    TableSource,
    column_of,
    sample_lines,
    wanted_columns,
)
from gristmill.transforms.tables.example_rows import null_error
from gristmill.transforms.tables.leaves import leaves_of
from gristmill.transforms.tables.table_features import (
    NumbersSeen,
    is_lost,
    whole_number,
)

_READERS: dict[str, type[LineReader]] = {"json": ArrayReader, "jsonl": LineReader}


class JsonSource(TableSource):
    """Objects of JSON; see `Source`."""

    def __init__(self, spec: SourceSpec):
        super().__init__(spec)
        self.reader = _READERS[spec.format]

    def make_parser(self) -> JsonLines:
        """Returns the parser that makes records of the lines."""
        spec = self.spec
        named = wanted_columns(spec.columns).names is not None
        return JsonLines(
            LineSchema.from_text(spec.schema).fields,
            spec.record,
            skip_nulls=spec.nulls == "skip",
            only=named or spec.record != "example",
            strips=spec.format == "json",
        )

    def notes(self) -> list[str]:
        """Returns a note on the fields that become texts, too."""
        names = [
            one.name for one in self._parser.fields if JSON_TEXT in leaf_types(one.type)
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
        record, name = options.record or "example", options.input_format
        fields, column = pa.schema([]), column_of(record)
        if record != "line":
            wanted = wanted_columns(options.columns)
            if column is not None:
                wanted = wanted._replace(names=(column, column.partition(".")[0]))
            samples = sample_lines(files, newline_ends, _READERS[name])
            found = _common_types(
                samples,
                lambda name: wanted.has(name) and name not in wanted.types,
                as_text=record == "example",
            )
            if column is not None:
                one = column if column in found else column.partition(".")[0]
                wanted = wanted._replace(names=(one,))
                if found.get(one) == pa.null():
                    found[one] = pa.string()  # Any other would be refused.
            fields = _with_integers(wanted.of(found), samples)
        JsonLines(fields, record)  # Refuses types that no record can hold.
        if column is not None and options.nulls == "fail":
            _check_nulls(samples, column)
        schema = LineSchema(fields).to_text()
        return SourceSpec(name, record, options.columns, schema)


def _objects(
    samples: Iterable[Sample], number: type[str] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the objects in samples, each with its place.

    A line that is not an object is left to the conversion, which names it.
    """
    for path, lines, item in samples:
        for at, line in enumerate(lines, 1):
            try:
                found = parsed_line(line, number)
            except (ValueError, RecursionError):
                continue
            if isinstance(found, dict):
                yield f"{path}, {item} {at:,}", found


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
        raise InputError(
            "no JSON object is in the first lines of the input files",
            where=some_of(sample.path for sample in samples),
            expected="a JSON object in each line",
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
    seen: defaultdict[str, NumbersSeen] = defaultdict(NumbersSeen)
    for _, found in _objects(samples, Number):
        for field in fields:
            _see(found.get(field.name), field.type, field.name, seen)
    integers = {name for name, numbers in seen.items() if numbers.are_integers(name)}

    def typed(kind: pa.DataType, name: str) -> pa.DataType:
        if pa.types.is_list(kind):
            return pa.list_(typed(kind.value_type, name))
        if pa.types.is_struct(kind):
            inner = ((one.name, one.type) for one in kind)
            return pa.struct([(n, typed(of, f"{name}.{n}")) for n, of in inner])
        return pa.int64() if name in integers else kind

    return pa.schema([(one.name, typed(one.type, one.name)) for one in fields])


def _see(
    value: Any, kind: pa.DataType, name: str, seen: Mapping[str, NumbersSeen]
) -> None:
    if pa.types.is_struct(kind) and isinstance(value, dict):
        for one in kind:
            _see(value.get(one.name), one.type, f"{name}.{one.name}", seen)
    elif pa.types.is_list(kind) and isinstance(value, list):
        for item in value:
            _see(item, kind.value_type, name, seen)
    elif kind == pa.float64() and isinstance(value, Number):
        whole = whole_number(value)
        lost = whole is not None and is_lost(whole)
        seen[name].add([value] * lost, [value] * (whole is None))


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
