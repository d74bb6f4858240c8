"""Every option of every pipeline, described once.

The command line, the metadata of the Dataflow templates and the tables in docs/cli.md
are built from these descriptions. Nothing heavy is imported here: the command line
starts with this module.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

from gristmill.dataset.arrayrecord.writer_options import (
    COMPRESSION_PATTERN,
    DEFAULT_COMPRESSION,
    DEFAULT_GROUP_SIZE,
    DEFAULT_WRITER,
    Check,
    Writer,
)
from gristmill.dataset.errors import OnCorrupt
from gristmill.dataset.metadata.layout import NAME_PATTERN, SPLIT_PATTERN

Kind = Literal["paths", "text", "integer", "choice", "flag"]

# POSIX extended regular expressions, as Dataflow checks the parameters of templates.
# They must match the whole value. Python's `re` reads them alike.
_GS_PATH = "gs://[^,]+"
_GS_PATHS = f"{_GS_PATH}(,{_GS_PATH})*"
_POSITIVE = "0*[1-9][0-9]*"
_SIZE = "[0-9]+([.][0-9]+)? *([kKmMgGtTpP]?[bB]|[kKmMgGtTpP][iI][bB])?"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """One option of a pipeline.

    Attributes:
        name: Name of the field, and of the parameter of a template.
        kind: Type of its value. `paths` are several arguments on the command line, and
            a list separated by commas in a template.
        default: Value if the option is not given.
        label: A few words, the heading of its field in the Google Cloud console.
        help: What it does, in sentences.
        shown: The default as shown to people, if `default` does not say it.
        metavar: Placeholder of the value in help texts.
        regex: POSIX extended regular expression for the values of a template.
        choices: All values of a `choice`.
        least: Smallest value of an `integer`.
        required: Whether it must be given. On the command line it is then an argument
            without a name.
    """

    name: str
    kind: Kind
    default: Any
    label: str
    help: str
    shown: str | None = None
    metavar: str | None = None
    regex: str | None = None
    choices: tuple[str, ...] = ()
    least: int | None = None
    required: bool = False

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return "--" + self.name.replace("_", "-")


def _option(kind: Kind, label: str, help: str, default: Any = None, **more: Any) -> Any:
    about = {"kind": kind, "label": label, "help": help, **more}
    return dataclasses.field(default=default, metadata=about)


def _required(kind: Kind, label: str, help: str, **more: Any) -> Any:
    return _option(kind, label, help, dataclasses.MISSING, required=True, **more)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """Options of `gristmill convert` and of the template `convert`."""

    input: tuple[str, ...] = _required(
        "paths",
        "Input files",
        "TFRecord files, glob patterns, or a directory of such files; a TFDS directory "
        "keeps its splits.",
        regex=_GS_PATHS,
    )
    output: str = _required(
        "text",
        "Output directory",
        "Directory of the dataset.",
        regex=_GS_PATH,
    )
    name: str | None = _option(
        "text",
        "Dataset name",
        "Dataset name, the first part of every shard's file name.",
        shown="last part of the output path",
        regex=NAME_PATTERN,
    )
    split: str | None = _option(
        "text",
        "Split",
        "Split to write. Other splits in the output are kept. Input files of several "
        "splits are joined only into one with another name than theirs.",
        shown="train",
        regex=SPLIT_PATTERN,
    )
    match_shards: bool = _option(
        "flag", "One shard per file", "Write one shard for each input file.", False
    )
    num_shards: int | None = _option(
        "integer",
        "Number of shards",
        "Number of shards. Each takes about the same number of input bytes.",
        metavar="N",
        regex=_POSITIVE,
        least=1,
    )
    shard_size: str | None = _option(
        "text",
        "Input per shard",
        "Input bytes per shard, such as 1GiB.",
        shown="256MiB",
        metavar="SIZE",
        regex=_SIZE,
    )
    records_per_shard: int | None = _option(
        "integer",
        "Records per shard",
        "Records per shard. Counts all records first.",
        metavar="N",
        regex=_POSITIVE,
        least=1,
    )
    group_size: int = _option(
        "integer",
        "Records per chunk",
        "Records per chunk: 1 for fast random reads, 16 or more for smaller files.",
        default=DEFAULT_GROUP_SIZE,
        metavar="N",
        regex=_POSITIVE,
    )
    compression: str = _option(
        "text",
        "Compression",
        "Compression of chunks: zstd:LEVEL, brotli:LEVEL, snappy or uncompressed.",
        default=DEFAULT_COMPRESSION,
        metavar="TEXT",
        regex=COMPRESSION_PATTERN,
    )
    writer: Writer = _option(  # noqa: RUF009 (a field, as the others)
        "choice",
        "Writer of shards",
        "Who encodes the shards: the writer of array_record, or the faster one of "
        "gristmill, whose files every reader of ArrayRecord reads.",
        default=DEFAULT_WRITER,
        choices=get_args(Writer),
    )
    map: str | None = _option(
        "text",
        "Function on records",
        "Function to call on every record. Takes bytes; returns bytes, a list of "
        "bytes, or None to drop the record.",
        metavar="MODULE:FUNCTION",
        regex="[^: ]+:[^ ]+",
    )
    on_corrupt: OnCorrupt = _option(  # noqa: RUF009 (a field, as the others)
        "choice",
        "Damaged input",
        "What to do with damaged input: fail, or move on and copy it to quarantine/.",
        default="fail",
        choices=get_args(OnCorrupt),
    )
    max_corrupt: int = _option(
        "integer",
        "Most damaged regions",
        "Fail if more regions than this are damaged.",
        default=100,
        metavar="N",
        regex="[0-9]+",
        least=0,
    )
    check: Check = _option(  # noqa: RUF009 (a field, as the others)
        "choice",
        "Check of finished shards",
        "How to check a finished shard before it is committed: read all records again "
        "and compare their checksums, or compare its length and a sample, which is "
        "cheaper.",
        default="records",
        choices=get_args(Check),
    )
    overwrite: bool = _option(
        "flag",
        "Overwrite",
        "Replace the split. The old one stays until the new one is finished. Never "
        "deletes inputs, shards of other splits, or files that were indexed.",
        default=False,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """Options of `gristmill verify` and of the template `verify`."""

    dataset: str = _required(
        "text", "Dataset", "Directory of a committed dataset.", regex=_GS_PATH
    )
    quick: bool = _option(
        "flag",
        "Metadata only",
        "Check metadata, names and sizes only, in a bucket also the checksums of "
        "shards; read no shard and no index.",
        default=False,
    )
    report: str | None = _option(
        "text",
        "Report",
        "Also write the result to this file, as JSON.",
        metavar="FILE",
        regex=_GS_PATH,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """Options of `gristmill index` and of the template `index`."""

    files: tuple[str, ...] = _required(
        "paths",
        "ArrayRecord files",
        "ArrayRecord files or glob patterns, all in one directory, or that directory.",
        regex=_GS_PATHS,
    )
    name: str | None = _option(
        "text",
        "Dataset name",
        "Dataset name.",
        shown="from the file names",
        regex=NAME_PATTERN,
    )
    split: str | None = _option(
        "text",
        "Split",
        "Put all files into this split.",
        shown="from the file names",
        regex=SPLIT_PATTERN,
    )
    overwrite: bool = _option(
        "flag", "Overwrite", "Index existing splits again.", False
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Where a pipeline runs: options of the commands `convert`, `verify` and `index`.

    The runner's own options are Beam's.
    """

    runner: str | None = _option(
        "text",
        "Beam runner",
        "Run on this Beam runner, such as DataflowRunner, instead of local processes. "
        "Beam's options can follow, or stand after --.",
    )
    wait: bool = _option(
        "flag", "Wait", "Wait until the Dataflow job has finished.", False
    )
    cross_region: bool = _option(
        "flag",
        "Other regions",
        "Allow buckets outside the region of the Dataflow workers. Google charges for "
        "traffic between regions.",
        default=False,
    )

    @property
    def on_dataflow(self) -> bool:
        """Whether the runner submits jobs to Dataflow."""
        name = (self.runner or "").rpartition(".")[2].lower()
        return name.removeprefix("test") in ("dataflow", "dataflowrunner")


Options = ConvertOptions | VerifyOptions | IndexOptions

PIPELINES: dict[str, type[Options]] = {
    "convert": ConvertOptions,
    "index": IndexOptions,
    "verify": VerifyOptions,
}


def options_of(kind: type[Options | LaunchOptions]) -> tuple[Option, ...]:
    """Returns the descriptions of all options of a class, in order."""
    return tuple(
        Option(
            name=field.name,
            default=None if field.default is dataclasses.MISSING else field.default,
            **field.metadata,
        )
        for field in dataclasses.fields(kind)
    )


def template_options(pipeline: str) -> tuple[Option, ...]:
    """Returns the parameters of a template."""
    launch = [o for o in options_of(LaunchOptions) if o.name == "cross_region"]
    return (*options_of(PIPELINES[pipeline]), *launch)
