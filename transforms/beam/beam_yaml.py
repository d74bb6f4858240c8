"""The transforms for Beam YAML: made from plain values, with rows in and out.

`examples/beam_yaml.yaml` shows how a pipeline names them. Annotations are no texts
here, as Beam takes the types of options from them.
"""

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, get_type_hints

import apache_beam as beam
from apache_beam.typehints.row_type import RowTypeConstraint

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata import layout
from gristmill.transforms.beam.convert_files import ConvertFiles
from gristmill.transforms.beam.index_arrayrecords import IndexArrayRecords
from gristmill.transforms.beam.read_arrayrecords import (
    ReadAllArrayRecords,
    ReadArrayRecords,
)
from gristmill.transforms.beam.read_records import ReadRecords
from gristmill.transforms.beam.read_tfrecords import ReadAllTFRecords, ReadTFRecords
from gristmill.transforms.beam.verify_dataset import VerifyDataset
from gristmill.transforms.beam.write_arrayrecords import WriteArrayRecords
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.planning.shard_plan import PlanOptions
from gristmill.transforms.sources.formats import Nulls, RecordOptions
from gristmill.transforms.writing.commit_write import WriteResult


class _Converted(NamedTuple):
    output: str
    split: str
    shards: int
    records: int


class _Indexed(NamedTuple):
    name: str
    split: str
    shards: int
    records: int


class _Verified(NamedTuple):
    dataset: str
    shards: int
    records: int
    findings: Sequence[str]
    more_findings: int


_Transform = beam.PTransform[Any, Any]


def _chain(*steps: Any) -> _Transform:
    chained: _Transform = functools.reduce(operator.or_, steps)
    return chained


def _rows(types: dict[str, Any], row: Callable[[Any], beam.Row]) -> _Transform:
    """Returns a step that makes rows with fields of some types."""
    hint = RowTypeConstraint.from_fields([*types.items()])
    return _chain("Rows" >> beam.Map(row).with_output_types(hint))


def _named(kind: type) -> _Transform:
    """Returns a step that makes rows of named tuples."""
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


def read_tfrecords(patterns: Sequence[str], with_source: bool = False) -> _Transform:
    """Reads TFRecord files as rows of `record`; with `file` and `offset` as well.

    Args:
        patterns: Paths and glob patterns, or one.
        with_source: Whether to give the file and offset of each record.
    """
    read = ReadTFRecords(patterns, with_source=with_source)
    return _records(read, "offset" if with_source else None)


def read_all_tfrecords(field: str = "path", with_source: bool = False) -> _Transform:
    """Reads the TFRecord files that rows name, as `read_tfrecords` does.

    Args:
        field: The rows' field with a path or pattern.
        with_source: Whether to give the file and offset of each record.
    """
    read = _chain(_paths(field), ReadAllTFRecords(with_source=with_source))
    return _records(read, "offset" if with_source else None)


def read_arrayrecords(
    source: Sequence[str], split: str | None = None, with_index: bool = False
) -> _Transform:
    """Reads ArrayRecords as rows of `record`; with `file` and `record_index` as well.

    Args:
        source: The directory of a dataset, or files.
        split: The split of a dataset; all if there is none.
        with_index: Whether to give the file and number of each record.
    """
    read = ReadArrayRecords(source, split=split, with_index=with_index)
    return _records(read, "record_index" if with_index else None)


def read_all_arrayrecords(
    field: str = "path", split: str | None = None, with_index: bool = False
) -> _Transform:
    """Reads the datasets or files that rows name, as `read_arrayrecords` does.

    Args:
        field: The rows' field with a dataset, path or pattern.
        split: The split of each dataset; all if there is none.
        with_index: Whether to give the file and number of each record.
    """
    read_all = ReadAllArrayRecords(split=split, with_index=with_index)
    read = _chain(_paths(field), read_all)
    return _records(read, "record_index" if with_index else None)


def _paths(field: str) -> _Transform:
    return _chain("Paths" >> beam.Map(_field, field).with_output_types(str))


def _records(read: _Transform, place: str | None) -> _Transform:
    """Returns a step that makes rows; `place` is the name of the field of places."""
    types: dict[str, Any] = {"record": bytes}
    if place is not None:
        types = {"file": str, place: int} | types

    def row(one: Any) -> beam.Row:
        return beam.Row(**dict(zip(types, one if place else (one,), strict=True)))

    return _chain(read, _rows(types, row))


