"""`gristmill head`: shows records of a dataset, or of files before a conversion."""

from __future__ import annotations

import itertools
import random as random_numbers
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.lookup import has_file
from gristmill.pipelines.commands.command import command
from gristmill.pipelines.commands.messages import (
    as_json,
    command_line,
    next_step,
    note,
    options_given,
    show,
    texts_of,
)
from gristmill.pipelines.commands.shared_options import (
    COLUMNS,
    INPUT_FORMAT,
    RECORD,
    edition,
    flag,
    number,
    option,
    paths,
    split,
    together,
    tokenizer_of_rows,
)
from gristmill.pipelines.options.job_options import ConvertOptions, usual_split

if TYPE_CHECKING:
    from gristmill.pipelines.text.records import ShownRecord
    from gristmill.transforms.tokens.tokenizers.token_texts import TokenTexts

_PATHS_TOLD = 3  # A longer command is none to copy.
_OF_DATASETS = ("edition", "random", "tokenizer")
_OF_INPUTS = ("input_format", "columns", "record")


@command(looks=True)
@paths("paths", metavar="DATASET|INPUT...")
@number("-n", "--limit", default=3, help="Number of records to show.")
@split(
    "Split to read, of a dataset or of a directory with splits.",
    "train, or the first one",
)
@edition("Read the split of a dataset as it was when this edition was the newest.")
@number(
    "--offset",
    default=0,
    least=0,
    help="Number of the first record to show, counted from 0. With INPUT, all records "
    "before it are read too.",
)
@flag("--random", "Show random records of a dataset, in rising order of their numbers.")
@option(
    "--seed",
    type=int,
    metavar="N",
    show_default="a new one, which is shown",
    help="Seed of --random: the same one shows the same records.",
)
@flag("--full", "Show all of every record; else long values are cut.")
@tokenizer_of_rows()
@flag("--raw", "Print the bytes of the records, one after the other, and nothing else.")
@together(INPUT_FORMAT, COLUMNS, RECORD, home="plan")
def head(
    paths: tuple[str, ...],
    limit: int,
    split: str | None,
    edition: int | None,
    offset: int,
    random: bool,
    seed: int | None,
    full: bool,
    tokenizer: str | None,
    raw: bool,
    input_format: str,
    columns: str | None,
    record: str | None,
) -> None:
    """Show records of a dataset, or of files before a conversion.

    INPUT is what `gristmill convert` takes: the records are those that it would write,
    and nothing is written. Each is shown with its file and its place there.

    A record that is a tf.train.Example is decoded. The pieces of a packed row are
    shown as ids, or as text with --tokenizer; trained tokens are in [[ ]]. With --json,
    each line has a whole record as one JSON object; bytes that are not text are in
    base64.
    """
    from gristmill.dataset.base.errors import InputError
    from gristmill.dataset.metadata.open_manifest import open_manifest
    from gristmill.dataset.storage.paths import path_texts
    from gristmill.pipelines.options.job_options import default_output

    for names, both in (
        ("--offset and --random", offset and random),
        ("--raw and --json", raw and as_json()),
        ("--raw and --full", raw and full),
    ):
        if both:
            raise InputError(f"{names} exclude each other", cure="leave out one")
    if seed is not None and not random:
        raise InputError(
            "--seed is for --random", cure="give --random, or leave it out"
        )
    paths = path_texts(paths, "input")
    of_dataset = len(paths) == 1 and has_file(paths[0], layout.DATASET_JSON)
    if of_dataset:
        _refuse(_OF_INPUTS, "input files", paths)
        split = split or usual_split(open_manifest(paths[0]).splits)
        if random and seed is None:
            seed = secrets.randbelow(1 << 32)
            note(f"--random --seed {seed} shows the same records again")
        wanted = range(offset, offset + limit)
        found = _of_dataset(paths[0], split, wanted, edition, seed, texts_of(tokenizer))
    else:
        _refuse(_OF_DATASETS, "a dataset", paths)
        inputs = ConvertOptions(
            input=paths,
            output=default_output(paths),
            split=split,
            input_format=input_format,
            columns=columns,
            record=record,
        )
        found = _of_inputs(inputs, offset, limit)
    for one in found:
        if raw:
            click.echo(one.record, nl=False)
        else:
            show(one, "" if as_json() else one.text(full=full))
    if of_dataset:
        next_step("bench-loader", paths[0], "--split", split)
    elif len(paths) <= _PATHS_TOLD:
        own = ("limit", "offset", "full", "raw")
        next_step("plan", *command_line(without=own)[1:])


