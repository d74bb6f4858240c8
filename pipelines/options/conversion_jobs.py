"""The jobs of a conversion, from its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.errors import InputError
from gristmill.dataset.metadata import layout
from gristmill.pipelines.options.definitions import ConvertOptions
from gristmill.pipelines.options.sizes import parse_size
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.jobs.map_function import split_name
from gristmill.transforms.planning.shard_plan import PlanKind, PlanOptions
from gristmill.transforms.tfds.directory import is_tfds_directory, tfds_jobs


class Conversion(NamedTuple):
    """What to convert.

    Attributes:
        jobs: One for each split, with the same output and name.
        features: The schema, where known.
        tfds_directory: The TFDS directory that the jobs come from, if any.
    """

    jobs: tuple[ConversionJob, ...]
    features: Mapping[str, Any] | None
    tfds_directory: str | None


def conversion_of(options: ConvertOptions) -> Conversion:
    """Returns the jobs that the options describe. Reads only a TFDS directory.

    Raises:
        InputError: The options contradict each other, or cannot be used.
    """
    output = options.output.rstrip("/") or options.output
    fields: dict[str, Any] = {
        "plan": plan_of(options),
        "writer": WriterOptions(
            group_size=options.group_size, compression=options.compression
        ),
        "map": options.map,
        "on_corrupt": options.on_corrupt,
        "max_corrupt": options.max_corrupt,
        "check": options.check,
    }
    if options.map is not None:
        split_name(options.map)  # The module itself may exist on the workers only.
    if len(options.input) == 1 and is_tfds_directory(options.input[0]):
        directory = options.input[0]
        splits = None if options.split is None else (options.split,)
        found = tfds_jobs(directory, output, name=options.name, splits=splits, **fields)
        return Conversion(found.jobs, found.features, directory)
    job = ConversionJob(
        inputs=options.input,
        output=output,
        name=options.name or layout.base_name(output),
        split=options.split or "train",
        **fields,
    )
    return Conversion((job,), None, None)


def plan_of(options: ConvertOptions) -> PlanOptions:
    """Returns the plan that the options describe, or the default one.

    Raises:
        InputError: They describe more than one.
    """
    size = options.shard_size
    given = {
        "num_shards": options.num_shards,
        "shard_bytes": None if size is None else parse_size(size),
        "records_per_shard": options.records_per_shard,
    }
    wanted = {kind: value for kind, value in given.items() if value is not None}
    if len(wanted) + options.match_shards > 1:
        raise InputError(
            "more than one way to make shards",
            cure="give only one of --match-shards, --num-shards, --shard-size and "
            "--records-per-shard",
        )
    if options.match_shards:
        return PlanOptions(kind="match_shards", value=None)
    for kind, value in wanted.items():
        return PlanOptions(kind=cast("PlanKind", kind), value=value)
    return PlanOptions()
