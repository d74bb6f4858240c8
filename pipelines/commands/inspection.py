"""`gristmill inspect` and `head`: the metadata of a dataset, and its records."""

from __future__ import annotations

import dataclasses
import glob
import itertools
import random
import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from gristmill.dataset.base.errors import NotADatasetError
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.lookup import has_file
from gristmill.pipelines.commands.command import command
from gristmill.pipelines.commands.messages import (
    as_json,
    command_line,
    next_batch,
    next_step,
    note,
    options_given,
    refuse,
    show,
    texts_of,
)
from gristmill.pipelines.commands.shared_options import (
    COLUMNS,
    INPUT_FORMAT,
    RECORD,
    argument,
    edition,
    flag,
    number,
    option,
    paths,
    split,
    together,
    tokenizer_of_rows,
)
from gristmill.pipelines.options.job_options import (
    ConvertOptions,
    default_output,
    usual_split,
)

if TYPE_CHECKING:
    from gristmill.pipelines.text.records import ShownRecord


@command(looks=True)
@argument("dataset")
@split("Show this split alone.", "all; the only one with --edition and --files")
@edition("Show the split as it was when this edition was the newest.")
@flag(
    "--files", "Print the paths of the shards instead, in the order of their records."
)
def inspect(given: Any) -> None:
    """Show splits, sizes, features and source of a dataset.

    It also shows editions and the commands that made them, changes by --map,
    skipped input, and how far unfinished work is. It warns of shards that are
    uneven or take more than their input. It reads only metadata.

    Editions with equal digests have the same records. With --files, it prints the
    shards of one split, for Grain and other readers that take a list of files.
    """
    from gristmill.dataset.metadata.manifest import (
        chosen_split,
        open_manifest,
        state_of,
    )
    from gristmill.pipelines.text.split_editions import (
        edition_files,
        manifest_fields,
        manifest_text,
    )
    from gristmill.pipelines.text.unfinished import read_unfinished

    dataset, edition = given.dataset, given.edition
    try:
        manifest = open_manifest(dataset)
    except NotADatasetError as e:
        _show_uncommitted(dataset, e)
        return
    unfinished = [] if edition or given.files else read_unfinished(dataset, manifest)
    if given.split or edition or given.files:
        name = chosen_split(given.split, manifest.splits, dataset)
        state = manifest.splits[name]
        if edition is not None:
            state = state_of(dataset, state, edition)
        if given.files:
            paths = [*edition_files(dataset, state)]
            show(paths, "\n".join(paths))
            return
        manifest = dataclasses.replace(manifest, splits={name: state})
    if as_json():
        show(manifest_fields(manifest, dataset, unfinished))
    else:
        show(None, manifest_text(manifest, dataset, unfinished))
    if manifest.splits:
        name = usual_split(manifest.splits)
        next_batch(dataset, name, manifest.splits[name])
        next_step("head", dataset, "--split", name)


def _show_uncommitted(dataset: str, error: NotADatasetError) -> None:
    """Shows the work in a directory without a dataset.json; raises if there is none."""
    from gristmill.dataset.storage.lookup import storage_for
    from gristmill.pipelines.text.unfinished import read_unfinished

    is_input = (error.got or "").startswith(("a file", "files"))
    if is_input or (glob.has_magic(dataset) and storage_for(dataset).match(dataset)):
        cure = (
            "see its records with `gristmill head`, and what it will become with "
            "`gristmill plan`; then convert it with `gristmill convert`"
        )
        raise NotADatasetError(**{**error.facts(), "cure": cure}) from error
    unfinished = read_unfinished(dataset, None)
    if not unfinished:
        raise error
    lines = [f"{dataset}: NOT committed", *(one.text() for one in unfinished)]
    show({"unfinished": unfinished}, "\n".join(lines))
    next_step("inspect", dataset, why="again, later")


