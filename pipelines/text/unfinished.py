"""The progress of work that is not committed, read from the files beside its output.

It works for every runner, since a shard is finished when its index exists.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from gristmill.dataset.base.errors import parsed
from gristmill.dataset.commit.garbage import SplitFiles
from gristmill.dataset.commit.listings import walk
from gristmill.dataset.commit.write import Output, Write
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.layout import JOB, VALUES
from gristmill.dataset.metadata.manifest import NO_DATASET, Manifest
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.writer.parts import PartState, described_jobs
from gristmill.pipelines.text.printer import plural
from gristmill.transforms.jobs.conversion_job import PreparedJob


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unfinished:
    """Work on a split that is under way, or was stopped.

    Attributes:
        split: The split, or a write of it by its `layout.write_key`.
        work: The kind of work: `shards`, `removal`, `parts` of a `Writer`, or
            `columns`.
        finished: Number of finished parts, otherwise shards.
        total: Their final number; None if not known.
    """

    split: str
    work: str
    finished: int
    total: int | None = None

    def text(self) -> str:
        """Returns the progress as a line."""
        begin = f"split {self.split}:"
        if self.total is None:
            return f"{begin} a removal, {plural(self.finished, 'shard')} finished"
        percent = 100 * self.finished / max(self.total, 1)
        noun, end = {
            "columns": ("shard", "attached"),
            "parts": ("part", "of a program finished"),
        }.get(self.work, ("shard", f"finished ({percent:.1f} %)"))
        return f"{begin} {self.finished:,} of {plural(self.total, noun)} {end}"


def read_unfinished(dataset: str, manifest: Manifest | None) -> list[Unfinished]:
    """Returns the work that is not committed, by split.

    It lists one directory, and reads the small files that describe the work.

    Args:
        dataset: The dataset's directory.
        manifest: Its metadata, None if nothing is committed.
    """
    indexes = storage_for(dataset).list(layout.join(dataset, layout.INDEX_DIR))
    listed, found = {layout.base_name(one.path) for one in indexes}, []
    for one in walk(dataset, (JOB,)):
        content = storage_for(dataset).load(one.info.path)
        if content is None:
            continue  # Just finished, or given up.
        with parsed(
            "the description of what is being written cannot be read",
            one.info.path,
            "delete it with gristmill clean --unfinished, then begin again",
        ):
            document = json.loads(content.data.decode("utf-8", "surrogateescape"))
            work = _unfinished(dataset, manifest, listed, one.path, document)
        if work is not None:
            found.append(work)
    return sorted(found, key=lambda one: one.split)


def _unfinished(
    dataset: str,
    manifest: Manifest | None,
    listed: set[str],
    path: str,
    document: dict[str, Any],
) -> Unfinished | None:
    name, split = document["name"], document["split"]
    parts = JOB.parse(path, NAME=name, SPLIT=split)
    if parts is None:
        raise ValueError(f"it is of {name!r}, split {split!r}")
    key = layout.key_in(parts)
    if manifest is not None and SplitFiles(dataset, manifest, split).is_over(key):
        return None
    mark = parts.get("WRITE", "")
    shards = (one.removesuffix(".index") for one in listed if one.endswith(".index"))
    finished = sum(layout.shard_mark(shard, name, split) == mark for shard in shards)
    work, total = "shards", None
    if "parts" in document:
        write = Write(output=dataset, name=name, split=split)
        jobs = described_jobs(Output(write, manifest or NO_DATASET))
        job = next((job for job in jobs if job.write.key == key), None)
        if job is None:
            return None
        states = PartState.load_all(job, range(job.parts))
        finished = sum(one.table is not None for one in states)
        work, total = "parts", job.parts
    elif "columns" in document:
        about = document["columns"]
        if manifest is None or (found := manifest.splits.get(split)) is None:
            return None
        values = walk(dataset, (VALUES,), {"KEY": document["fingerprint"]})
        finished = sum(1 for _ in values) // len(about["names"])
        total = sum(found.known[int(number)].shards for number in about["editions"])
        key, work = split, "columns"
    elif "removal" in document:
        work = "removal"
    elif "write" in document:
        total = document["write"]["shards"]
    elif (prepared := PreparedJob.load(dataset, name, key)) is not None:
        indexes = map(layout.base_name, map(layout.index_path, prepared.shards))
        finished = sum(one in listed for one in indexes)
        total = prepared.plan.shards
    else:  # Its list of files is still missing.
        finished = total = 0
    return Unfinished(split=key, work=work, finished=finished, total=total)
