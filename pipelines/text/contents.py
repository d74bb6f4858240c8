"""The content of a dataset, for `gristmill inspect`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gristmill.dataset.base.errors import some_of
from gristmill.dataset.metadata.column_table import column_entries
from gristmill.dataset.metadata.features import FeatureSpec, parse_features
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.splits import Split
from gristmill.pipelines.text.edition_history import (
    history_lines,
    made_by,
    space_of_replaced,
)
from gristmill.pipelines.text.formatting import plural, size_text
from gristmill.pipelines.text.split_description import (
    SplitStorage,
    map_text,
    packed_facts,
    selected_text,
    skipped_text,
    source_text,
)
from gristmill.pipelines.text.supervision import template_lines
from gristmill.pipelines.text.unfinished import Unfinished

if TYPE_CHECKING:
    from gristmill.transforms.tokens.tokenizers.token_texts import TokenTexts

_OPTIONS_SHOWN = 3
_FEATURES_SHOWN = 20


def manifest_text(
    manifest: Manifest,
    dataset: str,
    texts: TokenTexts | None = None,
    unfinished: Sequence[Unfinished] = (),
) -> str:
    """Returns a description of a dataset.

    Args:
        manifest: Its metadata.
        dataset: Its directory.
        texts: Shows tokens as text; None for names of special tokens, and ids.
        unfinished: Work that is not committed.
    """
    lines = [
        f"{manifest.name} at {dataset}",
        f"  made by   {manifest.created_by}",
        f"  digest    {manifest.content_digest}",
    ]
    if manifest.features is not None:
        lines.append("  schema    features.json, as TFDS writes it")
    for name, split in sorted(manifest.splits.items()):
        lines += [f"split {name}", *_split_lines(split, dataset)]
        facts = packed_facts(split, dataset)
        lines += [f"  {head:<9} {text}" for head, text in facts]
        lines += template_lines(dataset, name, split, texts)
        lines += _feature_lines(split)
        lines += _column_lines(split, dataset)
        lines += history_lines(manifest, name, dataset)
        for edition in split.editions:
            lines += [f"edition {edition.edition:,} of {name}"]
            # The split has the warnings of all.
            lines += [
                line
                for line in _split_lines(edition, dataset)
                if not line.startswith("  warning ")
            ]
            if split.features is None:  # Or else all have the same.
                lines += _feature_lines(edition)
    lines += [f"NOT committed: {one.text()}" for one in unfinished]
    return "\n".join(lines)


def manifest_fields(
    manifest: Manifest, dataset: str, unfinished: Sequence[Unfinished] = ()
) -> dict[str, Any]:
    """Returns `dataset.json` with a `summary` of each split, and `unfinished` work."""
    summary = {}
    for name, split in sorted(manifest.splits.items()):
        editions = [
            {
                **vars(SplitStorage.of(dataset, part)),
                "edition": part.edition,
                "made_by": made_by(split, part.edition),
            }
            for part in split.parts
        ]
        replaced = [
            {
                "editions": state.numbers,
                "made_by": made_by(split, state.edition),
                "records": state.records,
            }
            for state in split.replaced
        ]
        summary[name] = {
            **vars(SplitStorage.of(dataset, split)),
            "editions": editions,
            "replaced": replaced,
            "replaced_bytes": space_of_replaced(dataset, split),
        }
    document: dict[str, Any] = json.loads(manifest.encode())
    return document | {"unfinished": unfinished, "summary": summary}


def _split_lines(split: Split, dataset: str) -> list[str]:
    mean = split.raw_bytes / split.records if split.records else 0
    several = bool(split.editions)
    lines = [
        f"  records   {split.records:,} in {plural(split.shards, 'shard')}, "
        f"{mean:,.0f} bytes each on average",
        f"  size      {size_text(split.raw_bytes)} of records, "
        f"{size_text(split.file_bytes)} on storage",
        *SplitStorage.of(dataset, split).lines(),
        *([] if several else _writer_lines(split.writer_options)),
        f"  digest    {split.records_digest}",
    ]
    if not several and (source := source_text(split)) is not None:
        lines.append(f"  source    {source}")
    if not several and (mapped := map_text(split)) is not None:
        lines.append(f"  --map     {mapped}")
    if not several and (selected := selected_text(split)) is not None:
        lines.append(f"  selected  {selected}")
    if split.skipped_regions:
        lines.append(f"  left out  {skipped_text(split)}: see errors/")
    return lines


def _feature_lines(split: Split) -> list[str]:
    """Returns lines that describe the features of a split's records."""
    if split.features is None:
        return []
    try:
        features = parse_features(split.features)
    except ValueError as e:
        return [f"  features  {e}"]
    found = [f"{name}: {feature_text(spec)}" for name, spec in features.items()]
    if len(found) > _FEATURES_SHOWN:
        more = f"and {len(found) - _FEATURES_SHOWN:,} more: --json has all"
        found[_FEATURES_SHOWN:] = [more]
    heads = ["  features  ", *[" " * 12] * len(found)]
    return [head + text for head, text in zip(heads, found, strict=False)]


def _column_lines(split: Split, dataset: str) -> list[str]:
    """Returns a line for each column beside a split's records."""
    found: dict[str, dict[str, list[int]]] = {}
    sizes: dict[str, int] = {}
    for part in split.parts:
        for name, entry in column_entries(part, dataset).items():
            kinds = found.setdefault(name, {})
            kinds.setdefault(str(entry.kind), []).append(part.edition)
            sizes[name] = sizes.get(name, 0) + entry.file_bytes
    lines = []
    for name, kinds in found.items():
        line = f"  column    {name}: {' or '.join(kinds)}, {size_text(sizes[name])}"
        having = [number for numbers in kinds.values() for number in numbers]
        if len(kinds) > 1 or len(having) < len(split.parts):
            line += f"; only of edition {some_of(having, 20)}: attach it again"
        lines.append(line)
    return lines


def feature_text(spec: FeatureSpec) -> str:
    """Returns the content of a feature, in a few words."""
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
