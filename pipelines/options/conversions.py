"""Options of conversions, `gristmill convert` and `append`, and commands with them."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Sequence
from typing import get_args

from gristmill.dataset.arrayrecord.writer_options import (
    COMPRESSION_PATTERN,
    DEFAULT_COMPRESSION,
    DEFAULT_GROUP_SIZE,
)
from gristmill.dataset.base.errors import OnCorrupt
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.kinds import NAME_PATTERN, SPLIT_PATTERN
from gristmill.pipelines.options.option import (
    GS_PATH,
    GS_PATHS,
    POSITIVE,
    SIZE,
    like,
    option,
    options_of,
    required,
)
from gristmill.transforms.sources.formats import FORMATS, Nulls


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """Options of `gristmill convert` and of the template `convert`."""

    input: tuple[str, ...] = required(
        "paths",
        "Input files",
        "Input files, glob patterns, or a directory of such files; a dataset of "
        "gristmill, a TFDS directory or a Hugging Face repository keeps its splits.",
        regex=GS_PATHS,
        group="Source",
        example="gs://raw/c4/*.tfrecord",
        param_type="GCS_READ_FILE",
    )
    input_format: str = option(
        "choice",
        "Format of the input",
        "Format of the input files; auto recognises them by their first bytes.",
        default="auto",
        choices=("auto", *FORMATS),
        group="Source",
        example="tfrecord",
    )
    columns: str | None = option(
        "text",
        "Columns",
        "Columns to take, separated by commas; for WebDataset, members by extension. "
        "For JSON lines and CSV, a:float gives the type of a, and * means all others.",
        shown="all",
        metavar="NAME,...",
        regex="[^,]+(,[^,]+)*",
        group="Source",
        example="text,url",
    )
    record: str | None = option(
        "text",
        "Record",
        "What a record is, in a format with columns: example, a tf.train.Example of "
        "them; column:NAME, the bytes of one column; line, the line as it is.",
        shown="the usual one of the format",
        metavar="KIND",
        regex="example|line|column:.+",
        group="Source",
        example="column:text",
    )
    nulls: Nulls = option(
        "choice",
        "Rows with nulls",
        "What to do with a row of Parquet or JSON lines whose document, or another "
        "selected column, is null: fail if it cannot become a record, or skip the "
        "row.",
        default="fail",
        choices=get_args(Nulls),
        group="Source",
        example="skip",
    )
    select: str | None = option(
        "text",
        "Condition",
        "Take only the records of a dataset whose columns fulfil this condition, such "
        "as: score > 0.5 and language in ('de', 'fr').",
        shown="all records",
        metavar="CONDITION",
        regex=".*[^ ].*",
        group="Source",
        example="score > 0.5",
    )
    map: str | None = option(
        "text",
        "Function on records",
        "Function to call on every record. Takes bytes; returns bytes, a list of "
        "bytes, or None to drop the record.",
        shown="none",
        metavar="MODULE:FUNCTION",
        regex="[^: ]+:[^ ]+",
        group="Source",
        example="my_package.texts:cleaned",
    )
    output: str = required(
        "text",
        "Output directory",
        "Directory of the dataset.",
        regex=GS_PATH,
        group="Target",
        example="gs://data/c4",
        param_type="GCS_WRITE_FOLDER",
    )
    name: str | None = option(
        "text",
        "Dataset name",
        "Dataset name, the first part of every shard's file name.",
        shown="that of a dataset as input, or the last part of the output path",
        metavar="NAME",
        regex=NAME_PATTERN,
        group="Target",
        example="c4",
    )
    split: str | None = option(
        "text",
        "Split",
        "Split to write. Other splits in the output are kept. To join input files of "
        "several splits, give a name that none of them has.",
        shown="train",
        metavar="NAME",
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
        "Number of shards. Each gets about the same number of input bytes.",
        shown="as --shard-size says",
        regex=POSITIVE,
        least=1,
        group="Shards",
        example="1024",
    )
    shard_size: str | None = option(
        "text",
        "Input per shard",
        "Bytes of input per shard, such as 1GiB. Compressed files count as they are "
        "stored.",
        shown="256MiB",
        metavar="SIZE",
        regex=SIZE,
        group="Shards",
        example="1GiB",
    )
    group_size: int | None = option(
        "integer",
        "Records per chunk",
        "Records per chunk: 1 for fast random reads, 16 or more for smaller files.",
        default=DEFAULT_GROUP_SIZE,
        regex=POSITIVE,
        group="Encoding",
        example="16",
    )
    compression: str | None = option(
        "text",
        "Compression",
        "Compression of chunks: zstd:LEVEL, brotli:LEVEL, snappy or uncompressed.",
        default=DEFAULT_COMPRESSION,
        metavar="CODEC",
        regex=COMPRESSION_PATTERN,
        group="Encoding",
        example="zstd:9",
    )
    on_corrupt: OnCorrupt = option(
        "choice",
        "Damaged input",
        "What to do with damaged input: fail, or skip it, with a line in errors/ of "
        "the output that names it.",
        default="fail",
        choices=get_args(OnCorrupt),
        group="Damaged input",
        example="skip",
    )
    max_corrupt: int = option(
        "integer",
        "Maximum number of damaged regions",
        "Maximum number of damaged regions that --on-corrupt skip leaves out of a "
        "split; with more, the conversion fails.",
        default=100,
        regex="[0-9]+",
        least=0,
        group="Damaged input",
        example="10",
    )
    whole_files: bool = option(
        "flag",
        "Whole files",
        "Read each file from its start, by one worker. For TFRecord files whose "
        "records hold frames of TFRecord themselves.",
        default=False,
        group="Damaged input",
        example="true",
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
    keep_replaced: bool | None = option(
        "flag",
        "Keep what is replaced",
        "With --overwrite: keep the replaced split as an edition to go back to, until "
        "gristmill clean.",
        default=False,
        group="Target",
        example="true",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AppendOptions(ConvertOptions):
    """Options of `gristmill append`.

    They are those of a conversion; what the dataset says already is not asked for.
    """

    output: str = like(
        ConvertOptions,
        "output",
        label="Dataset",
        help="Directory of the dataset to append to.",
        first=True,
        metavar="DATASET",
    )
    name: None = None  # The dataset has one.
    split: str | None = like(
        ConvertOptions,
        "split",
        help="Split to append to. Required if there are several.",
        shown="the only one",
    )
    group_size: int | None = like(
        ConvertOptions, "group_size", default=None, shown="as in the first edition"
    )
    compression: str | None = like(
        ConvertOptions, "compression", default=None, shown="as in the first edition"
    )
    overwrite: bool = like(
        ConvertOptions,
        "overwrite",
        help="Make finished shards of this append again if their inputs have other "
        "records now. Never deletes anything that is committed.",
    )
    keep_replaced: None = None  # Nothing is replaced.


def command_of(options: ConvertOptions, *, workers: int | None = None) -> str:
    """Returns the command of a conversion, for a shell.

    Args:
        options: The conversion.
        workers: Processes on this machine; None for the default.
    """
    words = ["gristmill", "convert", *options.input, options.output]
    always = ("compression", "group_size")
    for each in options_of(ConvertOptions):
        value = getattr(options, each.name)
        if each.required or (value == each.default and each.name not in always):
            continue
        words += [each.flag] if value is True else [each.flag, str(value)]
    words += [] if workers is None else ["--workers", str(workers)]
    return shlex.join(words)


def default_output(inputs: Sequence[str]) -> str:
    """Returns a directory for the output of inputs: in the same bucket, or here.

    It is named after the directory of the inputs.

    >>> default_output(["gs://raw/c4/*.tfrecord"])
    'gs://raw/c4-arrayrecord'
    >>> default_output(["/data/pile/train"]), default_output(["a.csv", "b.csv"])
    ('train-arrayrecord', 'a-arrayrecord')
    """
    remote = inputs[0].startswith("gs://")
    rest = inputs[0].removeprefix("gs://")
    parts = [part for part in rest.split("/") if part] or ["dataset"]
    # A pattern, or the name of a file.
    while len(parts) > 1 and re.search(r"[*?\[]|\.[A-Za-z]", parts[-1]):
        parts.pop()
    stem = re.split(r"[*?\[]|\.[A-Za-z]", parts[-1])[0]
    if stem in ("", ".", "..") and not remote:
        stem = layout.base_name(stem or ".")
    words = filter(None, re.split(r"[^A-Za-z0-9_]+", stem))
    name = "-".join([*words] or ["dataset"]) + "-arrayrecord"
    if not remote:
        return name
    return "/".join(["gs:/", *(parts[:-1] or parts), name])
