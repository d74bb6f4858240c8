"""The description of a dataset, as `gristmill inspect` prints it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gristmill.dataset.metadata.manifest import Manifest
from gristmill.pipelines.results.formatting import plural, size_text


def manifest_text(manifest: Manifest, dataset: str) -> str:
    """Returns a description of a dataset."""
    lines = [
        f"{manifest.name} at {dataset}",
        f"  made by   {manifest.created_by}",
        f"  digest    {manifest.content_digest}",
    ]
    if manifest.features is not None:
        lines.append("  schema    features.json, as TFDS writes it")
    for name, split in sorted(manifest.splits.items()):
        mean = split.raw_bytes / split.records if split.records else 0
        lines += [
            f"split {name}",
            f"  records   {split.records:,} in {plural(split.shards, 'shard')}, "
            f"{mean:,.0f} bytes each on average",
            f"  size      {size_text(split.raw_bytes)} of records, "
            f"{size_text(split.file_bytes)} on storage",
            f"  written   {split.writer_options}",
            f"  digest    {split.records_digest}",
        ]
        source: Mapping[str, Any] = split.source
        if "inputs" in source:
            lines.append(
                f"  source    {', '.join(source['inputs'])} "
                f"({plural(source['files'], 'file')})"
            )
        if split.quarantined_regions or split.dropped_records or split.added_records:
            lines.append(
                f"  left out  {split.quarantined_regions:,} damaged regions, "
                f"{split.dropped_records:,} dropped records; "
                f"{split.added_records:,} added"
            )
    return "\n".join(lines)
