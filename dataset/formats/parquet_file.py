"""The rows of a Parquet file that lie in a range of its bytes: pure functions.

A row has no place of its own in a file: its columns are stored apart, each among those
of the other rows of a row group. So rows are given places. The row groups of a file
share its bytes, in proportion to their uncompressed sizes, and the rows of a row group
share those evenly. These places rise with the rows, and every range of a file holds
about as much as any other of its size.

```
bytes      0                         600                1,000
file       |------ row group 0 -------|--- row group 1 ---|
rows       0     1     2     3     4  5         6          7
```
"""

from __future__ import annotations

import base64
import bisect
import contextlib
import functools
import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gristmill.dataset.base.errors import (
    CorruptRecordError,
    GristmillError,
    InputError,
    MissingPackageError,
    some_of,
)
from gristmill.dataset.formats.random_reader import (
    MAX_BLOCK_BYTES,
    RandomReader,
)

if TYPE_CHECKING:
    import pyarrow as pa


class RowGroup(NamedTuple):
    """The rows of a file that are stored together.

    Attributes:
        number: Number of the row group in the file.
        first_row: Number of its first row in the file.
        rows: Number of its rows.
        begin_bytes: Start of the places of its rows; see the module.
        end_bytes: Start of the places of the next row group, or the end of the file.
        raw_bytes: Its size when it is not compressed.
    """

    number: int
    first_row: int
    rows: int
    begin_bytes: int
    end_bytes: int
    raw_bytes: int

    @property
    def end_row(self) -> int:
        """Number of the row after its last."""
        return self.first_row + self.rows


_BEGIN = operator.attrgetter("begin_bytes")
_FIRST_ROW = operator.attrgetter("first_row")


