"""What `gristmill inspect` says of a dataset, and `gristmill head` of its records."""

from __future__ import annotations

import json

from gristmill.dataset.errors import some_of
from gristmill.dataset.example import Values, decode_example
from gristmill.dataset.metadata.features import FeatureSpec, parse_features
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.provenance import part_count
from gristmill.dataset.metadata.splits import Split
from gristmill.pipelines.results.formatting import map_text, plural, size_text
from gristmill.pipelines.results.packed import (
    packed_lines,
    packed_split,
    tokenizer_text,
)

_TEXT_WIDTH = 72
_VALUES_SHOWN = 8
_OPTIONS_SHOWN = 3
_FEATURES_SHOWN = 20


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
        lines += [f"split {name}", *_split_lines(split)]
        lines += _packed_lines(split, dataset)
        lines += _feature_lines(split)
        if split.editions:
            lines.append(f"  editions  {len(split.editions):,}")
        for number, edition in enumerate(split.editions, 1):
            lines += [f"edition {number:,} of {name}", *_split_lines(edition)]
            if split.features is None:  # Or else all have the same.
                lines += _feature_lines(edition)
    lines += [
        f"split {name}\n  being replaced: its new files are on their way"
        for name in sorted(manifest.replacing)
    ]
    return "\n".join(lines)


def _split_lines(split: Split) -> list[str]:
    mean = split.raw_bytes / split.records if split.records else 0
    several = bool(split.editions)
    lines = [
        f"  records   {split.records:,} in {plural(split.shards, 'shard')}, "
        f"{mean:,.0f} bytes each on average",
        f"  size      {size_text(split.raw_bytes)} of records, "
        f"{size_text(split.file_bytes)} on storage",
        *([] if several else _writer_lines(split.writer_options)),
        f"  digest    {split.records_digest}",
    ]
    inputs, files = map(split.source.get, ("inputs", "files"))
    if isinstance(inputs, list) and isinstance(files, int) and not several:
        lines.append(f"  source    {some_of(inputs)} ({plural(files, 'file')})")
    if (count := part_count(split)) is not None and not several:
        parts = f", {count:,} parts" if count > 1 else ""
        lines.append(f"  source    gristmill.dataset.Writer{parts}")
    if not several and (mapped := map_text(split)) is not None:
        lines.append(f"  --map     {mapped}")
    if split.quarantined_regions:
        regions = plural(split.quarantined_regions, "damaged region")
        size = size_text(split.quarantined_bytes)
        lines.append(f"  left out  {regions}, {size}: see quarantine/")
    return lines


def _packed_lines(split: Split, dataset: str) -> list[str]:
    """Returns lines about packed rows, none of other records."""
    packed = packed_split(split, dataset)
    if packed is None:
        return []
    heads = [*packed_lines(packed), ("tokenizer", tokenizer_text(split))]
    return [f"  {head:<9} {text}" for head, text in heads]


def _feature_lines(split: Split) -> list[str]:
    """Returns lines that describe the features of a split's records."""
    if split.features is None:
        return []
    try:
        features = parse_features(split.features)
    except ValueError as e:
        return [f"  features  {e}"]
    found = [f"{name}: {_feature_text(spec)}" for name, spec in features.items()]
    if len(found) > _FEATURES_SHOWN:
        more = f"and {len(found) - _FEATURES_SHOWN:,} more: --json has all"
        found[_FEATURES_SHOWN:] = [more]
    heads = ["  features  ", *[" " * 12] * len(found)]
    return [head + text for head, text in zip(heads, found, strict=False)]


def _feature_text(spec: FeatureSpec) -> str:
    text = spec.type or spec.dtype
    if spec.kind != "bytes" and text != spec.dtype:
        text += f" as {spec.dtype}"
    if spec.shape:
        sizes = ["any" if size is None else f"{size:,}" for size in spec.shape]
        text += f" [{', '.join(sizes)}]"
    if spec.names:
        text += f", {plural(len(spec.names), 'name')}"
    return text + (", or none" if spec.optional else "")


def _writer_lines(options: str) -> list[str]:
    """Returns lines with the writer options of a split; indexed files can have many."""
    found = options.split(" | ")
    lines = [f"  written   {found[0]}", *(f"            {o}" for o in found[1:])]
    if len(found) > _OPTIONS_SHOWN:
        more = f"            and {len(found) - _OPTIONS_SHOWN:,} more: --json has all"
        lines[_OPTIONS_SHOWN:] = [more]
    return lines


def record_text(number: int, record: bytes) -> str:
    """Returns a record as text: a decoded tf.train.Example, a string, or its bytes."""
    lines = [f"record {number}: {len(record):,} bytes"]
    features = _features(record)
    for name, values in sorted(features.items()):
        lines.append(f"  {name}: {_values_text(values)}")
    if not features:
        lines.append(f"  {_value_text(record)}")
    return "\n".join(lines)


def record_json(number: int, record: bytes) -> str:
    """Returns a record as one line of JSON."""
    shown = {
        name: [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in vs]
        for name, vs in _features(record).items()
    }
    fields = {"record": number, "bytes": len(record), "features": shown or None}
    return json.dumps(fields, ensure_ascii=False)


def _features(record: bytes) -> dict[str, Values]:
    """Returns the features of a tf.train.Example, none of another record."""
    try:
        return decode_example(record)
    except ValueError:
        return {}


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
