"""The progress of work that is not committed, read from the files beside its output.

Works for every runner: a shard is finished when its index exists.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np

from gristmill.dataset.base.errors import InvalidDatasetError
from gristmill.dataset.commit.garbage import SplitFiles
from gristmill.dataset.commit.listings import walk
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.layout import JOB, VALUES
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.writer.parts import PartsJob, PartState, described_jobs
from gristmill.pipelines.text.printer import plural, size_text
from gristmill.transforms.jobs.conversion_job import PreparedJob


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unfinished:
    """Work on a split that is under way, or was stopped.

    Attributes:
        split: The split, or a write of it by its `layout.write_key`.
        work: What is made: `shards`, `removal`, `parts` of a `Writer`, or `columns`.
        finished: How many of them are finished; of a removal, shards.
        total: How many there will be, None if that is not known.
        finished_shards: Finished shards of parts; else None.
        finished_input_bytes: Input bytes of finished shards; None without a plan.
        input_bytes: Input bytes of all shards; None without a plan.
    """

    split: str
    work: str
    finished: int
    total: int | None = None
    finished_shards: int | None = None
    finished_input_bytes: int | None = None
    input_bytes: int | None = None

    def text(self) -> str:
        """Returns a line about it."""
        if self.total is None:
            return (
                f"split {self.split}: a removal, {plural(self.finished, 'shard')} "
                "finished"
            )
        percent = 100 * self.finished / max(self.total, 1)
        columns = self.work == "columns"
        what = plural(self.total, "shard" if columns else self.work[:-1])
        ended = "attached" if columns else "finished"
        done = f"{self.finished:,} of {what} {ended}"
        if self.finished_shards is not None:
            written = plural(self.finished_shards, "shard")
            done = f"{written} written by a program, {done}"
        elif self.input_bytes is not None:
            sizes = map(size_text, (self.finished_input_bytes or 0, self.input_bytes))
            done += f" ({percent:.1f} %), {' of '.join(sizes)} of input"
        return f"split {self.split}: {done}"


def read_unfinished(dataset: str, manifest: Manifest | None) -> list[Unfinished]:
    """Returns the work that is not committed, by split.

    Lists one directory and reads the small files that describe the work.

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
        try:
            document = json.loads(content.data.decode("utf-8", "surrogateescape"))
            work = _unfinished(dataset, manifest, listed, one.path, document)
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            raise InvalidDatasetError(
                "the description of what is being written cannot be read",
                where=one.info.path,
                got=repr(e),
                cure="delete it with gristmill clean --unfinished, then begin again",
            ) from e
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
    if "parts" in document:
        jobs = described_jobs(dataset, name, split, manifest)
        return next((_parts(job, listed) for job in jobs if job.write.key == key), None)
    if "columns" in document:
        if manifest is None:
            return None
        return _columns(dataset, manifest, split, document)
    mark = parts.get("WRITE", "")
    shards = (one.removesuffix(".index") for one in listed if one.endswith(".index"))
    finished = sum(layout.shard_mark(shard, name, split) == mark for shard in shards)
    if "removal" in document:
        return Unfinished(split=key, work="removal", finished=finished)
    if "write" in document:
        total = document["write"]["shards"]
        return Unfinished(split=key, work="shards", finished=finished, total=total)
    prepared = PreparedJob.load(dataset, name, key)
    if prepared is None:  # Its list of files is still to come.
        return Unfinished(split=key, work="shards", finished=0, total=0)
    sizes = np.diff(prepared.plan.cut_bytes)
    done = np.array([one in listed for one in prepared.index_names()], np.bool_)
    return Unfinished(
        split=key,
        work="shards",
        finished=int(done.sum()),
        total=prepared.plan.shards,
        finished_input_bytes=int(sizes[done].sum()),
        input_bytes=int(sizes.sum()),
    )


def _parts(job: PartsJob, listed: set[str]) -> Unfinished:
    states = PartState.load_all(job, range(job.parts))
    prefix = layout.shard_prefix(job.write.name, job.write.key)
    return Unfinished(
        split=job.write.key,
        work="parts",
        finished=sum(one is not None and one.table is not None for one in states),
        total=job.parts,
        finished_shards=sum(one.startswith(prefix) for one in listed),
    )


def _columns(
    dataset: str, manifest: Manifest, name: str, document: dict[str, Any]
) -> Unfinished | None:
    split, about = manifest.splits.get(name), document["columns"]
    if split is None:
        return None
    found = walk(dataset, (VALUES,), {"KEY": document["fingerprint"]})
    editions = [split.known[int(number)] for number in about["editions"]]
    return Unfinished(
        split=name,
        work="columns",
        finished=sum(1 for _ in found) // len(about["names"]),
        total=sum(edition.shards for edition in editions),
    )
