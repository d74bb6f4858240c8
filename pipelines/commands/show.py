"""`gristmill inspect` and `status`: commands that only read a dataset's metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gristmill.pipelines.commands.errors import EPILOG, errors_reported, json_option
from gristmill.pipelines.console.messages import next_step

if TYPE_CHECKING:
    from gristmill.dataset.errors import NotADatasetError


@click.command(epilog=EPILOG)
@click.argument("dataset")
@json_option
@errors_reported
def inspect(*, dataset: str, as_json: bool) -> None:
    """Show splits, sizes, features and source of a dataset.

    Also its editions, what --map changed, what was quarantined, and where its shards
    are uneven or take more than their input. Reads metadata alone, and no record.
    """
    from gristmill.dataset.errors import NotADatasetError
    from gristmill.dataset.metadata.open_manifest import open_manifest
    from gristmill.pipelines.results.contents import manifest_json, manifest_text

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
    shown = manifest_json if as_json else manifest_text
    click.echo(shown(manifest, dataset), nl=not as_json)
    if manifest.splits:
        first = min(manifest.splits, key=lambda name: (name != "train", name))
        next_step("head", dataset, "--split", first)


def _is_input(error: NotADatasetError, path: str) -> bool:
    """Tells whether there are files instead of a dataset."""
    from gristmill.dataset.storage.lookup import storage_for

    if (error.got or "").startswith(("a file", "files")):
        return True
    return error.got == "none" and bool(storage_for(path).match(path))


@click.command(epilog=EPILOG)
@click.argument("dataset")
@json_option
@errors_reported
def status(*, dataset: str, as_json: bool) -> None:
    """Show the progress of a conversion, or of other writers.

    Reads what is in the directory DATASET, on whichever machine the conversion runs.
    """
    from gristmill.pipelines.results.status import read_status

    found = read_status(dataset)
    click.echo(found.json() if as_json else found.text())
    if found.committed:
        next_step("inspect", dataset)
    else:
        next_step("status", dataset, why="again, later")
