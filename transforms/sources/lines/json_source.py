"""JSON lines as a source: an object a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

from gristmill.dataset.errors import InputError
from gristmill.transforms.sources.formats import RecordOptions, SourceSpec
from gristmill.transforms.sources.input_files import InputFiles
from gristmill.transforms.sources.lines.json_rows import JsonRows, parsed_line
from gristmill.transforms.sources.lines.json_types import (
    DifferentTypesError,
    joined,
    type_of,
)
from gristmill.transforms.sources.lines.line_source import LineSource
from gristmill.transforms.sources.lines.parser import newline_ends
from gristmill.transforms.sources.lines.row_lines import JsonLines
from gristmill.transforms.sources.lines.row_records import (
    column_of,
    described,
    make_records,
    refuse_columns,
)
from gristmill.transforms.sources.lines.samples import Sample, sample_lines
from gristmill.transforms.sources.lines.schema import LineSchema, wanted_columns


def make_source(spec: SourceSpec) -> LineSource:
    """Returns the source of a spec."""
    fields = LineSchema.from_text(spec.schema).fields
    wanted = wanted_columns(spec.columns)
    only = spec.record != "example" or wanted.names is not None
    make = make_records(spec.record, fields)
    parser = JsonLines(JsonRows(fields, only=only), make)
    return LineSource(spec, parser, described(spec.record, fields))


def find_spec(files: InputFiles, options: RecordOptions) -> SourceSpec:
    """Returns how records are made, with the types that the first lines of files have.

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
        found = _common_types(
            sample_lines(files, newline_ends),
            lambda name: wanted.has(name) and name not in wanted.types,
        )
        if column is not None:
            name = column if column in found else column.partition(".")[0]
            wanted = wanted._replace(names=(name,))
            if found.get(name) == pa.null():
                found[name] = pa.string()  # Any other would be refused.
        fields = wanted.of(found)
    make_records(record, fields)  # Refuses what no record can hold.
    return SourceSpec("jsonl", record, options.columns, LineSchema(fields).to_text())


def _common_types(
    samples: Iterable[Sample], wanted: Callable[[str], bool]
) -> dict[str, pa.DataType]:
    """Returns the types of the wanted fields of all objects in samples.

    A line that is no object is left to the conversion, which names it.
    """
    types: dict[str, pa.DataType] = {}
    objects = 0
    for path, lines in samples:
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
            expected="a JSON object in each line",
            cure="check the files, or their format with --input-format",
        )
    return types


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
    raise InputError(
        f"values of the field {field!r} have no common type",
        where=where,
        expected="values of one type in all lines",
        got=got,
        cure="leave the field out with --columns, or keep lines as they are with "
        "--record line",
    )