def read_records(
    inputs: Sequence[str],
    split: str | None = None,
    input_format: str = "auto",
    columns: Sequence[str] = (),
    record: str = "",
    nulls: Nulls = "fail",
    with_source: bool = False,
) -> _Transform:
    """Reads inputs of any format as rows of `record`; with `file` and `place` as well.

    Args:
        inputs: Paths and glob patterns, or one; or a directory with splits.
        split: The split of a directory; all if there is none.
        input_format: The format of the inputs, if their first bytes do not tell it.
        columns: Columns to take, of a format that has columns.
        record: What a record is made of, such as `column:text`.
        nulls: `skip` to leave out rows in which a column that is taken is null.
        with_source: Whether to give the file and place of each record.
    """
    options = RecordOptions(
        input_format=input_format, columns=tuple(columns), record=record, nulls=nulls
    )
    read = ReadRecords(inputs, split=split, records=options, with_source=with_source)
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
) -> _Transform:
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
    return _chain(elements, write, _named(WriteResult))


def convert_files(
    inputs: Sequence[str],
    output: str,
    name: str | None = None,
    split: str = "train",
    plan: str = "shard_bytes",
    value: int | None = None,
    group_size: int = 1,
    compression: str = "zstd:3",
    overwrite: bool = False,
    keep_replaced: bool = False,
    length: int | None = None,
    tokenizer: str | None = None,
    column: str = "text",
    bos: str = "",
    eos: str = "",
) -> _Transform:
    """Converts files of any format into a split; gives one row of what it holds.

    With `length` it packs documents into rows of tokens.

    Args:
        inputs: Paths and glob patterns, or one.
        output: The dataset's directory.
        name: The dataset's name; by default the last part of the directory.
        split: The split to write.
        plan: `shard_bytes`, `num_shards`, `records_per_shard` or `match_shards`.
        value: The number that goes with it; 256 MiB for `shard_bytes`.
        group_size: Records in a chunk.
        compression: Compression of chunks.
        overwrite: Whether to replace what the output holds of this split.
        keep_replaced: Whether what is replaced is kept, to go back to.
        length: Tokens of a row, at most.
        tokenizer: File of the tokenizer, or `module:function`; by default the column
            holds tokens.
        column: What holds the text of a document, or its tokens.
        bos: Token to add before every document, as text or id.
        eos: Token to add after every document, likewise.
    """
    options: dict[str, Any] = {"kind": plan}
    if value is not None or plan != "shard_bytes":
        options["value"] = value
    pack = None
    if length is not None:
        pack = PackOptions(
            length=length, tokenizer=tokenizer, column=column, bos=bos, eos=eos
        )
    job = ConversionJob(
        inputs=inputs,
        output=output,
        name=layout.base_name(output) if name is None else name,
        split=split,
        plan=PlanOptions(**options),
        writer=WriterOptions(group_size=group_size, compression=compression),
        pack=pack,
    )

    def converted(result: Any) -> _Converted:
        made = result.manifest.splits[split]
        return _Converted(job.output, split, made.shards, made.records)

    convert = ConvertFiles(
        jobs=(job,), overwrite=overwrite, keep_replaced=keep_replaced
    )
    return _chain(convert, "Named" >> beam.Map(converted), _named(_Converted))


def index_arrayrecords(
    files: Sequence[str],
    name: str | None = None,
    split: str | None = None,
    overwrite: bool = False,
    keep_replaced: bool = False,
) -> _Transform:
    """Makes ArrayRecord files a dataset, in place; gives a row of each of its splits.

    Args:
        files: Paths and glob patterns, or one, all in one directory.
        name: The dataset's name; by default from the file names.
        split: The split of all files; by default from their names.
        overwrite: Whether to replace splits that are there.
        keep_replaced: Whether what is replaced is kept, to go back to.
    """

    def indexed(manifest: Any) -> Iterator[_Indexed]:
        for each, made in manifest.splits.items():
            yield _Indexed(manifest.name, each, made.shards, made.records)

    index = IndexArrayRecords(
        files=files,
        name=name,
        split=split,
        overwrite=overwrite,
        keep_replaced=keep_replaced,
    )
    return _chain(index, "Named" >> beam.FlatMap(indexed), _named(_Indexed))


def verify_dataset(dataset: str) -> _Transform:
    """Reads a dataset again; gives one row with a text for each thing that is wrong.

    Args:
        dataset: Its directory.
    """

    def verified(result: Any) -> _Verified:
        findings = [str(finding) for finding in result.findings]
        counts = result.shards, result.records or 0
        return _Verified(result.dataset, *counts, findings, result.more_findings)

    named = "Named" >> beam.Map(verified)
    return _chain(VerifyDataset(dataset), named, _named(_Verified))


# Beam YAML expects an input of what is not called Read.
for _start in (convert_files, index_arrayrecords, verify_dataset):
    vars(_start)["_yaml_requires_inputs"] = False

convert_tfrecords = convert_files  # Its earlier name.
