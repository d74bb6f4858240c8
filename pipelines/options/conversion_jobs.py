"""The jobs of a conversion, from its options."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.dataset.storage.lookup import has_file
from gristmill.dataset.storage.paths import path_text, path_texts
from gristmill.pipelines.options.job_options import (
    AppendOptions,
    ConvertOptions,
    PackingOptions,
    chat_of,
)
from gristmill.transforms.conversion.take_output import first_writer, open_to_append
from gristmill.transforms.directories.hugging_face_directory import (
    is_repository,
    repository_inputs,
)
from gristmill.transforms.directories.tfds_directory import tfds_jobs
from gristmill.transforms.functions.user_functions import split_name
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.planning.shard_plan import PlanKind, PlanOptions
from gristmill.transforms.sources.formats import RecordOptions
from gristmill.transforms.sources.shards.source_split import check_apart

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{p}b": 1000**i for i, p in enumerate("kmgtp", 1)},
    **{f"{p}ib": 1024**i for i, p in enumerate("kmgtp", 1)},
}

# Formats of repositories of Hugging Face.
_OF_HUB = ("auto", "csv", "json", "jsonl", "parquet", "tsv", "tsv-unquoted")


class Conversion(NamedTuple):
    """What to convert.

    Attributes:
        jobs: One for each split, with the same output and name.
        features: The schema, where known.
        tfds_directory: The TFDS directory that the jobs come from, if any.
        overwrite: Whether to replace what is there of these splits.
        keep_replaced: Whether what is replaced is kept.
    """

    jobs: tuple[ConversionJob, ...]
    features: Mapping[str, Any] | None
    tfds_directory: str | None
    overwrite: bool = False
    keep_replaced: bool = False


def conversion_of(options: ConvertOptions) -> Conversion:
    """Returns the jobs that options describe.

    Reads only a directory with splits; to append, also the metadata of the dataset and
    a listing of the inputs.
    """
    found = _conversion_of(options)
    return found._replace(keep_replaced=options.keep_replaced)


def _conversion_of(options: ConvertOptions) -> Conversion:
    inputs = path_texts(options.input, "input")
    output = path_text(options.output, "output")
    output = output.rstrip("/") or output
    if isinstance(options, AppendOptions):
        return _append_of(options, inputs, output)
    if options.split is not None:
        layout.check_split(options.split)  # Jobs have keys of writes as well.
    job = _job_of(options, inputs, output)
    found = _splits_of(job, options.name, options.split)
    if found is not None:
        if isinstance(options, PackingOptions):
            # They describe the documents, not the rows.
            found = found._replace(features=None, tfds_directory=None)
        return found._replace(overwrite=options.overwrite)
    job = dataclasses.replace(
        job,
        name=layout.base_name(output) if options.name is None else options.name,
        split="train" if options.split is None else options.split,
        join_splits=options.split is not None,
    )
    return Conversion((job,), None, None, options.overwrite)


def _splits_of(
    job: ConversionJob, name: str | None, split: str | None
) -> Conversion | None:
    """Returns the jobs of a directory with splits; None for other inputs.

    Args:
        job: A job with this input, and all options.
        name: The dataset's name, if it was given.
        split: The split, if it was given.
    """
    if len(job.inputs) != 1:
        return None
    (directory,), splits = job.inputs, None if split is None else (split,)
    if has_file(directory, layout.DATASET_JSON):
        return _of_dataset(job, name, split)
    if job.records.input_format in _OF_HUB and is_repository(directory):
        own = layout.base_name(job.output) if name is None else name
        repository = dataclasses.replace(job, name=own, join_splits=True)
        jobs = tuple(
            dataclasses.replace(repository, inputs=patterns, split=each)
            for each, patterns in repository_inputs(directory, splits=splits).items()
        )
        return Conversion(jobs, None, None)
    if has_file(directory, layout.TFDS_INFO_JSON):
        found = tfds_jobs(directory, job.output, name=name, splits=splits, like=job)
        return Conversion(found.jobs, found.features, directory)
    return None


def _append_of(
    options: AppendOptions, inputs: tuple[str, ...], output: str
) -> Conversion:
    manifest, split = open_to_append(output, options.split)
    like = first_writer(manifest.splits[split])
    job = _job_of(options, inputs, output, like=like)
    found = _splits_of(job, manifest.name, split)
    if found is not None:
        (job,) = found.jobs
    else:
        job = dataclasses.replace(job, name=manifest.name, split=split)
    job = dataclasses.replace(job, appends=True)
    return Conversion((job,), None, None, options.overwrite)


def _job_of(
    options: ConvertOptions,
    inputs: tuple[str, ...],
    output: str,
    *,
    like: Mapping[str, Any] | None = None,
) -> ConversionJob:
    """Returns the job that options describe, but for its name and its split.

    Args:
        options: The options.
        inputs: The inputs.
        output: The dataset's directory.
        like: The writer's options where these do not say them.
    """
    given = {"group_size": options.group_size, "compression": options.compression}
    known = {name: value for name, value in given.items() if value is not None}
    pack = None
    if isinstance(options, PackingOptions):
        pack = _packing_of(options)
    if options.map is not None:
        split_name(options.map)  # The module itself may exist on the workers only.
    return ConversionJob(
        inputs=inputs,
        output=output,
        name="not-named-yet",
        plan=plan_of(options),
        writer=WriterOptions(**{**(like or {}), **known}),
        map=options.map,
        on_corrupt=options.on_corrupt,
        max_corrupt=options.max_corrupt,
        records=RecordOptions(
            input_format=options.input_format,
            columns=tuple(options.columns.split(",")) if options.columns else (),
            record=options.record or "",
            nulls=options.nulls,
            select=options.select or "",
            whole_files=options.whole_files,
        ),
        pack=pack,
    )


def _packing_of(options: PackingOptions) -> PackOptions:
    return PackOptions(
        length=options.length,
        method=options.pack,
        column="" if options.column == "-" else options.column,
        tokenizer=options.tokenizer,
        vocabulary_size=options.vocabulary_size,
        fast=options.fast,
        bos=options.bos or "",
        eos=options.eos or "",
        add_special_tokens=options.add_special_tokens,
        truncate=options.truncate,
        special_text=options.special_text,
        accept=options.accept or "",
        rows=options.rows,
        chat=chat_of(options),
    )


def _of_dataset(like: ConversionJob, name: str | None, split: str | None) -> Conversion:
    """Returns a job for each split of a dataset; what describes it comes along."""
    (directory,) = like.inputs
    check_apart(like.output, directory)
    manifest = open_manifest(directory)
    every = sorted(manifest.splits)
    jobs = tuple(
        dataclasses.replace(like, name=name or manifest.name, split=each)
        for each in (every if split is None else (split,))
    )
    tfds_directory = directory if has_file(directory, layout.TFDS_INFO_JSON) else None
    return Conversion(jobs, manifest.features, tfds_directory)


def plan_of(options: ConvertOptions) -> PlanOptions:
    """Returns the plan that the options describe, or the default one."""
    size = options.shard_size
    given = {
        "num_shards": options.num_shards,
        "shard_bytes": None if size is None else parse_size(size, "--shard-size"),
    }
    wanted = {kind: value for kind, value in given.items() if value is not None}
    if len(wanted) + options.match_shards > 1:
        raise InputError(
            "more than one way to make shards",
            cure="give only one of --match-shards, --num-shards and --shard-size",
        )
    if options.match_shards:
        return PlanOptions(kind="match_shards", value=None)
    for kind, value in wanted.items():
        return PlanOptions(kind=cast("PlanKind", kind), value=value)
    return PlanOptions()


def parse_size(text: str, option: str) -> int:
    """Returns a size in bytes.

    Args:
        text: A number and a unit.
        option: The option that has it.

    Raises:
        InputError: It is not a size, or too small for one byte.

    >>> [parse_size(text, "--size") for text in ("256MiB", "1.5 kB", "4096")]
    [268435456, 1500, 4096]
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    size_bytes = 0
    if match is not None and match.group(2) in _UNITS:
        size_bytes = int(float(match.group(1)) * _UNITS[match.group(2)])
    if not size_bytes:
        raise InputError(
            "not a size",
            expected="a number and a unit, such as 256MiB, 1.5GB or 4096",
            got=repr(text),
            cure=f"give another {option}",
        )
    return size_bytes
