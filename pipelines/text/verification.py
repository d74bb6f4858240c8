"""The result of a verification, and its report in a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gristmill.dataset.base.findings import Finding
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.text.formatting import plural, size_text
from gristmill.pipelines.text.printer import json_text
from gristmill.pipelines.text.supervision import supervision_lines

_FINDINGS_SHOWN = 20
_LEFTOVERS_SHOWN = 3
_CURE = (
    "restore these files from a copy; or delete them and run the same `gristmill "
    "convert` or `gristmill pack` again, which makes missing shards"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verification:
    """The result of a verification.

    Attributes:
        dataset: Directory of the dataset.
        quick: Whether the contents of shards and indexes were left out.
        shards: Shards checked.
        records: Records decoded and compared; None if quick.
        raw_bytes: Their size; None if quick.
        findings: What is wrong with what was checked, one for each file, the first
            10,000.
        leftovers: Files of commands that were killed, or that still run, the first
            1,000.
        more_findings: How many others there are.
        more_leftovers: How many others there are.
        packed: What packed rows hold; None if there are none.
        seconds: Duration, 0 if not known.
    """

    also_shown = ("checked", "not_checked", "targets")

    dataset: str
    quick: bool
    shards: int
    records: int | None
    raw_bytes: int | None
    findings: Sequence[Finding]
    leftovers: Sequence[str] = ()
    more_findings: int = 0
    more_leftovers: int = 0
    packed: PackedCounts | None = None
    seconds: float = 0.0

    @property
    def findings_count(self) -> int:
        """Number of findings, with those that are not listed."""
        return len(self.findings) + self.more_findings

    @property
    def targets(self) -> int | None:
        """The targets that packed rows hold."""
        return None if self.packed is None else self.packed.targets

    @property
    def checked(self) -> tuple[str, ...]:
        """What was compared with `dataset.json` and the tables of shards."""
        names = ("metadata", "names of files", "sizes of shards")
        if not self.quick:
            documents = ("every document",) * (self.packed is not None)
            return (
                *(*names, "every byte of shards and indexes", "every record"),
                *documents,
            )
        # The listing of a bucket has the checksum of every object.
        return (*names, "checksums of shards") if self._in_bucket else names

    @property
    def not_checked(self) -> tuple[str, ...]:
        """What was not looked at."""
        if not self.quick:
            return ()
        shards = () if self._in_bucket else ("contents of shards",)
        return (*shards, "contents of indexes")

    @property
    def _in_bucket(self) -> bool:
        return "://" in self.dataset

    def text(self) -> str:
        """Returns the result for a person."""
        lines = [str(finding) for finding in self.findings[:_FINDINGS_SHOWN]]
        count = self.findings_count
        if count > len(lines):
            lines.append(f"... and {count - len(lines):,} more")
        if count:
            verdict = f"DAMAGED: {plural(count, 'finding')}"
        else:
            verdict = "nothing wrong in what was checked" if self.quick else "whole"
        what = plural(self.shards, "shard")
        if self.records is not None and self.raw_bytes is not None:
            records = plural(self.records, "record")
            what = f"{records} ({size_text(self.raw_bytes)}) in {what}, every byte"
        lines.append(f"{self.dataset}: {verdict}; {what} in {self.seconds:,.1f} s")
        if self.packed is not None:
            lines += _packed_lines(self.packed)
        if self.quick:
            lines.append(f"  checked      {', '.join(self.checked)}")
            lines.append(
                f"  NOT checked  {', '.join(self.not_checked)}: leave out --quick"
            )
        if self.leftovers:
            files = plural(len(self.leftovers) + self.more_leftovers, "file")
            some = ", ".join(self.leftovers[:_LEFTOVERS_SHOWN])
            more = ", ..." if len(self.leftovers) > _LEFTOVERS_SHOWN else ""
            lines.append(
                f"  left over    {files} of a command that was killed, or that still "
                f"runs: {some}{more}"
            )
            clean = "gristmill clean deletes them; unfinished work, with --unfinished"
            lines.append(f"               {clean}")
        if self.findings:
            lines.append(f"  to do        {_CURE}")
        return "\n".join(lines)

    def write(self, path: str) -> None:
        """Writes the result to a file, as JSON."""
        data = json_text(self) + "\n"
        storage_for(path).write(path, data.encode("utf-8", "surrogateescape"))


def _packed_lines(counts: PackedCounts) -> list[str]:
    """Returns the counts of packed rows, for a person."""
    places = counts.tokens + counts.padding_tokens
    padding = 100 * counts.padding_tokens / max(places, 1)
    truncated = f"{counts.truncated_documents:,} truncated"
    if counts.truncated_tokens:
        truncated += f" by {plural(counts.truncated_tokens, 'token')}"
    return [
        f"  tokens       targets {counts.targets:,} = tokens {counts.tokens:,} - "
        f"pieces {counts.pieces:,}; {padding:.2f} % padding",
        f"  documents    {counts.documents:,}, {counts.cut_documents:,} of them cut; "
        f"{truncated}; {counts.empty_documents:,} dropped without a token",
        *(f"  {head:<11}  {text}" for head, text in supervision_lines(counts)),
    ]
