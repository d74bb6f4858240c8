"""A dataset for `gristmill inspect`: its splits, and the editions of each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gristmill.dataset.base.errors import InvalidDatasetError, StorageError
from gristmill.dataset.commit.listings import encode_names, find_names
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest, read_table
from gristmill.dataset.metadata.splits import Split
from gristmill.pipelines.text.printer import fact_lines, plural, size_text
from gristmill.pipelines.text.split_facts import (
    Facts,
    feature_facts,
    split_facts,
    storage_facts,
)
from gristmill.pipelines.text.unfinished import Unfinished


def manifest_text(
    manifest: Manifest,
    dataset: str,
    unfinished: Sequence[Unfinished] = (),
) -> str:
    """Returns a description of a dataset.

    Args:
        manifest: Its metadata.
        dataset: Its directory.
        unfinished: Work that is not committed.
    """
    known = manifest.features is not None
    facts: Facts = {
        "made by": manifest.created_by,
        "digest": manifest.content_digest,
        "schema": "features.json, as TFDS writes it" if known else None,
    }
    lines = [f"{manifest.name} at {dataset}", *fact_lines(facts)]
    for name, split in sorted(manifest.splits.items()):
        stored = storage_facts(dataset, split)
        stored_bytes = stored["input_bytes"]
        facts = {
            **split_facts(split, dataset),
            "input": stored_bytes and f"{size_text(stored_bytes)} as stored",
            "warning": stored["warnings"],
            "features": feature_facts(split),
            **_history(manifest, name, dataset),
        }
        lines += [f"split {name}", *fact_lines(facts)]
        for edition in split.editions:
            facts = split_facts(edition, dataset)
            if split.features is None:  # Or else all have the same.
                facts["features"] = feature_facts(edition)
            lines += [f"edition {edition.edition:,} of {name}", *fact_lines(facts)]
    lines += [f"NOT committed: {one.text()}" for one in unfinished]
    return "\n".join(lines)


def manifest_fields(
    manifest: Manifest, dataset: str, unfinished: Sequence[Unfinished] = ()
) -> dict[str, Any]:
    """Returns `dataset.json` with a `summary` of each split, and `unfinished` work."""
    summary = {}
    for name, split in sorted(manifest.splits.items()):
        editions = [
            storage_facts(dataset, part)
            | {"edition": part.edition, "made_by": made_by(split, part.edition)}
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
        summary[name] = storage_facts(dataset, split) | {
            "editions": editions,
            "replaced": replaced,
            "replaced_bytes": _space_of_replaced(dataset, split),
        }
    document: dict[str, Any] = json.loads(manifest.encode())
    return document | {"unfinished": unfinished, "summary": summary}


def _history(manifest: Manifest, name: str, dataset: str) -> Facts:
    """Returns the editions of a split; empty if it has only ever had one."""
    split = manifest.splits[name]
    if split.last_edition == 1:
        return {}
    facts: Facts = {
        "edition": [
            f"{part.edition:,}, by {made_by(split, part.edition)}: "
            f"{plural(part.records, 'record')}"
            for part in split.parts
        ],
        "replaced": [
            f"{edition_numbers(state)}, by {made_by(split, state.edition)}: "
            f"{plural(state.records, 'record')}"
            for state in split.replaced
        ],
    }
    if split.replaced:
        size = _space_of_replaced(dataset, split)
        kept = "an unknown size" if size is None else size_text(size)
        facts["kept"] = f"{kept} of replaced editions, until `gristmill clean`"
        facts["glob"] = glob_warning(manifest, name)
    return facts


def edition_numbers(split: Split) -> str:
    """Returns the editions of a split, in the order of their records."""
    numbers = [f"{number:,}" for number in split.numbers]
    if len(numbers) == 1:
        return f"edition {numbers[0]}"
    return f"editions {', '.join(numbers[:-1])} and {numbers[-1]}"


def made_by(split: Split, edition: int) -> str:
    """Returns the command that made an edition, and whether it replaced others."""
    part = split.known[edition]
    if part.removed is not None:
        base, count = part.removed.get("edition", 0), part.removed.get("records", 0)
        return f"remove, of {plural(count, 'record')} of edition {base:,}"
    how = "convert" if part.packed is None else "pack"
    if "indexed" in part.source:
        how = "index"
    elif part.writer_parts is not None:
        how = "gristmill.dataset.Writer"
    elif "write" in part.source:
        how = "WriteArrayRecords"
    states = [state for state in (*split.replaced, split) if edition in state.numbers]
    if states[0].numbers[0] != edition:
        return f"{how}, appended to edition {states[0].numbers[0]:,}"
    return how + (", replacing" if edition > 1 else "")


def glob_warning(manifest: Manifest, name: str) -> str:
    """Returns the files that a glob of all editions matches, and a better glob.

    Args:
        manifest: The manifest of a dataset.
        name: A split of it with replaced states that are kept.
    """
    split = manifest.splits[name]
    instead = "give the files that `gristmill inspect --files` prints"
    if all(part.removed is None for part in split.parts):
        keys = (layout.write_key(name, part.write) for part in split.parts)
        instead = "give " + " and ".join(
            layout.shard_glob(manifest.name, key) for key in keys
        )
    return (
        f"{manifest.name}-{name}.array_record* matches files of replaced editions, too:"
        f" {instead}"
    )


def _space_of_replaced(dataset: str, split: Split) -> int | None:
    """Returns the size of the shards that only replaced states of a split have.

    It reads the tables of all editions, and counts shared shards once. None if a table
    cannot be read, such as after a deletion by another command.
    """
    if not split.replaced:
        return 0
    left = split.known.keys() - {*split.numbers}
    try:
        kept = [read_table(dataset, split.known[n]) for n in split.numbers]
        gone = [read_table(dataset, split.known[n]) for n in left]
    except (InvalidDatasetError, StorageError):
        return None
    named = np.sort(np.concatenate([encode_names(table.paths) for table in kept]))
    names = np.concatenate([encode_names(table.paths) for table in gone])
    names, rows = np.unique(names, return_index=True)
    sizes = np.concatenate([table.file_bytes for table in gone])[rows]
    return int(sizes[find_names(named, names) < 0].sum())


def edition_files(dataset: str, split: Split) -> Iterator[str]:
    """Yields the paths of the shards of a split, in the order of its records."""
    for part in split.parts:
        for path in read_table(dataset, part).paths:
            yield layout.join(dataset, path)
