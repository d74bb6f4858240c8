"""What is left to do until new files are in the places of old ones: pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.base import FileInfo, Move

Files = Mapping[str, FileInfo]  # By path relative to the dataset.


class Steps(NamedTuple):
    """What is left to do for one split.

    Attributes:
        deletes: Old files.
        moves: New files and where they go, in groups, one after the other: shards,
            what belongs to them, the table, what describes the split.
        missing: New files that are nowhere.
    """

    deletes: list[FileInfo]
    moves: list[list[Move]]
    missing: list[str]


def plan_split(
    output: str,
    name: str,
    split: str,
    *,
    shards: Sequence[str],
    damaged: Sequence[str],
    packed: bool = False,
    is_own: Callable[[str], bool],
    new: Files,
    there: Files,
    remote: bool,
) -> Steps:
    """Plans the exchange of one split, from any state in which a run can have ended.

    Args:
        output: The dataset's directory.
        name: Its name.
        split: The split.
        shards: The new shards.
        damaged: Those of them for which input was set aside.
        packed: Whether they hold packed rows.
        is_own: Tells whether a file of the dataset belongs to a shard of the split, an
            old or a new one.
        new: The new files that have not moved. In a bucket all, as they are copied.
        there: The dataset's files.
        remote: Whether files are copied, and listed with their checksums.
    """
    indexes = [layout.index_path(shard) for shard in shards]
    if packed:
        indexes += [layout.segments_path(shard) for shard in shards]
    damage = [path for shard in damaged for path in layout.quarantine_paths(shard)]
    table = layout.table_path(name, split)
    described = [path for path in layout.split_paths(name, split) if path != table]
    wanted = {*shards, *indexes, *damage}
    # The descriptions first: workers of an earlier job, still running somewhere, read
    # them before they publish. Where the table has moved, all of this is done.
    pattern = layout.edition_file(name, split)
    described += filter(pattern.fullmatch, there)
    gone = [path for path in described if path in there and table in new]
    for path in there:
        # A reader on a local disk opens a shard and then its index. If that is the old
        # one, there was no new shard yet.
        first = not remote and path in new and path.startswith(f"{layout.INDEX_DIR}/")
        if is_own(path) and (path not in wanted or first):
            gone.append(path)
    deleted = {*gone}
    left = {path: info for path, info in there.items() if path not in deleted}
    # A marker of a write is for its workers only.
    job = [path(name, split) for path in (layout.job_path, layout.inputs_path)]
    groups = (shards, [*indexes, *damage], [table], job)
    return Steps(
        deletes=[there[path] for path in gone],
        moves=[moves_of(output, group, new, left) for group in groups],
        missing=[
            path
            for path in (*shards, *indexes, *damage, table)
            if path not in new and path not in left
        ],
    )


def moves_of(output: str, paths: Iterable[str], new: Files, there: Files) -> list[Move]:
    """Returns the moves of those files that are not in their places yet."""
    moves = []
    for path in paths:
        source, target = new.get(path), there.get(path)
        if source is None or (target is not None and _is_same(source, target)):
            continue
        version = "" if target is None else target.version
        moves.append(Move(source, layout.join(output, path), version))
    return moves


def _is_same(file: FileInfo, other: FileInfo) -> bool:
    known = file.crc32c is not None and file.crc32c == other.crc32c
    return known and file.size_bytes == other.size_bytes
