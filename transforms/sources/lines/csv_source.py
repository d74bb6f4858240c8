"""CSV and TSV as a source: the first row names the columns, the others are records."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from gristmill.dataset.base.errors import InputError, RowError, some_of
from gristmill.transforms.sources.formats import RecordOptions, SourceSpec
from gristmill.transforms.sources.input_files import InputFiles
from gristmill.transforms.sources.lines.json_values import JSON_TEXT
from gristmill.transforms.sources.lines.line_schema import (
    LineSchema,
    TableLines,
    TableSource,
    column_of,
    sample_lines,
    wanted_columns,
)
from gristmill.transforms.sources.lines.line_source import (
    NEWLINE,
    Lines,
    Positions,
    check_text,
    newline_ends,
)
from gristmill.transforms.tables.table_features import (
    INT64,
    NUMBER,
    ZERO,
    NumbersSeen,
    is_lost,
    numbers_cure,
    whole_number,
)

_QUOTE, _RETURN = b'"\r'
_RETURN_ALONE = re.compile(rb"\r(?!\n|\Z)")
_MOST_FIELD_BYTES = (1 << 31) - 1


class CsvSplitter:
    r"""Splits CSV into rows by RFC 4180: a row can have line breaks within quotes.

    Python's strict `csv` decides. Where quotes stand only around fields, arrays of
    their places tell the same faster.

    >>> CsvSplitter(b",").ends(b'a,"b\n"\nc,d\n"').tolist()
    [7, 11]

    Args:
        delimiter: The byte between fields.
        quoted: Whether fields can be quoted; if not, quotes are as other characters.
    """

    def __init__(self, delimiter: bytes, *, quoted: bool = True):
        self.delimiter, self.quoted = delimiter, quoted
        # Whether a byte can be before an opening quote, or after a closing one.
        self._before = np.zeros(256, np.bool_)
        self._before[[delimiter[0], NEWLINE, _QUOTE]] = True
        self._after = self._before.copy()
        self._after[_RETURN] = True

    def ends(self, data: bytes) -> Positions:
        """Returns the ends of the rows that begin in `data`, except unfinished ones.

        An invalid row ends with the first newline after the fault.
        """
        ends = newline_ends(data)
        quotes = self._quotes(data)
        if self._intact(data, quotes):
            kept = quotes.searchsorted(ends) % 2 == 0
        else:
            # One alone is refused elsewhere; here it must not end a row.
            rows = self.rows(_RETURN_ALONE.sub(b" ", data))
            kept = np.isin(ends, [end for end, _ in rows])
        return ends.compress(kept)

    def rows(self, data: bytes) -> Iterator[tuple[int, list[str] | None]]:
        """Yields the end and the fields, as Latin-1, of each row; None if invalid.

        One that is still within quotes at the end of the data is not yielded.
        """
        csv.field_size_limit(_MOST_FIELD_BYTES)
        at, ended = 0, False

        def lines() -> Iterator[str]:
            nonlocal at, ended
            for line in io.StringIO(data.decode("latin-1"), newline="\n"):
                at += len(line)
                yield line
            ended = True

        reader = csv.reader(
            lines(),
            delimiter=self.delimiter.decode(),
            strict=True,
            quotechar='"' if self.quoted else None,
            quoting=csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE,
        )
        while True:
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error:
                if ended:
                    return
                yield at, None
            else:
                yield at, row

    def fields(self, row: bytes) -> list[str] | None:
        """Returns the fields of one row, with or without its newline.

        None if it is none, or not UTF-8.
        """
        found = [*self.rows(row)]
        fields = found[0][1] if len(found) == 1 else None
        try:
            return [each.encode("latin-1").decode() for each in fields or ()] or None
        except UnicodeDecodeError:
            return None

    def header(self, row: bytes) -> list[str] | None:
        """Returns the names of columns, None for a row that is none.

        A column without a name gets one: pandas writes the index of rows so.
        """
        fields = self.fields(row)
        if fields is None:
            return None
        return [name or f"unnamed_{number}" for number, name in enumerate(fields)]

    def all_rows(self, data: bytes, ends: Positions) -> bool:
        """Returns whether bytes are rows that end at some places, all of them valid."""
        quotes = self._quotes(data)
        if len(quotes) % 2 == 0 and self._intact(data, quotes):
            return True
        found = [end for end, row in self.rows(data) if row is not None]
        return np.array_equal(found, ends)

    def _intact(self, data: bytes, quotes: Positions) -> bool:
        """Returns whether each quote of a text stands where a field begins or ends.

        Then every second quote ends a field, and a row ends with a newline that has an
        even number of quotes before it.
        """
        array = np.frombuffer(data, np.uint8)
        opening, closing = quotes[::2], quotes[1::2]
        before = array[opening[opening > 0] - 1]
        after = array[closing[closing < len(data) - 1] + 1]
        return bool(self._before[before].all() and self._after[after].all())

    def has_bare_return(self, data: bytes) -> bool:
        r"""Returns whether a `\r` outside of quotes has no newline after it."""
        returns = [match.start() for match in _RETURN_ALONE.finditer(data)]
        return bool((self._quotes(data).searchsorted(returns) % 2 == 0).any())

    def _quotes(self, data: bytes) -> Positions:
        if not self.quoted:
            return np.zeros(0, np.int64)
        return np.flatnonzero(np.frombuffer(data, np.uint8) == _QUOTE)

    def merges(self, lines: Lines, columns: int) -> bool:
        """Returns whether a quoted field of a row seems to be several rows.

        Files of tabs often have quotes as plain characters: then each line of the row
        has the tabs of one.
        """
        # The last row of a file may lack its newline.
        newlines = lines.data.count(b"\n", 0, len(lines.data) - 1)
        if self.delimiter != b"\t" or columns < 2 or newlines < len(lines.ends):
            return False
        for number in range(len(lines.ends)):
            parts = lines.line(number).strip(b"\r\n").split(b"\n")
            counts = {part.count(b"\t") for part in parts}
            if len(parts) > 1 and counts == {columns - 1}:
                return True
        return False


# As JSON writes them: other texts, such as 007, are strings.
_INTEGER = re.compile("0|-?[1-9][0-9]*")
_NAMES = {
    pa.int64(): "an integer of 64 bits",
    pa.float64(): "a finite number, one that a float32 holds if it is whole",
    pa.float32(): "a finite number",
}
_TEXTS = (pa.string(), pa.large_string())
_UNQUOTED = (
    "if quotes are plain characters in these files, give --input-format tsv-unquoted; "
    "if not, correct the row"
)
_LONG = r"\d{16}"  # Only numbers this long can change as doubles.

# Errors of a block or a line that cannot be read.
_ERRORS = (pa.ArrowException, ValueError)


class CsvLines(TableLines):
    """Makes a record from each row after the header; skips empty lines.

    Rows are read strictly: anything that cannot be read as written is an error.

    Args:
        header: Names of all columns.
        fields: Names and types of the columns to be read. An empty cell is null in a
            column of numbers.
        splitter: Finds the rows.
        record: As for `TableLines`.
    """

    format_name = "CSV"
    newlines = False

    def __init__(
        self,
        header: Sequence[str],
        fields: pa.Schema,
        splitter: CsvSplitter,
        record: str = "line",
    ):
        super().__init__(fields, record)
        self._header = list(header)
        self._schema = fields
        self._splitter = splitter
        self._parse = pyarrow.csv.ParseOptions(
            delimiter=splitter.delimiter.decode(),
            quote_char='"' if splitter.quoted else False,
            newlines_in_values=True,
        )
        self._convert = pyarrow.csv.ConvertOptions(
            check_utf8=False,  # It was checked before.
            column_types=dict.fromkeys(self._header, pa.string()),
            include_columns=fields.names,
            strings_can_be_null=False,
        )

    def ends(self, data: bytes) -> Positions:
        return self._splitter.ends(data)

    def header_lines(self, lines: Lines, path: str) -> int | None:
        for number in range(len(lines.ends)):
            line = lines.line(number)
            if not is_empty(line):
                found = self._splitter.header(line) or []
                if found != self._header:
                    raise other_header(path, self._header, found)
                return number + 1
        return None

    def texts(self, lines: Lines, kept: Positions) -> list[bytes]:
        return [lines.line(row) for row in kept.tolist()]

    def rows(self, lines: Lines) -> tuple[pa.RecordBatch, Positions]:
        """Returns the rows of non-empty lines, and the line of each.

        Raises:
            RowError: The first line that is not such a row.
        """
        try:
            return self._parsed(lines)
        except _ERRORS:
            index = self._first_bad(lines)
            raise self._explained(lines, index) from None

    def _parsed(self, lines: Lines) -> tuple[pa.RecordBatch, Positions]:
        check_text(lines)
        data = lines.data
        lengths = lines.ends - lines.starts
        short = np.flatnonzero(lengths <= 2).tolist()
        empty = [row for row in short if not lines.line(row)]
        rows = np.delete(np.arange(len(lengths)), empty)
        if not len(rows):
            return pa.RecordBatch.from_pylist([], schema=self._schema), rows
        if not self._splitter.all_rows(data, lines.ends):
            raise ValueError("quotes that do not pair")
        if self._splitter.has_bare_return(data):
            raise ValueError("bare carriage returns")
        if self._splitter.merges(lines, len(self._header)):
            raise ValueError("rows in a quoted field")
        table = pyarrow.csv.read_csv(
            pa.py_buffer(data),
            read_options=pyarrow.csv.ReadOptions(
                use_threads=False,
                block_size=len(data) + 1,
                column_names=self._header,
            ),
            parse_options=self._parse,
            convert_options=self._convert,
        )
        if len(table) != len(rows):
            raise ValueError("not one row a line")
        columns = []
        for field in self._schema:
            column = table.column(field.name).combine_chunks()
            columns.append(
                column if field.type in _TEXTS else _numbers(column, field.type)
            )
        return pa.RecordBatch.from_arrays(columns, names=self._schema.names), rows

    def _first_bad(self, lines: Lines) -> int:
        begin, end = 0, len(lines.ends)
        while end - begin > 1:
            middle = (begin + end) // 2
            try:
                self._parsed(lines.part(begin, middle))
            except _ERRORS:
                end = middle
            else:
                begin = middle
        return begin

    def _explained(self, lines: Lines, index: int) -> RowError:
        """Returns the fault of a bad row."""
        row = lines.part(index, index + 1)
        try:
            check_text(row)
        except RowError as error:
            return error.of(row=index)

        def bad(what: str, expected: str, got: str) -> RowError:
            quotes = self._splitter.delimiter == b"\t" and b'"' in row.data
            cure = _UNQUOTED if quotes and self._splitter.quoted else None
            return RowError(what, expected=expected, got=got, cure=cure, row=index)

        if self._splitter.has_bare_return(row.data):
            return bad(
                "row has a carriage return outside of quotes",
                r"lines that end with \n or \r\n",
                r"\r alone",
            )
        if not [*self._splitter.rows(row.data)]:
            return bad(
                "quote of a field is never closed",
                "a quote that ends the field, quotes in it doubled",
                f"none in {row.data.count(NEWLINE) + 1:,} lines, to the end of the "
                "file",
            )
        cells = self._splitter.fields(row.line(0))
        if cells is None:
            return bad(
                "quotes of a row do not pair",
                "a quoted field that ends with a quote, quotes in it doubled",
                "other bytes after the quote that ends a field",
            )
        if len(cells) != len(self._header):
            return bad(
                "row has another number of fields than the header",
                f"{len(self._header):,} fields",
                f"{len(cells):,}",
            )
        if self._splitter.merges(row, len(self._header)):
            return bad(
                "quoted field seems to hold whole rows",
                "a field whose lines have other numbers of tabs than rows",
                f"{row.line(0).count(NEWLINE) + 1:,} lines, each like a row",
            )
        wrong = self._wrong_cell(index, cells)
        if wrong is not None:
            return wrong
        return bad("row cannot be read", "a row of CSV", repr(row.line(0)[:60]))

    def _wrong_cell(self, index: int, cells: Sequence[str]) -> RowError | None:
        """Returns the fault of the first cell that is no value of its column."""
        for name, cell in zip(self._header, cells, strict=True):
            if name not in self._schema.names:
                continue
            kind = self._schema.field(name).type
            if kind not in _TEXTS and cell and not _fits(cell, kind):
                return RowError(
                    "row does not have the types of the job's schema",
                    expected=f"column {name!r}: {_NAMES.get(kind, kind)}",
                    got=repr(cell if len(cell) <= 60 else f"{cell[:57]}..."),
                    cure=numbers_cure(name)
                    if kind == pa.float64() and _fits(cell, pa.float32())
                    else "give this column another type, as in --columns "
                    f"'*,{name}:string'",
                    row=index,
                )
        return None


def _numbers(column: pa.StringArray, kind: pa.DataType) -> pa.Array:
    """Returns texts as numbers, empty ones as null; raises ValueError for others."""
    empty = pc.equal(pc.binary_length(column), ZERO)
    if pc.any(empty).as_py():
        column = pc.if_else(empty, pa.nulls(1, pa.string())[0], column)
    if pa.types.is_integer(kind):
        return _integers(column)
    if not pa.types.is_floating(kind):
        return column.cast(kind)
    numbers = column.cast(pa.float64())
    # 1e400 would be infinite. Samples do not take nan and inf for numbers, nor does
    # JSON.
    if pc.any(pc.invert(pc.is_finite(numbers))).as_py():
        raise ValueError("no finite number")
    if kind == pa.float64():
        long = column.filter(pc.match_substring_regex(column, _LONG))
        found = map(whole_number, long.to_pylist())
        if any(whole is not None and is_lost(whole) for whole in found):
            raise ValueError("no whole number that a float32 holds")
    return numbers


def _integers(column: pa.StringArray) -> pa.Array:
    try:
        numbers = column.cast(pa.int64())
        # 007 or +7 lose something as numbers.
        if not pc.any(pc.not_equal(numbers.cast(pa.string()), column)).as_py():
            return numbers
    except pa.ArrowInvalid:
        pass  # There may be 2.0 among them.
    found = [
        None if cell is None else whole_number(cell) for cell in column.to_pylist()
    ]
    if found.count(None) > column.null_count:
        raise ValueError("no integer of 64 bits")
    return pa.array(found, pa.int64())


def _fits(cell: str, kind: pa.DataType) -> bool:
    try:
        _numbers(pa.array([cell]), kind)
    except (pa.ArrowException, ValueError):
        return False
    return True


def is_empty(line: bytes) -> bool:
    """Returns whether a line before the header is skipped."""
    return not line.strip(b" \r")


def column_type(name: str, cells: Mapping[str, Sequence[str]]) -> pa.DataType:
    """Returns the common type of all non-empty cells of a sample, by their files.

    >>> column_type("a", {"1.csv": ["1", "2.5", ""], "2.csv": ["3"]})
    DataType(double)
    >>> column_type("a", {"1.csv": ["1"], "2.csv": ["007"]})
    DataType(string)

    Raises:
        InputError: No type fits all of them.
    """
    found = [cell for some in cells.values() for cell in some if cell]
    if not found or not all(map(NUMBER.fullmatch, found)):
        return pa.string()
    if all(_INTEGER.fullmatch(cell) and int(cell) in INT64 for cell in found):
        return pa.int64()
    seen = NumbersSeen()
    for where, some in cells.items():
        pairs = [(cell, whole_number(cell)) for cell in some if cell]
        seen.add(
            name,
            (cell for cell, whole in pairs if whole is not None and is_lost(whole)),
            (cell for cell, whole in pairs if whole is None),
            where,
        )
    return pa.int64() if seen.integers() else pa.float64()


def other_header(where: str, expected: Sequence[str], got: Sequence[str]) -> InputError:
    """Returns the error for a file whose header is not that of the first file."""
    return InputError(
        "header of an input file is not that of the first one",
        where=where,
        expected=", ".join(expected),
        got=", ".join(got),
        cure="convert files of other columns into a split of their own, or give all of "
        "them the same header",
    )


_SPLITTERS = {
    "csv": CsvSplitter(b","),
    "tsv": CsvSplitter(b"\t"),
    "tsv-unquoted": CsvSplitter(b"\t", quoted=False),
}


class CsvSource(TableSource):
    """Rows of CSV and TSV; see `Source`. The format decides the delimiter."""

    def __init__(self, spec: SourceSpec):
        fields, header = LineSchema.from_text(spec.schema)
        splitter = _SPLITTERS[spec.format]
        super().__init__(spec, CsvLines(header, fields, splitter, spec.record))

    @classmethod
    def find_spec(cls, files: InputFiles, options: RecordOptions) -> SourceSpec:
        """Returns the rules for records, with types from the first rows of files.

        Raises:
            InputError: A file has another header than the first, or none, or there is
                no such column.
        """
        record, splitter = options.record, _SPLITTERS[options.input_format]
        header, cells = _sampled(files, splitter)
        fields = pa.schema([])
        if record != "line":
            wanted = wanted_columns(options.columns)
            texts = dict.fromkeys(header, pa.string())
            if column := column_of(
                record
            ):  # The text of a cell, also of one that is a number.
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
        return options.spec(LineSchema(fields, tuple(header)).to_text())


def _sampled(
    files: InputFiles, splitter: CsvSplitter
) -> tuple[list[str], list[dict[str, Sequence[str]]]]:
    """Returns the header, and each column's cells in the first rows of each file."""
    header: list[str] = []
    cells: list[dict[str, Sequence[str]]] = []
    for path, sample, _ in sample_lines(files, splitter.ends):
        lines = [*itertools.dropwhile(is_empty, sample)]
        if not lines:
            continue  # It is empty, or damaged: then the conversion names that.
        found = splitter.header(lines[0])
        rows = (splitter.fields(line) for line in lines[1:])
        if found is None:
            raise _no_header(path, "no text in UTF-8, or quotes that do not pair")
        if not header:
            header, cells = found, [{} for _ in found]
            _check_names(header, path)
        elif found != header:
            raise other_header(path, header, found)
        # Other errors are left to the conversion, which names them.
        whole = (row for row in rows if row is not None and len(row) == len(header))
        for column, own in zip(cells, zip(*whole, strict=True), strict=False):
            column[path] = own
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
