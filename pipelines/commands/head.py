"""`gristmill head`: shows records of a dataset, or of files before a conversion."""

from __future__ import annotations

import dataclasses
import itertools
import random
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gristmill.pipelines.commands.exit_codes import (
    EPILOG,
    at_least,
    errors_reported,
    json_option,
)
from gristmill.pipelines.commands.jobs import parameter_of
from gristmill.pipelines.commands.order import order_given
from gristmill.pipelines.options.conversions import ConvertOptions
from gristmill.pipelines.options.definitions import options_of
from gristmill.pipelines.text.common_options import command_line
from gristmill.pipelines.text.messages import next_step, note

if TYPE_CHECKING:
    from gristmill.dataset.packed.row_format import RowFormat
    from gristmill.transforms.sources.record_source import NumberedRecord

_PATHS_TOLD = 3  # A longer command is none to copy.

# How the records of input files are made.
_FORMAT = ("input_format", "columns", "record")


@click.command(
    "head",
    epilog=EPILOG,
    params=[
        parameter_of(option)
        for option in options_of(ConvertOptions)
        if option.name in _FORMAT
    ],
)
@click.argument("paths", nargs=-1, required=True, metavar="DATASET|INPUT...")
@click.option(
    "-n",
    "--records",
    type=at_least(1),
    metavar="N",
    default=3,
    show_default=True,
    help="Number of records to show.",
)
@click.option(
    "--split",
    metavar="NAME",
    show_default="train, or the first one",
    help="Split to read, of a dataset or of a directory with splits.",
)
@click.option(
    "--offset",
    type=at_least(0),
    metavar="N",
    default=0,
    show_default=True,
    help="Number of the first record to show, counted from 0. Of INPUT, all records "
    "before it are read, too.",
)
@click.option(
    "--random",
    "at_random",
    is_flag=True,
    help="Show random records, by rising numbers. Of a dataset only.",
)
@click.option(
    "--seed",
    type=int,
    metavar="N",
    show_default="a new one, which is told",
    help="Seed of --random: the same one shows the same records.",
)
@click.option(
    "--full", is_flag=True, help="Show all of every record; else long values are cut."
)
@click.option(
    "--raw",
    is_flag=True,
    help="Print the bytes of the records, one after the other, and nothing else.",
)
@json_option
@click.pass_context
@errors_reported
def head(
    ctx: click.Context,
    /,
    *,
    paths: tuple[str, ...],
    records: int,
    split: str | None,
    offset: int,
    at_random: bool,
    seed: int | None,
    full: bool,
    raw: bool,
    as_json: bool,
    **made: Any,
) -> None:
    """Show records of a dataset, or of files before a conversion.

    INPUT is what `gristmill convert` takes: the records are those that it would write,
    and nothing is written. Each is shown with its file and its place there.

    A record that is a tf.train.Example is decoded, a packed row shown as the ids of its
    pieces. With --json, prints all of a record as one JSON object per line; bytes that
    are no text are in base64.
    """
    from gristmill.dataset.storage.paths import path_texts
    from gristmill.transforms.sources.shards.source_split import is_dataset

    _check(offset, at_random, seed, full, raw, as_json)
    paths = path_texts(paths, "input")
    of_dataset = len(paths) == 1 and is_dataset(paths[0])
    if of_dataset:
        _refuse(order_given(ctx, made), "input files", paths)
        split = split or _usual_split(paths[0])
        seed = _seed(seed) if at_random else None
        found = _of_dataset(paths[0], split, offset, records, seed)
    else:
        _refuse(["--random"] * at_random, "a dataset", paths)
        options = ConvertOptions(input=paths, output="", split=split, **made)
        found = _of_inputs(options, offset, records)
    for one in found:
        if raw:
            click.echo(one.record, nl=False)
        else:
            click.echo(one.json() if as_json else one.text(full=full))
    if of_dataset:
        next_step("bench-loader", paths[0], "--split", split)
    elif len(paths) <= _PATHS_TOLD:
        own = ("records", "offset", "full", "raw")
        next_step("plan", *command_line(ctx, without=own)[1:])


# Those that `convert` has as well come after its own.
head.params.sort(key=lambda parameter: parameter.name in _FORMAT)


