"""The result of a conversion, and its summary."""

from __future__ import annotations

import contextlib
import dataclasses

from gristmill.dataset.base.errors import GristmillError, some_of
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest, read_manifest
from gristmill.dataset.metadata.splits import Split
from gristmill.pipelines.text.printer import fact_lines, plural
from gristmill.pipelines.text.split_facts import map_name, split_facts


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
    # A row of several documents has no place for a value of each.
    cure = "attach them to this dataset"
    if edition.packed is not None:
        cure = "select by them with --select, as rows of tokens have none"
    which = f"the columns {some_of(names)} of {inputs[0]}"
    return [f"{which} are not carried along: {cure}"]
