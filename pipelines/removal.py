"""Removing the records that a user names, on this machine or on a Beam runner."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.base.example import INTS
from gristmill.dataset.base.whole_numbers import whole_number
from gristmill.dataset.metadata.manifest import read_table
from gristmill.dataset.metadata.sources import read_sources
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader import open as open_dataset
from gristmill.loader.data.dataset import Dataset, numbers_of
from gristmill.loader.decode.examples import RaggedFeature
from gristmill.loader.decode.scan import scan_examples
from gristmill.loader.provenance.stored_sources import find_places
from gristmill.pipelines.local.pool import run_job
from gristmill.pipelines.text.places import FilePlace
from gristmill.pipelines.text.printer import plural, size_text
from gristmill.transforms.removal.removal_job import (
    BegunRemoval,
    RemovalJob,
    RemovalResult,
    done_before,
    open_split,
    request_of,
)


class Asked(NamedTuple):
    """What is to be removed.

    Attributes:
        arguments: Those of `begin_removal`.
        missing: Lines that name nothing that is there.
    """

    arguments: dict[str, Any]
    missing: Sequence[str]


def read_lines(path: str) -> list[str]:
    """Returns the lines of a file that are not empty, each once."""
    if FilePlace.parse(path) is not None and storage_for(path).stat(path) is None:
        raise InputError(
            "--records takes a file that lists the records",
            expected="a file with the number of a record or FILE@PLACE in each line",
            got=path,
            cure=f"write the place into a file, one a line: echo {shlex.quote(path)} > "
            "unwanted.txt; then give --records unwanted.txt",
        )
    data = storage_for(path).read(path)
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as e:
        raise InputError(
            "the list of records is not text",
            where=path,
            got=e,
            cure="give a file of UTF-8 text, one record a line",
        ) from e
    return list(dict.fromkeys(line.rstrip("\r") for line in lines if line.strip()))


def asked_records(
    dataset: str,
    lines: Sequence[str],
    *,
    split: str | None = None,
    column: str | None = None,
    edition: int | None = None,
) -> Asked:
    """Finds the records that lines name.

    Args:
        dataset: The dataset's directory.
        lines: Each the number of a record, a place as `gristmill trace` shows it, or,
            with a column, a value.
        split: The split; None for the only one.
        column: The feature that has the values.
        edition: The edition in which records have these numbers; None for the newest.

    Raises:
        InputError: A line is neither, or the split is not there or has packed rows.
    """
    manifest, name = open_split(dataset, split)
    found = manifest.splits[name]
    request = request_of(sorted(lines), column, edition)
    about = {"split": name, "request": request}
    pairs: list[tuple[int, int]]
    if column is not None:
        opened = open_dataset(dataset, name, edition=found.edition)
        pairs = list(find_values(opened, column, lines))
    else:
        parsed = [_parsed(line) for line in lines]
        numbers = [one for one in parsed if isinstance(one, int)]
        if numbers and done_before(found, request):
            return Asked(about | {"records": (), "edition": edition}, ())
        places = [one for one in parsed if isinstance(one, FilePlace)]
        of_places = [n for n, one in enumerate(parsed) if isinstance(one, FilePlace)]
        pairs = [
            (number, one)
            for number, one in enumerate(parsed)
            if isinstance(one, int) and one < found.records
        ]
        pairs += [
            (of_places[number], record)
            for number, record in _made_of(dataset, found, places)
        ]
    missing = sorted({*range(len(lines))} - {number for number, _ in pairs})
    if not pairs and done_before(found, request):
        return Asked(about | {"records": (), "edition": edition}, ())
    return Asked(
        about
        | {
            "records": sorted({record for _, record in pairs}),
            "edition": found.edition if edition is None else edition,
            "looked_up": True,
        },
        [lines[number] for number in missing],
    )


def selected_records(
    dataset: str,
    condition: str,
    *,
    split: str | None = None,
    edition: int | None = None,
) -> Asked:
    """Finds the records whose columns fulfil a condition.

    Args:
        dataset: The dataset's directory.
        condition: As `Dataset.select` takes it.
        split: As in `asked_records`.
        edition: The same.

    Raises:
        InputError: The condition cannot be read, the split has packed rows, or no
            record fulfils it.
    """
    manifest, name = open_split(dataset, split)
    found, request = manifest.splits[name], request_of(["where", condition], edition)
    about: dict[str, Any] = {"split": name, "request": request}
    where = f"{dataset}, split {name}"
    opened = open_dataset(dataset, name, edition=found.edition)
    numbers = numbers_of(opened.select(condition))
    if not len(numbers):
        if done_before(found, request):
            return Asked(about | {"records": (), "edition": edition}, ())
        raise InputError(
            "no record fulfils the condition",
            where=where,
            got=f"--where {condition}",
            cure="correct it, if some should; nothing was removed",
        )
    edition = found.edition if edition is None else edition
    more = {"records": numbers, "edition": edition, "looked_up": True}
    return Asked(about | more, ())


def _parsed(line: str) -> int | FilePlace:
    """Returns the number of a record, or a place."""
    text = line.strip()
    if (number := whole_number(text)) is not None:
        return number
    if (place := FilePlace.parse(text)) is not None:
        return place
    raise InputError(
        "a line names no record",
        expected="the number of a record, or FILE@PLACE as gristmill trace shows it",
        got=ascii(line),
        cure="correct the line; for values of a feature, give its name with --column",
    )


def _made_of(
    dataset: str, split: Split, places: Sequence[FilePlace]
) -> Iterator[tuple[int, int]]:
    """Yields the number of each place, and of each record that was made of it."""
    first = 0
    for part in split.parts:
        files = read_sources(dataset, part)
        if files is None:
            first += part.records
            continue
        of_path = files.numbers_of(place.path for place in places)
        numbers, wanted = [], []
        for number, place in enumerate(places):
            at = place.in_files(files[n] for n in of_path[place.path])
            if at is not None:
                numbers.append(number)
                wanted.append((place.path, at))
        table = read_table(dataset, part)
        before = first + np.cumsum(table.records) - table.records
        shards = range(len(table))
        for found, shard, record in find_places(dataset, part, table, shards, wanted):
            yield numbers[found], int(before[shard]) + record
        first += part.records


_BLOCK_RECORDS = 1024


def find_values(
    dataset: Dataset, feature: str, values: Sequence[str]
) -> Iterator[tuple[int, int]]:
    """Yields the records that have one of some values. It reads all records.

    Args:
        dataset: The dataset, of `tf.train.Example`.
        feature: The name of the feature: texts or integers, any number in a record.
        values: The values, integers in digits.

    Yields:
        The number of a value, and that of a record.

    Raises:
        InputError: The dataset has no such feature.
        DecodeError: Its records are no `tf.train.Example`, or the feature has numbers
            that are not integers.
    """
    known = dataset.features
    if known is not None and feature not in known:
        raise InputError(
            f"the dataset has no feature {feature!r}",
            where=repr(dataset),
            expected=f"one of {some_of(known, 20)}",
            cure="correct --column",
        )
    texts = {text.encode(): number for number, text in enumerate(values)}
    integers: dict[int, int] = {}
    for number, text in enumerate(values):
        with contextlib.suppress(ValueError):
            integers[int(text)] = number
    for begin in range(0, len(dataset), _BLOCK_RECORDS):
        numbers = np.arange(begin, min(begin + _BLOCK_RECORDS, len(dataset)))
        scan = scan_examples(dataset.read(numbers))
        of_integers = bool((scan.column(feature.encode()).kinds == INTS).any())
        decoder = RaggedFeature(np.int64 if of_integers else bytes, optional=True)
        found = decoder.array(feature, scan)
        rows = np.repeat(numbers, np.diff(found.row_splits))
        wanted: dict[int, int] | dict[bytes, int] = integers if of_integers else texts
        for record, value in zip(rows.tolist(), found.values.tolist(), strict=True):
            if value in wanted:
                yield wanted[value], record


@dataclasses.dataclass(frozen=True, kw_only=True)
class Removed:
    """What a removal did.

    Attributes:
        dataset: Directory of the dataset.
        result: What was done.
        missing: Lines that named nothing.
        erased: Whether the state before was deleted.
    """

    also_shown = ("elsewhere",)

    dataset: str
    result: RemovalResult
    missing: tuple[str, ...] = ()
    erased: bool = False

    @property
    def split(self) -> Split:
        """The split as it is now."""
        return self.result.manifest.splits[self.result.split]

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """Where records that were erased can still be."""
        if not self.erased:
            return ()
        inputs = {
            str(path)
            for part in self.split.parts
            for path in part.source.get("inputs", ())
        }
        return (
            f"the inputs: {', '.join(sorted(inputs)) or 'not known'}",
            "copies and caches of this dataset on hosts that have read it, and "
            "datasets that were made of it",
            *(
                ("deleted objects that the bucket keeps: soft delete, versions",)
                if "://" in self.dataset
                else ("snapshots and backups of the file system",)
            ),
            *(
                (f"files of commands that still run: {some_of(self.result.left)}",)
                if self.result.left
                else ()
            ),
        )

    @property
    def title(self) -> str:
        """How many records were removed, or that they were removed before."""
        result, left = self.result, f"{self.split.records:,} left"
        name = f"{result.manifest.name}/{result.split}"
        if not result.editions:
            return f"{name}: these records were removed before; {left}"
        numbers = " and ".join(map(str, result.editions))
        word = "edition" if len(result.editions) == 1 else "editions"
        lost = f"{plural(result.records, 'record')} removed, {left}"
        return f"{name}: {lost}, committed as {word} {numbers}"

    @property
    def facts(self) -> dict[str, Any]:
        """What people get besides."""
        result, split, facts = self.result, self.split, dict[str, Any]()
        if result.editions:
            parts = [part for part in split.parts if part.edition in result.editions]
            lists = [str(part.removed["list"]) for part in parts if part.removed]
            shards = plural(result.cut_shards, "shard")
            facts = {
                "removed": f"{size_text(result.raw_bytes)}; listed in "
                + ", ".join(lists),
                "written": f"{shards} again; {result.shared_shards:,} are shared with "
                "the edition before",
                "digest": split.records_digest,
            }
        if self.missing:
            facts["not found"] = [f"{plural(len(self.missing), 'line')}:"]
            facts["not found"] += self.missing
        if self.erased:
            facts["erased"] = "the editions before, with their files"
            facts["NOT erased"] = self.elsewhere
        elif split.replaced:
            kept = "the edition before; --erase deletes it, with the records"
            facts["kept"] = kept
        return facts


def remove(
    dataset: str,
    asked: dict[str, Any],
    *,
    erase: bool = False,
    give_up: bool = False,
    workers: int | None = None,
    beam_options: Sequence[str] | None = None,
    show_progress: bool = False,
) -> RemovalResult:
    """Removes records from a dataset, and returns when that is committed.

    Args:
        dataset: Its directory.
        asked: What to remove, as arguments of `begin_removal`.
        erase: Whether to delete the state before, with the bytes of the records.
        give_up: Whether to give up first what others have begun on the split.
        workers: Number of processes on this machine; by default its number of cores.
        beam_options: Options of the Beam pipeline, including `--runner`; None to run
            without Beam.
        show_progress: Whether to show progress on standard error; not with Beam.

    Raises:
        GristmillError: It failed. Finished shards are kept.
    """
    job = RemovalJob(dataset, {**asked, "erase": erase, "give_up": give_up})
    begun = job.begin()
    if beam_options is None:
        return run_job(job, begun, workers=workers, show_progress=show_progress)
    from gristmill.pipelines.beam.run_pipeline import result_path_of, run_pipeline
    from gristmill.transforms.beam.run_job import RunJob

    (known,) = begun.known
    assert isinstance(known, BegunRemoval)
    path = result_path_of(dataset, known.manifest.name, known.split, known.removal)
    job = RemovalJob(dataset, {**asked, "erase": erase})
    return run_pipeline(RunJob(job), beam_options, result_path=path)


def check_found(asked: Asked, file: str, *, allow_missing: bool) -> None:
    """Raises InputError if lines name nothing that is there, or no line does.

    Args:
        asked: What is to be removed.
        file: Where the lines are, for messages.
        allow_missing: Whether some may name nothing.
    """
    nothing = not len(asked.arguments["records"])
    if not asked.missing or (allow_missing and not nothing):
        return
    raise InputError(
        f"{plural(len(asked.missing), 'line')} name{'s' * (len(asked.missing) == 1)} "
        "nothing that is in the split",
        where=file,
        got=some_of(asked.missing, 20),
        cure="correct these lines; nothing was removed"
        if nothing
        else "correct these lines, or remove the others with --allow-missing; nothing "
        "was removed yet",
    )