class RowPlaces(NamedTuple):
    """The places of the rows of a file.

    Attributes:
        groups: The row groups that have rows, in order.
    """

    groups: tuple[RowGroup, ...]

    @classmethod
    def of(
        cls, rows: Sequence[int], raw_bytes: Sequence[int], size_bytes: int
    ) -> RowPlaces:
        """Returns the places of the rows of a file.

        Args:
            rows: [row groups], the number of rows of each.
            raw_bytes: [row groups], their sizes when they are not compressed.
            size_bytes: Size of the file.
        """
        # Some writers do not say how large a row group is.
        known = all(
            size > 0 for size, count in zip(raw_bytes, rows, strict=True) if count
        )
        parts = raw_bytes if known else rows
        edges = list(itertools.accumulate(parts, initial=0))
        begins = [size_bytes * edge // max(1, edges[-1]) for edge in edges]
        first_rows = itertools.accumulate(rows, initial=0)
        found = zip(
            itertools.count(),
            first_rows,
            rows,
            begins,
            begins[1:],
            raw_bytes,
            strict=False,
        )
        return cls(tuple(RowGroup(*group) for group in found if group[2]))

    @property
    def rows(self) -> int:
        """Number of rows of the file."""
        return self.groups[-1].end_row if self.groups else 0

    def rows_before(self, offset: int) -> int:
        """Returns the number of rows that have a place before a byte offset.

        The place of row i of the n rows of a row group in bytes [b, e) is
        b + i * (e - b) // n.
        """
        at = bisect.bisect_left(self.groups, offset, key=_BEGIN) - 1
        if at < 0:
            return 0
        group = self.groups[at]
        if offset >= group.end_bytes:
            return group.end_row
        # i * length // rows < distance, just as i * length < distance * rows.
        length = group.end_bytes - group.begin_bytes
        distance = offset - group.begin_bytes
        return group.first_row + -(-distance * group.rows // length)

    def groups_from(self, row: int) -> Iterator[RowGroup]:
        """Yields the row groups with rows after it, in order."""
        if row < self.rows:
            after = bisect.bisect_right(self.groups, row, key=_FIRST_ROW)
            yield from self.groups[after - 1 :]

    def cuts(self, range_bytes: int) -> Iterator[int]:
        """Yields the places where row groups begin, at some distance from each other.

        Args:
            range_bytes: Minimum bytes between two of them, and from 0 to the first.
        """
        last = 0
        for begin in map(_BEGIN, self.groups):
            if begin - last >= range_bytes:
                yield begin
                last = begin


_KEY = b"ARROW:schema"


def difference(
    schema: pa.Schema, metadata: Mapping[bytes, bytes] | None
) -> tuple[str, str] | None:
    """Returns the first column that differs, as written and as read.

    Returns:
        None if there is none, or if the writer kept no schema.
    """
    import pyarrow as pa

    text = (metadata or {}).get(_KEY)
    if text is None:
        return None
    try:
        kept = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
    except (pa.ArrowException, OSError, ValueError):
        return "a schema of Arrow in the metadata", "one that cannot be read"
    if len(kept) != len(schema):
        return None  # Another program has changed the columns, and kept this.
    for before, after in zip(kept, schema, strict=True):
        if before.name != after.name or _kind(before.type) != _kind(after.type):
            return f"{before.name}: {before.type}", f"{after.name}: {after.type}"
    return None


def _kind(kind: pa.DataType) -> tuple[object, ...]:
    """Returns the part of a type that writing and reading keep."""
    from pyarrow import types

    if getattr(kind, "storage_type", None) is not None:
        return _kind(kind.storage_type)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _kind(kind.value_type)
    if kind.num_fields:
        # Items of lists get other names on the way.
        named = types.is_struct(kind)
        children = [kind.field(number) for number in range(kind.num_fields)]
        return tuple((named and child.name, _kind(child.type)) for child in children)
    # Any other type is bytes or text. Widths of integers are not always kept.
    tests = (
        *(types.is_floating, types.is_boolean, types.is_decimal, types.is_null),
        *(types.is_integer, types.is_temporal),
    )
    return tuple(test(kind) for test in tests)


MAGIC = b"PAR1"
ENCRYPTED_MAGIC = b"PARE"
LEAST_BYTES = 12  # The magic bytes twice, and the length of the footer.
_BATCH_BYTES = 2 << 20
# Sizes in the footer do not tell how large the values of dictionary columns are.
_BATCH_ROWS = 4096
_BUFFER_BYTES = 256 << 10  # Per column; pyarrow's 0 reads all.


class ParquetFile:
    """One version of a Parquet file, opened by pyarrow.

    A page of each column and the rows of one batch are in memory at a time, whatever
    the size of row groups. Checksums of pages are compared where the writer made them.

    Metadata of columns is never requested here: pyarrow ends the process at some
    damaged footers.

    Attributes:
        schema: The columns as pyarrow has them.
        places: Where the rows are.

    Raises:
        CorruptRecordError: The footer is damaged; its `offset` is 0.
        InputError: The file is encrypted.
        MissingPackageError: pyarrow is not installed.
        StorageError: The file cannot be read, or has another version.
    """

    def __init__(self, path: str, size_bytes: int, version: str | None):
        open_file = _pyarrow_parquet().ParquetFile
        self._path = path
        self._reader = RandomReader(path, size_bytes, version)
        try:
            with _damage("footer", path):
                self._check_end(size_bytes)
                self._file = open_file(
                    self._reader,
                    # With these two a row group is not in memory as a whole.
                    pre_buffer=False,
                    buffer_size=_BUFFER_BYTES,
                    page_checksum_verification=True,
                )
                self.schema: pa.Schema = self._file.schema_arrow
                self._days = _day_columns(self._file)
                self.places = self._find_places(size_bytes)
        except BaseException:
            self._reader.close()
            raise

    def close(self) -> None:
        """Closes the file."""
        self._file.close(force=True)
        self._reader.close()

    def forget(self) -> None:
        """Drops what is cached, so that it is read again from storage."""
        self._reader.forget()

    def __enter__(self) -> ParquetFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_end(self, size_bytes: int) -> None:
        self._reader.seek(max(0, size_bytes - len(MAGIC)))
        magic = self._reader.read()
        if magic == ENCRYPTED_MAGIC:
            raise InputError(
                "the Parquet file is encrypted",
                where=self._path,
                expected=f"{MAGIC.decode()} as its last bytes",
                got=magic.decode(),
                cure="write it again without encryption, by a program that has its "
                "keys",
            )
        if magic != MAGIC or size_bytes < LEAST_BYTES:
            raise corrupt_rows(
                "footer",
                "the Parquet file is damaged, or was not written to its end",
                where=self._path,
                expected=f"{MAGIC.decode()} as its last bytes",
                got=f"{magic!r} at the end of {size_bytes:,} bytes",
            )

    def _find_places(self, size_bytes: int) -> RowPlaces:
        metadata = self._file.metadata
        groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
        rows = [group.num_rows for group in groups]
        raw_bytes = [group.total_byte_size for group in groups]
        if min(rows, default=0) < 0 or sum(rows) != metadata.num_rows:
            raise self._contradiction(
                f"{metadata.num_rows:,} rows in all row groups", some_of(rows)
            )
        other = difference(self.schema, metadata.metadata)
        if other is not None:
            raise self._contradiction(*other)
        return RowPlaces.of(rows, raw_bytes, size_bytes)

    def null_rows(self, column: str) -> int:
        """Returns the number of nulls in a column, as far as the footer has it.

        Args:
            column: Its name, or the path of a nested field, `a.b`.
        """
        metadata, nulls = self._file.metadata, 0
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            for place in range(group.num_columns):
                chunk = group.column(place)
                if chunk.path_in_schema == column and chunk.is_stats_set:
                    nulls += chunk.statistics.null_count or 0
        return nulls

    def _contradiction(
        self, expected: str, got: str, *, place: tuple[int, int | None] = (0, None)
    ) -> CorruptRecordError:
        return corrupt_rows(
            "footer",
            "the footer of the Parquet file says something else than is in the file",
            where=self._path,
            place=place,
            expected=expected,
            got=got,
        )

    def batches(
        self, group: RowGroup, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a row group, some at a time.

        Batches are the same each time.

        Args:
            group: The row group.
            columns: Names of the columns to read, in the order of the result.

        Raises:
            CorruptRecordError: Rows cannot be read, after all before them were
                yielded. Its `offset` is the number of the first such row in the file,
                its `end` that of the row after the row group.
            StorageError: The file cannot be read, or it has changed.
        """
        days = self._days.intersection(columns)
        if days:
            self._check_days(group, sorted(days))
        damage = functools.partial(_damage, f"row group {group.number:,}")
        row, end, rows = group.first_row, group.end_row, 0
        self._prepare(group, columns)
        found = self._file.iter_batches(
            batch_size=_batch_rows(group),
            row_groups=[group.number],
            columns=list(columns),
            use_threads=False,
        )
        while True:
            with damage(f"{self._path}, row {row:,}", row, end):
                batch = next(found, None)
            rows = 0 if batch is None else batch.num_rows
            if batch is None or row + rows > end:
                break
            yield batch.select(columns)
            row += rows
        if row + rows != end:
            raise self._contradiction(
                f"{group.rows:,} rows in row group {group.number:,}",
                f"{row + rows - group.first_row:,}",
                place=(row, end),
            )

    def _check_days(self, group: RowGroup, columns: Sequence[str]) -> None:
        """Checks that no time of 96 bits is beyond 64 bits of nanoseconds.

        pyarrow wraps such times. They are read in both units, and compared.

        Raises:
            InputError: One is.
        """
        open_file = _pyarrow_parquet().ParquetFile
        row, batches = group.first_row, []
        for unit in ("ns", "us"):
            file = open_file(
                self._reader,
                buffer_size=_BUFFER_BYTES,
                coerce_int96_timestamp_unit=unit,
            )
            batches.append(
                file.iter_batches(
                    batch_size=_BATCH_ROWS,
                    row_groups=[group.number],
                    columns=list(columns),
                    use_threads=False,
                )
            )
        pairs = zip(*batches, strict=True)
        while True:
            with _damage(f"row group {group.number:,}", self._path, row, group.end_row):
                pair = next(pairs, None)
            if pair is None:
                return
            last = row + len(pair[0]) - 1
            for name in columns:
                wrong = _wrapped(*(batch.column(name) for batch in pair))
                if wrong is not None:
                    raise InputError(
                        f"column {name!r} has a time beyond timestamp[ns]",
                        where=f"{self._path}, rows {row:,} to {last:,}",
                        expected="times from 1677 to 2262 in a column of 96 bits",
                        got=f"{wrong} microseconds since 1970",
                        cure="write the column again in microseconds, as Spark does by "
                        "outputTimestampType, or leave it out with --columns",
                    )
            row += len(pair[0])

    def _prepare(self, group: RowGroup, columns: Sequence[str]) -> None:
        """Prepares the reader for these columns of a row group."""
        leaves = {field.name: _leaves(field.type) for field in self.schema}
        every, chosen = sum(leaves.values()), sum(map(leaves.__getitem__, columns))
        stored = group.end_bytes - group.begin_bytes
        # A row group of few blocks needs few readers, whatever its columns.
        blocks = 1 + stored * chosen // every // MAX_BLOCK_BYTES
        # All columns are read without a gap between them. In small row groups, a gap
        # takes less time than a request.
        gaps = chosen < every and stored > MAX_BLOCK_BYTES
        run = stored // every if gaps else MAX_BLOCK_BYTES
        self._reader.set_streams(min(chosen, blocks), run_bytes=run)


def _batch_rows(group: RowGroup) -> int:
    rows = _BATCH_BYTES * group.rows // max(1, group.raw_bytes)
    return min(max(rows, 1), _BATCH_ROWS)


def _pyarrow_parquet() -> Any:
    try:
        import pyarrow.parquet
    except ModuleNotFoundError as e:
        raise MissingPackageError.of(e) or e from e
    return pyarrow.parquet


def _day_columns(file: Any) -> frozenset[str]:
    """Returns the columns that hold times of 96 bits, as older writers make them."""
    columns = (file.schema.column(place) for place in range(len(file.schema.names)))
    return frozenset(
        column.path.partition(".")[0]
        for column in columns
        if column.physical_type == "INT96"
    )


def _wrapped(nanos: Any, micros: Any) -> int | None:
    """Returns the first time in microseconds that nanoseconds do not hold."""
    import numpy as np

    while hasattr(nanos, "values"):
        nanos, micros = nanos.values, micros.values
    if nanos.type.num_fields:
        pairs = zip(nanos.flatten(), micros.flatten(), strict=True)
        return next((w for pair in pairs if (w := _wrapped(*pair)) is not None), None)
    if str(nanos.type) != "timestamp[ns]":
        return None
    both = [one.cast("int64").fill_null(0).to_numpy() for one in (nanos, micros)]
    wrong = np.flatnonzero(np.abs(both[0] // 1000 - both[1]) > 1)
    return int(both[1][wrong[0]]) if len(wrong) else None


def _leaves(kind: pa.DataType) -> int:
    children = [kind.field(number) for number in range(kind.num_fields)]
    return sum(_leaves(child.type) for child in children) if children else 1


@contextlib.contextmanager
def _damage(
    reason: str, where: str, row: int = 0, end: int | None = None
) -> Iterator[None]:
    """Turns pyarrow's errors at damaged bytes into a CorruptRecordError."""
    import pyarrow as pa

    try:
        yield
    except (GristmillError, MemoryError):
        raise  # Errors of storage and memory come through pyarrow.
    except (pa.ArrowException, OSError, OverflowError, ValueError) as e:
        lines = str(e).splitlines() or [type(e).__name__]
        raise corrupt_rows(
            reason,
            "the Parquet file is damaged, or of a kind that pyarrow cannot read",
            where=where,
            place=(row, end),
            expected=f"an intact {reason}",
            got=lines[0],
        ) from e


def corrupt_rows(
    reason: str,
    what: str,
    *,
    where: str,
    expected: str,
    got: str,
    place: tuple[int, int | None] = (0, None),
) -> CorruptRecordError:
    """Returns the error for rows; `place` is the first, and the one after the last."""
    error = CorruptRecordError(
        what,
        where=where,
        expected=expected,
        got=got,
        cure="write the file again from its source, or keep what can be read with "
        "--on-corrupt skip",
    )
    error.reason = reason
    error.offset, error.end = place
    error.detail = f"expected {expected}, got {got}"
    return error
