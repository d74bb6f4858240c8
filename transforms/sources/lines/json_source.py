"""JSON lines as a source: one object a line."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.transforms.sources.formats import RecordOptions, SourceSpec
from gristmill.transforms.sources.input_files import InputFiles
from gristmill.transforms.sources.lines.json_csv_records import (
    JsonLines,
    column_of,
    described,
    make_records,
    refuse_columns,
)
from gristmill.transforms.sources.lines.json_numbers import Number, leaf_types
from gristmill.transforms.sources.lines.json_table import JsonRows
from gristmill.transforms.sources.lines.json_text import parsed_line
from gristmill.transforms.sources.lines.json_types import (
    DifferentTypesError,
    joined,
    type_of,
)
from gristmill.transforms.sources.lines.parser import newline_ends
from gristmill.transforms.sources.lines.schema import (
    LineSchema,
    Sample,
    sample_lines,
    wanted_columns,
    with_integers,
)
from gristmill.transforms.sources.lines.text_source import LineSource
from gristmill.transforms.tables import features_of, null_error
from gristmill.transforms.tables.whole_numbers import (
    NumbersSeen,
    is_lost,
    whole_number,
)


def make_source(spec: SourceSpec) -> LineSource:
    """Returns the source of a spec."""
    fields = LineSchema.from_text(spec.schema).fields
    wanted = wanted_columns(spec.columns)
    only = spec.record != "example" or wanted.names is not None
    make = make_records(spec.record, fields)
    column, skip = column_of(spec.record), None
    if spec.nulls == "skip":
        skip = features_of(fields).__contains__ if column is None else column.__eq__
    parser = JsonLines(JsonRows(fields, only=only), make, skip)
    return LineSource(spec, parser, described(spec.record, fields))


def find_spec(files: InputFiles, options: RecordOptions) -> SourceSpec:
    """Returns the rules for records, with types from the first lines of files.

    Raises:
        InputError: These lines have no types in common, or no such column.
    """
    record = options.record or "example"
    refuse_columns(record, options.columns)
    fields = pa.schema([])
    if record != "line":
        column = column_of(record)
        wanted = wanted_columns(options.columns)
        if column is not None:
            wanted = wanted._replace(names=(column, column.partition(".")[0]))
        samples = sample_lines(files, newline_ends)
        found = _common_types(
            samples, lambda name: wanted.has(name) and name not in wanted.types
        )
        if column is not None:
            name = column if column in found else column.partition(".")[0]
            wanted = wanted._replace(names=(name,))
            if found.get(name) == pa.null():
                found[name] = pa.string()  # Any other would be refused.
        fields = _with_integers(wanted.of(found), samples)
    make_records(record, fields)  # Refuses types that no record can hold.
    column = column_of(record)
    if column is not None and options.nulls == "fail":
        _check_nulls(samples, column)
    return SourceSpec("jsonl", record, options.columns, LineSchema(fields).to_text())


def _common_types(
    samples: Iterable[Sample], wanted: Callable[[str], bool]
) -> dict[str, pa.DataType]:
    """Returns the types of the wanted fields of all objects in samples.

    A line that is not an object is left to the conversion, which names it.
    """
    types: dict[str, pa.DataType] = {}
    objects, paths = 0, []
    for path, lines in samples:
        paths.append(path)
        for number, line in enumerate(lines, 1):
            where = f"{path}, line {number:,}"
            try:
                found = parsed_line(line)
            except (ValueError, RecursionError):
                continue
            if not isinstance(found, dict):
                continue
            objects += 1
            for name, value in found.items():
                if not wanted(name):
                    types.setdefault(name, pa.null())
                    continue
                types[name] = _with(types.get(name, pa.null()), value, name, where)
    if not objects:
        raise InputError(
            "no JSON object is in the first lines of the input files",
            where=some_of(paths),
            expected="a JSON object in each line",
            cure="check the files, or their format with --input-format",
        )
    return types


def _check_nulls(samples: Iterable[Sample], column: str) -> None:
    """Raises InputError if a column is null in some objects of samples."""
    rows = nulls = 0
    first = ""
    for path, lines in samples:
        for number, line in enumerate(lines, 1):
            try:
                found = parsed_line(line)
            except (ValueError, RecursionError):
                continue
            if not isinstance(found, dict):
                continue
            for name in [column] if column in found else column.split("."):
                found = found.get(name) if isinstance(found, dict) else None
            rows += 1
            nulls += found is None
            if found is None:
                first = first or f"{path}, line {number:,}"
    if nulls:
        raise null_error(column, nulls=nulls, rows=rows, where=first)


def _with_integers(fields: pa.Schema, samples: Iterable[Sample]) -> pa.Schema:
    """Returns fields, as integers where a float32 cannot hold the values.

    Raises:
        InputError: One has fractions as well.
    """
    if pa.float64() not in leaf_types(pa.struct(fields)):
        return fields
    seen: defaultdict[str, NumbersSeen] = defaultdict(NumbersSeen)
    for line in itertools.chain.from_iterable(lines for _, lines in samples):
        try:
            found = parsed_line(line, number=Number)
        except (ValueError, RecursionError):
            continue
        for field in fields if isinstance(found, dict) else ():
            _see(found.get(field.name), field.type, field.name, seen)
    integers = {name for name, numbers in seen.items() if numbers.are_integers(name)}
    return pa.schema(
        [(one.name, with_integers(one.type, one.name, integers)) for one in fields]
    )


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


def _with(known: pa.DataType, value: object, name: str, where: str) -> pa.DataType:
    try:
        return joined(known, type_of(value, name), name)
    except DifferentTypesError as error:
        return _refuse(error.field, " and ".join(error.types), where)
    except OverflowError as error:
        return _refuse(str(error), "an integer of more than 64 bits", where)
    except RecursionError:
        return _refuse(name, "one that is nested too deeply", where)


def _refuse(field: str, got: str, where: str) -> pa.DataType:
    texts = ""
    if got.count("a string") and (got.count("a number") or got.count("an integer")):
        texts = f"take numbers as texts, with --columns '*,{field}:string'; or "
    raise InputError(
        f"values of the field {field!r} have no common type",
        where=where,
        expected="values of one type in all lines",
        got=got,
        cure=f"{texts}leave the field out with --columns, or keep lines as they are "
        "with --record line",
    )
