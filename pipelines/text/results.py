"""The results of a conversion and of a verification, and their summaries."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

from gristmill.dataset.base.errors import GristmillError, some_of
from gristmill.dataset.base.findings import Finding
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.layout import COLUMN, VALUES
from gristmill.dataset.metadata.manifest import Manifest, read_manifest
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.text.printer import fact_lines, json_text, plural, size_text
from gristmill.pipelines.text.split_facts import map_name, packed_facts, split_facts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a conversion.

    Attributes:
        output: The dataset's directory.
        manifest: The committed dataset.
        splits: The splits of the conversion.
        committed_before: The splits that were committed already.
        notes: Remarks for the user.
        seconds: Duration.
    """

    output: str
    manifest: Manifest
    splits: tuple[str, ...]
    committed_before: tuple[str, ...]
    notes: tuple[str, ...]
    seconds: float

    @property
    def skipped_regions(self) -> int:
        """The number of damaged regions skipped in the splits."""
        found = map(self.manifest.find, self.splits)
        return sum(split.skipped_regions for split in found if split is not None)

    def text(self) -> str:
        """Returns the summary for a person."""
        lines = []
        raw_bytes = tokens = 0
        for name in self.splits:
            split = self.manifest.find(name)
            assert split is not None  # It was committed.
            noun = "record" if split.packed is None else "row"
            only, _ = layout.parse_write_key(name)
            head = f"{self.manifest.name}/{only}"
            head += f", edition {split.edition:,}" if name != only else ""
            head += f": {plural(split.records, noun)} in "
            head += plural(split.shards, "shard")
            if name in self.committed_before:
                lines.append(f"{head}, committed already; nothing to do")
                continue
            lines.append(f"{head}, committed")
            raw_bytes += split.source["raw_bytes"]
            tokens += (split.packed or {}).get("tokens", 0)
            facts = split_facts(split, self.output)
            compared = "every record with what was made of the input"
            lines += fact_lines({**facts, "records": None, "compared": compared})
        lines += [f"note: {note}" for note in (*self.notes, *self._globs())]
        seconds = max(self.seconds, 1e-9)
        lines.append(
            f"{self.output}/dataset.json in {self.seconds:,.1f} s"
            + (f", {raw_bytes / 1e6 / seconds:,.1f} MB/s" if raw_bytes else "")
            + (f", {tokens / 1e6 / seconds:,.2f} M tokens/s" if tokens else "")
        )
        return "\n".join(lines)

    def _globs(self) -> list[str]:
        """Returns notes on globs that match files of kept, replaced editions."""
        names = dict.fromkeys(layout.parse_write_key(key)[0] for key in self.splits)
        splits = self.manifest.splits
        replaced = [name for name in names if name in splits and splits[name].replaced]
        if not replaced:
            return []
        from gristmill.pipelines.text.split_editions import glob_warning

        return [glob_warning(self.manifest, name) for name in replaced]


def edition_notes(manifest: Manifest, name: str, write: str) -> list[str]:
    """Returns notes on the edition of a write, compared with earlier ones."""
    parts = manifest.splits[name].parts
    made = [one for one in parts if one.source.get("job") == write]
    if not made:
        return []  # Another command has replaced it meanwhile.
    number = made[0].edition
    *before, own = parts[: 1 + parts.index(made[0])]
    notes = []
    for edition in before:
        pair = f"edition {number:,} of {name} and edition {edition.edition:,}"
        if (own.records, own.records_digest) == (
            edition.records,
            edition.records_digest,
        ):
            notes.append(f"{pair} hold the same records: each is in the split twice")
    last = before[-1:] and map_name(before[-1])
    if before and last != (function := map_name(own)):
        notes.append(
            f"edition {number:,} of {name} was made "
            + (f"with --map {function}" if function else "without --map")
            + (f", the one before with {last}" if last else ", the one before without")
        )
    lacking = {name for edition in before for name in edition.columns} - {*own.columns}
    if lacking:
        notes.append(
            f"edition {number:,} of {name} has no values of the columns "
            f"{some_of(sorted(lacking))}: attach these again, with --overwrite"
        )
    return [*notes, *_source_notes(own)]


def _source_notes(edition: Split) -> list[str]:
    """Returns a note on columns of the dataset that an edition was made from."""
    source = edition.source
    inputs, split = source.get("inputs"), source.get("split")
    if "shards_digest" not in source or not isinstance(inputs, list):
        return []
    there = None
    with contextlib.suppress(GristmillError):  # It may be gone by now.
        manifest = read_manifest(str(inputs[0]))
        there = None if manifest is None else manifest.splits.get(str(split))
    parts = () if there is None else there.parts
    found = {name for part in parts for name in part.columns}
    names = sorted(found - edition.columns.keys())
    if not names:
        return []
    return [
        f"the columns {some_of(names)} of {inputs[0]} are not carried along: attach "
        "them to this dataset"
    ]


_FINDINGS_SHOWN = 20
_CURE = (
    "restore these files from a copy; or delete them and run the same `gristmill "
    "convert` or `gristmill pack` again, which makes missing shards"
)
_CURE_OF_COLUMNS = (
    "attach the damaged columns again, with `gristmill attach --overwrite`"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verification:
    """The result of a verification.

    Attributes:
        dataset: Directory of the dataset.
        quick: Whether the contents of shards and indexes were skipped.
        shards: Number of shards checked.
        records: Number of records decoded and compared; None if quick.
        raw_bytes: Their size in bytes; None if quick.
        findings: The first 10,000 faults, at most one per file.
        leftovers: The first 1,000 files of commands that were killed, or are running.
        more_findings: Number of further findings.
        more_leftovers: Number of further leftovers.
        packed: Counts of packed rows; None if there are none.
        seconds: Duration; 0 if not known.
    """

    also_shown = ("not_checked", "targets")

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
            files = plural(len(self.leftovers) + self.more_leftovers, "file")
            facts["left over"] = [
                f"{files} of a command that was killed, or that still runs: "
                f"{some_of(self.leftovers)}",
                "gristmill clean deletes them; unfinished work, with --unfinished",
            ]
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
