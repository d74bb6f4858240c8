"""What the commands print: for the eye of a person, or as JSON for a script."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from gristmill.dataset.example import Values, decode_example
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.pipelines.convert import Outcome

_TEXT_WIDTH = 72
_VALUES_SHOWN = 8


def size_text(size_bytes: float) -> str:
    """Returns a size for the eye.

    >>> size_text(2_621_440)
    '2.5 MiB'
    """
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(size_bytes) < 1024 or unit == "PiB":
            break
        size_bytes /= 1024
    return (
        f"{size_bytes:,.0f} {unit}" if unit == "bytes" else f"{size_bytes:,.1f} {unit}"
    )


def plural(count: int, thing: str) -> str:
    """Returns a count with its noun.

    >>> plural(1, "shard"), plural(2_000, "shard")
    ('1 shard', '2,000 shards')
    """
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def outcome_text(outcome: Outcome) -> str:
    """Returns the closing summary of a conversion."""
    lines = []
    manifest = outcome.manifest
    raw_bytes = 0
    for name in outcome.splits:
        if manifest is None:
            continue
        split = manifest.splits[name]
        head = f"{manifest.name}/{name}"
        if name in outcome.committed_before:
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
            f"  written      {size_text(split.file_bytes)} with {split.writer_options}"
        )
        if split.dropped_records or split.added_records:
            lines.append(
                f"  --map        {split.dropped_records:,} records dropped, "
                f"{split.added_records:,} added"
            )
        if split.quarantined_regions:
            regions = plural(split.quarantined_regions, "damaged region")
            lines.append(
                f"  QUARANTINED  {regions}, {size_text(split.quarantined_bytes)}: see "
                f"{outcome.output}/quarantine/"
            )
        lines.append(f"  digest       {split.records_digest}, in = out")
    if outcome.repaired_shards:
        lines.append(
            f"  {plural(outcome.repaired_shards, 'shard')} made again from the right "
            "offset"
        )
    lines += [f"note: {note}" for note in outcome.notes]
    rate = raw_bytes / 1e6 / max(outcome.seconds, 1e-9)
    lines.append(
        f"{outcome.output}/dataset.json in {outcome.seconds:,.1f} s"
        + (f", {rate:,.1f} MB/s" if raw_bytes else "")
    )
    return "\n".join(lines)


def outcome_json(outcome: Outcome) -> str:
    """Returns the same as one JSON object."""
    manifest = outcome.manifest
    fields = {
        **dataclasses.asdict(outcome),
        "manifest": None if manifest is None else json.loads(manifest.encode()),
    }
    return json.dumps(fields, ensure_ascii=False)


def manifest_text(manifest: Manifest, dataset: str) -> str:
    """Returns what a dataset is, for the eye."""
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


def record_text(number: int, record: bytes) -> str:
    """Returns one record for the eye: a tf.train.Example, a text, or its bytes."""
    lines = [f"record {number}: {len(record):,} bytes"]
    try:
        features = decode_example(record) if record else {}
    except ValueError:
        features = {}
    for name, values in sorted(features.items()):
        lines.append(f"  {name}: {_values_text(values)}")
    if not features:
        lines.append(f"  {_value_text(record)}")
    return "\n".join(lines)


def record_json(number: int, record: bytes) -> str:
    """Returns one record as a line of JSON."""
    try:
        features = decode_example(record) if record else {}
    except ValueError:
        features = {}
    shown = {
        name: [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in vs]
        for name, vs in features.items()
    }
    fields = {"record": number, "bytes": len(record), "features": shown or None}
    return json.dumps(fields, ensure_ascii=False)


def _values_text(values: Values) -> str:
    shown = ", ".join(_value_text(value) for value in values[:_VALUES_SHOWN])
    if len(values) > _VALUES_SHOWN:
        shown += f", ... ({len(values):,} values)"
    return shown if len(values) == 1 else f"[{shown}]"


def _value_text(value: bytes | float) -> str:
    if not isinstance(value, bytes):
        return f"{value:g}" if isinstance(value, float) else str(value)
    try:
        text = value.decode()
    except UnicodeDecodeError:
        shown = value[:24].hex(" ")
        return f"{shown} ... ({len(value):,} bytes)" if len(value) > 24 else shown
    short = text if len(text) <= _TEXT_WIDTH else text[:_TEXT_WIDTH] + "..."
    return repr(short)
