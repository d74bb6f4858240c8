"""The result of a verification, and its report in a file."""

from __future__ import annotations

import dataclasses
from typing import Any

from gristmill.dataset.base.errors import some_of
from gristmill.dataset.metadata.layout import COLUMN, VALUES
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.text.printer import json_text, plural, size_text
from gristmill.pipelines.text.split_facts import packed_facts
from gristmill.transforms.checking.verification import VerifyResult

_FINDINGS_SHOWN = 20
_CURE = (
    "restore these files from a copy; or delete them and run the same `gristmill "
    "convert` or `gristmill pack` again, which makes missing shards"
)
_CURE_OF_COLUMNS = (
    "attach the damaged columns again, with `gristmill attach --overwrite`"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verification(VerifyResult):
    """The result of a verification, for people.

    Attributes:
        quick: Whether the contents of shards and indexes were skipped.
        seconds: Duration; 0 if not known.
    """

    also_shown = ("not_checked", "targets")

    quick: bool
    seconds: float = 0.0

    @property
    def findings_count(self) -> int:
        """Number of findings, listed or not."""
        return len(self.findings) + self.more_findings

    @property
    def targets(self) -> int | None:
        """The number of targets in packed rows."""
        return None if self.packed is None else self.packed.targets

    @property
    def not_checked(self) -> tuple[str, ...]:
        """Contents that were not checked."""
        if not self.quick:
            return ()
        # The listing of a bucket has the checksum of every object.
        shards = () if "://" in self.dataset else ("contents of shards",)
        return (*shards, "contents of indexes")

    @property
    def title(self) -> str:
        """The first findings, and the verdict."""
        lines = [str(finding) for finding in self.findings[:_FINDINGS_SHOWN]]
        count = self.findings_count
        if count > len(lines):
            lines.append(f"... and {count - len(lines):,} more")
        verdict = "nothing wrong in what was checked" if self.quick else "whole"
        if count:
            verdict = f"DAMAGED: {plural(count, 'finding')}"
        what = plural(self.shards, "shard")
        if self.records is not None and self.raw_bytes is not None:
            records = plural(self.records, "record")
            what = f"{records} ({size_text(self.raw_bytes)}) in {what}, every byte"
        seconds = f"in {self.seconds:,.1f} s"
        return "\n".join([*lines, f"{self.dataset}: {verdict}; {what} {seconds}"])

    @property
    def facts(self) -> dict[str, Any]:
        """Further facts for people."""
        facts = {} if self.packed is None else packed_facts(self.packed)
        if self.quick:
            unchecked = f"{', '.join(self.not_checked)}: leave out --quick"
            facts["NOT checked"] = unchecked
        if self.leftovers:
            count = len(self.leftovers) + self.more_leftovers
            files = plural(count, "file")
            facts["left over"] = lines = [
                f"{files} of a command that was killed, or that still runs: "
                f"{some_of(self.leftovers)}"
            ]
            if count > self.unfinished:
                garbage = plural(count - self.unfinished, "file")
                lines.append(f"gristmill clean deletes {garbage}")
            if self.unfinished:
                lines.append(
                    f"{plural(self.unfinished, 'file')} of unfinished work: run its "
                    "command again; or gristmill clean --unfinished deletes them"
                )
        of_columns = {
            bool(VALUES.parse(finding.path) or COLUMN.parse(finding.path))
            for finding in self.findings
        }
        cures = {False: _CURE, True: _CURE_OF_COLUMNS}
        if of_columns:
            facts["to do"] = [cures[kind] for kind in sorted(of_columns)]
        return facts

    def write(self, path: str) -> None:
        """Writes the result to a file, as JSON."""
        data = json_text(self) + "\n"
        storage_for(path).write(path, data.encode("utf-8", "surrogateescape"))
