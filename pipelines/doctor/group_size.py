"""The cost of a dataset's group size for a global shuffle."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from gristmill.dataset.metadata.splits import Split
from gristmill.pipelines.doctor.finding import Finding, ok, warning
from gristmill.pipelines.doctor.place import Place
from gristmill.pipelines.text.formatting import size_text

_GROUP_SIZE = re.compile(r"(?:^|,)group_size:(\d+)(?:,|$)")


def look_at_group_size(place: Place) -> Iterator[Finding]:
    """Yields the cost of random reads in each split with several records in a chunk."""
    manifest = place.known()
    if manifest is None:
        return
    single = []
    for name, split in sorted(manifest.splits.items()):
        size = max((_group_size(part) for part in split.parts), default=1)
        if size <= 1 or not split.records:
            single.append(name)
            continue
        group = min(size, split.records)
        record = split.raw_bytes / split.records
        stored = split.file_bytes / split.records
        out = shlex.quote(f"{place.path}-single")
        again = f"gristmill convert {shlex.quote(place.path)} {out} --group-size 1"
        if split.packed is not None:
            again = (
                f"gristmill repack {shlex.quote(place.path)} {out} --length N "
                "--group-size 1, with the length of the rows"
            )
        yield warning(
            f"split {name}: chunks of {size:,} records of {size_text(record)}",
            why=f'shuffle="global" reads {size_text(stored * group)} and decodes '
            f"{size_text(record * group)} for each record of {size_text(record)}: "
            f"{group:,} times as much as at group size 1",
            cure=f'shuffle="block" in loader.global_batches, which uses all records of '
            f"a chunk; or {again}",
        )
    if single:
        yield ok(f"{', '.join(single)}: one record in a chunk; any shuffle suits it")


def _group_size(split: Split) -> int:
    match = _GROUP_SIZE.search(split.writer_options)
    return int(match[1]) if match else 1
