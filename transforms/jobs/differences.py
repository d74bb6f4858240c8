"""How two jobs differ, for the error that refuses the second one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill.transforms.sources.input_files import InputFiles

_SHOWN = 3


def option_differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Returns a line for each option that differs."""
    found = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            found += [f"{name}.{line}" for line in option_differences(before, after)]
        elif before != after:
            found.append(f"{name} was {before!r}, is {after!r}")
    return found


def file_differences(old: InputFiles, new: InputFiles) -> list[str]:
    """Returns a line for each kind of change to the input files, with some names."""

    def listing(files: InputFiles) -> dict[str, tuple[int, str]]:
        rows = zip(files.sizes.tolist(), files.versions, strict=True)
        return dict(zip(files.paths, rows, strict=True))

    before, after = listing(old), listing(new)
    kinds: dict[str, Sequence[str]] = {
        "gone": sorted(before.keys() - after.keys()),
        "new": sorted(after.keys() - before.keys()),
        "changed": sorted(
            path for path in before.keys() & after.keys() if before[path] != after[path]
        ),
    }
    return [
        f"{len(paths):,} input files {kind}: {', '.join(paths[:_SHOWN])}"
        + (", ..." if len(paths) > _SHOWN else "")
        for kind, paths in kinds.items()
        if paths
    ]
