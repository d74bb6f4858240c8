"""Options of verify, index and launching, and the options of each pipeline.

The command line, the metadata of the Dataflow templates and the tables in
docs/reference/cli.md are built from these descriptions. Nothing heavy is
imported here: the command line starts with this module.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from gristmill.pipelines.options.conversions import AppendOptions, ConvertOptions
from gristmill.pipelines.options.option import (
    GS_PATH,
    GS_PATHS,
    Option,
    like,
    option,
    options_of,
    required,
)
from gristmill.pipelines.options.packing import PackingOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """Options of `gristmill verify` and of the template `verify`."""

    dataset: str = required(
        "text",
        "Dataset",
        "Directory of a committed dataset.",
        regex=GS_PATH,
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
        shown="none",
        metavar="FILE",
        regex=GS_PATH,
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
        regex=GS_PATHS,
        group="Source",
        example="gs://data/old/*.array_record",
        param_type="GCS_READ_FILE",
    )
    name: str | None = like(
        ConvertOptions, "name", shown="from the file names", example="old"
    )
    split: str | None = like(
        ConvertOptions,
        "split",
        help="Put all files into this split.",
        shown="from the file names",
        example="train",
    )
    overwrite: bool = like(
        ConvertOptions,
        "overwrite",
        help="Index splits again that are already in dataset.json.",
    )
    keep_replaced: bool = like(ConvertOptions, "keep_replaced")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Where a pipeline runs: options of `append`, `convert`, `verify` and `index`.

    The runner's own options are Beam's.
    """

    runner: str | None = option(
        "text",
        "Beam runner",
        "Run on this Beam runner, such as DataflowRunner, instead of local processes. "
        "Beam's options can follow, or come after --.",
        shown="none",
        metavar="RUNNER",
    )
    wait: bool = option(
        "flag", "Wait", "On Dataflow: wait until the job has finished.", False
    )
    cross_region: bool = option(
        "flag",
        "Other regions",
        "On Dataflow: allow buckets outside the region of the workers. Google charges "
        "for traffic between regions.",
        default=False,
        group="Location",
        example="true",
    )
    install_on_workers: bool = option(
        "flag",
        "Install on workers",
        "On Dataflow: let workers without public addresses install the package when "
        "they start. Their network must reach a package index, such as through Cloud "
        "NAT.",
        default=False,
    )

    @property
    def on_dataflow(self) -> bool:
        """Whether the runner submits jobs to Dataflow."""
        name = (self.runner or "").rpartition(".")[2].lower()
        return name.removeprefix("test") in ("dataflow", "dataflowrunner")


def beam_runner(begin: str = "Run") -> Any:
    """Option: the Beam runner of a command that submits nothing to Dataflow.

    Args:
        begin: How its help text begins.
    """
    return like(
        LaunchOptions,
        "runner",
        help=f"{begin} on this Beam runner instead of local processes. Beam's options "
        "can follow, or come after --.",
    )


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
    **PIPELINES,
}


def template_options(pipeline: str) -> tuple[Option, ...]:
    """Returns the parameters of a template."""
    launch = [o for o in options_of(LaunchOptions) if o.name == "cross_region"]
    return (*options_of(PIPELINES[pipeline]), *launch)
