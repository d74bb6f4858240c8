"""The progress of work that is not committed, read from the files beside its output.

Works for every runner: a shard is finished when its index exists.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from gristmill.dataset.base.errors import InvalidDatasetError
from gristmill.dataset.commit.editions import is_removal
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.text.formatting import plural, size_text
from gristmill.transforms.conversion.shard_tasks import PlannedShards, listed_indexes
from gristmill.transforms.jobs.prepared_job import PreparedJob

_DESCRIPTION = re.compile(r"(.+)[.](job|write|attach-[0-9a-f]{16})[.]json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unfinished:
    """Work on a split that is under way, or was stopped.

    Attributes:
        split: The split, or its edition as `layout.edition_key` writes it.
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
        done = f"{self.finished:,} of {plural(self.total, self.work[:-1])} finished"
        if self.finished_shards is not None:
            written = plural(self.finished_shards, "shard")
            done = f"{written} written by a program, {done}"
        elif self.input_bytes is None:
            done = done.replace(" finished", " attached")
        else:
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
    listed, found = listed_indexes(dataset), []
    for match in filter(None, map(_DESCRIPTION.fullmatch, sorted(listed))):
        path = layout.join(dataset, layout.INDEX_DIR, match[0])
        content = storage_for(path).load(path)
        if content is None:
            continue  # Just finished, or given up.
        try:
            one = _unfinished(dataset, manifest, listed, match, content.data)
        except (AttributeError, KeyError, TypeError, ValueError) as e:
            raise InvalidDatasetError(
                "the description of what is being written cannot be read",
                where=path,
                got=repr(e),
                cure="start over with --overwrite, or a Writer with overwrite=True",
            ) from e
        if one is not None:
            found.append(one)
    return sorted(found, key=lambda one: one.split)


def _unfinished(
    dataset: str,
    manifest: Manifest | None,
    listed: set[str],
    match: re.Match[str],
    data: bytes,
) -> Unfinished | None:
    own, kind = match.groups()
    document = json.loads(data.decode("utf-8", "surrogateescape"))
    if kind.startswith("attach"):
        if manifest is None:
            return None
        return _columns(dataset, manifest, own, kind, document)
    described = document["job" if kind == "job" else "options"]
    name = described["name"]
    if not own.startswith(f"{name}-"):
        raise ValueError(f"it names the dataset {name!r}")
    key = own.removeprefix(f"{name}-")
    split, edition = layout.parse_edition_key(key)
    committed = None if manifest is None else manifest.splits.get(split)
    if committed is not None and edition <= committed.last_edition:
        return None
    if kind == "write":
        return _parts(dataset, name, key, described)
    if is_removal(data):
        prefix = layout.shard_prefix(name, key)
        done = [one for one in listed if one.startswith(prefix)]
        return Unfinished(split=key, work="removal", finished=len(done))
    prepared = PreparedJob.load(dataset, name, key)
    if prepared is None:
        return None
    planned = PlannedShards([prepared])
    finished = planned.finished(listed)
    return Unfinished(
        split=key,
        work="shards",
        finished=len(finished),
        total=prepared.plan.shards,
        finished_input_bytes=sum(planned.input_bytes[key] for key in finished),
        input_bytes=sum(planned.input_bytes.values()),
    )


def _parts(
    dataset: str, name: str, key: str, options: dict[str, Any]
) -> Unfinished | None:
    if "parts" not in options:
        return None  # Of a pipeline, which publishes its shards at its end.
    place = layout.temporary_dir(dataset, name, key)
    files = [each.path for each in storage_for(place).list_tree(place)]
    return Unfinished(
        split=key,
        work="parts",
        finished=sum(path.endswith(".npz") for path in files),
        total=options["parts"],
        finished_shards=sum(path.endswith(".index") for path in files),
    )


def _columns(
    dataset: str, manifest: Manifest, own: str, kind: str, document: dict[str, Any]
) -> Unfinished | None:
    name = own.removeprefix(f"{manifest.name}-")
    split = manifest.splits.get(name)
    if split is None:
        return None
    place = layout.join(dataset, layout.COLUMNS_DIR)
    mark = kind.removeprefix("attach")
    files = [each.path for each in storage_for(place).scan(place)]
    editions = [split.known[int(number)] for number in document["editions"]]
    return Unfinished(
        split=name,
        work="shards",
        finished=sum(path.endswith(mark) for path in files) // len(document["columns"]),
        total=sum(edition.shards for edition in editions),
    )
