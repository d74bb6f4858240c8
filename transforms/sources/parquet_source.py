"""Parquet as a source: rows, cut anywhere and counted by footers, become records."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.dataset.base.errors import (
    CorruptRecordError,
    InputError,
    RowError,
    some_of,
)
from gristmill.dataset.formats.parquet_file import (
    ParquetFile,
    RowGroup,
    RowPlaces,
    corrupt_rows,
)
from gristmill.dataset.formats.streams import RecordBatch
from gristmill.dataset.metadata.features import (
    FeatureSpec,
    encode_features,
    parse_features,
)
from gristmill.dataset.storage.base import map_all
from gristmill.transforms.planning.shard_plan import ShardPlan
from gristmill.transforms.sources.formats import RecordOptions, SourceSpec
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.source import (
    RangeReader,
    ReadRequest,
    Source,
)
from gristmill.transforms.tables.example_rows import (
    RowRecords,
    check_column,
    null_error,
)
from gristmill.transforms.tables.table_features import (
    DOUBLE,
    as_integers,
    common_type,
    holds,
    read_as,
    seen_numbers,
    typed_features,
)

# Number of files whose columns are compared before reading.
_MOST_FOOTERS = 1024
_AT_ONCE = 16
_SAMPLED_FILES = 32

Features = Mapping[str, FeatureSpec]


def open_table(file: InputFile) -> ParquetFile:
    """Opens a file; see `ParquetFile`."""
    return ParquetFile(file.path, file.size_bytes, file.version)


def _schemas(files: InputFiles, column: str = "") -> list[tuple[str, pa.Schema]]:
    """Returns the columns of the files, or of some of very many.

    Those of damaged files are left out: the reader of such a file reports the damage.

    Args:
        files: The files.
        column: One that must not be null.

    Raises:
        InputError: It is null in some rows, by the footer of a file.
    """
    damaged, found = None, []
    look = functools.partial(_schema, column)
    for file, schema in files.looked(look, _MOST_FOOTERS):
        if isinstance(schema, CorruptRecordError):
            damaged = schema
        elif schema is not None:
            found.append((file.path, schema))
    if damaged is not None and not found:
        raise CorruptRecordError(
            *(damaged.what, damaged.where, damaged.expected, damaged.got),
            cure="write the file again from its source: the columns are not known "
            "without the footer of at least one file",
        ) from damaged
    return found


def _schema(column: str, file: InputFile) -> pa.Schema | CorruptRecordError | None:
    if not file.size_bytes:
        return None
    try:
        with open_table(file) as table:
            if column and (nulls := table.null_rows(column)):
                rows = table.places.rows
                raise null_error(column, nulls=nulls, rows=rows, where=file.path)
            return table.schema
    except CorruptRecordError as error:
        return error


def _features_of_files(files: InputFiles, columns: Sequence[str]) -> Features:
    found = [
        (path, schema, _features(schema, columns, path))
        for path, schema in _schemas(files)
    ]
    features = dict(found[0][2]) if found else {}
    empty = _empty(found[0][1]) if found else []
    for _, _, mine in found[1:]:
        for name, spec in mine.items():
            # A column that has no value in the first file has no type there either.
            if name not in features and any(holds(column, name) for column in empty):
                features[name] = dataclasses.replace(spec, optional=True)
            elif name in features:
                known = common_type(features[name], spec) or features[name]
                optional = known.optional or spec.optional
                features[name] = dataclasses.replace(known, optional=optional)
    if not features:
        raise InputError(
            "no column of the input files holds values",
            where=some_of(path for path, *_ in found),
            cure="leave these files out",
        )
    for name in sorted(_integers(files, features)):
        features[name] = as_integers(features[name])
    for path, schema, mine in found[1:]:
        _compare(features, mine, schema, path)
    return features


def _integers(files: InputFiles, features: Features) -> set[str]:
    """Returns the columns of doubles that are integers in the first rows of files.

    Only those with a value that a float32 cannot hold.

    Raises:
        InputError: One has such values, and fractions as well.
    """
    doubles = {
        name: spec
        for name, spec in features.items()
        if spec.kind == "float" and spec.type == DOUBLE
    }
    if not doubles:
        return set()
    found = files.looked(lambda file: _first_rows(file, doubles), _SAMPLED_FILES)
    return seen_numbers(((file.path, batch) for file, batch in found), doubles)


def _first_rows(file: InputFile, features: Features) -> pa.RecordBatch | None:
    """Returns the first rows of a file, with the columns of features, or None."""
    with (
        contextlib.suppress(CorruptRecordError),  # Its reader reports the damage.
        open_table(file) as table,
    ):
        names = [
            name
            for name in table.schema.names
            if any(holds(name, each) for each in features)
        ]
        for group in table.places.groups_from(0) if names else ():
            for batch in table.batches(group, names):
                return batch
    return None


def _features(
    schema: pa.Schema, columns: Sequence[str], path: str
) -> dict[str, FeatureSpec]:
    if schema.names and len(_empty(schema)) == len(schema.names):
        return {}  # A table without rows, as pandas writes it.
    try:
        return typed_features(schema, columns)
    except InputError as error:
        raise _in_file(error, path) from error


def _empty(schema: pa.Schema) -> list[str]:
    """Returns the columns without a type: those that have no value in the file."""
    return [field.name for field in schema if _is_empty(field.type)]


def _is_empty(kind: pa.DataType) -> bool:
    """Returns whether a column of a type has no value, nor has any list in it."""
    is_list = str(kind).startswith(("list<", "large_list<"))
    return str(kind) == "null" or (is_list and _is_empty(kind.value_type))


def _in_file(error: InputError, path: str) -> InputError:
    facts = error.facts()
    where = ", ".join(filter(None, (path, facts.get("where"))))
    return InputError(**facts | {"where": where})


def _compare(features: Features, found: Features, schema: pa.Schema, path: str) -> None:
    """Raises InputError if the columns of a file do not fit the features."""
    empty = _empty(schema)
    for name in {**features, **found}:
        expected, got = features.get(name), found.get(name)
        if expected is None or got is None:
            may_lack = expected is not None and expected.optional
            same = may_lack and any(holds(column, name) for column in empty)
        else:
            same = _same(expected, got)
        if not same:
            raise InputError(
                f"column {name} is not the same in all input files",
                where=path,
                expected=_in_words(expected),
                got=_in_words(got),
                cure="write the files again with the same columns, convert files with "
                "other columns into splits of their own, or choose columns that all "
                "have, with --columns",
            )


def _same(expected: FeatureSpec, got: FeatureSpec) -> bool:
    if got.optional and not expected.optional:
        return False
    got = read_as(got, expected)
    return dataclasses.replace(got, optional=expected.optional) == expected


def _in_words(spec: FeatureSpec | None) -> str:
    if spec is None:
        return "no such column"
    words = [spec.type or spec.dtype]
    if spec.shape:
        words.append(f"shape {spec.shape}")
    if spec.names:
        words.append(f"classes {', '.join(spec.names[:3])}, ...")
    if spec.optional:
        words.append("or null")
    return ", ".join(words)


_MOST_FILES = 20_000  # Footers to read: minutes of a core.


def joined_shards(files: InputFiles, plan: ShardPlan) -> npt.NDArray[np.bool_]:
    """Returns which shards the task of the previous one makes: bool [shards].

    Reads the footers of files with several cuts.
    """
    joined = np.zeros(plan.shards, np.bool_)
    edges = np.append(0, np.cumsum(files.sizes))
    cut_files = np.searchsorted(edges[1:], plan.cut_bytes[1:-1], side="right")
    begins = plan.cut_bytes[1:-1] - edges[cut_files]
    by_file = itertools.groupby(
        (np.flatnonzero(begins > 0) + 1).tolist(),
        key=lambda shard: int(cut_files[shard - 1]),
    )
    several = ((file, cuts) for file, each in by_file if len(cuts := [*each]) > 1)
    found = [*itertools.islice(several, _MOST_FILES)]
    footers = map_all(_places, [files[file] for file, _ in found], at_once=_AT_ONCE)
    for (_, shards), places in zip(found, footers, strict=True):
        if places is None:
            continue
        groups = {shard: _cut_group(places, int(begins[shard - 1])) for shard in shards}
        counts = Counter(groups.values())
        for shard, group in groups.items():
            joined[shard] = group is not None and counts[group] > 1
    return joined


def _places(file: InputFile) -> RowPlaces | None:
    # The reader of a damaged file reports the damage.
    with (
        contextlib.suppress(CorruptRecordError),
        open_table(file) as table,
    ):
        return table.places
    return None


def _cut_group(places: RowPlaces, offset: int) -> int | None:
    """Returns the row group that is cut at an offset, None between two."""
    row = places.rows_before(offset)
    group = next(places.groups_from(row), None)
    return None if group is None or row == group.first_row else group.number


_AHEAD_BYTES = 256 << 10  # Bytes read on opening: the footer.


@dataclasses.dataclass(frozen=True)
class _GroupPass:
    """A partly read row group of an open file.

    Attributes:
        table: The file.
        group: The row group.
        rows: Its remaining rows, some at a time, with the first of each; those read
            last come again.
    """

    table: ParquetFile
    group: RowGroup
    rows: Iterator[tuple[int, pa.RecordBatch]]

    def close(self) -> None:
        self.table.close()


class ParquetRange(RangeReader[ParquetFile]):
    """Reads the rows of one range of a file, in order.

    Damage belongs to the range of its first row: from there to the end of its row group
    nothing can be read. The next range then begins after it.
    """

    def __init__(self, request: ReadRequest, format: ParquetSource):
        super().__init__(request)
        self._begun: _GroupPass | None = None  # Rows taken by the previous range.
        self._left: _GroupPass | None = None  # Rows for the next range.
        self._format = format
        self._start = self._stop = 0

    def _waiting_bytes(self) -> int:
        return min(_AHEAD_BYTES, self._file.size_bytes)

    def _open(self) -> ParquetFile:
        return open_table(self._file)

    def batches(self) -> Iterator[RecordBatch]:
        if self._kept is not None:
            self._begun = self._kept.take(self._source)
        table = self._opened() if self._begun is None else self._begun.table
        if table is None:
            self._check_unchanged()
            return
        try:
            yield from self._table_records(table)
            self._check_unchanged()
        except BaseException:
            table.close()
            raise
        if self._kept is None or self._left is None:
            table.close()
        else:
            self._kept.keep(self._left, self._source)

    def _opened(self) -> ParquetFile | None:
        """Returns the open file; None if it cannot be opened, and that is accepted."""
        try:
            return self._coming()
        except CorruptRecordError as error:
            self._check_unchanged()
            if self._file.remote:
                # It may have been damaged in transit.
                with contextlib.suppress(CorruptRecordError):
                    return self._open()
            if self._skipped is None:
                raise
            # The first range of the file takes all of it.
            if not self._source.begin_bytes:
                whole = 0, self._file.size_bytes
                self._skipped.add(error, self.path, region=whole)
            self._whole = True
            return None

    def _table_records(self, table: ParquetFile) -> Iterator[RecordBatch]:
        places = table.places
        first = places.rows_before(self._source.begin_bytes)
        last = max(first, min(places.rows_before(self._end_bytes), places.rows))
        self._start, self._stop = first, last
        columns = self._format.columns(table.schema, self.path)
        for group in places.groups_from(first):
            if group.first_row >= last:
                break
            try:
                yield from self._group_records(table, group, columns, first, last)
            except CorruptRecordError as error:
                if self._skipped is None:
                    raise
                if error.offset >= first:
                    rows = error.offset, group.end_row
                    self._skipped.add(error, self.path, region=(0, 0), rows=rows)
                else:
                    # It belongs to the range before, up to the end of the row group.
                    self._start = group.end_row
                self._stop = max(self._stop, group.end_row)
        self._whole = self._stop >= places.rows

    def _group_records(
        self,
        table: ParquetFile,
        group: RowGroup,
        columns: list[str],
        first: int,
        last: int,
    ) -> Iterator[RecordBatch]:
        rows = self._group_rows(table, group, columns)
        if self._begun is not None and self._begun.group == group:
            rows = self._begun.rows
        for row, batch in rows:
            begin, end = max(first - row, 0), min(last - row, batch.num_rows)
            if begin < end:
                yield from self._records_of(
                    batch.slice(begin, end - begin), row + begin, group
                )
            if row + batch.num_rows >= last:
                if last < group.end_row:
                    left = itertools.chain([(row, batch)], rows)
                    self._left = _GroupPass(table, group, left)
                return

    def _group_rows(
        self, table: ParquetFile, group: RowGroup, columns: list[str]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields the rows of a row group, some at a time, with their first.

        On remote storage, data that seem damaged are read once more: they may have been
        damaged in transit.
        """
        reached, doubted = group.first_row, -1
        while True:
            row = group.first_row
            try:
                for batch in table.batches(group, columns):
                    if row >= reached:
                        reached = row + batch.num_rows
                        yield row, batch
                    row += batch.num_rows
            except CorruptRecordError:
                self._check_unchanged()
                if doubted == reached or not self._file.remote:
                    raise
                doubted = reached
                table.forget()
            else:
                return

    def _records_of(
        self, batch: pa.RecordBatch, row: int, group: RowGroup
    ) -> Iterator[RecordBatch]:
        while batch.num_rows:
            good, error = batch.num_rows, None
            while True:  # Of several columns, another can have an earlier fault.
                try:
                    records, rows = self._format.rows.made(batch.slice(0, good))
                except RowError as e:
                    good, error = e.row, e
                else:
                    break
            self._records += len(records)
            if good:
                crc32cs = list(map(google_crc32c.value, records))
                places = (row + rows).tolist()
                yield RecordBatch(places, records, crc32cs, good - len(rows))
            if error is None:
                return
            self._refuse_row(error, row + good, group)
            batch, row = batch.slice(good + 1), row + good + 1

    def _refuse_row(self, error: RowError, row: int, group: RowGroup) -> None:
        """Leaves out a row that cannot become a record."""
        damage = corrupt_rows(
            "row",
            error.what,
            where=f"{self.path}, row group {group.number:,}, row {row:,}",
            expected=error.expected or "a row that can become a record",
            got=error.got or "another",
            place=(row, row + 1),
        )
        damage.cure = error.cure
        if self._skipped is None:
            raise damage from error
        self._skipped.add(damage, self.path, region=(0, 0), rows=(row, row + 1))


