"""The jobs of a conversion, from its options."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

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

# Formats of Hugging Face repositories.
_OF_HUB = ("auto", "csv", "json", "jsonl", "parquet", "tsv", "tsv-unquoted")


T = TypeVar("T")


class Conversion(NamedTuple):
    """The arguments of a conversion.

    Attributes:
        jobs: One for each split, with the same output and name.
        features: The schema, if known.
        tfds_directory: The TFDS directory that the jobs come from, if any.
        overwrite: Whether to replace these splits in the output.
        keep_replaced: Whether to keep what is replaced, for a rollback.
    """

    jobs: tuple[ConversionJob, ...]
    features: Mapping[str, Any] | None
    tfds_directory: str | None
    overwrite: bool = False
    keep_replaced: bool = False


def conversion_of(options: ConvertOptions) -> Conversion:
    """Returns the jobs that options describe.

    It reads only a directory with splits; for an append, also the metadata of the
    dataset and a listing of the inputs.
    """
    inputs = path_texts(options.input, "input")
    output = path_text(options.output, "output")
    output = output.rstrip("/") or output
    name, split, like = options.name, options.split, dict[str, Any]()
    appends = isinstance(options, AppendOptions)
    if appends:
        manifest, split = open_to_append(output, split)
        name, like = manifest.name, first_writer(manifest.splits[split])
    elif split is not None:
        layout.check_split(split)  # Jobs have keys of writes as well.
    own_name = layout.base_name(output) if name is None else name
    job = _job_of(options, inputs=inputs, output=output, name=own_name, like=like)
    found = _splits_of(job, name, split)
    if found is None:
        join = split is not None and not appends
        job = dataclasses.replace(job, split=split or "train", join_splits=join)
        found = Conversion((job,), None, None)
    if appends:
        (job,) = found.jobs
        found = Conversion((dataclasses.replace(job, appends=True),), None, None)
    elif job.pack is not None:
        # They describe the documents, not the rows.
        found = Conversion(found.jobs, None, None)
    return found._replace(
        overwrite=options.overwrite, keep_replaced=options.keep_replaced
    )


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
    of_tfds = has_file(directory, layout.TFDS_INFO_JSON)
    if has_file(directory, layout.DATASET_JSON):
        check_apart(job.output, directory)
        manifest = open_manifest(directory)
        job = dataclasses.replace(job, name=name or manifest.name)
        jobs = tuple(
            dataclasses.replace(job, split=each)
            for each in splits or sorted(manifest.splits)
        )
        return Conversion(jobs, manifest.features, directory if of_tfds else None)
    if job.records.input_format in _OF_HUB and is_repository(directory):
        jobs = tuple(
            dataclasses.replace(job, inputs=patterns, split=each, join_splits=True)
            for each, patterns in repository_inputs(directory, splits=splits).items()
        )
        return Conversion(jobs, None, None)
    if of_tfds:
        found = tfds_jobs(directory, job.output, name=name, splits=splits, like=job)
        return Conversion(found.jobs, found.features, directory)
    return None


def _job_of(
    options: ConvertOptions, *, like: Mapping[str, Any], **about: Any
) -> ConversionJob:
    """Returns the job that options describe, with any split.

    Args:
        options: The options.
        like: Options of the writer that `options` lacks.
        **about: Further fields of the job.
    """
    pack = None
    if isinstance(options, PackingOptions):
        pack = _made(
            PackOptions,
            options,
            method=options.pack,
            column="" if options.column == "-" else options.column,
            chat=chat_of(options),
        )
    if options.map is not None:
        split_name(options.map)  # The module itself may exist on the workers only.
    columns = tuple(options.columns.split(",")) if options.columns else ()
    return _made(
        ConversionJob,
        options,
        **about,
        plan=plan_of(options),
        writer=_made(WriterOptions, options, like),
        records=_made(RecordOptions, options, columns=columns),
        pack=pack,
    )


def _made(
    kind: type[T], options: ConvertOptions, like: Mapping[str, Any] = {}, **more: Any
) -> T:
    """Returns a dataclass with `more` fields, and the options that were given."""
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    given = {name: getattr(options, name, None) for name in names}
    known = {name: value for name, value in given.items() if value is not None}
    return kind(**{**like, **known, **more})


def plan_of(options: ConvertOptions) -> PlanOptions:
    """Returns the plan that the options describe, or the default one."""
    wanted: dict[PlanKind, int | None] = {}
    if options.match_shards:
        wanted["match_shards"] = None
    if options.num_shards is not None:
        wanted["num_shards"] = options.num_shards
    if options.shard_size is not None:
        wanted["shard_bytes"] = parse_size(options.shard_size, "--shard-size")
    if len(wanted) > 1:
        raise InputError(
            "more than one way to make shards",
            cure="give only one of --match-shards, --num-shards and --shard-size",
        )
    for kind, value in wanted.items():
        return PlanOptions(kind=kind, value=value)
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
