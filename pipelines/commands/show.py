"""`gristmill inspect` and `status`: commands that only read a dataset's metadata."""

from __future__ import annotations

import click

from gristmill.pipelines.commands.errors import EPILOG, errors_reported, json_option
from gristmill.pipelines.console.messages import next_step


@click.command(epilog=EPILOG)
@click.argument("dataset")
@json_option
@errors_reported
def inspect(*, dataset: str, as_json: bool) -> None:
    """Show splits, sizes, features and source of a dataset.

    Also its editions, what --map changed, what was quarantined, and where its shards
    are uneven or take more than their input. Reads metadata alone, and no record.
    """
    from gristmill.dataset.metadata.open_manifest import open_manifest
    from gristmill.pipelines.results.contents import manifest_json, manifest_text

    manifest = open_manifest(dataset)
    shown = manifest_json if as_json else manifest_text
    click.echo(shown(manifest, dataset), nl=not as_json)
    if manifest.splits:
        first = min(manifest.splits, key=lambda name: (name != "train", name))
        next_step("head", dataset, "--split", first)


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
