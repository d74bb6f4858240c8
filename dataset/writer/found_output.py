"""What an output holds of a split before a writer begins, or commits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from gristmill.dataset.commit.ownership import check_no_strangers
from gristmill.dataset.commit.write_marker import option_differences
from gristmill.dataset.errors import JobChangedError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.provenance import part_count
from gristmill.dataset.metadata.read_manifest import read_manifest
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.writer.parts_job import PartsJob


class Begun(NamedTuple):
    """A job that is described in a directory of new files.

    Attributes:
        fingerprint: What tells it from all others.
        options: As `PartsJob.options` gives them.
        where: The description, for messages.
    """

    fingerprint: str
    options: Mapping[str, Any]
    where: str


def begun_job(output: str, name: str, split: str) -> Begun | None:
    """Returns the job whose parts are in an output, None if there is none."""
    aside = layout.aside_dir(output, name, split)
    where = layout.join(aside, layout.write_path(name, split))
    content = storage_for(output).load(where)
    try:
        fields = {} if content is None else json.loads(content.data)
        # Another kind of write has other options.
        if "parts" in fields["options"]:
            return Begun(str(fields["fingerprint"]), fields["options"], where)
    except (KeyError, TypeError, ValueError):
        pass
    return None


def check_free(job: PartsJob, manifest: Manifest | None = None) -> None:
    """Checks that the output holds nothing of the split.

    Args:
        job: The job.
        manifest: The dataset as it is; by default it is read.

    Raises:
        JobChangedError: It holds the split, or an unfinished conversion of it.
        InputError: It holds files that could be its shards.
    """
    if manifest is None:
        manifest = read_manifest(job.output)
    split = None if manifest is None else manifest.splits.get(job.split)
    cure = "choose another split or output, or replace it with overwrite=True"
    if split is not None:
        own, origin = job.marker.made(split), "from another source"
        if part_count(split) is not None:
            changed = option_differences(split.source["options"], job.source["options"])
            origin = f"of a Writer: {'; '.join(changed) or 'with the same options'}"
        raise JobChangedError(
            "the output holds this split already",
            where=job.where,
            got=f"{split.records:,} records, {origin}",
            cure=cure + (", or keep it with resume=True" if own else ""),
        )
    paths = [
        layout.join(job.output, path(job.name, job.split))
        for path in (layout.job_path, layout.write_path)
    ]
    if any(storage_for(job.output).stat_all(paths)):
        raise JobChangedError(
            "the output belongs to an unfinished conversion",
            where=job.where,
            cure=f"finish it first, or {cure}",
        )
    check_no_strangers(job.output, job.name, job.split)
