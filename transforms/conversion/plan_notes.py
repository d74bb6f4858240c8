"""Notes on a plan: what it means for large compressed files, and for numbers."""

from __future__ import annotations

import numpy as np

from gristmill.dataset.base.errors import some_of
from gristmill.transforms.jobs.prepared_job import PreparedJob
from gristmill.transforms.planning.shard_plan import DEFAULT_SHARD_BYTES
from gristmill.transforms.sources.input_files import InputFiles
from gristmill.transforms.sources.record_source import source_of

_MANY_SHARDS = 4


def plan_notes(prepared: PreparedJob) -> list[str]:
    """Returns notes on compressed files that are more than one worker's small share.

    Args:
        prepared: A job that is planned.
    """
    if prepared.plan.splittable.all():
        return []
    if prepared.job.plan.kind == "match_shards":
        return _whole_files(prepared)
    return _long_passes(prepared)


def rounding_note(files: InputFiles) -> list[str]:
    """Returns a note on columns of which fractions are rounded, none without any."""
    features = source_of(files.spec).features() or {}
    names = [
        name
        for name, spec in features.items()
        if spec["kind"] == "float" and spec.get("type") == "double"
    ]
    if not names:
        return []
    return [
        f"fractions of {some_of(names)} are rounded to 32 bits, as a tf.train.Example "
        "holds them"
    ]


def _whole_files(prepared: PreparedJob) -> list[str]:
    sizes = np.where(prepared.plan.splittable, 0, prepared.plan.sizes)
    large = int((sizes > DEFAULT_SHARD_BYTES).sum())
    if not large:
        return []
    longest = int(sizes.argmax())
    return [
        f"{_files(large)} larger than {DEFAULT_SHARD_BYTES >> 20} MiB. The largest, "
        f"{prepared.files.paths[longest]} ({int(sizes[longest]):,} bytes), becomes one "
        "shard, since each file does: one worker makes it, and its disk must hold what "
        "it decompresses to. A plan by size would cut it"
    ]


def _long_passes(prepared: PreparedJob) -> list[str]:
    plan = prepared.plan
    counts = np.diff(plan.pass_begins, append=plan.shards)
    many = int((counts >= _MANY_SHARDS).sum())
    if not many:
        return []
    longest = int(counts.argmax())
    file = plan.ranges(int(plan.pass_begins[longest]))[0].file_index
    return [
        f"{_files(many)} cut into {_MANY_SHARDS} shards or more. One worker reads such "
        f"a file from its start to its end, and makes its shards one after the other: "
        f"{int(counts[longest]):,} of {plan.shards:,} from the longest, "
        f"{prepared.files.paths[file]} ({int(plan.sizes[file]):,} bytes)"
    ]


def _files(count: int) -> str:
    return "1 compressed file is" if count == 1 else f"{count:,} compressed files are"
