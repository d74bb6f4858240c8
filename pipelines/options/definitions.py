"""Every option of every pipeline, described once.

The command line, the metadata of the Dataflow templates and the tables in docs/cli.md
are built from these descriptions. Nothing heavy is imported here: the command line
starts with this module.
"""

from __future__ import annotations

import dataclasses
from typing import get_args

from gristmill.dataset.arrayrecord.writer_options import (
    COMPRESSION_PATTERN,
    DEFAULT_COMPRESSION,
    DEFAULT_GROUP_SIZE,
    Check,
    Writer,
)
from gristmill.dataset.errors import OnCorrupt
from gristmill.dataset.metadata.layout import NAME_PATTERN, SPLIT_PATTERN
from gristmill.pipelines.options.option import Option, option, required
from gristmill.transforms.sources.formats import FILE_FORMATS
from gristmill.transforms.tokens.pack_options import Method, Rows

# POSIX extended regular expressions, as Dataflow checks the parameters of templates.
# They must match the whole value. Python's `re` reads them alike.
_GS_PATH = "gs://[^,]+"
_GS_PATHS = f"{_GS_PATH}(,{_GS_PATH})*"
_POSITIVE = "0*[1-9][0-9]*"
_SIZE = "[0-9]+([.][0-9]+)? *([kKmMgGtTpP]?[bB]|[kKmMgGtTpP][iI][bB])?"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """Options of `gristmill convert` and of the template `convert`."""

    input: tuple[str, ...] = required(
        "paths",
        "Input files",
        "Input files, glob patterns, or a directory of such files; a dataset of "
        "gristmill, a TFDS directory or a Hugging Face repository keeps its splits.",
        regex=_GS_PATHS,
        group="Source",
        example="gs://raw/c4/*.tfrecord",
        param_type="GCS_READ_FILE",
    )
    input_format: str = option(
        "choice",
        "Format of the input",
        "Format of the input files; auto recognises them by their first bytes.",
        default="auto",
        choices=("auto", *FILE_FORMATS),
        group="Source",
        example="tfrecord",
    )
    columns: str | None = option(
        "text",
        "Columns",
        "Columns to take, separated by commas; of WebDataset, members by extension. Of "
        "JSON lines and CSV, a:float gives the type of a, and * stands for all others.",
        shown="all",
        metavar="A,B",
        regex="[^,]+(,[^,]+)*",
        group="Source",
        example="text,url",
    )
    record: str | None = option(
        "text",
        "Record",
        "What a record is, of a format that has columns: example, a tf.train.Example "
        "of them; column:NAME, the bytes of one; line, a line as it is.",
        shown="what is usual for the format",
        metavar="KIND",
        regex="example|line|column:.+",
        group="Source",
        example="column:text",
    )
    map: str | None = option(
        "text",
        "Function on records",
        "Function to call on every record. Takes bytes; returns bytes, a list of "
        "bytes, or None to drop the record.",
        metavar="MODULE:FUNCTION",
        regex="[^: ]+:[^ ]+",
        group="Source",
        example="my_package.texts:cleaned",
    )
    output: str = required(
        "text",
        "Output directory",
        "Directory of the dataset.",
        regex=_GS_PATH,
        group="Target",
        example="gs://data/c4",
        param_type="GCS_WRITE_FOLDER",
    )
    name: str | None = option(
        "text",
        "Dataset name",
        "Dataset name, the first part of every shard's file name.",
        shown="last part of the output path",
        regex=NAME_PATTERN,
        group="Target",
        example="c4",
    )
    split: str | None = option(
        "text",
        "Split",
        "Split to write. Other splits in the output are kept. Input files of several "
        "splits are joined only into one with another name than theirs.",
        shown="train",
        regex=SPLIT_PATTERN,
        group="Target",
        example="validation",
    )
    match_shards: bool = option(
        "flag",
        "One shard per file",
        "Write one shard for each input file.",
        False,
        group="Shards",
        example="true",
    )
    num_shards: int | None = option(
        "integer",
        "Number of shards",
        "Number of shards. Each takes about the same number of input bytes.",
        metavar="N",
        regex=_POSITIVE,
        least=1,
        group="Shards",
        example="1024",
    )
    shard_size: str | None = option(
        "text",
        "Input per shard",
        "Input bytes per shard, such as 1GiB. Compressed files count as they are "
        "stored.",
        shown="256MiB",
        metavar="SIZE",
        regex=_SIZE,
        group="Shards",
        example="1GiB",
    )
    records_per_shard: int | None = option(
        "integer",
        "Records per shard",
        "Records per shard. Counts all records first.",
        metavar="N",
        regex=_POSITIVE,
        least=1,
        group="Shards",
        example="100000",
    )
    group_size: int | None = option(
        "integer",
        "Records per chunk",
        "Records per chunk: 1 for fast random reads, 16 or more for smaller files.",
        default=DEFAULT_GROUP_SIZE,
        metavar="N",
        regex=_POSITIVE,
        group="Encoding",
        example="16",
    )
    compression: str | None = option(
        "text",
        "Compression",
        "Compression of chunks: zstd:LEVEL, brotli:LEVEL, snappy or uncompressed.",
        default=DEFAULT_COMPRESSION,
        metavar="TEXT",
        regex=COMPRESSION_PATTERN,
        group="Encoding",
        example="zstd:9",
    )
    writer: Writer | None = option(  # noqa: RUF009 (a field, as the others)
        "choice",
        "Writer of shards",
        "Who encodes the shards: gristmill, or the slower official writer of "
        "array_record. Every reader of ArrayRecord reads the files of both.",
        shown="gristmill, or that of the job that is continued",
        choices=get_args(Writer),
        group="Encoding",
        example="official",
    )
    check: Check = option(  # noqa: RUF009 (a field, as the others)
        "choice",
        "Check of finished shards",
        "How to check a finished shard before it is committed: read all records again "
        "and compare their checksums, or compare its length and a sample, which is "
        "cheaper.",
        default="records",
        choices=get_args(Check),
        group="Encoding",
        example="sample",
    )
    on_corrupt: OnCorrupt = option(  # noqa: RUF009 (a field, as the others)
        "choice",
        "Damaged input",
        "What to do with damaged input: fail, or move on and copy it to quarantine/.",
        default="fail",
        choices=get_args(OnCorrupt),
        group="Damaged input",
        example="quarantine",
    )
    max_corrupt: int = option(
        "integer",
        "Most damaged regions",
        "Fail if more regions than this are damaged.",
        default=100,
        metavar="N",
        regex="[0-9]+",
        least=0,
        group="Damaged input",
        example="10",
    )
    overwrite: bool = option(
        "flag",
        "Overwrite",
        "Replace the split. The old one stays until the new one is finished. Never "
        "deletes inputs, shards of other splits, or files that were indexed.",
        default=False,
        group="Target",
        example="true",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AppendOptions(ConvertOptions):
    """Options of `gristmill append`.

    They are those of a conversion; what the dataset says already is not asked for.
    """

    output: str = required(
        "text",
        "Dataset",
        "Directory of the dataset to append to.",
        first=True,
        metavar="DATASET",
        regex=_GS_PATH,
        group="Target",
        example="gs://data/c4",
        param_type="GCS_WRITE_FOLDER",
    )
    name: None = None  # The dataset has one.
    split: str | None = option(
        "text",
        "Split",
        "Split to append to. Required if there are several.",
        shown="the only one",
        regex=SPLIT_PATTERN,
        group="Target",
        example="validation",
    )
    group_size: int | None = option(
        "integer",
        "Records per chunk",
        "Records per chunk: 1 for fast random reads, 16 or more for smaller files.",
        shown="as in the first edition",
        metavar="N",
        regex=_POSITIVE,
        group="Encoding",
        example="16",
    )
    compression: str | None = option(
        "text",
        "Compression",
        "Compression of chunks: zstd:LEVEL, brotli:LEVEL, snappy or uncompressed.",
        shown="as in the first edition",
        metavar="TEXT",
        regex=COMPRESSION_PATTERN,
        group="Encoding",
        example="zstd:9",
    )
    overwrite: bool = option(
        "flag",
        "Overwrite",
        "Delete what an append of other inputs or options has left that was not "
        "finished. Never deletes anything that is committed.",
        default=False,
        group="Target",
        example="true",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackingOptions(ConvertOptions):
    """Options of `gristmill pack`: those of a conversion, and what rows to make."""

    tokenizer: str | None = option(
        "text",
        "Tokenizer",
        "A tokenizer.json of Hugging Face, a SentencePiece model, a tiktoken file, or "
        "module:function. Without one the column holds tokens.",
        metavar="FILE",
        regex="[^,]+",
        group="Tokens",
        example="gs://models/llama3/tokenizer.json",
    )
    column: str = option(
        "text",
        "Column",
        "Column, or feature of a tf.train.Example, that holds the text or the tokens; "
        "- if the record itself is the text.",
        default="text",
        metavar="NAME",
        regex=".+",
        group="Tokens",
        example="body",
    )
    vocabulary_size: int | None = option(
        "integer",
        "Size of the vocabulary",
        "Of a column of tokens: ids are below it. Up to 65,536 they take 2 bytes each.",
        shown="any id of 32 bits",
        metavar="N",
        regex=_POSITIVE,
        least=1,
        group="Tokens",
        example="50257",
    )
    length: int = option(
        "integer",
        "Tokens per row",
        "Tokens of a row, at most.",
        default=2048,
        metavar="N",
        regex=_POSITIVE,
        least=2,
        group="Tokens",
        example="4096",
        tells=True,
    )
    pack: Method = option(  # noqa: RUF009 (a field, as the others)
        "choice",
        "Packing",
        "How documents fill rows: best-fit cuts only documents longer than a row; "
        "concat cuts wherever a row ends; none puts one document into a row.",
        default="best-fit",
        choices=get_args(Method),
        group="Tokens",
        example="concat",
    )
    truncate: bool = option(
        "flag",
        "Truncate",
        "Leave out what of a document does not fit one row.",
        default=False,
        group="Tokens",
        example="true",
    )
    bos: str | None = option(
        "text",
        "First token",
        "Token to add before every document, as text or id.",
        shown="none",
        metavar="TOKEN",
        regex=".+",
        group="Tokens",
        example="<s>",
    )
    eos: str | None = option(
        "text",
        "Last token",
        "Token to add after every document, as text or id.",
        shown="none",
        metavar="TOKEN",
        regex=".+",
        group="Tokens",
        example="</s>",
    )
    add_special_tokens: bool = option(
        "flag",
        "Special tokens",
        "Let the tokenizer add the special tokens that it is configured to add.",
        default=False,
        group="Tokens",
        example="true",
    )
    fast: bool = option(
        "flag",
        "Fast tokenizer",
        "Tokenise with gigatoken, compared on a sample with the tokenizer's own "
        "library. Where they differ, only the latter is used.",
        default=False,
        group="Tokens",
        example="true",
    )
    rows: Rows = option(  # noqa: RUF009 (a field, as the others)
        "choice",
        "Form of a row",
        "What a row is: packed, for gristmill.loader.PackedRows, or a tf.train.Example "
        "with inputs, positions and segments.",
        default="packed",
        choices=get_args(Rows),
        group="Tokens",
        example="example",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RepackOptions(PackingOptions):
    """Options of `gristmill repack`: what is known of the tokens is not asked for."""

    input: str = required(  # type: ignore[assignment]
        "text",
        "Dataset",
        "Directory of a dataset that `gristmill pack` made.",
        metavar="DATASET",
        regex=_GS_PATH,
        group="Source",
        example="gs://data/c4-2048",
        param_type="GCS_READ_FOLDER",
    )
    input_format: str = "packed"
    columns: None = None
    record: None = None
    map: None = None
    split: str | None = option(
        "text",
        "Split",
        "Split to pack again. Other splits in the output are kept.",
        shown="all",
        regex=SPLIT_PATTERN,
        group="Target",
        example="validation",
    )
    match_shards: bool = False
    num_shards: int | None = option(
        "integer",
        "Number of shards",
        "Number of shards, at most as many as DATASET has: whole ones are joined.",
        shown="as many as DATASET has",
        metavar="N",
        regex=_POSITIVE,
        least=1,
        group="Shards",
        example="16",
    )
    shard_size: None = None
    records_per_shard: None = None
    length: int | None = option(  # type: ignore[assignment]
        "integer",
        "Tokens per row",
        "Tokens of a row, at most.",
        shown="as in DATASET",
        metavar="N",
        regex=_POSITIVE,
        least=2,
        group="Tokens",
        example="4096",
    )
    tokenizer: None = None
    column: str = ""
    bos: None = None
    eos: None = None
    add_special_tokens: bool = False
    fast: bool = False
    vocabulary_size: None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """Options of `gristmill verify` and of the template `verify`."""

    dataset: str = required(
        "text",
        "Dataset",
        "Directory of a committed dataset.",
        regex=_GS_PATH,
        group="Source",
        example="gs://data/c4",
        param_type="GCS_READ_FOLDER",
    )
    quick: bool = option(
        "flag",
        "Metadata only",
        "Check metadata, names and sizes only, in a bucket also the checksums of "
        "shards; read no shard and no index.",
        default=False,
        group="Source",
        example="true",
    )
    report: str | None = option(
        "text",
        "Report",
        "Also write the result to this file, as JSON.",
        metavar="FILE",
        regex=_GS_PATH,
        group="Target",
        example="gs://data/c4-verified.json",
        param_type="GCS_WRITE_FILE",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """Options of `gristmill index` and of the template `index`."""

    files: tuple[str, ...] = required(
        "paths",
        "ArrayRecord files",
        "ArrayRecord files or glob patterns, all in one directory, or that directory.",
        regex=_GS_PATHS,
        group="Source",
        example="gs://data/old/*.array_record",
        param_type="GCS_READ_FILE",
    )
    name: str | None = option(
        "text",
        "Dataset name",
        "Dataset name.",
        shown="from the file names",
        regex=NAME_PATTERN,
        group="Target",
        example="old",
    )
    split: str | None = option(
        "text",
        "Split",
        "Put all files into this split.",
        shown="from the file names",
        regex=SPLIT_PATTERN,
        group="Target",
        example="train",
    )
    overwrite: bool = option(
        "flag",
        "Overwrite",
        "Index existing splits again.",
        False,
        group="Target",
        example="true",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Where a pipeline runs: options of `append`, `convert`, `verify` and `index`.

    The runner's own options are Beam's.
    """

    runner: str | None = option(
        "text",
        "Beam runner",
        "Run on this Beam runner, such as DataflowRunner, instead of local processes. "
        "Beam's options can follow, or stand after --.",
    )
    wait: bool = option(
        "flag", "Wait", "Wait until the Dataflow job has finished.", False
    )
    cross_region: bool = option(
        "flag",
        "Other regions",
        "Allow buckets outside the region of the Dataflow workers. Google charges for "
        "traffic between regions.",
        default=False,
        group="Location",
        example="true",
    )

    @property
    def on_dataflow(self) -> bool:
        """Whether the runner submits jobs to Dataflow."""
        name = (self.runner or "").rpartition(".")[2].lower()
        return name.removeprefix("test") in ("dataflow", "dataflowrunner")


Options = ConvertOptions | VerifyOptions | IndexOptions

# Those that have a template, which is found by the parameters that it asks for. An
# append has those of a conversion, and other rows those of packing.
PIPELINES: dict[str, type[Options]] = {
    "convert": ConvertOptions,
    "index": IndexOptions,
    "pack": PackingOptions,
    "verify": VerifyOptions,
}


COMMANDS: dict[str, type[Options]] = {
    "append": AppendOptions,
    "repack": RepackOptions,
    **PIPELINES,
}


def options_of(kind: type[Options | LaunchOptions]) -> tuple[Option, ...]:
    """Returns the descriptions of all options of a class, in order."""
    options = (
        Option(
            name=field.name,
            default=None if field.default is dataclasses.MISSING else field.default,
            **field.metadata,
        )
        for field in dataclasses.fields(kind)
        if field.metadata
    )
    return tuple(sorted(options, key=lambda option: not option.first))


def template_options(pipeline: str) -> tuple[Option, ...]:
    """Returns the parameters of a template."""
    launch = [o for o in options_of(LaunchOptions) if o.name == "cross_region"]
    return (*options_of(PIPELINES[pipeline]), *launch)
