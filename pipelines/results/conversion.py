"""The result of a conversion, and its summary."""

from __future__ import annotations

import dataclasses
import json

from gristmill.dataset.metadata.manifest import Manifest
from gristmill.pipelines.results.formatting import plural, size_text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a conversion.

    Attributes:
        output: The dataset's directory.
        manifest: The committed dataset.
        splits: The splits of the conversion.
        committed_before: Those that were committed already, with nothing to do.
        repaired_shards: Shards made again because their range began at another offset.
        notes: Remarks for the user.
        seconds: Duration.
    """

    output: str
    manifest: Manifest
    splits: tuple[str, ...]
    committed_before: tuple[str, ...]
    repaired_shards: int
    notes: tuple[str, ...]
    seconds: float

    def text(self) -> str:
        """Returns the summary for a person."""
        lines = []
        raw_bytes = 0
        for name in self.splits:
            split = self.manifest.splits[name]
            head = f"{self.manifest.name}/{name}"
            if name in self.committed_before:
                lines.append(
                    f"{head}: committed already, {plural(split.records, 'record')} in "
                    f"{plural(split.shards, 'shard')}; nothing to do"
                )
                continue
            raw_bytes += split.source["raw_bytes"]
            lines.append(
                f"{head}: {plural(split.records, 'record')} in "
                f"{plural(split.shards, 'shard')}, committed"
            )
            lines.append(
                f"  read         {size_text(split.source['raw_bytes'])} in "
                f"{plural(split.source['records'], 'record')} from "
                f"{plural(split.source['files'], 'file')}"
            )
            lines.append(
                f"  written      {size_text(split.file_bytes)} with "
                f"{split.writer_options}"
            )
            if split.dropped_records or split.added_records:
                lines.append(
                    f"  --map        {split.dropped_records:,} records dropped, "
                    f"{split.added_records:,} added"
                )
            if split.quarantined_regions:
                regions = plural(split.quarantined_regions, "damaged region")
                lines.append(
                    f"  QUARANTINED  {regions}, "
                    f"{size_text(split.quarantined_bytes)}: see "
                    f"{self.output}/quarantine/"
                )
            lines.append(f"  digest       {split.records_digest}, in = out")
        if self.repaired_shards:
            lines.append(
                f"  {plural(self.repaired_shards, 'shard')} made again from the right "
                "offset"
            )
        lines += [f"note: {note}" for note in self.notes]
        rate = raw_bytes / 1e6 / max(self.seconds, 1e-9)
        lines.append(
            f"{self.output}/dataset.json in {self.seconds:,.1f} s"
            + (f", {rate:,.1f} MB/s" if raw_bytes else "")
        )
        return "\n".join(lines)

    def json(self) -> str:
        """Returns the summary as one JSON object."""
        manifest = json.loads(self.manifest.encode())
        return json.dumps(
            dataclasses.asdict(self) | {"manifest": manifest}, ensure_ascii=False
        )