class _Shown(NamedTuple):
    """A record, and what is known of it."""

    number: int
    record: bytes
    row_format: RowFormat | None = None
    source: NumberedRecord | None = None

    def text(self, *, full: bool) -> str:
        from gristmill.pipelines.text.packed_rows import shown_text
        from gristmill.pipelines.text.records import record_text

        if self.source is None:
            return shown_text(self.number, self.record, self.row_format, full=full)
        source = f"{self.source.path}, {self.source.place_text}"
        return record_text(self.number, self.record, full=full, source=source)

    def json(self) -> str:
        from gristmill.pipelines.text.packed_rows import shown_json
        from gristmill.pipelines.text.records import record_json

        if self.source is None:
            return shown_json(self.number, self.record, self.row_format)
        source = {"file": self.source.path, "place": self.source.place}
        return record_json(self.number, self.record, source=source)


def _of_dataset(
    dataset: str, split: str, offset: int, count: int, seed: int | None
) -> Iterator[_Shown]:
    from gristmill.dataset.base.errors import InputError
    from gristmill.dataset.metadata.open_manifest import open_manifest
    from gristmill.dataset.shards.shard_reader import some_records
    from gristmill.pipelines.text.packed_rows import packed_format

    found = open_manifest(dataset).splits.get(split)
    there = 0 if found is None else found.records
    wanted = [range(offset, offset + count)]
    if seed is not None:
        numbers = random.Random(seed).sample(range(there), min(count, there))
        wanted = [range(number, number + 1) for number in sorted(numbers)]
    elif offset >= max(there, 1) and found is not None:
        raise InputError(
            "no record has this number",
            where=f"{dataset}, split {split}",
            expected=f"--offset below {there:,}",
            got=offset,
            cure="give a smaller --offset",
        )
    row_format = packed_format(found)
    read = some_records(dataset, split, wanted)
    for record, number in zip(
        read, itertools.chain.from_iterable(wanted), strict=False
    ):
        yield _Shown(number, record, row_format)


def _of_inputs(options: ConvertOptions, offset: int, count: int) -> Iterator[_Shown]:
    """Yields the records of input files, of one split of a directory with splits."""
    from gristmill.dataset.base.errors import InputError
    from gristmill.pipelines.advice.command import default_output
    from gristmill.pipelines.options.conversion_jobs import conversion_of
    from gristmill.transforms.sources.find_inputs import find_inputs
    from gristmill.transforms.sources.record_source import first_records
    from gristmill.transforms.tokens.documents import check_no_tables

    options = dataclasses.replace(options, output=default_output(options.input))
    jobs = conversion_of(options).jobs
    job = min(jobs, key=lambda job: (job.split != "train", job.split))
    if options.split is not None and job.inputs == options.input:
        raise InputError(
            "--split is for a dataset, or a directory with splits",
            where=" ".join(options.input),
            got=f"--split {options.split}",
            cure="leave it out, and give the files of the split",
        )
    files = find_inputs(job.inputs, options=job.records, allow_empty_files=True)
    if job.records.input_format == "auto":
        check_no_tables(files, None)
    found = first_records(files, offset=offset)
    one = None
    for one in itertools.islice(found, count):
        yield _Shown(one.number, one.record, source=one)
    if one is None:
        raise InputError(
            "no record has this number" if offset else "the inputs hold no records",
            where=" ".join(options.input),
            expected="a record",
            got=f"--offset {offset}" if offset else "none",
            cure="give a smaller --offset" if offset else "see whether they are whole",
        )


def _refuse(given: list[str], meant: str, paths: tuple[str, ...]) -> None:
    """Refuses options that are for the other kind of thing."""
    from gristmill.dataset.base.errors import InputError

    if given:
        raise InputError(
            f"{', '.join(given)} is for {meant} only",
            where=" ".join(paths),
            expected=meant,
            got="input files, whose records have not been counted"
            if meant == "a dataset"
            else "a dataset, whose records were made already",
            cure="leave it out; --offset shows records further on"
            if meant == "a dataset"
            else "leave it out",
        )


def _usual_split(dataset: str) -> str:
    from gristmill.dataset.metadata.open_manifest import open_manifest

    splits = open_manifest(dataset).splits
    return min(splits, key=lambda name: (name != "train", name), default="train")


def _seed(given: int | None) -> int:
    if given is not None:
        return given
    seed = secrets.randbelow(1 << 32)
    note(f"--random --seed {seed} shows the same records again")
    return seed


def _check(
    offset: int, at_random: bool, seed: int | None, full: bool, raw: bool, as_json: bool
) -> None:
    """Refuses options that do not go together."""
    from gristmill.dataset.base.errors import InputError

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
