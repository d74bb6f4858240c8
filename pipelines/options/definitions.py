"""Every option of every pipeline, described once.

The command line is built from these descriptions, the metadata of the Dataflow
templates too, and the tables of the documentation are compared with them by a test.
Nothing heavy is imported here: the command line starts with this module.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

from gristmill.dataset.arrayrecord.writer_options import (
    COMPRESSION_PATTERN,
    DEFAULT_COMPRESSION,
    DEFAULT_GROUP_SIZE,
    Check,
)
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
    """What there is to know of one option.

    Attributes:
        name: As a field, and as the parameter of a template.
        kind: What its value is. `paths` are several arguments on the command line,
            separated by commas in a template.
        default: Its value where it is not given.
        label: A few words, the heading of its field in the console.
        help: What it does, in sentences.
        shown: The default as people should read it, if `default` does not say it.
        metavar: What stands for the value in help texts.
        regex: A POSIX extended regular expression for the values of a template.
        choices: All values of a `choice`.
        least: The least value of an `integer`.
        required: Whether it must be given: on the command line it has no name then,
            only a place.
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


def _option(kind: Kind, default: Any, label: str, help: str, **more: Any) -> Any:
    about = {"kind": kind, "label": label, "help": help, **more}
    return dataclasses.field(default=default, metadata=about)


def _required(kind: Kind, label: str, help: str, **more: Any) -> Any:
    about = {"kind": kind, "label": label, "help": help, "required": True, **more}
    return dataclasses.field(metadata=about)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """What `gristmill convert` and the template `convert` take."""

    input: tuple[str, ...] = _required(
        "paths",
        "Input files",
        "TFRecord files, glob patterns, or one TFDS directory.",
        regex=_GS_PATHS,
    )
    output: str = _required(
        "text",
        "Output directory",
        "The dataset's directory.",
        regex=_GS_PATH,
    )
    name: str | None = _option(
        "text",
        None,
        "Dataset name",
        "Dataset name, the first part of the shards' names.",
        shown="the output's last part",
        regex=NAME_PATTERN,
    )
    split: str | None = _option(
        "text",
        None,
        "Split",
        "Split to write; others in the output stay.",
        shown="train",
        regex=SPLIT_PATTERN,
    )
    match_shards: bool = _option(
        "flag", False, "One shard per file", "One shard for each input file."
    )
    num_shards: int | None = _option(
        "integer",
        None,
        "Number of shards",
        "Number of shards, of about equal input.",
        metavar="N",
        regex=_POSITIVE,
        least=1,
    )
    shard_size: str | None = _option(
        "text",
        None,
        "Input per shard",
        "Input for each shard, such as 1GiB.",
        shown="256MiB",
        metavar="SIZE",
        regex=_SIZE,
    )
    records_per_shard: int | None = _option(
        "integer",
        None,
        "Records per shard",
        "Records in each shard; counts all records first.",
        metavar="N",
        regex=_POSITIVE,
        least=1,
    )
    group_size: int = _option(
        "integer",
        DEFAULT_GROUP_SIZE,
        "Records per chunk",
        "Records in a chunk: 1 for random reads, 16 and more for size.",
        metavar="N",
        regex=_POSITIVE,
    )
    compression: str = _option(
        "text",
        DEFAULT_COMPRESSION,
        "Compression",
        "zstd:LEVEL, brotli:LEVEL, snappy or uncompressed.",
        metavar="TEXT",
        regex=COMPRESSION_PATTERN,
    )
    map: str | None = _option(
        "text",
        None,
        "Function on records",
        "Call it on every record: bytes to bytes, None or a list of bytes.",
        metavar="MODULE:FUNCTION",
        regex="[^: ]+:[^ ]+",
    )
    on_corrupt: Literal["fail", "quarantine"] = _option(
        "choice",
        "fail",
        "Damaged input",
        "Damaged input: stop, or set it aside and keep all other records.",
        choices=("fail", "quarantine"),
    )
    max_corrupt: int = _option(
        "integer",
        100,
        "Most damaged regions",
        "Most damaged regions to set aside.",
        metavar="N",
        regex="[0-9]+",
        least=0,
    )
    check: Check = _option(  # noqa: RUF009 (a field, as the others)
        "choice",
        "records",
        "Check of shards",
        "What of a finished shard is read again and compared before it counts: the "
        "checksum of every record, or its length and the checksums of a sample, which "
        "is cheaper.",
        choices=get_args(Check),
    )
    overwrite: bool = _option(
        "flag",
        False,
        "Overwrite",
        "Replace what the output holds of the split: every file with the name of one "
        "of its shards, but no input, no shard of another split, and none of a split "
        "that was indexed.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """What `gristmill verify` and the template `verify` take."""

    dataset: str = _required(
        "text", "Dataset", "The directory of a committed dataset.", regex=_GS_PATH
    )
    quick: bool = _option(
        "flag", False, "Metadata only", "Metadata, presence and sizes only."
    )
    report: str | None = _option(
        "text",
        None,
        "Report",
        "Also write what was found to this file, as JSON.",
        metavar="FILE",
        regex=_GS_PATH,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """What `gristmill index` and the template `index` take."""

    files: tuple[str, ...] = _required(
        "paths",
        "ArrayRecord files",
        "ArrayRecord files or glob patterns, all in one directory.",
        regex=_GS_PATHS,
    )
    name: str | None = _option(
        "text",
        None,
        "Dataset name",
        "Dataset name.",
        shown="from the file names",
        regex=NAME_PATTERN,
    )
    split: str | None = _option(
        "text",
        None,
        "Split",
        "One split for all files.",
        shown="from their names",
        regex=SPLIT_PATTERN,
    )
    overwrite: bool = _option(
        "flag", False, "Overwrite", "Index splits again that are there."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Where a pipeline runs: options of the commands `convert`, `verify` and `index`.

    Those of the runner itself are Beam's.
    """

    runner: str | None = _option(
        "text",
        None,
        "Beam runner",
        "A Beam runner instead of --workers, such as DataflowRunner; its options "
        "beside ours, or after --.",
    )
    wait: bool = _option(
        "flag", False, "Wait", "Wait until the job on Dataflow has ended."
    )
    cross_region: bool = _option(
        "flag",
        False,
        "Other regions",
        "Accept buckets outside of the region of Dataflow's workers: what is read and "
        "written is charged as traffic between regions.",
    )

    @property
    def on_dataflow(self) -> bool:
        """Whether the runner is one of those that submit to Dataflow."""
        name = (self.runner or "").rpartition(".")[2].lower()
        return name.removeprefix("test") in ("dataflow", "dataflowrunner")


Options = ConvertOptions | VerifyOptions | IndexOptions

PIPELINES: dict[str, type[Options]] = {
    "convert": ConvertOptions,
    "index": IndexOptions,
    "verify": VerifyOptions,
}


def options_of(kind: type[Options | LaunchOptions]) -> tuple[Option, ...]:
    """Returns the descriptions of all options of a pipeline, in their order."""
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
