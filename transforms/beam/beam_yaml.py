"""The readers and the writer for Beam YAML: made from plain values, with rows.

`examples/beam_yaml.yaml` shows how a pipeline names them. Commands as transforms are in
`gristmill.pipelines.beam.yaml_commands`. Annotations are not texts here, as Beam takes
the types of options from them.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, get_type_hints

import apache_beam as beam
from apache_beam.typehints.row_type import RowTypeConstraint

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.errors import InputError
from gristmill.transforms.beam.read_arrayrecords import (
    ReadAllArrayRecords,
    ReadArrayRecords,
)
from gristmill.transforms.beam.read_ranges import DEFAULT_RANGE_BYTES
from gristmill.transforms.beam.read_records import ReadRecords
from gristmill.transforms.beam.read_tfrecords import ReadAllTFRecords, ReadTFRecords
from gristmill.transforms.beam.write_arrayrecords import WriteArrayRecords
from gristmill.transforms.sources.formats import Nulls, RecordOptions
from gristmill.transforms.writing.commit_write import WriteResult

Transform = beam.PTransform[Any, Any]


def chain(*steps: Any) -> Transform:
    """Returns the transform that applies steps one after the other."""
    chained: Transform = functools.reduce(operator.or_, steps)
    return chained


def _rows(types: dict[str, Any], row: Callable[[Any], beam.Row]) -> Transform:
    """Returns a step that makes rows with fields of some types."""
    hint = RowTypeConstraint.from_fields([*types.items()])
    return chain("Rows" >> beam.Map(row).with_output_types(hint))


def rows_of(kind: type) -> Transform:
    """Returns a step that makes rows of the named tuples of a kind."""
    types = get_type_hints(kind)
    return _rows(
        types, lambda one: beam.Row(**{name: getattr(one, name) for name in types})
    )


def _field(row: Any, name: str) -> Any:
    fields = row._asdict()
    if name not in fields:
        raise InputError(
            f"rows have no field {name!r}",
            expected="one of " + ", ".join(fields),
            cure="name the field of the rows, or map it before",
        )
    return fields[name]


def _text_as_utf8(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def read_tfrecords(
    patterns: Sequence[str],
    with_source: bool = False,
    range_bytes: int = DEFAULT_RANGE_BYTES,
    allow_empty_files: bool = False,
) -> Transform:
    """Reads TFRecord files as rows of `record`; with `file` and `offset` as well.

    Args:
        patterns: Paths and glob patterns, or one.
        with_source: Whether to give the file and offset of each record.
        range_bytes: Least bytes that a worker reads of a file that is split.
        allow_empty_files: Whether to take empty files as files without records.
    """
    read = ReadTFRecords(
        patterns,
        with_source=with_source,
        range_bytes=range_bytes,
        allow_empty_files=allow_empty_files,
    )
    return _records(read, "offset" if with_source else None)


def read_all_tfrecords(
    field: str = "path",
    with_source: bool = False,
    range_bytes: int = DEFAULT_RANGE_BYTES,
    allow_empty_files: bool = False,
) -> Transform:
    """Reads the TFRecord files that rows name, as `read_tfrecords` does.

    Args:
        field: The rows' field with a path or pattern.
        with_source: Whether to give the file and offset of each record.
        range_bytes: Least bytes that a worker reads of a file that is split.
        allow_empty_files: Whether to take empty files as files without records.
    """
    read_all = ReadAllTFRecords(
        with_source=with_source,
        range_bytes=range_bytes,
        allow_empty_files=allow_empty_files,
    )
    read = chain(_paths(field), read_all)
    return _records(read, "offset" if with_source else None)


def read_arrayrecords(
    source: Sequence[str],
    split: str | None = None,
    with_index: bool = False,
    range_bytes: int = DEFAULT_RANGE_BYTES,
) -> Transform:
    """Reads ArrayRecords as rows of `record`; with `file` and `record_index` as well.

    Args:
        source: The directory of a dataset, or files.
        split: The split of a dataset; all if there is none.
        with_index: Whether to give the file and number of each record.
        range_bytes: About how many bytes of a file a worker reads.
    """
    read = ReadArrayRecords(
        source, split=split, with_index=with_index, range_bytes=range_bytes
    )
    return _records(read, "record_index" if with_index else None)


def read_all_arrayrecords(
    field: str = "path",
    split: str | None = None,
    with_index: bool = False,
    range_bytes: int = DEFAULT_RANGE_BYTES,
) -> Transform:
    """Reads the datasets or files that rows name, as `read_arrayrecords` does.

    Args:
        field: The rows' field with a dataset, path or pattern.
        split: The split of each dataset; all if there is none.
        with_index: Whether to give the file and number of each record.
        range_bytes: About how many bytes of a file a worker reads.
    """
    read_all = ReadAllArrayRecords(
        split=split, with_index=with_index, range_bytes=range_bytes
    )
    read = chain(_paths(field), read_all)
    return _records(read, "record_index" if with_index else None)


def _paths(field: str) -> Transform:
    return chain("Paths" >> beam.Map(_field, field).with_output_types(str))


def _records(read: Transform, place: str | None) -> Transform:
    """Returns a step that makes rows; `place` is the name of the field of places."""
    types: dict[str, Any] = {"record": bytes}
    if place is not None:
        types = {"file": str, place: int} | types

    def row(one: Any) -> beam.Row:
        return beam.Row(**dict(zip(types, one if place else (one,), strict=True)))

    return chain(read, _rows(types, row))


def read_records(
    inputs: Sequence[str],
    split: str | None = None,
    input_format: str = "auto",
    columns: Sequence[str] = (),
    record: str = "",
    nulls: Nulls = "fail",
    with_source: bool = False,
    range_bytes: int = DEFAULT_RANGE_BYTES,
    allow_empty_files: bool = False,
) -> Transform:
    """Reads inputs of any format as rows of `record`; with `file` and `place` as well.

    Args:
        inputs: Paths and glob patterns, or one; or a directory with splits.
        split: The split of a directory; all if there is none.
        input_format: The format of the inputs, if their first bytes do not tell it.
        columns: Columns to take, of a format that has columns.
        record: What a record is made of, such as `column:text`.
        nulls: `skip` to leave out rows in which a column that is taken is null.
        with_source: Whether to give the file and place of each record.
        range_bytes: Least bytes that a worker reads of a file that is split.
        allow_empty_files: Whether to take empty files as files without records.
    """
    options = RecordOptions(
        input_format=input_format, columns=tuple(columns), record=record, nulls=nulls
    )
    read = ReadRecords(
        inputs,
        split=split,
        records=options,
        with_source=with_source,
        range_bytes=range_bytes,
        allow_empty_files=allow_empty_files,
    )
    return _records(read, "place" if with_source else None)


def write_arrayrecords(
    output: str,
    field: str = "record",
    key: str | None = None,
    name: str | None = None,
    split: str = "train",
    num_shards: int | None = None,
    shard_bytes: int | None = None,
    group_size: int = 1,
    compression: str = "zstd:3",
    overwrite: bool = False,
    keep_replaced: bool = False,
) -> Transform:
    """Writes a field of rows as records; gives one row of what was written.

    Args:
        output: The dataset's directory.
        field: The field with the record, bytes or text (written as UTF-8).
        key: The field with the key, if records have keys.
        name: The dataset's name; by default the last part of the directory.
        split: The split to write.
        num_shards: Number of shards.
        shard_bytes: Maximum bytes of records in a shard.
        group_size: Records in a chunk.
        compression: Compression of chunks.
        overwrite: Whether to replace what the output holds of this split.
        keep_replaced: Whether what is replaced is kept, to go back to.
    """
    write = WriteArrayRecords(
        output,
        name=name,
        split=split,
        num_shards=num_shards,
        shard_bytes=shard_bytes,
        keyed=key is not None,
        writer=WriterOptions(group_size=group_size, compression=compression),
        overwrite=overwrite,
        keep_replaced=keep_replaced,
    )

    def element(row: Any) -> Any:
        record = _text_as_utf8(_field(row, field))
        return record if key is None else (_field(row, key), record)

    elements = "Elements" >> beam.Map(element).with_output_types(Any)
    return chain(elements, write, rows_of(WriteResult))
