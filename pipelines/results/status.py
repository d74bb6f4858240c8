"""The progress of a conversion, read from the files in its output.

Works for every runner: a shard is finished when its index exists, a split is committed
when `dataset.json` names it.
"""

from __future__ import annotations

import dataclasses
import glob
import json
import posixpath
import re
from typing import Any

import numpy as np

from gristmill.dataset.commit.staged_parts import PARTS_DIR
from gristmill.dataset.errors import InvalidDatasetError, NotADatasetError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.read_manifest import read_manifest
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import path_text
from gristmill.pipelines.results.formatting import plural, size_text
from gristmill.transforms.jobs.prepared_job import PreparedJob

_JOB = re.compile(r".+\.job\.json")


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
        replacements: What is being made to replace splits, sorted by name.
        moving: Splits whose new files are being moved to their places.
        writing: What programs write, sorted by name.
    """

    dataset: str
    committed: bool
    splits: tuple[SplitStatus, ...]
    replacements: tuple[SplitStatus, ...] = ()
    moving: tuple[str, ...] = ()
    writing: tuple[WritingStatus, ...] = ()

    def text(self) -> str:
        """Returns the progress as text."""
        state = "committed" if self.committed else "NOT committed"
        lines = [f"{self.dataset}: {state}", *map(_text, self.splits)]
        lines += [f"to replace {_text(split)}" for split in self.replacements]
        lines += [f"split {name}: new files are being moved" for name in self.moving]
        lines += [
            f"split {one.split}: {plural(one.finished_shards, 'shard')} written by a "
            f"program, {one.finished_parts:,} of {plural(one.parts, 'part')} finished"
            for one in self.writing
        ]
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
    storage = storage_for(dataset)
    manifest = read_manifest(dataset)
    listed = {
        info.path.rpartition("/")[2]
        for info in storage.list(layout.join(dataset, layout.INDEX_DIR))
    }
    splits = {}
    committed = manifest.editions if manifest else {}
    for name, split in (manifest.splits if manifest else {}).items():
        splits[name] = SplitStatus(
            split=name,
            committed=True,
            finished_shards=split.shards,
            shards=split.shards,
            records=split.records,
        )
    for file in sorted(filter(_JOB.fullmatch, listed)):
        job = _read_description(layout.join(dataset, layout.INDEX_DIR, file), "job")
        if job["split"] not in committed:
            prepared = PreparedJob.load(dataset, job["name"], job["split"])
            if prepared is not None:
                splits[job["split"]] = _unfinished(prepared, listed)
    moving = tuple(sorted(manifest.replacing if manifest else ()))
    replacements = () if moving else _replacements(dataset)
    writing = () if moving else _writing(dataset)
    if not (splits or moving or replacements or writing):
        raise NotADatasetError(
            "no dataset and no conversion here",
            where=dataset,
            got="no dataset.json, and no plan of a conversion",
            cure="check the path; a job that was just submitted takes some minutes to "
            "start and to list its inputs",
        )
    return Status(
        dataset=dataset,
        committed=bool(splits)
        and not moving
        and all(split.committed for split in splits.values()),
        splits=tuple(splits[name] for name in sorted(splits)),
        replacements=replacements,
        moving=moving,
        writing=writing,
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


def _replacements(dataset: str) -> tuple[SplitStatus, ...]:
    found = []
    storage = storage_for(dataset)
    aside = layout.aside_dir(glob.escape(dataset), "*", "*")
    for info in storage.match(layout.join(aside, layout.INDEX_DIR, "*.job.json")):
        index_dir = posixpath.dirname(info.path)
        job = _read_description(info.path, "job")
        place = posixpath.dirname(index_dir)
        prepared = PreparedJob.load(place, job["name"], job["split"])
        if prepared is not None:
            listed = {layout.base_name(each.path) for each in storage.list(index_dir)}
            found.append(_unfinished(prepared, listed))
    return tuple(sorted(found, key=lambda split: split.split))


def _writing(dataset: str) -> tuple[WritingStatus, ...]:
    found = []
    storage = storage_for(dataset)
    aside = layout.aside_dir(glob.escape(dataset), "*", "*")
    for info in storage.match(layout.join(aside, layout.INDEX_DIR, "*.write.json")):
        options = _read_description(info.path, "options")
        if "parts" not in options:
            continue  # Of a pipeline.
        place = info.path.removesuffix(
            layout.join("", layout.write_path(options["name"], options["split"]))
        )
        files = [each.path for each in storage.list_tree(layout.join(place, PARTS_DIR))]
        found.append(
            WritingStatus(
                split=options["split"],
                parts=options["parts"],
                finished_parts=sum(path.endswith(".npz") for path in files),
                finished_shards=sum(path.endswith(".index") for path in files),
            )
        )
    return tuple(sorted(found, key=lambda split: split.split))


def _unfinished(prepared: PreparedJob, listed: set[str]) -> SplitStatus:
    plan = prepared.plan
    paths = map(prepared.shard_path, range(plan.shards))
    finished = np.array(
        [layout.index_path(path).rpartition("/")[2] in listed for path in paths], bool
    )
    sizes = np.diff(plan.cut_bytes)
    return SplitStatus(
        split=prepared.job.split,
        committed=False,
        finished_shards=int(finished.sum()),
        shards=plan.shards,
        finished_input_bytes=int(sizes[finished].sum()),
        input_bytes=int(sizes.sum()),
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
