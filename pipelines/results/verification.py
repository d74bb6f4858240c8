"""The result of a verification, and its report in a file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from gristmill.dataset.findings import Finding
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.results.formatting import plural, size_text

_FINDINGS_SHOWN = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verification:
    """The result of a verification.

    Attributes:
        dataset: Directory of the dataset.
        quick: Whether only metadata, presence and sizes were checked.
        shards: Shards checked.
        records: Records decoded and compared; 0 if quick.
        raw_bytes: Their size.
        findings: What is wrong; empty if the dataset is whole.
        seconds: Duration, 0 if not known.
    """

    dataset: str
    quick: bool
    shards: int
    records: int
    raw_bytes: int
    findings: Sequence[Finding]
    seconds: float = 0.0

    def text(self) -> str:
        """Returns the result for a person."""
        lines = [str(finding) for finding in self.findings[:_FINDINGS_SHOWN]]
        if len(self.findings) > _FINDINGS_SHOWN:
            lines.append(f"... and {len(self.findings) - _FINDINGS_SHOWN:,} more")
        checked = (
            # The listing of a bucket has the checksum of every object.
            f"metadata, sizes{' and checksums' if '://' in self.dataset else ''} of "
            f"{plural(self.shards, 'shard')}"
            if self.quick
            else f"{plural(self.records, 'record')} ({size_text(self.raw_bytes)}) in "
            f"{plural(self.shards, 'shard')}, every byte"
        )
        verdict = (
            f"DAMAGED: {plural(len(self.findings), 'finding')}"
            if self.findings
            else "whole"
        )
        lines.append(f"{self.dataset}: {verdict}; {checked} in {self.seconds:,.1f} s")
        return "\n".join(lines)

    def json(self) -> str:
        """Returns the result as one JSON object."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    def write(self, path: str) -> None:
        """Writes the result to a file, as JSON."""
        data = self.json() + "\n"
        storage_for(path).write(path, data.encode("utf-8", "surrogateescape"))