def _of_dataset(
    dataset: str,
    split: str,
    numbers: range,
    edition: int | None,
    seed: int | None,
    texts: TokenTexts | None,
) -> Iterator[ShownRecord]:
    """Yields records of a dataset, or with a seed as many random ones."""
    from gristmill.dataset.base.errors import InputError
    from gristmill.dataset.metadata.open_manifest import open_manifest, state_of
    from gristmill.dataset.shards.shard_reader import some_records
    from gristmill.pipelines.text.records import ShownRecord, packed_format

    found = open_manifest(dataset).splits.get(split)
    if found is not None and edition is not None:
        found = state_of(dataset, found, edition)
    there = 0 if found is None else found.records
    wanted = [numbers]
    if seed is not None:
        count = min(len(numbers), there)
        chosen = random_numbers.Random(seed).sample(range(there), count)
        wanted = [range(number, number + 1) for number in sorted(chosen)]
    elif numbers.start >= max(there, 1) and found is not None:
        raise InputError(
            "no record has this number",
            where=f"{dataset}, split {split}",
            expected=f"--offset below {there:,}",
            got=numbers.start,
            cure="give a smaller --offset",
        )
    row_format = packed_format(found)
    if texts is not None and found is not None:
        texts.check(found.packed, dataset)
    read = some_records(dataset, split, wanted, edition=edition)
    places = itertools.chain.from_iterable(wanted)
    for record, place in zip(read, places, strict=False):
        yield ShownRecord(place, record, row_format, texts=texts)


def _of_inputs(
    options: ConvertOptions, offset: int, count: int
) -> Iterator[ShownRecord]:
    """Yields the records of input files, of one split of a directory with splits."""
    from gristmill.dataset.base.errors import InputError
    from gristmill.dataset.metadata.open_manifest import open_manifest
    from gristmill.pipelines.options.conversion_jobs import conversion_of
    from gristmill.pipelines.text.records import ShownRecord
    from gristmill.pipelines.text.unfinished import read_unfinished
    from gristmill.transforms.chat.document_inputs import check_no_tables
    from gristmill.transforms.sources.find_inputs import find_inputs
    from gristmill.transforms.sources.source import first_records

    jobs = {job.split: job for job in conversion_of(options).jobs}
    job = jobs[usual_split(jobs)]
    if options.split is not None and job.inputs == options.input:
        raise InputError(
            "--split is for a dataset, or a directory with splits",
            where=" ".join(options.input),
            got=f"--split {options.split}",
            cure="leave it out, and give the files of the split",
        )
    try:
        files = find_inputs(job.inputs, options=job.records, allow_empty_files=True)
    except InputError:
        if len(options.input) == 1 and read_unfinished(options.input[0], None):
            open_manifest(options.input[0])  # It says that a conversion is unfinished.
        raise
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


def _refuse(names: tuple[str, ...], meant: str, paths: tuple[str, ...]) -> None:
    """Refuses options that are for the other kind of thing."""
    from gristmill.dataset.base.errors import InputError

    if given := options_given(names):
        of_dataset = meant == "a dataset"
        raise InputError(
            f"{', '.join(given)} is for {meant} only",
            where=" ".join(paths),
            expected=meant,
            got="input files, whose records have not been counted"
            if of_dataset
            else "a dataset, whose records were made already",
            cure="leave it out" + "; --offset shows records further on" * of_dataset,
        )
