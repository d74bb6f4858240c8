"""`gristmill inspect` and `status`: what the metadata of a dataset says."""

from __future__ import annotations

import dataclasses
import glob
import json
from typing import TYPE_CHECKING

import click

from gristmill.pipelines.commands.messages import next_step, texts_of
from gristmill.pipelines.commands.parameters import command
from gristmill.pipelines.options.option import (
    argument,
    flag,
    split_name,
    tokenizer_of_rows,
)

if TYPE_CHECKING:
    from gristmill.dataset.base.errors import NotADatasetError


@dataclasses.dataclass(frozen=True, kw_only=True)
class InspectOptions:
    """Options of `gristmill inspect`."""

    dataset: str = argument(metavar="DATASET[@EDITION]")
    files: bool = flag(
        "Print the paths of the shards instead, in the order of their records."
    )
    split: str | None = split_name("With --files: the split.")
    tokenizer: str | None = tokenizer_of_rows("shows pieces of a template as text.")


@command("inspect", InspectOptions)
def inspect(options: InspectOptions, *, as_json: bool) -> None:
    """Show splits, sizes, features and source of a dataset.

    It also shows editions and the commands that made them, changes by --map, and
    quarantined input, and warns of shards that are uneven or take more than their
    input. It reads only metadata and, from rows of conversations, the first 64, to list
    the pieces of the template that are most often trained on, or not.

    With --files, it prints the shards of one split, for Grain and other readers that
    take a list of files; DATASET@EDITION has those as of that edition.
    """
    dataset = options.dataset
    if options.files:
        _print_files(dataset, options.split, as_json=as_json)
        return
    from gristmill.dataset.base.errors import NotADatasetError
    from gristmill.dataset.metadata.open_manifest import open_manifest
    from gristmill.pipelines.text.contents import manifest_json, manifest_text

    try:
        manifest = open_manifest(dataset)
    except NotADatasetError as e:
        if not _is_input(e, dataset):
            raise
        cure = (
            "see its records with `gristmill head`, and what it will become with "
            "`gristmill plan`; then convert it with `gristmill convert`"
        )
        raise NotADatasetError(**{**e.facts(), "cure": cure}) from e
    if as_json:
        click.echo(manifest_json(manifest, dataset), nl=False)
    else:
        click.echo(manifest_text(manifest, dataset, texts_of(options.tokenizer)))
    if manifest.splits:
        first = min(manifest.splits, key=lambda name: (name != "train", name))
        next_step("head", dataset, "--split", first)


def _print_files(text: str, split: str | None, *, as_json: bool) -> None:
    from gristmill.dataset.metadata.open_manifest import (
        chosen_split,
        open_manifest,
        state_of,
    )
    from gristmill.pipelines.options.given_datasets import path_and_edition
    from gristmill.pipelines.text.edition_history import edition_files

    dataset, edition = path_and_edition(text)
    manifest = open_manifest(dataset)
    chosen = manifest.splits[chosen_split(dataset, manifest, split)]
    state = chosen if edition is None else state_of(dataset, chosen, edition)
    paths = [*edition_files(dataset, state)]
    click.echo(json.dumps(paths) if as_json else "\n".join(paths))


def _is_input(error: NotADatasetError, path: str) -> bool:
    """Returns whether there are files instead of a dataset."""
    from gristmill.dataset.storage.lookup import storage_for

    if (error.got or "").startswith(("a file", "files")):
        return True
    return glob.has_magic(path) and bool(storage_for(path).match(path))


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatusOptions:
    """Options of `gristmill status`."""

    dataset: str = argument()


@command("status", StatusOptions)
def status(options: StatusOptions, *, as_json: bool) -> None:
    """Show the progress of a conversion, or of other writers.

    It reads the directory DATASET, on whichever machine the conversion runs.
    """
    from gristmill.pipelines.text.status import read_status

    found = read_status(options.dataset)
    click.echo(found.json() if as_json else found.text())
    if found.committed:
        next_step("inspect", options.dataset)
    else:
        next_step("status", options.dataset, why="again, later")
