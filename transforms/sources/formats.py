"""The formats of inputs: their names, and the making of their records."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Literal, NamedTuple, Self, get_args

from gristmill.dataset.base.errors import InputError


class SourceFormat(NamedTuple):
    """A format of input files.

    Attributes:
        found_as: Its name in `gristmill.dataset.formats.file_formats`.
        source: The module below `transforms.sources` and the class that read it.
        sized: Whether places are offsets in the file as stored: the last record ends
            where an uncompressed file does.
        compressed: Whether whole files can be compressed.
        stream: Whether a file is read from its start.
        records: The kinds of records that it can make, the usual one first; none where
            they stay as they are.
        accepts: Other names in `file_formats` of files that `--input-format` also
            accepts.
        tokens: Whether a record is the ids of a document, as little-endian uint32.
            Such files have no magic number: `--input-format` names them.
    """

    found_as: str
    source: str
    sized: bool = True
    compressed: bool = True
    stream: bool = False
    records: tuple[str, ...] = ()
    accepts: tuple[str, ...] = ()
    tokens: bool = False

    @property
    def is_text(self) -> bool:
        """Whether files are recognised only as text, without a magic number."""
        return "text" in (self.found_as, *self.accepts)


# Who names the format of such text learns which line is wrong.
_FAULTY_TEXT = ("text that is not UTF-8", "text with control characters")


def _of_lines(
    found_as: str, source: str, *accepts: str, stream: bool = True
) -> SourceFormat:
    return SourceFormat(
        found_as,
        f"lines.{source}",
        stream=stream,
        records=("example", "column", "line"),
        accepts=(*accepts, "text", *_FAULTY_TEXT),
    )


MAY_LACK = "?"
"""Stands after the id that ends documents of tokens if a file may lack it."""

FORMATS: dict[str, SourceFormat] = {
    "tfrecord": SourceFormat("TFRecord", "tfrecord:TFRecordSource"),
    "arrayrecord": SourceFormat(
        "ArrayRecord",
        "shards.arrayrecord:ArrayRecordSource",
        sized=False,
        compressed=False,
    ),
    "parquet": SourceFormat(
        "Parquet",
        "parquet_source:ParquetSource",
        records=("example", "json", "column"),
        sized=False,
        compressed=False,
    ),
    "webdataset": SourceFormat(
        "tar",
        "webdataset:WebDatasetSource",
        stream=True,
        records=("example", "column"),
    ),
    "jsonl": _of_lines("JSON lines", "json_source:JsonSource", "JSON", stream=False),
    "json": _of_lines("JSON array", "json_source:JsonSource", "JSON"),
    "csv": _of_lines("CSV", "csv_source:CsvSource", "TSV"),
    "tsv": _of_lines("TSV", "csv_source:CsvSource", "CSV"),
    "tsv-unquoted": _of_lines(
        "TSV without quoting", "csv_source:CsvSource", "CSV", "TSV"
    ),
    "text": SourceFormat(
        "text",
        "lines.line_source:TextSource",
        records=("line",),
        accepts=(
            "CSV",
            "JSON",
            "JSON array",
            "JSON lines",
            "TSV",
            "XML",
            *_FAULTY_TEXT,
        ),
    ),
    **{
        name: SourceFormat(
            found_as, f"token_files:{source}", compressed=False, tokens=True
        )
        for name, found_as, source in (
            ("megatron", "Megatron", "MegatronSource"),
            ("olmo", "OLMo", "OlmoSource"),
            ("mds", "MDS", "MdsSource"),
            ("flat", "flat array", "FlatSource"),
        )
    },
}

Nulls = Literal["fail", "skip"]
_WITH_COLUMNS = ("example", "json")  # Kinds of records.
_WITH_NULLS = ("jsonl", "json", "parquet")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """The user's options for the inputs, and for the records made from them.

    Attributes:
        input_format: One of `FORMATS`; `auto` to recognise files by their first bytes.
        columns: Columns to take, if the format has columns; all if empty.
        record: The kind of record: `example`, a `tf.train.Example` of the columns;
            `column:NAME`, the bytes of one column; `json`, the columns as a JSON
            object; `line`. "" for the format's default.
        nulls: What to do with a row with a null in a column to take: `fail` if no
            record can be made from it, or `skip` it.
        select: Condition on the columns beside the records of a dataset, for those to
            take; "" for all.
        whole_files: Whether each file is read from its start, by one worker.
    """

    input_format: str = "auto"
    columns: tuple[str, ...] = ()
    record: str = ""
    nulls: Nulls = "fail"
    select: str = ""
    whole_files: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        if self.nulls not in get_args(Nulls):
            raise InputError(
                "unknown --nulls",
                expected=" or ".join(get_args(Nulls)),
                got=self.nulls,
                cure="give one of these",
            )
        if self.input_format not in ("auto", *FORMATS):
            raise InputError(
                "unknown --input-format",
                expected=", ".join(("auto", *FORMATS)),
                got=self.input_format,
                cure="give one of these, or leave it out",
            )
        if "" in self.columns or len(set(self.columns)) < len(self.columns):
            raise InputError(
                "--columns names a column twice, or none",
                got=repr(",".join(self.columns)),
                cure="give each column once, separated by commas without blanks",
            )
        kinds = r"|example|json|line|(?s:column:.+)|u?int(16|32|64)(:\d+\??)?"
        if not re.fullmatch(kinds, self.record):
            raise InputError(
                "unknown --record",
                expected="example, line, column: and the name of a column; for tokens "
                "their type and the id that ends documents, such as uint16:50256",
                got=self.record,
                cure="give one of these, or leave it out",
            )

    def spec(self, schema: str = "") -> SourceSpec:
        """Returns the rules for making records, with these facts found in the files."""
        record, columns = self.record, self.columns
        return SourceSpec(self.input_format, record, columns, schema, self.nulls)


class SourceSpec(NamedTuple):
    """The rules for making records from files: all that a reader needs.

    Found when the inputs are listed, and the same for all files of a job.

    Attributes:
        format: One of `FORMATS`.
        record: As in `RecordOptions`, never "" if there is a choice.
        columns: As in `RecordOptions`.
        schema: Other facts found in the files, such as the types of columns, as a text
            that only the source reads.
        nulls: As in `RecordOptions`.
    """

    format: str = "tfrecord"
    record: str = ""
    columns: tuple[str, ...] = ()
    schema: str = ""
    nulls: str = "fail"

    @property
    def of_dataset(self) -> bool:
        """Whether the files are the shards of a split of a dataset."""
        return self.format == "arrayrecord" and bool(self.schema)

    def to_json(self) -> str:
        """Returns the spec as JSON."""
        return json.dumps(self._asdict())

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Rebuilds a spec. Raises ValueError or TypeError if the text is not one."""
        fields = json.loads(text)
        return cls(**fields | {"columns": tuple(fields["columns"])})

    def differences(self, new: Self) -> list[str]:
        """Returns a line for each part in which a new spec differs."""
        found = []
        for name, before, after in zip(self._fields, self, new, strict=True):
            if before != after and name == "schema":
                found += _schema_differences(self.schema, new.schema)
            elif before != after:
                found.append(f"{name} of the inputs was {before}, is {after}")
        return found


