"""CSV and TSV as a source: the first row names the columns, the others are records."""

from __future__ import annotations

import itertools

import pyarrow as pa

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.transforms.sources.formats import RecordOptions, SourceSpec
from gristmill.transforms.sources.input_files import InputFiles
from gristmill.transforms.sources.lines.csv_lines import (
    CsvLines,
    CsvSplitter,
    column_type,
    is_empty,
    other_header,
)
from gristmill.transforms.sources.lines.json_values import JSON_TEXT
from gristmill.transforms.sources.lines.line_schema import (
    LineSchema,
    TableSource,
    column_of,
    sample_lines,
    wanted_columns,
)

_SPLITTERS = {
    "csv": CsvSplitter(b","),
    "tsv": CsvSplitter(b"\t"),
    "tsv-unquoted": CsvSplitter(b"\t", quoted=False),
}


class CsvSource(TableSource):
    """Rows of CSV and TSV; see `Source`. The format decides the delimiter."""

    def make_parser(self) -> CsvLines:
        """Returns the parser that makes records of the rows."""
        fields, header = LineSchema.from_text(self.spec.schema)
        splitter = _SPLITTERS[self.spec.format]
        return CsvLines(header, fields, splitter, self.spec.record)

    @classmethod
    def find_spec(cls, files: InputFiles, options: RecordOptions) -> SourceSpec:
        """Returns the rules for records, with types from the first rows of files.

        Raises:
            InputError: A file has another header than the first, or none, or there is
                no such column.
        """
        record, splitter = options.record or "example", _SPLITTERS[options.input_format]
        header, cells = _sampled(files, splitter)
        fields = pa.schema([])
        if record != "line":
            wanted = wanted_columns(options.columns)
            texts = dict.fromkeys(header, pa.string())
            column = column_of(record)
            if column is not None:  # The text of a cell, also of one that is a number.
                fields = wanted._replace(names=(column,)).of(texts)
            else:
                types = {
                    name: wanted.types.get(name) or column_type(name, found)
                    for name, found in zip(header, cells, strict=True)
                    if wanted.has(name)
                }
                fields = wanted.of(texts | types)
            _check_types(fields, header)
        CsvLines(
            header, fields, splitter, record
        )  # Refuses types that no record holds.
        schema = LineSchema(fields, tuple(header)).to_text()
        return SourceSpec(options.input_format, record, options.columns, schema)


def _sampled(
    files: InputFiles, splitter: CsvSplitter
) -> tuple[list[str], list[list[str]]]:
    """Returns the header, and the cells of each column in the first rows of files."""
    header: list[str] = []
    cells: list[list[str]] = []
    for path, sample, _ in sample_lines(files, splitter.ends):
        lines = [*itertools.dropwhile(is_empty, sample)]
        if not lines:
            continue  # It is empty, or damaged: then the conversion names that.
        found = splitter.header(lines[0])
        rows = (splitter.fields(line) for line in lines[1:])
        if found is None:
            raise _no_header(path, "no text in UTF-8, or quotes that do not pair")
        if not header:
            header, cells = found, [[] for _ in found]
            _check_names(header, path)
        elif found != header:
            raise other_header(path, header, found)
        for row in rows:
            # Other errors are left to the conversion, which names them.
            if row is not None and len(row) == len(header):
                for column, cell in zip(cells, row, strict=True):
                    column.append(cell)
    if not header:
        raise _no_header(files.paths[0], "no row of text")
    return header, cells


def _check_names(header: list[str], path: str) -> None:
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise _no_header(path, f"{some_of(twice)} more than once")


def _no_header(path: str, got: str) -> InputError:
    return InputError(
        "the first row of a file does not name its columns",
        where=path,
        expected="a header: names of columns, none of them twice",
        got=got,
        cure="write a header into the files, or read their lines as they are with "
        "--input-format text",
    )


def _check_types(fields: pa.Schema, header: list[str]) -> None:
    for field in fields:
        kind = field.type
        if field.name not in header or pa.types.is_list(kind) or kind == JSON_TEXT:
            raise InputError(
                "the input files have no such column",
                expected=f"int, float or string columns among {some_of(header, 20)}",
                got=f"{field.name}, {field.type}",
                cure="correct --columns",
            )
