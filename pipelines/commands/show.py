"""`gristmill inspect`, `head` and `status`: commands that only look at a dataset."""

from __future__ import annotations

import itertools
import random
import secrets

import click

from gristmill.dataset.errors import InputError
from gristmill.pipelines.commands.errors import (
    EPILOG,
    at_least,
    errors_reported,
    json_option,
)
from gristmill.pipelines.console.messages import next_step, note


@click.command(epilog=EPILOG)
@click.argument("dataset")
@json_option
@errors_reported
def inspect(*, dataset: str, as_json: bool) -> None:
    """Show the splits, editions, sizes, features and source of a dataset."""
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
@click.option(
    "-n",
    "--records",
    type=at_least(1),
    default=3,
    show_default=True,
    help="Number of records.",
)
@click.option("--split", default="train", show_default=True, help="Split to read.")
@click.option(
    "--offset",
    type=at_least(0),
    metavar="N",
    default=0,
    show_default=True,
    help="Number of the first record to show, counted from 0.",
)
@click.option("--random", "at_random", is_flag=True, help="Show random records.")
@click.option("--seed", type=int, help="Of --random.  [default: a new one, told]")
@click.option("--full", is_flag=True, help="Show all of every record.")
@click.option(
    "--raw",
    is_flag=True,
    help="Print the bytes of the records, one after the other, and nothing else.",
)
@json_option
@errors_reported
def head(
    *,
    dataset: str,
    records: int,
    split: str,
    offset: int,
    at_random: bool,
    seed: int | None,
    full: bool,
    raw: bool,
    as_json: bool,
) -> None:
    """Show the first records of a dataset, or others.

    A record that is a tf.train.Example is decoded, a packed row shown as the ids of its
    pieces. With --json, prints all of a record as one JSON object per line; bytes that
    are no text are in base64.
    """
    from gristmill.dataset.metadata.open_manifest import open_manifest
    from gristmill.dataset.shard_reader import some_records
    from gristmill.pipelines.results.packed_rows import (
        packed_format,
        shown_json,
        shown_text,
    )

    _check_head(offset, at_random, seed, full, raw, as_json)
    found = open_manifest(dataset).splits.get(split)
    count = 0 if found is None else found.records
    wanted = [range(offset, offset + records)]
    if at_random:
        wanted = _random_records(count, records, seed)
    elif offset >= max(count, 1) and found is not None:
        raise InputError(
            "no record has this number",
            where=f"{dataset}, split {split}",
            expected=f"--offset below {count:,}",
            got=offset,
        )
    row_format = packed_format(found)
    numbers = itertools.chain.from_iterable(wanted)
    for record, number in zip(
        some_records(dataset, split, wanted), numbers, strict=False
    ):
        if raw:
            click.echo(record, nl=False)
        elif as_json:
            click.echo(shown_json(number, record, row_format))
        else:
            click.echo(shown_text(number, record, row_format, full=full))
    next_step("bench-loader", dataset, "--split", split)


def _check_head(
    offset: int, at_random: bool, seed: int | None, full: bool, raw: bool, as_json: bool
) -> None:
    """Refuses options that do not go together."""
    refused = {
        "--offset and --random": offset and at_random,
        "--raw and --json": raw and as_json,
        "--raw and --full": raw and full,
    }
    for names, both in refused.items():
        if both:
            raise InputError(f"{names} exclude each other", cure="leave out one")
    if seed is not None and not at_random:
        raise InputError(
            "--seed is for --random", cure="give --random, or leave it out"
        )


def _random_records(count: int, wanted: int, seed: int | None) -> list[range]:
    if seed is None:
        seed = secrets.randbelow(1 << 32)
        note(f"--random --seed {seed} shows the same records again")
    numbers = random.Random(seed).sample(range(count), min(wanted, count))
    return [range(number, number + 1) for number in sorted(numbers)]


@click.command(epilog=EPILOG)
@click.argument("dataset")
@json_option
@errors_reported
def status(*, dataset: str, as_json: bool) -> None:
    """Show the progress of a conversion, or of programs that write a split."""
    from gristmill.pipelines.results.status import read_status

    found = read_status(dataset)
    click.echo(found.json() if as_json else found.text())
    next_step("inspect" if found.committed else "status", dataset)
