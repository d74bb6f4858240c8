"""Removing records from a dataset: on this machine, or on a Beam runner."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.metadata.splits import Split
from gristmill.pipelines.local.pool import run_job
from gristmill.pipelines.removal.named_records import Asked
from gristmill.pipelines.text.formatting import plural, size_text
from gristmill.transforms.removal.removal_job import (
    BegunRemoval,
    RemovalJob,
    RemovalResult,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Removed:
    """What a removal did.

    Attributes:
        dataset: Directory of the dataset.
        result: What was done.
        missing: Lines that named nothing.
        erased: Whether the state before was deleted.
    """

    also_shown = ("elsewhere",)

    dataset: str
    result: RemovalResult
    missing: tuple[str, ...] = ()
    erased: bool = False

    @property
    def split(self) -> Split:
        """The split as it is now."""
        return self.result.manifest.splits[self.result.split]

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """Where records that were erased can still be."""
        if not self.erased:
            return ()
        inputs = {
            str(path)
            for part in self.split.parts
            for path in part.source.get("inputs", ())
        }
        return (
            f"the inputs: {', '.join(sorted(inputs)) or 'not known'}",
            "copies and caches of this dataset on hosts that have read it, and "
            "datasets that were made of it",
            *(
                ("deleted objects that the bucket keeps: soft delete, versions",)
                if "://" in self.dataset
                else ("snapshots and backups of the file system",)
            ),
            *(
                (f"files of commands that still run: {some_of(self.result.left)}",)
                if self.result.left
                else ()
            ),
        )

    @property
    def title(self) -> str:
        """How many records were removed, or that they were removed before."""
        result, left = self.result, f"{self.split.records:,} left"
        name = f"{result.manifest.name}/{result.split}"
        if not result.editions:
            return f"{name}: these records were removed before; {left}"
        numbers = " and ".join(map(str, result.editions))
        word = "edition" if len(result.editions) == 1 else "editions"
        lost = f"{plural(result.records, 'record')} removed, {left}"
        return f"{name}: {lost}, committed as {word} {numbers}"

    @property
    def facts(self) -> dict[str, Any]:
        """What people get besides."""
        result, split, facts = self.result, self.split, dict[str, Any]()
        if result.editions:
            parts = [part for part in split.parts if part.edition in result.editions]
            lists = [str(part.removed["list"]) for part in parts if part.removed]
            shards = plural(result.cut_shards, "shard")
            facts = {
                "removed": f"{size_text(result.raw_bytes)}; listed in "
                + ", ".join(lists),
                "written": f"{shards} again; {result.shared_shards:,} are shared with "
                "the edition before",
                "digest": split.records_digest,
            }
        if self.missing:
            facts["not found"] = [f"{plural(len(self.missing), 'line')}:"]
            facts["not found"] += self.missing
        if self.erased:
            facts["erased"] = "the editions before, with their files"
            facts["NOT erased"] = self.elsewhere
        elif split.replaced:
            kept = "the edition before; --erase deletes it, with the records"
            facts["kept"] = kept
        return facts


def remove(
    dataset: str,
    asked: dict[str, Any],
    *,
    erase: bool = False,
    give_up: bool = False,
    workers: int | None = None,
    beam_options: Sequence[str] | None = None,
    show_progress: bool = False,
) -> RemovalResult:
    """Removes records from a dataset, and returns when that is committed.

    Args:
        dataset: Its directory.
        asked: What to remove, as arguments of `begin_removal`.
        erase: Whether to delete the state before, with the bytes of the records.
        give_up: Whether to give up first what others have begun on the split.
        workers: Number of processes on this machine; by default its number of cores.
        beam_options: Options of the Beam pipeline, including `--runner`; None to run
            without Beam.
        show_progress: Whether to show progress on standard error; not with Beam.

    Raises:
        GristmillError: It failed. Finished shards are kept.
    """
    job = RemovalJob(dataset, {**asked, "erase": erase, "give_up": give_up})
    begun = job.begin()
    if beam_options is None:
        return run_job(job, begun, workers=workers, show_progress=show_progress)
    from gristmill.pipelines.beam.run_pipeline import result_path_of, run_pipeline
    from gristmill.transforms.beam.run_job import RunJob

    (known,) = begun.known
    assert isinstance(known, BegunRemoval)
    path = result_path_of(dataset, known.manifest.name, known.split, known.removal)
    job = RemovalJob(dataset, {**asked, "erase": erase})
    return run_pipeline(RunJob(job), beam_options, result_path=path)


def check_found(asked: Asked, file: str, *, allow_missing: bool) -> None:
    """Raises InputError if lines name nothing that is there, or no line does.

    Args:
        asked: What is to be removed.
        file: Where the lines are, for messages.
        allow_missing: Whether some may name nothing.
    """
    nothing = not len(asked.arguments["records"])
    if not asked.missing or (allow_missing and not nothing):
        return
    raise InputError(
        f"{plural(len(asked.missing), 'line')} name{'s' * (len(asked.missing) == 1)} "
        "nothing that is in the split",
        where=file,
        got=some_of(asked.missing, 20),
        cure="correct these lines; nothing was removed"
        if nothing
        else "correct these lines, or remove the others with --allow-missing; nothing "
        "was removed yet",
    )
