"""The numbers of editions: those that are given out, and the next one.

Files tell it that name an edition or describe one, beside what `dataset.json` says.
"""

from __future__ import annotations

import contextlib
import json

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for


def fingerprint_of(document: bytes) -> str | None:
    """Returns the fingerprint in a description of work, None if it cannot be read."""
    try:
        return str(json.loads(document)["fingerprint"])
    except (KeyError, TypeError, ValueError):
        return None


def next_edition(output: str, name: str, split: str, there: Split) -> int:
    """Returns the number of the next edition of a split that is there.

    Numbers are left out that have a table and no description: an index may be
    committing them.
    """
    storage, edition = storage_for(output), there.last_edition + 1
    while True:
        key = layout.edition_key(split, edition)
        table, *begun = (
            layout.join(output, path(name, key))
            for path in (layout.table_path, layout.job_path, layout.write_path)
        )
        if storage.stat(table) is None or any(storage.stat_all(begun)):
            return edition
        edition += 1


def last_described(output: str, name: str, split: str) -> int:
    """Returns the greatest number of an edition that any file describes, or 0."""
    storage, own = storage_for(output), layout.join(output, "")
    found = {0}
    index = layout.join(output, layout.INDEX_DIR)
    for info in storage.scan(index, prefix=f"{name}-{split}."):
        path = info.path.removeprefix(own)
        found.add(layout.described_edition(path, name, split) or 0)
    return max(found)


def last_begun(output: str, name: str, split: str) -> int:
    """Returns the greatest number of an edition that any file is named by, or 0."""
    storage, own = storage_for(output), layout.join(output, "")
    found = {last_described(output, name, split)}
    for info in storage.scan(output, prefix=layout.shard_prefix(name, split)):
        found.add(layout.edition_of(layout.base_name(info.path), name, split))
    place = layout.temporary_dir("", name, split)
    for info in storage.scan(output, deep=True, prefix=place):
        mark = info.path.removeprefix(own + place).partition("/")[0]
        with contextlib.suppress(InputError):  # It is a directory of another program.
            found.add(layout.parse_edition_key(split + mark)[1])
    return max(found)


def first_edition(
    output: str, name: str, split: str, *, damaged: bool
) -> tuple[int, frozenset[int]]:
    """Returns the number for a split that is not there, and those of strangers.

    Where `dataset.json` is damaged, nobody knows which numbers it has given out.
    """
    storage = storage_for(output)
    paths = layout.job_path(name, split), layout.write_path(name, split)
    begun_first = any(storage.stat_all([layout.join(output, path) for path in paths]))
    if begun_first and not damaged:
        return 1, frozenset()
    own = f"{name}-{split}."
    described: dict[int, set[str]] = {}
    for info in storage.scan(layout.join(output, layout.INDEX_DIR), prefix=own):
        path = layout.join(layout.INDEX_DIR, layout.base_name(info.path))
        edition = layout.described_edition(path, name, split)
        if edition is not None:
            kind = ".".join(path.rsplit(".", 2)[1:])
            described.setdefault(edition, set()).add(kind)
    # The marker of a write goes at the commit, a table comes shortly before it.
    begins = {"write.json"} if damaged else {"write.json", "job.json"}
    given_out = {
        edition
        for edition, kinds in described.items()
        if "shards.npz" in kinds and kinds.isdisjoint(begins)
    }
    begun = {
        edition
        for edition, kinds in described.items()
        if not kinds.isdisjoint(("job.json", "write.json"))
    } - given_out
    prefix = layout.shard_prefix(name, split)
    found = {
        layout.edition_of(layout.base_name(info.path), name, split)
        for info in storage.scan(output, prefix=prefix)
    }
    last = max(found - begun | given_out, default=0)
    edition = min((number for number in begun if number > last), default=last + 1)
    return edition, frozenset(found - begun)
