"""Replacements for the functions of `array_record.beam.pipelines`.

A script changes its import line and keeps the rest:

    from gristmill.pipelines import convert_tf_to_arrayrecord_disk_match_shards

Arguments and output names are those of array_record. In addition, `dataset.json` and
`index/` are written beside the outputs, so that readers can tell whether a conversion
is complete. Records keep their order, and none passes through a shuffle. Running the
same call again makes missing shards only; with other arguments it replaces the files of
the earlier run. Files that gristmill did not write are never replaced.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import posixpath
import re
from collections.abc import Callable, Mapping
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.paths import path_text
from gristmill.transforms.beam.job_transforms import ConvertFiles
from gristmill.transforms.jobs.conversion_job import ConversionJob, ShardNames
from gristmill.transforms.planning.shard_plan import PlanOptions

_SUFFIX = ".arrayrecord"


def convert_tf_to_arrayrecord_disk(
    num_shards: int = 1,
    args: Mapping[str, Any] | None = None,
    pipeline_options: PipelineOptions | None = None,
) -> beam.Pipeline:
    """Converts TFRecord files to a given number of ArrayRecord files.

    Args:
        num_shards: Number of outputs, `OUTPUT-00000-of-00004.arrayrecord` and so on. 0
            for one output per 256 MiB of input.
        args: `input`, the pattern of the TFRecord files, and `output`, the prefix of
            the outputs; by default from the command line, `--input` and `--output`.
        pipeline_options: Beam options; by default the others on the command line.

    Returns:
        A pipeline to `run()`.

    Raises:
        InputError: Input or output is missing.
    """
    if num_shards:
        plan = PlanOptions(kind="num_shards", value=num_shards)
    else:
        plan = PlanOptions()
    return _prefixed(plan, args, pipeline_options)


def convert_tf_to_arrayrecord_disk_match_shards(
    args: Mapping[str, Any] | None = None,
    pipeline_options: PipelineOptions | None = None,
) -> beam.Pipeline:
    """Converts TFRecord files to the same number of ArrayRecord files.

    Args:
        args: `input`, the pattern of the TFRecord files, and `output`, the prefix of
            the outputs; by default from the command line, `--input` and `--output`.
        pipeline_options: Beam options; by default the others on the command line.

    Returns:
        A pipeline to `run()`. Output i has the records of input i, sorted by name.

    Raises:
        InputError: Input or output is missing.
    """
    plan = PlanOptions(kind="match_shards", value=None)
    return _prefixed(plan, args, pipeline_options)


def convert_tf_to_arrayrecord_gcs(
    overwrite_extension: bool = False,
    file_path_suffix: str = _SUFFIX,
    args: Mapping[str, Any] | None = None,
    pipeline_options: PipelineOptions | None = None,
) -> beam.Pipeline:
    """Converts each TFRecord file to an ArrayRecord file of the same base name.

    Args:
        overwrite_extension: Whether to replace the input's extension with the suffix,
            instead of appending the suffix.
        file_path_suffix: Suffix of the output names.
        args: `input`, the pattern of the TFRecord files, and `output`, the directory of
            the outputs, such as gs://BUCKET/NAME or a local one; by default from the
            command line, `--input` and `--output`.
        pipeline_options: Beam options; by default the others on the command line.

    Returns:
        A pipeline to `run()`.

    Raises:
        InputError: Input or output is missing.
    """
    args, pipeline_options = _arguments(args, pipeline_options)
    output = args["output"].rstrip("/") or "/"
    # A directory can hold the files of several runs: the input distinguishes them.
    base = posixpath.basename(args["input"])
    job = ConversionJob(
        inputs=(args["input"],),
        output=output,
        name=_name_of(output),
        split=f"{_word(base)}_{_hash(args['input'])}",
        plan=PlanOptions(kind="match_shards", value=None),
        names=ShardNames(
            kind="inputs",
            suffix=file_path_suffix,
            strip_extension=overwrite_extension,
        ),
    )
    return _pipeline(pipeline_options, job)


def _prefixed(
    plan: PlanOptions,
    args: Mapping[str, Any] | None,
    pipeline_options: PipelineOptions | None,
) -> beam.Pipeline:
    args, pipeline_options = _arguments(args, pipeline_options)
    directory, prefix = posixpath.split(args["output"])
    job = ConversionJob(
        inputs=(args["input"],),
        output=directory or ".",
        name=_name_of(directory or "."),
        split=_valid(prefix, layout.check_split),
        plan=plan,
        names=ShardNames(kind="beam", prefix=prefix, suffix=_SUFFIX),
    )
    return _pipeline(pipeline_options, job)


def _name_of(output: str) -> str:
    return _valid(layout.base_name(output), layout.check_name)


def _pipeline(pipeline_options: PipelineOptions, job: ConversionJob) -> beam.Pipeline:
    # Beam writes files of 0 bytes for shards without records, and reads them.
    job = dataclasses.replace(job, allow_empty_files=True)
    pipeline = beam.Pipeline(options=pipeline_options)
    _ = pipeline | "Convert" >> ConvertFiles(jobs=(job,), overwrite="changed")
    return pipeline


def _arguments(
    args: Mapping[str, Any] | None, pipeline_options: PipelineOptions | None
) -> tuple[Mapping[str, str], PipelineOptions]:
    """Returns both, taken from the command line if not given."""
    if args is None or pipeline_options is None:
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--input")
        parser.add_argument("--output")
        given, others = parser.parse_known_args()
        args = vars(given) if args is None else args
        if pipeline_options is None:
            pipeline_options = PipelineOptions(others)
    found = {}
    for name in ("input", "output"):
        if args.get(name) is None:
            raise InputError(
                f"no {name} given",
                cure=f"give --{name} on the command line, or args={{'{name}': ...}}",
            )
        found[name] = path_text(args[name], name)
    return found, pipeline_options


def _word(text: str) -> str:
    return re.sub(r"\W+", "_", text, flags=re.ASCII)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]


def _valid(text: str, check: Callable[[str], str]) -> str:
    """Returns a text if a check accepts it, else a valid name made from it."""
    try:
        return check(text)
    except InputError:
        # The hash distinguishes texts that differ in other characters only.
        return f"{_word(text)}_{_hash(text)}"
