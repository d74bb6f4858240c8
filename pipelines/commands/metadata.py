"""`gristmill inspect`: what the metadata of a dataset says."""

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
    integer,
    split_name,
    tokenizer_of_rows,
)

if TYPE_CHECKING:
    from gristmill.dataset.base.errors import NotADatasetError
    from gristmill.dataset.metadata.manifest import Manifest


@dataclasses.dataclass(frozen=True, kw_only=True)
class InspectOptions:
    """Options of `gristmill inspect`."""

    dataset: str = argument()
    split: str | None = split_name(
        "Show this split alone.", "all; the only one with --edition and --files"
    )
    edition: int | None = integer(
        "Show the split as it was when this edition was the newest.",
        shown="the newest",
        least=1,
    )
    files: bool = flag(
        "Print the paths of the shards instead, in the order of their records."
    )
    tokenizer: str | None = tokenizer_of_rows("shows pieces of a template as text.")


@command("inspect", InspectOptions)
def inspect(options: InspectOptions, *, as_json: bool) -> None:
    """Show splits, sizes, features and source of a dataset.

    It also shows editions and the commands that made them, changes by --map,
    skipped input, and how far unfinished work is. It warns of shards that are
    uneven or take more than their input. It reads only metadata and, from rows of
    conversations, the first 64, to list the pieces of the template that are most often
    trained on, or not.

    Editions with equal digests have the same records. With --files, it prints the
    shards of one split, for Grain and other readers that take a list of files.
    """
    from gristmill.dataset.base.errors import NotADatasetError
    from gristmill.dataset.metadata.open_manifest import open_manifest
    from gristmill.pipelines.text.contents import manifest_json, manifest_text
    from gristmill.pipelines.text.unfinished import read_unfinished

    dataset = options.dataset
    try:
        whole = open_manifest(dataset)
    except NotADatasetError as e:
        _show_uncommitted(dataset, e, as_json=as_json)
        return
    manifest = _shown(whole, options)
    if options.files:
        _print_files(manifest, dataset, as_json=as_json)
        return
    unfinished = [] if options.edition else read_unfinished(dataset, whole)
    if as_json:
        click.echo(manifest_json(manifest, dataset, unfinished), nl=False)
    else:
        texts = texts_of(options.tokenizer)
        click.echo(manifest_text(manifest, dataset, texts, unfinished))
    if manifest.splits:
        first = min(manifest.splits, key=lambda name: (name != "train", name))
        next_step("head", dataset, "--split", first)


def _show_uncommitted(dataset: str, error: NotADatasetError, *, as_json: bool) -> None:
    """Shows the work in a directory without a dataset.json; raises if there is none."""
    from gristmill.dataset.base.errors import NotADatasetError
    from gristmill.pipelines.text.unfinished import read_unfinished

    if _is_input(error, dataset):
        cure = (
            "see its records with `gristmill head`, and what it will become with "
            "`gristmill plan`; then convert it with `gristmill convert`"
        )
        raise NotADatasetError(**{**error.facts(), "cure": cure}) from error
    unfinished = read_unfinished(dataset, None)
    if not unfinished:
        raise error
    if as_json:
        fields = {"unfinished": [dataclasses.asdict(one) for one in unfinished]}
        click.echo(json.dumps(fields, indent=2))
    else:
        click.echo(f"{dataset}: NOT committed")
        click.echo("\n".join(one.text() for one in unfinished))
    next_step("inspect", dataset, why="again, later")


def _shown(manifest: Manifest, options: InspectOptions) -> Manifest:
    """Returns the part of a dataset, and the state of it, that is asked for."""
    from gristmill.dataset.metadata.open_manifest import chosen_split, state_of

    if not (options.split or options.edition or options.files):
        return manifest
    name = chosen_split(options.dataset, manifest, options.split)
    state = manifest.splits[name]
    if options.edition is not None:
        state = state_of(options.dataset, state, options.edition)
    return dataclasses.replace(manifest, splits={name: state})


def _print_files(manifest: Manifest, dataset: str, *, as_json: bool) -> None:
    from gristmill.pipelines.text.edition_history import edition_files

    (state,) = manifest.splits.values()
    paths = [*edition_files(dataset, state)]
    click.echo(json.dumps(paths) if as_json else "\n".join(paths))


def _is_input(error: NotADatasetError, path: str) -> bool:
    """Returns whether there are files instead of a dataset."""
    from gristmill.dataset.storage.lookup import storage_for

    if (error.got or "").startswith(("a file", "files")):
        return True
    return glob.has_magic(path) and bool(storage_for(path).match(path))
