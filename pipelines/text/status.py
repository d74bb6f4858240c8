"""The progress of a conversion, read from the files in its output.

Works for every runner: a shard is finished when its index exists, a split is committed
when `dataset.json` names it.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable
from typing import Any

from gristmill.dataset.base.errors import InvalidDatasetError, NotADatasetError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest, read_manifest
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import path_text
from gristmill.pipelines.text.formatting import plural, size_text
from gristmill.transforms.conversion.shard_tasks import (
    PlannedShards,
    listed_indexes,
)
from gristmill.transforms.jobs.prepared_job import PreparedJob

_JOB = re.compile(r".+\.job\.json")
_WRITE = re.compile(r".+\.write\.json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitStatus:
    """The progress of one split.

    Attributes:
        split: Name of the split.
        committed: Whether readers see it.
        finished_shards: Shards that are finished.
        shards: All shards of the plan.
        finished_input_bytes: Input bytes of the finished shards; None once committed.
        input_bytes: Input bytes of all shards; None once committed.
        records: Number of records, once committed.
    """

    split: str
    committed: bool
    finished_shards: int
    shards: int
    finished_input_bytes: int | None = None
    input_bytes: int | None = None
    records: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class WritingStatus:
    """The progress of a split that programs write, with `gristmill.dataset.Writer`.

    Attributes:
        split: Name of the split.
        parts: How many parts it has.
        finished_parts: Parts that are finished, and not committed.
        finished_shards: Shards that are finished, of all parts.
    """

    split: str
    parts: int
    finished_parts: int
    finished_shards: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Status:
    """The progress of a dataset.

    Attributes:
        dataset: Its directory.
        committed: Whether all splits are committed.
        splits: The splits, sorted by name.
        writing: What programs write, sorted by name.
        replaced: Editions that were replaced and are kept, by `layout.edition_key`.
    """

    dataset: str
    committed: bool
    splits: tuple[SplitStatus, ...]
    writing: tuple[WritingStatus, ...] = ()
    replaced: tuple[str, ...] = ()

    def text(self) -> str:
        """Returns the progress as text."""
        state = "committed" if self.committed else "NOT committed"
        if not self.committed and any(split.committed for split in self.splits):
            state = "committed, with unfinished work"
        lines = [f"{self.dataset}: {state}", *map(_text, self.splits)]
        lines += [
            f"split {one.split}: {plural(one.finished_shards, 'shard')} written by a "
            f"program, {one.finished_parts:,} of {plural(one.parts, 'part')} finished"
            for one in self.writing
        ]
        for split, edition in map(layout.parse_edition_key, self.replaced):
            lines.append(
                f"split {split}: edition {edition:,} was replaced, and is kept"
            )
        return "\n".join(lines)

    def json(self) -> str:
        """Returns the progress as one JSON object."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)


def read_status(dataset: str) -> Status:
    """Reads the progress of a conversion.

    Lists one directory and reads the small files that describe the work.
    """
    dataset = path_text(dataset, "dataset")
    dataset = dataset.rstrip("/") or dataset
    manifest = read_manifest(dataset)
    listed = listed_indexes(dataset)
    splits = {}
    known = manifest.splits if manifest else {}
    for name, split in known.items():
        splits[name] = SplitStatus(
            split=name,
            committed=True,
            finished_shards=split.shards,
            shards=split.shards,
            records=split.records,
        )
    for file in sorted(filter(_JOB.fullmatch, listed)):
        job = _read_description(layout.join(dataset, layout.INDEX_DIR, file), "job")
        name, edition = layout.parse_edition_key(job["split"])
        # Lower numbers are of editions that are there, or were replaced.
        if name not in known or edition > known[name].last_edition:
            prepared = PreparedJob.load(dataset, job["name"], job["split"])
            if prepared is not None:
                splits[job["split"]] = _unfinished(prepared, listed)
    writing = _writing(dataset, manifest, listed)
    if not (splits or writing):
        raise NotADatasetError(
            "no dataset and no conversion here",
            where=dataset,
            got="no dataset.json, and no plan of a conversion",
            cure="check the path; a job that was just submitted takes some minutes to "
            "start and to list its inputs",
        )
    return Status(
        dataset=dataset,
        committed=bool(splits) and all(split.committed for split in splits.values()),
        splits=tuple(splits[name] for name in sorted(splits)),
        writing=writing,
        replaced=tuple(sorted(manifest.known.keys() - manifest.editions.keys()))
        if manifest
        else (),
    )


def _read_description(path: str, key: str) -> dict[str, Any]:
    """Reads what a conversion was given ("job"), or a program ("options")."""
    text = storage_for(path).read(path).decode("utf-8", "surrogateescape")
    try:
        given: dict[str, Any] = json.loads(text)[key]
        given["name"], given["split"]
    except (KeyError, TypeError, ValueError) as e:
        raise InvalidDatasetError(
            "the description of what is being written cannot be read",
            where=path,
            got=repr(e),
            cure="start over with --overwrite, or a Writer with overwrite=True",
        ) from e
    return given


def _writing(
    dataset: str, manifest: Manifest | None, listed: Iterable[str]
) -> tuple[WritingStatus, ...]:
    found = []
    storage = storage_for(dataset)
    splits = {} if manifest is None else manifest.splits
    for file in sorted(filter(_WRITE.fullmatch, listed)):
        options = _read_description(
            layout.join(dataset, layout.INDEX_DIR, file), "options"
        )
        if "parts" not in options:
            continue  # Of a pipeline.
        name, split = options["name"], options["split"]
        key = file.removeprefix(f"{name}-").removesuffix(".write.json")
        _, edition = layout.parse_edition_key(key)
        if split in splits and edition <= splits[split].last_edition:
            continue  # Another command has made the edition.
        place = layout.temporary_dir(dataset, name, key)
        files = [each.path for each in storage.list_tree(place)]
        found.append(
            WritingStatus(
                split=split,
                parts=options["parts"],
                finished_parts=sum(path.endswith(".npz") for path in files),
                finished_shards=sum(path.endswith(".index") for path in files),
            )
        )
    return tuple(sorted(found, key=lambda split: split.split))


def _unfinished(prepared: PreparedJob, listed: set[str]) -> SplitStatus:
    planned = PlannedShards([prepared])
    finished = planned.finished(listed)
    return SplitStatus(
        split=prepared.job.split,
        committed=False,
        finished_shards=len(finished),
        shards=prepared.plan.shards,
        finished_input_bytes=sum(planned.input_bytes[key] for key in finished),
        input_bytes=sum(planned.input_bytes.values()),
    )


def _text(split: SplitStatus) -> str:
    if split.committed:
        return (
            f"split {split.split}: {plural(split.records or 0, 'record')} in "
            f"{plural(split.shards, 'shard')}, committed"
        )
    done, total = split.finished_input_bytes or 0, split.input_bytes or 0
    percent = 100 * split.finished_shards / max(split.shards, 1)
    return (
        f"split {split.split}: {split.finished_shards:,} of "
        f"{plural(split.shards, 'shard')} finished ({percent:.1f} %), "
        f"{size_text(done)} of {size_text(total)} of input"
    )
