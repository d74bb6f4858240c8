"""The claim of a removal: it is described beside the dataset before work begins.

It stands under the number of the edition that it makes, as that of an append. Workers
read from there what to remove, and the same command continues with it.
"""

from __future__ import annotations

import dataclasses
import functools
import json

import numpy as np

from gristmill.dataset.base.errors import (
    InvalidDatasetError,
    JobChangedError,
    StorageMissingError,
    some_of,
)
from gristmill.dataset.commit.claim import Claim
from gristmill.dataset.commit.clean import unfinished_files
from gristmill.dataset.commit.editions import REMOVAL_FORMAT, fingerprint_of
from gristmill.dataset.commit.listings import check_no_link, walk
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.kinds import DESCRIBING, DIRECTORIES
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.dataset.metadata.removed import (
    RemovedRecords,
)
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.base import changed_error
from gristmill.dataset.storage.lookup import storage_for, version_of
from gristmill.transforms.removal.plan_removal import (
    EditionRemoval,
    Removal,
)


def claim(removal: Removal) -> None:
    """Describes a removal beside its dataset, unless another command is at work there.

    Raises:
        JobChangedError: Another command has begun the next edition of the split.
        StorageChangedError: Another one has begun at this moment.
    """
    storage = storage_for(removal.dataset)
    place = layout.join(removal.dataset, layout.job_path(removal.name, removal.key))
    found = storage.load(place)
    if found is not None and fingerprint_of(found.data) == removal.fingerprint:
        return
    _check_no_others(removal)
    first = Claim.next(removal.dataset, removal.name, removal.split)
    if first.edition != removal.editions[0].edition:
        raise changed_error(
            first.where,
            expected=f"edition {removal.editions[0].edition}",
            got=f"edition {first.edition}",
        )
    for one in removal.editions:
        key = layout.edition_key(removal.split, one.edition)
        path = layout.join(removal.dataset, layout.removed_path(removal.name, key))
        nothing = np.zeros(len(one.records), np.uint64)
        wanted = RemovedRecords.of(one.records, nothing)
        storage.write(path, wanted.encode(), replaces=version_of(path))
    text = json.dumps(
        {
            "format": REMOVAL_FORMAT,
            "fingerprint": removal.fingerprint,
            "request": removal.request,
            # As conversions say it: who lists these finds that it is committed.
            "job": {
                "name": removal.name,
                "split": layout.edition_key(
                    removal.split, removal.editions[0].base.edition
                ),
            },
            "editions": {
                str(one.edition): {
                    "base": one.base.edition,
                    "shards_digest": one.base.shards_digest,
                    "records": len(one.records),
                }
                for one in removal.editions
            },
        },
        indent=2,
    )
    data, version = text.encode() + b"\n", found.version if found else ""
    first.take(
        lambda: storage.write(place, data, replaces=version),
        described={layout.job_path(removal.name, removal.key): version},
    )
    for one in removal.editions[1:]:
        storage.delete_all(dataclasses.replace(first, edition=one.edition).files())


def _check_no_others(removal: Removal) -> None:
    """Raises JobChangedError if another command has begun later editions."""
    storage, name = storage_for(removal.dataset), removal.name
    index = layout.join(removal.dataset, layout.INDEX_DIR)
    known = layout.parts_of(name, removal.split)
    found = walk(removal.dataset, DESCRIBING, known)
    begun = {layout.edition_in(one.parts) for one in found}
    for edition in sorted(begun):
        if edition <= removal.before.last_edition:
            continue
        key = layout.edition_key(removal.split, edition)
        temporary = layout.temporary_dir(removal.dataset, name, key)
        shards = storage.scan(index, prefix=layout.shard_prefix(name, key))
        if storage.is_in_use(temporary) or any(shards):
            raise JobChangedError(
                "another command has begun the next edition of the split",
                where=f"{removal.dataset}, split {removal.split}",
                expected="no unfinished work on it",
                got=f"unfinished work on edition {edition:,}",
                cure="repeat that command to finish it, or delete its work with "
                "gristmill clean --unfinished",
            )