def _schema_differences(before: str, after: str) -> list[str]:
    """Returns a line for each column or file that differs, where schemas name them."""
    noun, key = ("file", "beside") if '{"beside"' in before else ("column", "fields")
    try:
        old, new = (json.loads(text)[key] for text in (before, after))
        names = sorted(old.keys() | new.keys())
    except (AttributeError, KeyError, TypeError, ValueError):
        return ["the columns of the inputs, or their types, are others"]
    return [
        f"{noun} {name} was {old.get(name, 'not there')}, is {new.get(name, 'gone')}"
        for name in names
        if old.get(name) != new.get(name)
    ] or ["the columns of the inputs are in another order"]


TFRECORD = SourceSpec()


def can_skip_nulls(format_name: str) -> bool:
    """Returns whether `--nulls skip` is for a format, one of `FORMATS`."""
    return format_name in _WITH_NULLS


def check_options(options: RecordOptions, format_name: str) -> None:
    """Refuses options for records that a format, one of `FORMATS`, does not have.

    Raises:
        InputError: One is given.
    """
    known = FORMATS[format_name]
    if known.tokens and options.nulls == "fail":
        return  # The module of the format says what it takes.
    given = options.record.partition(":")[0]
    kind = given or next(iter(known.records), "")
    files = f"{known.found_as} files"
    if given and given not in known.records:
        kinds = (
            f"--record {one.replace('column', 'column:NAME')}" for one in known.records
        )
        raise InputError(
            f"--record {given} is not for {files}",
            expected=" or ".join(kinds) or "a format with columns",
            got=f"--record {options.record}",
            cure="give one of these, or leave it out"
            if known.records
            else "leave it out: records are taken as they are; --map changes them",
        )
    if options.columns and kind not in _WITH_COLUMNS:
        raise InputError(
            f"--columns is not for {f'--record {given}' if given else files}",
            expected="columns that become a tf.train.Example",
            got=f"--columns {','.join(options.columns)}",
            cure="leave one of them out"
            if given
            else "leave out --columns; tables are read with --input-format jsonl, "
            "csv or tsv",
        )
    if options.nulls == "skip" and (kind == "line" or not can_skip_nulls(format_name)):
        raise InputError(
            "--nulls skip is for columns that can be null",
            expected="columns of "
            + " or ".join(FORMATS[name].found_as for name in _WITH_NULLS),
            got="--record line" if kind == "line" else known.found_as,
            cure="leave it out; --map can drop records",
        )
