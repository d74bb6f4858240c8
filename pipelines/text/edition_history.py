"""The editions of a split: what made each, what each takes, and those it replaced."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gristmill.dataset.base.errors import InvalidDatasetError, StorageError
from gristmill.dataset.commit.listings import encode_names, find_names
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest, read_table
from gristmill.dataset.metadata.splits import Split
from gristmill.pipelines.text.formatting import plural, size_text


def edition_numbers(split: Split) -> str:
    """Returns the editions of a split, in the order of their records."""
    numbers = [f"{number:,}" for number in split.numbers]
    if len(numbers) == 1:
        return f"edition {numbers[0]}"
    return f"editions {', '.join(numbers[:-1])} and {numbers[-1]}"


def made_by(split: Split, edition: int) -> str:
    """Returns the maker of an edition of a split, and whether it replaced others."""
    part = split.known[edition]
    if part.removed is not None:
        base, count = part.removed.get("edition", 0), part.removed.get("records", 0)
        return f"remove, of {plural(count, 'record')} of edition {base:,}"
    how = _made_by(part)
    states = [state for state in (*split.replaced, split) if edition in state.numbers]
    if states[0].numbers[0] != edition:
        return f"{how}, appended to edition {states[0].numbers[0]:,}"
    return how + (", replacing" if edition > 1 else "")


def _made_by(part: Split) -> str:
    source = part.source
    if "indexed" in source:
        return "index"
    if part.writer_parts is not None:
        return "gristmill.dataset.Writer"
    if "write" in source:
        return "WriteArrayRecords"
    if part.packed is not None:
        return "pack"
    return "convert"


def history_lines(manifest: Manifest, name: str, dataset: str) -> list[str]:
    """Returns lines about the editions of a split; none where it has only had one."""
    split = manifest.splits[name]
    if split.last_edition == 1:
        return []
    lines = [f"  editions  {len(split.editions):,}"] if split.editions else []
    lines += [
        f"  edition   {part.edition:,}, by {made_by(split, part.edition)}: "
        f"{plural(part.records, 'record')}"
        for part in split.parts
    ]
    for state in split.replaced:
        how = made_by(split, state.edition)
        lines.append(
            f"  replaced  {edition_numbers(state)}, by {how}: "
            f"{plural(state.records, 'record')}"
        )
    if split.replaced:
        kept = replaced_text(dataset, split)
        lines.append(f"  kept      {kept}, until `gristmill clean`")
        lines.append(f"  warning   {glob_warning(manifest, name)}")
    return lines


def glob_warning(manifest: Manifest, name: str) -> str:
    """Returns the files that a glob of all editions matches, and a better glob.

    Args:
        manifest: The manifest of a dataset.
        name: A split of it that keeps states which it replaced.
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


def replaced_text(dataset: str, split: Split) -> str:
    """Returns that a split keeps states which it replaced, and their size if known."""
    size = space_of_replaced(dataset, split)
    known = "an unknown size" if size is None else size_text(size)
    return f"{known} of replaced editions"


def space_of_replaced(dataset: str, split: Split) -> int | None:
    """Returns the size of the shards that only states have which a split replaced.

    It reads the tables of all editions. Shards that editions share are counted once.
    None if a table cannot be read, as when another command has deleted it.
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