class ParquetSource(Source):
    """Parquet files; see `Source` for what its methods do."""

    place_noun = "row"

    def __init__(self, spec: SourceSpec):
        super().__init__(spec)
        self._features = parse_features(json.loads(spec.schema)) if spec.schema else {}
        skips = spec.nulls == "skip"
        self.rows = RowRecords(spec.record, self._features, skip_nulls=skips)

    @classmethod
    def find_spec(cls, files: InputFiles, options: RecordOptions) -> SourceSpec:
        """Returns the rules for making records, with the columns of all files."""
        if options.record == "example":
            features = _features_of_files(files, options.columns)
            return options.spec(json.dumps(encode_features(features)))
        spec, column = options.spec(), options.record.partition(":")[2]
        checked = "" if options.nulls == "skip" else column
        for path, schema in _schemas(files, checked):
            cls(spec).columns(schema, path)
        return spec

    def columns(self, schema: pa.Schema, path: str) -> list[str]:
        """Returns the columns of a file, of this schema, that become records.

        Raises:
            InputError: It does not have the columns that the other files have.
        """
        names: list[str] = schema.names
        columns, (kind, _, column) = self.spec.columns, self.spec.record.partition(":")
        if kind == "json":
            found = [name for name in names if not columns or name in columns]
            if not found:
                raise InputError(
                    "the table has none of the columns to take",
                    where=path,
                    expected=f"one of {some_of(columns, 8)}",
                    got=some_of(names, 20),
                    cure="name a column of the table with --column",
                )
            return found
        if kind == "column":
            try:
                check_column(schema, column)
            except InputError as error:
                raise _in_file(error, path) from error
            return [name for name in names if holds(name, column)]
        _compare(self._features, _features(schema, columns, path), schema, path)
        return [name for name in names if any(holds(name, f) for f in self._features)]

    def read(self, request: ReadRequest) -> ParquetRange:
        return ParquetRange(request, self)

    def cut(self, file: InputFile, *, range_bytes: int) -> Iterator[tuple[int, int]]:
        """Yields ranges of a file that begin with row groups, in order."""
        places = _places(file)  # A damaged file has one range.
        cuts = () if places is None else places.cuts(range_bytes)
        yield from itertools.pairwise((0, *cuts, file.size_bytes))

    def described(self) -> dict[str, Any]:
        columns = {"columns": list(self.spec.columns)} if self.spec.columns else {}
        return super().described() | columns

    def features(self) -> dict[str, Any] | None:
        return encode_features(self._features) or None