def check_nothing_begun(dataset: str, split: str, removal: Removal | None) -> None:
    """Raises JobChangedError if another command has begun work on a split.

    Its files can hold the records that are to be erased, or their values.

    Args:
        dataset: The dataset's directory.
        split: The split.
        removal: The caller's own work, which may be begun.
    """
    for directory in DIRECTORIES:
        check_no_link(layout.join(dataset, directory), directory)
    manifest, own = open_manifest(dataset), set[int]()
    if removal is not None:
        place = layout.join(dataset, layout.job_path(removal.name, removal.key))
        found = storage_for(dataset).load(place)
        if found is not None and fingerprint_of(found.data) == removal.fingerprint:
            own = {one.edition for one in removal.editions}
    begun = [*unfinished_files(dataset, manifest, split, own=own)]
    if begun:
        raise JobChangedError(
            "records are not erased as long as work on the split is unfinished",
            where=f"{dataset}, split {split}",
            expected="nothing that could hold them",
            got=some_of(begun),
            cure="repeat the command that has begun it to finish it, or give it up: "
            "gristmill remove with --erase --give-up, or gristmill clean --unfinished",
        )


def described(dataset: str, name: str, key: str, fingerprint: str) -> Removal:
    """Reads a removal from beside its dataset, once per process unless it changes.

    Args:
        dataset: The dataset's directory.
        name: Its name.
        key: See `Removal.key`.
        fingerprint: Fingerprint of the removal that is meant.

    Raises:
        JobChangedError: Another command has taken the place of this one.
    """
    version = version_of(layout.join(dataset, layout.job_path(name, key)))
    removal = _described(dataset, name, key, version)
    if removal is None or removal.fingerprint != fingerprint:
        raise JobChangedError(
            "another command has finished this removal, or taken its place",
            where=f"{dataset}, split {key}",
            expected=f"removal {fingerprint}",
            got="none" if removal is None else f"removal {removal.fingerprint}",
            cure="run this command again, one at a time: it says if all is done",
        )
    return removal


def check_current(removal: Removal) -> None:
    """Raises JobChangedError if another command has taken the place of a removal."""
    described(removal.dataset, removal.name, removal.key, removal.fingerprint)


@functools.lru_cache(maxsize=8)
def _described(dataset: str, name: str, key: str, version: str) -> Removal | None:
    del version  # In the key of the cache.
    place = layout.join(dataset, layout.job_path(name, key))
    storage, split = storage_for(dataset), layout.parse_edition_key(key)[0]
    content, manifest = storage.load(place), open_manifest(dataset)
    if content is None:
        return None
    try:
        fields = json.loads(content.data)
        if fields.get("format") != REMOVAL_FORMAT:
            return None
        known = manifest.splits[split].known
        if any(own["base"] not in known for own in fields["editions"].values()):
            return None
        editions = [
            _edition(dataset, name, split, int(number), known[own["base"]])
            for number, own in fields["editions"].items()
        ]
        request = str(fields["request"])
    except StorageMissingError:
        return None  # Another command has deleted the list: it was not in use any more.
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise InvalidDatasetError(
            "description of a removal cannot be read",
            where=place,
            got=repr(e),
            cure="run the same command again",
        ) from e
    return Removal(
        dataset=dataset,
        name=name,
        split=split,
        before=manifest.splits[split],
        editions=tuple(editions),
        request=request,
    )


def _edition(
    dataset: str, name: str, split: str, number: int, base: Split
) -> EditionRemoval:
    key = layout.edition_key(split, number)
    path = layout.join(dataset, layout.removed_path(name, key))
    wanted = RemovedRecords.decode(storage_for(path).read(path), where=path)
    return EditionRemoval(base=base, edition=number, records=wanted.records)
