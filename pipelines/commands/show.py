"""`gristmill inspect`, `head` and `status`: commands that only look at a dataset."""

from __future__ import annotations

import click

from gristmill.pipelines.commands.errors import (
    EPILOG,
    at_least,
    errors_reported,
    json_option,
)


@click.command(epilog=EPILOG)
@click.argument("dataset")
@json_option
@errors_reported
def inspect(*, dataset: str, as_json: bool) -> None:
    """Show the splits, editions, features and source of a dataset."""
    from gristmill.dataset.metadata.open_manifest import open_manifest
    from gristmill.pipelines.results.contents import manifest_text

    manifest = open_manifest(dataset)
    text = manifest.encode() if as_json else manifest_text(manifest, dataset)
    click.echo(text, nl=not as_json)


@click.command(epilog=EPILOG)
@click.argument("dataset")
@click.option(
    "-n",
    "--records",
    type=at_least(1),
    default=3,
    show_default=True,
    help="Number of records.",
)
@click.option("--split", default="train", show_default=True, help="Split to read.")
@json_option
@errors_reported
def head(*, dataset: str, records: int, split: str, as_json: bool) -> None:
    """Show the first records of a dataset.

    A record that is a tf.train.Example is decoded, a packed row shown as the ids of its
    pieces. With --json, prints one JSON object per line.
    """
    from gristmill.dataset.metadata.open_manifest import open_manifest
    from gristmill.dataset.shard_reader import first_records
    from gristmill.pipelines.results.packed_rows import (
        packed_format,
        shown_json,
        shown_text,
    )

    shown = shown_json if as_json else shown_text
    row_format = packed_format(open_manifest(dataset).splits.get(split))
    for number, record in enumerate(first_records(dataset, split, records)):
        click.echo(shown(number, record, row_format))


@click.command(epilog=EPILOG)
@click.argument("dataset")
@json_option
@errors_reported
def status(*, dataset: str, as_json: bool) -> None:
    """Show the progress of a conversion, or of programs that write a split."""
    from gristmill.pipelines.results.status import read_status

    found = read_status(dataset)
    click.echo(found.json() if as_json else found.text())
