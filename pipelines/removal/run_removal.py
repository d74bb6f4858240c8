"""Removing records from a dataset: on this machine, or on a Beam runner."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Sequence
from typing import Any

from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.local.pool import Done, run_tasks
from gristmill.pipelines.removal.named_records import Asked
from gristmill.pipelines.text.formatting import plural, size_text
from gristmill.transforms.removal.begin_removal import (
    BegunRemoval,
    begin_removal,
    tasks_of,
)
from gristmill.transforms.removal.commit_removal import (
    RemovalResult,
    commit_removal,
)
from gristmill.transforms.removal.cut_shard import CutShard, cut_shard

_SHOWN = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Removed:
    """What a removal did.

    Attributes:
        dataset: Directory of the dataset.
        result: What was done.
        missing: Lines that named nothing.
        erased: Whether the state before was deleted.
    """

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
        """Where the records can still be, which gristmill does not reach."""
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

    def text(self) -> str:
        """Returns the result for a person."""
        result, split = self.result, self.split
        name = f"{result.manifest.name}/{result.split}"
        if not result.editions:
            left = f"{split.records:,} left"
            lines = [f"{name}: these records were removed before; {left}"]
        else:
            numbers = " and ".join(map(str, result.editions))
            word = "edition" if len(result.editions) == 1 else "editions"
            shards = plural(result.cut_shards, "shard")
            lost = f"{plural(result.records, 'record')} removed, {split.records:,} left"
            lines = [
                f"{name}: {lost}, committed as {word} {numbers}",
                f"  removed      {size_text(result.raw_bytes)}; listed in "
                + ", ".join(
                    str(part.removed["list"])
                    for part in split.parts
                    if part.removed and part.edition in result.editions
                ),
                f"  written      {shards} again; {result.shared_shards:,} are shared "
                "with the edition before",
                f"  digest       {split.records_digest}",
            ]
        if self.missing:
            shown = self.missing[:_SHOWN]
            more = len(self.missing) - len(shown)
            lines.append(f"  not found    {plural(len(self.missing), 'line')}:")
            lines += [f"    {line}" for line in shown]
            lines += [f"    and {more:,} more"] * bool(more)
        if self.erased:
            lines.append("  erased       the editions before, with their files")
            lines += [f"  NOT erased   {place}" for place in self.elsewhere]
        elif split.replaced:
            kept = "the edition before; --erase deletes it, with the records"
            lines.append(f"  kept         {kept}")
        return "\n".join(lines)

    def json(self) -> str:
        """Returns the result as one JSON object."""
        result, split = self.result, self.split
        fields: dict[str, Any] = {
            "dataset": self.dataset,
            "split": result.split,
            "editions": list(result.editions),
            "removed_records": result.records,
            "removed_bytes": result.raw_bytes,
            "records": split.records,
            "records_digest": split.records_digest,
            "cut_shards": result.cut_shards,
            "shared_shards": result.shared_shards,
            "not_found": list(self.missing),
            "erased": self.erased,
            "elsewhere": list(self.elsewhere) if self.erased else [],
        }
        return json.dumps(fields, ensure_ascii=False)


_log = logging.getLogger(__name__)


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
    begun = begin_removal(dataset, **asked, erase=erase, give_up=give_up)
    if beam_options is not None:
        return _remove_on_beam(dataset, asked, begun, erase, beam_options)
    gathered = Gathered.of([begun])
    if begun.removal is not None:
        tasks = list(tasks_of(begun.removal))
        cuts = run_tasks(
            cut_shard,
            tasks,
            label="cutting",
            noun="shards",
            stored_bytes=sum(task.file_bytes for task in tasks),
            remote=storage_for(dataset).remote,
            workers=workers,
            show_progress=show_progress,
            done=_done,
        )
        for cut in cuts:
            gathered.add(cut)
            records = cut.report.written.records
            _log.info("%s: %d records left", cut.report.path, records)
    return commit_removal(dataset, gathered, erase=erase)


def _done(cut: CutShard) -> Done:
    written = cut.report.written
    return Done(cut.task.file_bytes, written.records, written.raw_bytes)


def _remove_on_beam(
    dataset: str,
    asked: dict[str, Any],
    begun: BegunRemoval,
    erase: bool,
    beam_options: Sequence[str],
) -> RemovalResult:
    from gristmill.pipelines.beam.run_pipeline import run_pipeline
    from gristmill.transforms.beam.remove_records import RemoveRecords

    command = hashlib.sha256(repr(begun.removal).encode()).hexdigest()[:16]
    handed_over = layout.result_path(begun.manifest.name, begun.split, command)
    return run_pipeline(
        RemoveRecords.asked(dataset, asked, erase=erase),
        beam_options,
        result_path=layout.join(dataset, handed_over),
    )


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