_BLOCK_RECORDS = 16  # Up to this many records before a damaged one are not shown.
_PATHS_TOLD = 3  # A longer command is not worth copying.
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
def head(given: Any) -> None:
    """Show records of a dataset, or of files before a conversion.

    INPUT is what `gristmill convert` takes: the records are those that it would write,
    and nothing is written. Each is shown with its file and its place there.

    A record that is a tf.train.Example is decoded. The pieces of a packed row are
    shown as ids, or as text with --tokenizer; trained tokens are in [[ ]]. With --json,
    each line has a whole record as one JSON object; bytes that are not text are in
    base64.
    """
    from gristmill.dataset.storage.paths import path_texts

    offset, raw = given.offset, given.raw
    for names, both in (
        ("--offset and --random", offset and given.random),
        ("--raw and --json", raw and as_json()),
        ("--raw and --full", raw and given.full),
    ):
        refuse(both, f"{names} exclude each other", cure="leave out one")
    refuse(
        given.seed is not None and not given.random,
        "--seed is for --random",
        cure="give --random, or leave it out",
    )
    paths = given.paths = path_texts(given.paths, "input")
    of_dataset = len(paths) == 1 and has_file(paths[0], layout.DATASET_JSON)
    useless = options_given(_OF_INPUTS if of_dataset else _OF_DATASETS)
    meant = "input files" if of_dataset else "a dataset"
    if useless and not of_dataset:
        from gristmill.transforms.sources.find_inputs import match_files

        match_files(paths)  # A wrong path is reported as such.
    refuse(
        useless,
        f"{', '.join(useless)} is for {meant} only",
        where=" ".join(paths),
        expected=meant,
        got="a dataset, whose records were made already"
        if of_dataset
        else "input files, whose records have not been counted",
        cure="leave it out" + "; --offset shows records further on" * (not of_dataset),
    )
    for one in _of_dataset(given) if of_dataset else _of_inputs(given):
        if raw:
            click.echo(one.record, nl=False)
        else:
            show(one, one.text(full=given.full))
    if of_dataset:
        next_step("bench-loader", paths[0], "--split", given.split)
    elif len(paths) <= _PATHS_TOLD:
        own = ("limit", "offset", "full", "raw")
        next_step("plan", *command_line(without=own)[1:])


def _of_dataset(given: Any) -> Iterator[ShownRecord]:
    """Yields records of a dataset, random ones with `--random`."""
    from gristmill.dataset.metadata.manifest import open_manifest, state_of
    from gristmill.loader import open as open_dataset
    from gristmill.pipelines.text.records import ShownRecord, packed_format

    (dataset,), edition, texts = given.paths, given.edition, texts_of(given.tokenizer)
    splits = open_manifest(dataset).splits
    split = given.split = given.split or usual_split(splits)
    found = splits.get(split)
    if found is not None and edition is not None:
        found = state_of(dataset, found, edition)
    there = 0 if found is None else found.records
    wanted: Sequence[int] = range(given.offset, there)[: given.limit]
    if given.random:
        seed = secrets.randbelow(1 << 32) if given.seed is None else given.seed
        if given.seed is None:
            note(f"--random --seed {seed} shows the same records again")
        count = min(given.limit, there)
        wanted = sorted(random.Random(seed).sample(range(there), count))
    refuse(
        found is not None and not given.random and given.offset >= max(there, 1),
        "no record has this number",
        where=f"{dataset}, split {split}",
        expected=f"--offset below {there:,}",
        got=given.offset,
        cure="give a smaller --offset",
    )
    row_format = packed_format(found)
    if texts is not None and found is not None:
        texts.check_packed(found.packed, dataset)
    opened = open_dataset(dataset, split, edition=edition, verify="never", cache_dir="")
    for begin in range(0, len(wanted), _BLOCK_RECORDS):
        block = wanted[begin : begin + _BLOCK_RECORDS]
        for place, record in zip(block, opened.read(block), strict=True):
            yield ShownRecord(place, record, row_format, texts=texts)


def _of_inputs(given: Any) -> Iterator[ShownRecord]:
    """Yields the records of input files, of one split of a directory with splits."""
    from gristmill.pipelines.options.conversion_jobs import conversion_of
    from gristmill.pipelines.text.records import ShownRecord
    from gristmill.transforms.conversion.begin import check_no_tables
    from gristmill.transforms.sources.find_inputs import find_inputs
    from gristmill.transforms.sources.source import first_records

    paths, offset = given.paths, given.offset
    options = ConvertOptions(
        input=paths,
        output=default_output(paths),
        split=given.split,
        input_format=given.input_format,
        columns=given.columns,
        record=given.record,
    )
    jobs = {job.split: job for job in conversion_of(options).jobs}
    job = jobs[usual_split(jobs)]
    refuse(
        given.split is not None and job.inputs == paths,
        "--split is for a dataset, or a directory with splits",
        where=" ".join(paths),
        got=f"--split {given.split}",
        cure="leave it out, and give the files of the split",
    )
    files = find_inputs(job.inputs, options=job.records, allow_empty_files=True)
    if job.records.input_format == "auto" and files.spec.format == "text":
        check_no_tables(files, None)
    one = None
    found = first_records(files, offset=offset)
    for one in itertools.islice(found, given.limit):
        yield ShownRecord(one.number, one.record, source=one)
    refuse(
        one is None,
        "no record has this number" if offset else "the inputs hold no records",
        where=" ".join(paths),
        expected="a record",
        got=f"--offset {offset}" if offset else "none",
        cure="give a smaller --offset" if offset else "see whether they are whole",
    )
