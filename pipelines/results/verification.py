"""What `gristmill verify` found, and the report of it in a file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Self

from gristmill.dataset.findings import Finding
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.results.formatting import plural, size_text

_SHOWN = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verification:
    """What was looked at, and what is wrong.

    Attributes:
        dataset: The dataset.
        quick: Whether only metadata, presence and sizes were looked at.
        shards: Shards looked at.
        records: Records decoded and compared; 0 when quick.
        raw_bytes: Their size.
        findings: What is wrong; empty if all is well.
        seconds: How long it took, where that is known.
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
        lines = [str(finding) for finding in self.findings[:_SHOWN]]
        if len(self.findings) > _SHOWN:
            lines.append(f"... and {len(self.findings) - _SHOWN:,} more")
        looked = (
            # A listing of a bucket has the checksums of what it stores.
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
        lines.append(f"{self.dataset}: {verdict}; {looked} in {self.seconds:,.1f} s")
        return "\n".join(lines)

    def json(self) -> str:
        """Returns the result as one JSON object."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    def write(self, path: str) -> None:
        """Writes the result to a file, as JSON."""
        data = self.json() + "\n"
        storage_for(path).write(path, data.encode("utf-8", "surrogateescape"))

    @classmethod
    def read(cls, path: str) -> Self:
        """Reads what `write` wrote."""
        data = storage_for(path).read(path).decode("utf-8", "surrogateescape")
        fields = json.loads(data)
        fields["findings"] = tuple(Finding(**found) for found in fields["findings"])
        return cls(**fields)
