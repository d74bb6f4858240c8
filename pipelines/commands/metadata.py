"""`gristmill inspect`: what the metadata of a dataset says."""

from __future__ import annotations

import dataclasses
import glob
from typing import Any

from gristmill.dataset.base.errors import NotADatasetError
from gristmill.pipelines.commands.command import command
from gristmill.pipelines.commands.messages import (
    as_json,
    next_batch,
    next_step,
    show,
)
from gristmill.pipelines.commands.shared_options import (
    argument,
    edition,
    flag,
    split,
)
from gristmill.pipelines.options.job_options import usual_split


@command(looks=True)
@argument("dataset")
@split("Show this split alone.", "all; the only one with --edition and --files")
@edition("Show the split as it was when this edition was the newest.")
@flag(
    "--files", "Print the paths of the shards instead, in the order of their records."
)
def inspect(given: Any) -> None:
    """Show splits, sizes, features and source of a dataset.

    It also shows editions and the commands that made them, changes by --map,
    skipped input, and how far unfinished work is. It warns of shards that are
    uneven or take more than their input. It reads only metadata.

    Editions with equal digests have the same records. With --files, it prints the
    shards of one split, for Grain and other readers that take a list of files.
    """
    from gristmill.dataset.metadata.manifest import (
        chosen_split,
        open_manifest,
        state_of,
    )
    from gristmill.pipelines.text.split_editions import (
        edition_files,
        manifest_fields,
        manifest_text,
    )
    from gristmill.pipelines.text.unfinished import read_unfinished

    dataset, edition = given.dataset, given.edition
    try:
        manifest = open_manifest(dataset)
    except NotADatasetError as e:
        _show_uncommitted(dataset, e)
        return
    unfinished = [] if edition or given.files else read_unfinished(dataset, manifest)
    if given.split or edition or given.files:
        name = chosen_split(dataset, manifest, given.split)
        state = manifest.splits[name]
        if edition is not None:
            state = state_of(dataset, state, edition)
        if given.files:
            paths = [*edition_files(dataset, state)]
            show(paths, "\n".join(paths))
            return
        manifest = dataclasses.replace(manifest, splits={name: state})
    if as_json():
        show(manifest_fields(manifest, dataset, unfinished))
    else:
        show(None, manifest_text(manifest, dataset, unfinished))
    if manifest.splits:
        name = usual_split(manifest.splits)
        next_batch(dataset, name, manifest.splits[name])
        next_step("head", dataset, "--split", name)


def _show_uncommitted(dataset: str, error: NotADatasetError) -> None:
    """Shows the work in a directory without a dataset.json; raises if there is none."""
    from gristmill.dataset.storage.lookup import storage_for
    from gristmill.pipelines.text.unfinished import read_unfinished

    is_input = (error.got or "").startswith(("a file", "files"))
    if is_input or (glob.has_magic(dataset) and storage_for(dataset).match(dataset)):
        cure = (
            "see its records with `gristmill head`, and what it will become with "
            "`gristmill plan`; then convert it with `gristmill convert`"
        )
        raise NotADatasetError(**{**error.facts(), "cure": cure}) from error
    unfinished = read_unfinished(dataset, None)
    if not unfinished:
        raise error
    lines = [f"{dataset}: NOT committed", *(one.text() for one in unfinished)]
    show({"unfinished": unfinished}, "\n".join(lines))
    next_step("inspect", dataset, why="again, later")
