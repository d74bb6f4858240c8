"""`gristmill trace`: finds the record of a row, or the rows of a record."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import click

from gristmill.pipelines.commands.errors import EPILOG, errors_reported, json_option

if TYPE_CHECKING:
    from gristmill.loader import Dataset, Location
    from gristmill.loader.batches import Batches
    from gristmill.loader.order import ShuffleName, Sighting
    from gristmill.pipelines.results.source_line import SourceLine


@click.command("trace", epilog=EPILOG)
@click.argument("dataset", nargs=-1, required=True)
@click.option("--split", help="Split to read, if there are several. A,B joins two.")
@click.option(
    "--edition",
    type=int,
    help="Edition of the split that was open.  [default: the last, or the state's]",
)
@click.option("--step", type=int, help="Step of the row to trace.")
@click.option("--row", type=int, help="Row of the global batch.")
@click.option("--record", type=int, help="Record to find steps and rows of, instead.")
@click.option("--of", "name", metavar="NAME", help="Dataset of --record, in a mixture.")
@click.option(
    "--first-epoch",
    type=int,
    default=0,
    show_default=True,
    help="First epoch to search for --record.",
)
@click.option(
    "--stop-epoch",
    type=int,
    help="Stop before this epoch.  [default: one after --first-epoch]",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of the shuffle."
)
@click.option("--batch-size", type=int, help="Number of rows in the global batch.")
@click.option(
    "--shuffle",
    type=click.Choice(["global", "block", "none"]),
    default="global",
    show_default=True,
    help="Order of the records.",
)
@click.option("--block-records", type=int, help="For --shuffle block.")
@click.option("--window-blocks", type=int, help="For --shuffle block.")
@click.option("--epochs", type=int, help="Number of epochs.  [default: unlimited]")
@click.option("--keep-remainder", is_flag=True, help="Keep the last, short batch.")
@click.option(
    "--weights",
    metavar="NAME=SHARE,...",
    help="Weights of a mixture.  [default: lengths of the datasets]",
)
@click.option(
    "--state",
    type=click.Path(dir_okay=False),
    help="State of a feed, as JSON. Replaces the options of the order.",
)
@click.option("--show", is_flag=True, help="Also show the record.")
@json_option
@click.pass_context
@errors_reported
def trace(
    ctx: click.Context,
    /,
    *,
    dataset: tuple[str, ...],
    split: str | None,
    edition: int | None,
    step: int | None,
    row: int | None,
    record: int | None,
    name: str | None,
    first_epoch: int,
    stop_epoch: int | None,
    state: str | None,
    show: bool,
    as_json: bool,
    **order: Any,
) -> None:
    """Find the record of a training step's row, and the place that it came from.

    DATASET is a path, or NAME=PATH for each dataset of a mixture; several paths are
    joined. Give the arguments that gristmill.loader.global_batches got, or the --state
    of a feed.
    """
    from gristmill.dataset.errors import InputError, OutOfRangeError, StateMismatchError
    from gristmill.loader.provenance.locate import locate
    from gristmill.pipelines.results.source_line import source_line

    if (step is None) != (row is None) or (step is None) == (record is None):
        raise InputError("give --step and --row, or --record")
    given = [
        f"--{key.replace('_', '-')}"
        for key in order
        if ctx.get_parameter_source(key) is not click.core.ParameterSource.DEFAULT
    ]
    if state is not None and given:
        raise InputError(
            "--state and options of the order exclude each other",
            got=", ".join(given),
            cure="leave out these options, or --state",
        )
    if edition is not None and len(dataset) > 1:
        raise InputError(
            "--edition is for a single dataset",
            got=" ".join(dataset),
            cure="give --state, which has the edition of each",
        )
    _check(dataset, name, record, first_epoch, stop_epoch, weights=order["weights"])
    try:
        datasets = _open(dataset, split, edition)
        batches = (
            _batches(datasets, **order)
            if state is None
            else _batches_of_state(datasets, state)
        )
        if step is not None and row is not None:
            location = locate(batches, step, row)
            parts = [part for one in batches.datasets for part in one.parts]
            line = source_line(location, parts)
            _print_location(step, row, location, line, as_json=as_json)
            if show:
                records = batches.read(step, slice(row, row + 1))
                _print_record(location.record, records, as_json=as_json)
        elif record is not None:
            if stop_epoch is None:
                stop_epoch = first_epoch + 1
            found = batches.find(
                record, name, first_epoch=first_epoch, stop_epoch=stop_epoch
            )
            _print_sightings(found, as_json=as_json)
            if show:
                records = batches.datasets[batches.number_of(name)].read([record])
                _print_record(record, records, as_json=as_json)
    except (OutOfRangeError, StateMismatchError) as e:
        raise InputError(**e.facts()) from e


def _check(
    dataset: tuple[str, ...],
    name: str | None,
    record: int | None,
    first_epoch: int,
    stop_epoch: int | None,
    *,
    weights: str | None,
) -> None:
    """Refuses options that do not go together."""
    from gristmill.dataset.errors import InputError

    if len(dataset) == 1:
        for option, value in (("--of", name), ("--weights", weights)):
            if value is not None:
                raise InputError(
                    f"{option} is for a mixture",
                    got=f"one dataset, {dataset[0]}",
                    cure=f"leave out {option}, or give NAME=PATH for each dataset",
                )
    elif record is not None and name is None and all("=" in item for item in dataset):
        names = ", ".join(item.partition("=")[0] for item in dataset)
        raise InputError(
            "record numbers are those of a dataset, and there are several",
            expected=f"--of with one of {names}",
            cure="give --of NAME",
        )
    if stop_epoch is not None and stop_epoch <= first_epoch:
        raise InputError(
            "there is no epoch to search",
            expected="--stop-epoch above --first-epoch: the epoch of its number is not "
            "searched",
            got=f"--first-epoch {first_epoch} --stop-epoch {stop_epoch}",
            cure=f"give --stop-epoch {first_epoch + 1} or more",
        )


def _open(
    given: tuple[str, ...], split: str | None, edition: int | None
) -> Dataset | dict[str, Dataset]:
    """Opens a path, the paths of a mixture by their names, or paths that are joined."""
    from gristmill.dataset.errors import InputError
    from gristmill.loader import open as open_dataset

    splits = split.split(",") if split is not None and "," in split else split
    if len(given) == 1:
        return open_dataset(given[0], split=splits, edition=edition)
    if not any("=" in item for item in given):
        return open_dataset(given, split=splits)
    named = dict(item.split("=", 1) for item in given if "=" in item)
    if len(named) < len(given):
        raise InputError(
            "datasets of a mixture need different names",
            expected="NAME=PATH for each",
            got=" ".join(given),
        )
    return {name: open_dataset(path, split=split) for name, path in named.items()}


def _batches(
    datasets: Dataset | dict[str, Dataset],
    *,
    batch_size: int | None,
    shuffle: ShuffleName,
    block_records: int | None,
    window_blocks: int | None,
    keep_remainder: bool,
    weights: str | None,
    **order: Any,
) -> Batches:
    from gristmill.dataset.errors import InputError
    from gristmill.loader import BlockShuffle, global_batches

    if batch_size is None:
        raise InputError(
            "the batch size is missing", cure="give --batch-size, or --state"
        )
    sizes = {"block_records": block_records, "window_blocks": window_blocks}
    blocks = {key: size for key, size in sizes.items() if size is not None}
    if blocks and shuffle != "block":
        raise InputError(
            "--block-records and --window-blocks are for --shuffle block",
            got=shuffle,
            cure="give --shuffle block, or leave them out",
        )
    shares = None
    if weights is not None:
        shares = dict(part.partition("=")[::2] for part in weights.split(","))
    return global_batches(
        datasets,
        batch_size=batch_size,
        shuffle=BlockShuffle(**blocks) if blocks else shuffle,
        drop_remainder=not keep_remainder,
        weights=shares,
        **order,
    )


def _batches_of_state(datasets: Dataset | dict[str, Dataset], path: str) -> Batches:
    """Returns the batches of the feed that wrote a state."""
    from gristmill.dataset.errors import InputError
    from gristmill.dataset.storage.paths import path_text
    from gristmill.loader.feed.state import batches_of_state

    path = path_text(path, "state")
    try:
        with open(path, encoding="utf-8") as file:
            state = json.load(file)
    except (OSError, RecursionError, ValueError) as e:
        raise InputError(
            "the state of a feed cannot be read",
            where=path,
            got=e,
            cure="give a JSON file with what get_state of the feed returned",
        ) from e
    return batches_of_state(datasets, state)


def _print_record(number: int, records: list[bytes], *, as_json: bool) -> None:
    from gristmill.pipelines.results.contents import record_json, record_text

    click.echo((record_json if as_json else record_text)(number, records[0]))


def _print_location(
    step: int, row: int, found: Location, line: SourceLine | None, *, as_json: bool
) -> None:
    if line is not None:
        found = dataclasses.replace(
            found, source_offset_bytes=line.offset_bytes, source_note=None
        )
    if as_json:
        fields = {"step": step, "row": row} | dataclasses.asdict(found)
        if line is not None:
            fields["source_line"] = line.line
        click.echo(json.dumps(fields))
        return
    lines = [
        f"step {step:,}, row {row:,}: epoch {found.epoch:,}",
        f"dataset  {found.dataset}",
        f"record   {found.record:,}",
        f"shard    {found.shard}",
        f"         record {found.record_in_shard:,} of the shard, in the chunk at byte "
        f"offset {found.offset_bytes:,}",
    ]
    lines += [
        f"through  {passed.path}, record {passed.record:,}" for passed in found.passed
    ]
    if found.source_path is not None:
        lines.append(f"source   {found.source_path}")
    inside = ""
    if found.source_compression not in (None, "none"):
        inside = f" of the decompressed file ({found.source_compression})"
    if found.source_record is not None:
        unit = "row" if found.source_format == "parquet" else "record"
        lines.append(f"         {unit} {found.source_record:,} of that file")
    elif found.source_offset_bytes is not None:
        offset = f"{found.source_offset_bytes:,}"
        which = "frame at"
        if line is not None:
            which = f"line {line.line:,},"
        elif found.source_sample is not None:
            which = f"sample {found.source_sample},"
        lines.append(f"         {which} byte offset {offset}{inside}")
    elif found.source_range_bytes is not None:
        begin, end = found.source_range_bytes
        number = found.source_record_in_range
        which = "somewhere" if number is None else f"record {number:,}"
        lines.append(f"         {which} in the bytes {begin:,} to {end:,}{inside}")
    if found.source_note is not None:
        lines.append(f"note     {found.source_note}")
    click.echo("\n".join(lines))


def _print_sightings(found: list[Sighting], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([sighting._asdict() for sighting in found]))
        return
    if not found:
        click.echo("not seen in these epochs: it is in the remainder that is dropped")
    for epoch, step, row in found:
        click.echo(f"step {step:,}, row {row:,}: epoch {epoch:,}")
