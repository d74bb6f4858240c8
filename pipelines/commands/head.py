"""`gristmill head`: shows records of a dataset, or of files before a conversion."""

from __future__ import annotations

import dataclasses
import itertools
import random
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.lookup import has_file
from gristmill.pipelines.commands.messages import (
    command_line,
    next_step,
    note,
    texts_of,
)
from gristmill.pipelines.commands.parameters import command, options_given
from gristmill.pipelines.options.conversions import ConvertOptions
from gristmill.pipelines.options.option import (
    argument,
    flag,
    integer,
    like,
    split_name,
    tokenizer_of_rows,
)

if TYPE_CHECKING:
    from gristmill.pipelines.text.records import ShownRecord
    from gristmill.transforms.tokens.tokenizers.token_texts import TokenTexts

_PATHS_TOLD = 3  # A longer command is none to copy.


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """Options of `gristmill head` alone."""

    paths: tuple[str, ...] = argument("paths", metavar="DATASET|INPUT...")
    limit: int = integer("Number of records to show.", 3, least=1, short="-n")
    split: str | None = split_name(
        "Split to read, of a dataset or of a directory with splits.",
        "train, or the first one",
    )
    edition: int | None = integer(
        "Read the split of a dataset as it was when this edition was the newest.",
        shown="the newest",
        least=1,
    )
    offset: int = integer(
        "Number of the first record to show, counted from 0. With INPUT, all records "
        "before it are read too.",
        0,
        least=0,
    )
    random: bool = flag(
        "Show random records of a dataset, in rising order of their numbers."
    )
    seed: int | None = integer(
        "Seed of --random: the same one shows the same records.",
        shown="a new one, which is shown",
    )
    full: bool = flag("Show all of every record; else long values are cut.")
    tokenizer: str | None = tokenizer_of_rows()
    raw: bool = flag(
        "Print the bytes of the records, one after the other, and nothing else."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FormatOptions:
    """How the records of input files are made: options of a conversion."""

    input_format: str = like(ConvertOptions, "input_format")
    columns: str | None = like(ConvertOptions, "columns")
    record: str | None = like(ConvertOptions, "record")


@command("head", HeadOptions, FormatOptions)
def head(options: HeadOptions, made: FormatOptions, *, as_json: bool) -> None:
    """Show records of a dataset, or of files before a conversion.

    INPUT is what `gristmill convert` takes: the records are those that it would write,
    and nothing is written. Each is shown with its file and its place there.

    A record that is a tf.train.Example is decoded. The pieces of a packed row are
    shown as ids, or as text with --tokenizer; trained tokens are in [[ ]]. With --json,
    each line has a whole record as one JSON object; bytes that are not text are in
    base64.
    """
    from gristmill.dataset.storage.paths import path_texts
    from gristmill.pipelines.options.conversions import default_output

    _check(options, as_json=as_json)
    paths = path_texts(options.paths, "input")
    how = dataclasses.asdict(made)
    of_dataset = len(paths) == 1 and has_file(paths[0], layout.DATASET_JSON)
    if of_dataset:
        _refuse(options_given(how), "input files", paths)
        split = options.split or _usual_split(paths[0])
        seed = _seed(options.seed) if options.random else None
        texts = texts_of(options.tokenizer)
        found = _of_dataset(paths[0], split, options, seed, texts)
    else:
        of_datasets = {
            "--edition": options.edition,
            "--random": options.random,
            "--tokenizer": options.tokenizer,
        }
        given = [name for name, value in of_datasets.items() if value]
        _refuse(given, "a dataset", paths)
        inputs = ConvertOptions(
            input=paths, output=default_output(paths), split=options.split, **how
        )
        found = _of_inputs(inputs, options.offset, options.limit)
    for one in found:
        if options.raw:
            click.echo(one.record, nl=False)
        else:
            click.echo(one.json() if as_json else one.text(full=options.full))
    if of_dataset:
        next_step("bench-loader", paths[0], "--split", split)
    elif len(paths) <= _PATHS_TOLD:
        own = ("limit", "offset", "full", "raw")
        next_step("plan", *command_line(without=own)[1:])


def _of_dataset(
    dataset: str,
    split: str,
    options: HeadOptions,
    seed: int | None,
    texts: TokenTexts | None,
) -> Iterator[ShownRecord]:
    from gristmill.dataset.base.errors import InputError
    from gristmill.dataset.metadata.open_manifest import open_manifest, state_of
    from gristmill.dataset.shards.shard_reader import some_records
    from gristmill.pipelines.text.records import ShownRecord, packed_format

    offset, count, edition = options.offset, options.limit, options.edition
    found = open_manifest(dataset).splits.get(split)
    if found is not None and edition is not None:
        found = state_of(dataset, found, edition)
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
    read = some_records(dataset, split, wanted, edition=edition)
    for record, number in zip(
        read, itertools.chain.from_iterable(wanted), strict=False
    ):
        yield ShownRecord(number, record, row_format, texts=texts)


def _of_inputs(
    options: ConvertOptions, offset: int, count: int
) -> Iterator[ShownRecord]:
    """Yields the records of input files, of one split of a directory with splits."""
    from gristmill.dataset.base.errors import InputError
    from gristmill.pipelines.options.conversion_jobs import conversion_of
    from gristmill.pipelines.text.records import ShownRecord
    from gristmill.transforms.sources.find_inputs import find_inputs
    from gristmill.transforms.sources.first_records import first_records
    from gristmill.transforms.tokens.documents import check_no_tables

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
    if job.records.input_format == "auto" and files.spec.format == "text":
        check_no_tables(files, None)
    found = first_records(files, offset=offset)
    one = None
    for one in itertools.islice(found, count):
        yield ShownRecord(one.number, one.record, source=one)
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


def _check(options: HeadOptions, *, as_json: bool) -> None:
    """Refuses options that do not go together."""
    from gristmill.dataset.base.errors import InputError

    refused = {
        "--offset and --random": options.offset and options.random,
        "--raw and --json": options.raw and as_json,
        "--raw and --full": options.raw and options.full,
    }
    for names, both in refused.items():
        if both:
            raise InputError(f"{names} exclude each other", cure="leave out one")
    if options.seed is not None and not options.random:
        raise InputError(
            "--seed is for --random", cure="give --random, or leave it out"
        )
