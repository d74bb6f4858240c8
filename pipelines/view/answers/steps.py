"""The records of a step, and the steps in which a record is seen."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from gristmill.dataset.base.errors import InputError
from gristmill.loader.data.dataset import Dataset, shards_of
from gristmill.loader.order.step_records import by_dataset
from gristmill.pipelines.view.answers.opened_datasets import Opened, checked_number
from gristmill.pipelines.view.answers.record import (
    checked_record,
    preview_of,
    row_format_of,
)

_ROWS = 256
_EPOCHS = 1000
# What is read for previews at once, as a step of large records fits no memory.
_READ_BYTES, _UNKNOWN_BYTES = 16 << 20, 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a step.

    Attributes:
        row: Its number in the global batch.
        of: The name of its dataset in a mixture.
        epoch: The epoch of that dataset.
        record: Its record there; negative if that was removed since.
        shard: The number of the shard that has the record, -1 if it was removed.
        file: The file of that shard.
        host: The host that gets it; None if it was not asked how many there are.
        size_bytes: The size of the record; None if it was not read.
        preview: Its first text, cut; None if it was not read, or has none.
    """

    row: int
    of: str
    epoch: int
    record: int
    shard: int
    file: str
    host: int | None = None
    size_bytes: int | None = None
    preview: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """Some rows of a step.

    Attributes:
        step: Its number.
        num_rows: How many rows it has.
        first_row: The first of those below.
        rows: Some rows.
    """

    step: int
    num_rows: int
    first_row: int
    rows: list[Row]


def step(
    opened: Opened,
    *,
    step: int,
    first_row: int = 0,
    previews: int = 0,
    hosts: int = 0,
) -> Step:
    """Returns the rows of a step from one on, at most 256.

    With `previews` their records are read, from as many shards as they are in. With a
    number of `hosts`, each row has the one to which feeds of so many processes give it.
    """
    schedule, names = opened.ordered().schedule, list(opened.datasets)
    step = checked_number(step, schedule.step_limit, what="step")
    num_rows = len(schedule.positions(step))
    of_first = None
    if hosts:
        # All hosts get as many, one after the other.
        of_first = schedule.host_rows(process_index=0, process_count=hosts, step=step)
    first = checked_number(first_row, num_rows, what="row", where=f"step {step:,}")
    positions = schedule.positions(step, slice(first, first + _ROWS))
    numbers, places = schedule.locate(positions)
    rows = []
    for number, chosen in by_dataset(numbers):
        order, name = schedule.grown[number], names[number]
        dataset, here = opened.datasets[name], places[chosen]
        paths = shards_of(dataset).paths
        records = order.records(here)
        shards = dataset.shards_of(records)
        found = zip(
            range(first, first + len(places))[chosen]
            if isinstance(chosen, slice)
            else (chosen + first).tolist(),
            here.tolist(),
            records.tolist(),
            shards.tolist(),
            strict=True,
        )
        rows += [
            Row(
                row=row,
                of=name,
                epoch=order.epoch_at(place),
                record=record,
                shard=shard,
                file="(removed)" if shard < 0 else paths[shard],
                host=None if of_first is None else row // of_first.stop,
            )
            for row, place, record, shard in found
        ]
    if previews:
        rows = [
            row
            for _, some in itertools.groupby(rows, key=lambda row: row.of)
            for row in _with_previews(opened, list(some))
        ]
    rows.sort(key=lambda row: row.row)
    return Step(step=step, num_rows=num_rows, first_row=first, rows=rows)


def expected_bytes(dataset: Dataset) -> float:
    """Returns the size of a record that is to be read: the mean where it is known."""
    mean = dataset.mean_record_bytes
    return max(_UNKNOWN_BYTES if mean is None else mean, 1)


def _with_previews(opened: Opened, rows: list[Row]) -> Iterator[Row]:
    """Yields rows of one dataset with what their records begin with."""
    dataset = opened.datasets[rows[0].of]
    at_once = max(1, int(_READ_BYTES / expected_bytes(dataset)))
    for first in range(0, len(rows), at_once):
        some = rows[first : first + at_once]
        yield from (row for row in some if row.shard < 0)
        some = [row for row in some if row.shard >= 0]
        records = dataset.read([row.record for row in some])
        for row, data in zip(some, records, strict=True):
            part, number = dataset.part_of(row.shard)
            preview = preview_of(opened, data, row_format_of(part, part.shard(number)))
            yield dataclasses.replace(row, size_bytes=len(data), preview=preview)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """Where a record is seen.

    Attributes:
        record: Its number in its dataset.
        of: The dataset's name in a mixture.
        first_epoch: The first epoch that was searched.
        stop_epoch: The one after the last.
        sightings: Epoch, step and row of each time that it is seen in these epochs.
    """

    record: int
    of: str
    first_epoch: int
    stop_epoch: int
    sightings: list[dict[str, int]]


def seen(
    opened: Opened,
    *,
    record: int,
    of: str = "",
    first_epoch: int = 0,
    stop_epoch: int | None = None,
) -> Seen:
    """Returns the sightings of a record in some epochs, by default in one."""
    batches, name = opened.ordered(), opened.name(of)
    number = checked_record(opened.datasets[name], record)
    stop = first_epoch + 1 if stop_epoch is None else stop_epoch
    if not first_epoch < stop <= first_epoch + _EPOCHS:
        raise InputError(
            "stop_epoch is out of range",
            expected=f"{first_epoch + 1:,} to {first_epoch + _EPOCHS:,}",
            got=stop,
            cure="look in fewer epochs at a time",
        )
    found = batches.find(number, name or None, first_epoch=first_epoch, stop_epoch=stop)
    return Seen(
        record=number,
        of=name,
        first_epoch=first_epoch,
        stop_epoch=stop,
        sightings=[sighting._asdict() for sighting in found],
    )
