"""Removing records that a user names, on this machine or on a Beam runner."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.base.example import INTS
from gristmill.dataset.commit.write import id_of
from gristmill.dataset.metadata.sources import read_sources
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader import open as open_dataset
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.data.part import Part
from gristmill.loader.decode.examples import RaggedFeature
from gristmill.loader.decode.scan import scan_examples
from gristmill.loader.provenance.stored_sources import find_places
from gristmill.pipelines.anywhere import JobRun, result_path_of
from gristmill.pipelines.text.places import FilePlace, check_lines
from gristmill.pipelines.text.printer import plural, size_text, whole_number
from gristmill.transforms.removal.removal_job import (
    Removal,
    RemovalJob,
    RemovalResult,
    done_before,
    open_split,
)


def asked_records(
    dataset: str,
    *,
    file: str | None = None,
    column: str | None = None,
    condition: str | None = None,
    split: str | None = None,
    edition: int | None = None,
    allow_missing: bool = False,
) -> tuple[dict[str, Any], list[str]]:
    """Finds the records that the lines of a file name, or that fulfil a condition.

    Args:
        dataset: The dataset's directory.
        file: A file whose lines are numbers of records, places as `gristmill trace`
            shows them, or, with a column, values.
        column: The feature that has the values.
        condition: A condition for `Dataset.select`, instead of a file.
        split: The split; None for the only one.
        edition: The edition in which records have these numbers; None for the newest.
        allow_missing: Whether some lines may name nothing.

    Returns:
        The arguments of `begin_removal`, and the lines that name nothing.

    Raises:
        InputError: A line is none of these, a line or all of them name nothing, or the
            split is missing or has packed rows.
    """
    manifest, name = open_split(dataset, split)
    found = manifest.splits[name]
    lines = [] if file is None else _read_lines(file)
    request = id_of(sorted(lines), column, edition)
    if condition is not None:
        request = id_of(["where", condition], edition)
    asked = {"split": name, "request": request, "edition": edition, "records": ()}
    done = done_before(found, request)
    missing: list[str] = []
    records: Any
    opened = open_dataset(dataset, name, edition=found.edition)
    if condition is not None:
        chosen = opened.select(condition)
        records = chosen.stored.places(np.arange(len(chosen)))
    else:
        if column is not None:
            pairs = [*_find_values(opened, column, lines)]
        else:
            parsed = [_parsed(line) for line in lines]
            if done and any(isinstance(one, int) for one in parsed):
                return asked, []
            pairs = [*_find_records(opened.stored.parts[0], parsed)]
        records = sorted({record for _, record in pairs})
        named = {number for number, _ in pairs}
        missing = [line for number, line in enumerate(lines) if number not in named]
    nothing = not len(records)
    if nothing and done:
        return asked, []
    if missing and column is None:
        lost = map(_parsed, missing)
        check_lines((one for one in lost if isinstance(one, FilePlace)), [opened])
    if missing and (nothing or not allow_missing):
        verb = "names" if len(missing) == 1 else "name"
        cure = "correct these lines; nothing was removed"
        if not nothing:
            cure = (
                "correct these lines, or remove the others with --allow-missing; "
                "nothing was removed yet"
            )
        raise InputError(
            f"{plural(len(missing), 'line')} {verb} nothing that is in the split",
            where=file,
            expected=f"a value of {column} in each line" if column else None,
            got=some_of(missing, 20),
            cure=cure,
        )
    if nothing and condition is not None:
        raise InputError(
            "no record fulfils the condition",
            where=f"{dataset}, split {name}",
            got=f"--where {condition}",
            cure="correct it, if some should; nothing was removed",
        )
    asked |= {"records": records, "looked_up": True}
    return {**asked, "edition": edition or found.edition}, missing


def _read_lines(path: str) -> list[str]:
    """Returns the distinct lines of a file that are not empty."""
    if storage_for(path).stat(path) is None:
        raise InputError(
            "--records takes a file that lists the records",
            where=path,
            expected="a file with the number of a record or FILE@PLACE in each line",
            got="no such file",
            cure=f"check the path; to name records, write them into a file, one a "
            f"line: echo {shlex.quote(path)} > unwanted.txt; then give --records "
            "unwanted.txt",
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


def _parsed(line: str) -> int | FilePlace:
    """Returns the number of a record, or a place."""
    text = line.strip()
    number = whole_number(text)
    place = FilePlace.parse(text) if number is None else number
    if place is None:
        raise InputError(
            "a line names no record",
            expected="the number of a record, or FILE@PLACE as gristmill trace shows "
            "it",
            got=ascii(line),
            cure="correct the line; for values of a feature, give its name with "
            "--column",
        )
    return place


def _find_records(
    part: Part, parsed: Sequence[int | FilePlace]
) -> Iterator[tuple[int, int]]:
    """Yields the number of each line, with each record that it names."""
    table = part.table
    assert table is not None  # It has a `dataset.json`.
    places = {n: one for n, one in enumerate(parsed) if isinstance(one, FilePlace)}
    ends = np.cumsum(table.records)
    for number, one in enumerate(parsed):
        if isinstance(one, int) and one < int(table.records.sum()):
            yield number, one
    for split, shards in part.shards_of_editions():
        files = read_sources(part.path, split)
        if files is None or not places:
            continue
        of_path = files.numbers_of(place.path for place in places.values())
        numbers, wanted = [], []
        for number, place in places.items():
            at = place.in_files(files[n] for n in of_path[place.path])
            if at is not None:
                numbers.append(number)
                wanted.append((place.path, at))
        for found, shard, record in find_places(part, split, shards, wanted):
            yield numbers[found], int(ends[shard] - table.records[shard]) + record


_BLOCK_RECORDS = 1024


def _find_values(
    dataset: Dataset, feature: str, values: Sequence[str]
) -> Iterator[tuple[int, int]]:
    """Yields the number of each value with each record that has it; reads all."""
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
    """The result of a removal, for people.

    Attributes:
        dataset: Directory of the dataset.
        result: The result.
        missing: Lines that named nothing.
        erased: Whether the previous state was deleted.
    """

    also_shown = ("elsewhere",)

    dataset: str
    result: RemovalResult
    missing: tuple[str, ...] = ()
    erased: bool = False

    @property
    def split(self) -> Split:
        """The split after the commit."""
        return self.result.manifest.splits[self.result.split]

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """Places that may still hold erased records."""
        if not self.erased:
            return ()
        given = (part.source.get("inputs", ()) for part in self.split.parts)
        inputs = sorted({str(path) for some in given for path in some})
        places = [
            f"the inputs: {', '.join(inputs) or 'not known'}",
            "copies and caches of this dataset on hosts that have read it, and "
            "datasets that were made of it",
            "deleted objects that the bucket keeps: soft delete, versions"
            if "://" in self.dataset
            else "snapshots and backups of the file system",
        ]
        if self.result.left:
            left = some_of(self.result.left)
            places.append(f"files of commands that still run: {left}")
        return tuple(places)

    @property
    def title(self) -> str:
        """The number of removed records, or that they were removed before."""
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
        """Further facts for people."""
        result, split = self.result, self.split
        facts: dict[str, Any] = {}
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
            count = plural(len(self.missing), "line")
            facts["not found"] = [f"{count}:", *self.missing]
        if self.erased:
            facts["erased"] = "the editions before, with their files"
            facts["NOT erased"] = self.elsewhere
        elif split.replaced:
            facts["kept"] = "the edition before; --erase deletes it, with the records"
        return facts


def remove(
    dataset: str,
    asked: Mapping[str, Any],
    *,
    erase: bool = False,
    give_up: bool = False,
    **how: Any,
) -> RemovalResult:
    """Removes records from a dataset, and returns after the commit.

    Args:
        dataset: Its directory.
        asked: The arguments of `begin_removal`.
        erase: Whether to delete the previous state, with the bytes of the records.
        give_up: Whether to give up unfinished work of other commands on the split
            first.
        **how: The fields of `JobRun`.

    Raises:
        GristmillError: The removal failed. Finished shards are kept.
    """
    job = RemovalJob(dataset, {**asked, "erase": erase})
    begun = RemovalJob(dataset, {**job.asked, "give_up": give_up}).begin()
    (known,) = begun.known
    assert isinstance(known, Removal)
    path = result_path_of(dataset, known.name, known.split, known)
    return JobRun(**how).finish(job, begun, path)
