"""Writes the page with a part of the answers in it to a file."""

from __future__ import annotations

import collections
import datetime
import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from gristmill.dataset.base.errors import GristmillError
from gristmill.pipelines.text.formatting import plural
from gristmill.pipelines.view.answers.addresses import ask, error_answer
from gristmill.pipelines.view.answers.opened_datasets import Opened
from gristmill.pipelines.view.answers.steps import expected_bytes
from gristmill.pipelines.view.write_page import json_in_page, page

LIMIT_BYTES = 2_000_000
"""The most that a page with answers in it takes."""

# What a part of the answers may take, so that none takes all.
_ANSWER_BYTES = 100_000
_STEPS = 100
_SHARDS = 200
# So many answers in a row that do not fit: the others will not either.
_MISSES = 50
_ABOUT_BYTES = 1_000
_READ_BYTES = 128 << 20
"""Of records that are read for steps, and once more for records."""


def write_html(opened: Opened, path: str, *, command: str) -> None:
    """Writes the page with answers in it to a file of at most `LIMIT_BYTES`.

    Those are in it that a reader asks for first: of the dataset, of steps from all over
    the run, and of the records in these steps, as many as there is room for. Of large
    records only some are read.

    Args:
        opened: What the page shows.
        path: The file.
        command: What shows all of it; the page says so where something is missing.

    Raises:
        OSError: The file cannot be written.
    """
    about_bytes = _ABOUT_BYTES + len(json_in_page(command))
    held = _Held(opened, LIMIT_BYTES - len(page({}, {})) - about_bytes)
    held.kept_bytes = held.room_bytes // 2  # For steps and records.
    overview = held.add("overview")
    order = overview.get("order") or {}
    if order:
        held.add("quality", of=next(iter(opened.datasets)))
    if order.get("mixture"):
        held.add("mixture")
    names = [
        name for name in opened.datasets if not name or held.add("overview", of=name)
    ]
    for name in names:
        held.add("sizes", of=name)
        held.add("lineage", of=name)
    held.kept_bytes = 0
    rows = _add_steps(held, order)
    _add_shards(held, names)
    held.unread_bytes = _READ_BYTES
    for of, record in itertools.chain(rows, _spread_records(opened)):
        if held.misses > _MISSES or held.unread_bytes <= 0:
            break
        if of in names and held.add("record", record=record, of=of):
            held.add("source", record=record, of=of)
            if order:
                held.add("seen", record=record, of=of)
    about = {
        "made": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "command": command,
        "left_out": _left_out(held),
    }
    pathlib.Path(path).write_bytes(page(held.answers, about))


def _left_out(held: _Held) -> str:
    """Returns the parts of the dataset that are in the file, and the others."""
    datasets = held.opened.datasets.values()
    records = plural(sum(map(len, datasets)), "record")
    shards = plural(sum(one.num_shards for one in datasets), "shard")
    parts = [
        f"It holds {plural(held.count('step'), 'step')}, {held.count('record'):,} of "
        f"{records}, and {held.count('shard'):,} of {shards}."
    ]
    unread = sum(
        any(row["size_bytes"] is None for row in answer.get("rows", ()))
        for address, answer in held.answers.items()
        if address.startswith("api/step?")
    )
    if unread:
        parts.append(
            f"What rows begin with is left out of {plural(unread, 'step')}, whose "
            "records are large."
        )
    if held.imageless:
        parts.append(f"Images are left out of {plural(held.imageless, 'record')}.")
    return " ".join(parts)


class _Held:
    """The answers that go into a file, as long as there is room.

    Attributes:
        opened: What is asked.
        answers: The answers, by their addresses.
        room_bytes: How much room is left in the file.
        kept_bytes: How much of it is kept for other answers.
        unread_bytes: Bytes of records that may still be read.
        misses: How many answers in a row did not fit.
        imageless: Records whose images had no room.
    """

    def __init__(self, opened: Opened, room_bytes: int):
        self.opened, self.room_bytes = opened, room_bytes
        self.kept_bytes = 0
        self.unread_bytes = _READ_BYTES
        self.answers: dict[str, Any] = {}
        self.misses = self.imageless = 0

    def add(self, name: str, *, of: str = "", **numbers: int) -> dict[str, Any]:
        """Adds an answer if there is room; returns it, or {} if it is not there."""
        pairs = [f"{key}={value}" for key, value in numbers.items()]
        pairs += [f"of={quote(of, safe='')}"] if of else []
        address = f"api/{name}" + (f"?{'&'.join(pairs)}" if pairs else "")
        if address in self.answers:
            return {}
        answer = self._ask(address)
        cut = {}
        if name == "step":
            answer = self._with_previews(address, answer)
        elif name == "record":
            self.unread_bytes -= answer.get("size_bytes", 0)
            cut = _without_images(answer)
        if self._fits(address, answer):
            return {} if "error" in answer else answer
        if cut and self._fits(address, cut):
            self.imageless += 1
            return cut
        self.misses += 1
        return {}

    def _ask(self, address: str) -> dict[str, Any]:
        try:
            return ask(self.opened, address)
        except GristmillError as e:
            # The page shows what is wrong in its place, as it does with a server.
            return error_answer(e)

    def _fits(self, address: str, answer: dict[str, Any]) -> bool:
        """Takes an answer if there is room for it."""
        size_bytes = len(json_in_page({address: answer}))
        if size_bytes > min(self.room_bytes - self.kept_bytes, _ANSWER_BYTES):
            return False
        self.misses = 0
        self.answers[address] = answer
        self.room_bytes -= size_bytes
        return True

    def _with_previews(self, address: str, step: dict[str, Any]) -> dict[str, Any]:
        """Returns a step with what its rows begin with, unless that is much to read."""
        rows = step.get("rows", [])
        counts = collections.Counter(row["of"] for row in rows)
        expected = (
            count * expected_bytes(self.opened.datasets[name])
            for name, count in counts.items()
        )
        if sum(expected) <= self.unread_bytes:
            step = self._ask(f"{address}&previews=1")
            rows = step.get("rows", [])
            self.unread_bytes -= sum(row["size_bytes"] for row in rows)
        if not rows:
            return step
        # The page shows the number of the shard: its path would take most room.
        return {**step, "rows": [{**row, "file": None} for row in rows]}

    def count(self, name: str) -> int:
        """Returns the number of answers held for a name."""
        return sum(address.startswith(f"api/{name}?") for address in self.answers)


def _without_images(record: dict[str, Any]) -> dict[str, Any]:
    """Returns a record without its images; nothing if it has none."""
    fields = record.get("fields", ())
    if not any(field["kind"] == "image" for field in fields):
        return {}
    cut = "images, for which there is no room in one file"
    return record | {
        "fields": [
            field | {"shown": [None] * len(field["shown"]), "cut": cut}
            if field["kind"] == "image"
            else field
            for field in fields
        ]
    }


def _add_steps(held: _Held, order: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Adds steps from all over the run; returns their records, a row of each."""
    if not order:
        return iter(())
    stop = order["steps"] or order["epoch_steps"]
    first = held.add("step", step=0)
    # The records are to have as much room as the steps.
    fitting = held.room_bytes // 2 // max(1, len(json_in_page(first)))
    steps = {*_spread(stop, max(2, min(_STEPS, fitting)))} - {0}
    if order["state_step"] is not None:
        steps.add(order["state_step"])
    found = [first.get("rows", [])]
    found += [held.add("step", step=step).get("rows", []) for step in sorted(steps)]
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*found))
    return ((row["of"], row["record"]) for row in in_turn if row is not None)


def _add_shards(held: _Held, names: Sequence[str]) -> None:
    for name in names:
        shards = held.opened.datasets[name].num_shards
        for shard in _spread(shards, _SHARDS // len(names)):
            held.add("shard", shard=shard, of=name)


def _spread_records(opened: Opened) -> Iterator[tuple[str, int]]:
    """Returns the first records, and then others from all over each dataset."""
    for name, dataset in opened.datasets.items():
        first = range(min(len(dataset), 32))
        for record in (*first, *_spread(len(dataset), 1000)):
            yield name, record


def _spread(stop: int, most: int) -> Sequence[int]:
    """Returns numbers below a limit, the first and the last among them.

    >>> _spread(3, 5), _spread(101, 5)
    ([0, 1, 2], [0, 25, 50, 75, 100])
    """
    if stop <= most:
        return list(range(stop))
    return [round(i * (stop - 1) / (most - 1)) for i in range(most)]
