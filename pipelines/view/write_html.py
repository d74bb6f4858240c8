"""The page: a dataset, records and steps of it, with the scripts that show them."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import importlib.resources
import json
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gristmill.loader.data.batches import Batches, order_text, row_at
from gristmill.loader.data.dataset import Dataset
from gristmill.pipelines.view.sections import described, shown

if TYPE_CHECKING:
    from gristmill.transforms.tokens.tokenizer import Tokenizer

LIMIT_BYTES = 2_000_000
"""Maximum size of a page, apart from requested records and steps."""

_SECONDS = 10.0
"""Time after which only requested records are read."""

_STEPS, _ROWS, _MOST_ROWS = 32, 512, 1024
_FIRST, _SPREAD = 32, 200
_IMAGE_BYTES, _ASKED_IMAGE_BYTES = 1 << 16, 8 << 20
_NUMBER_BYTES = 12
"""Bytes of the number of a record or a step, with its punctuation."""

_FOLDER = importlib.resources.files(__package__) / "page"
_SCRIPTS = ("elements.js", "record.js", "views.js")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """The content of a page.

    Attributes:
        datasets: The datasets of a mixture by name; a single one has the name "".
        batches: Their order; None if it is not known.
        texts: Shows tokens of packed rows as text; None for ids alone.
        records: Requested records of each dataset.
        steps: Requested steps.
        command: The command that makes it again, without records and steps.
    """

    datasets: Mapping[str, Dataset]
    batches: Batches | None = None
    texts: Tokenizer | None = None
    records: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    steps: Sequence[int] = ()
    command: str = "gristmill view"


def write_html(subject: Subject, path: str) -> None:
    """Writes the page to a file that loads nothing else.

    It holds the requested records and steps, and others from all over the dataset and
    the run, as long as there is room and time.

    Raises:
        OSError: The file cannot be written.
    """
    pathlib.Path(path).write_bytes(page(_Held(subject).content()))


def page(content: Mapping[str, Any]) -> bytes:
    """Returns the page with its content.

    Its policy names the hashes of its script and its style, so that a browser runs
    nothing else, whatever a record holds.
    """
    style = _FOLDER.joinpath("page.css").read_text(encoding="utf-8")
    script = "\n".join(
        _FOLDER.joinpath(name).read_text(encoding="utf-8") for name in _SCRIPTS
    )
    text = _FOLDER.joinpath("index.html").read_text(encoding="utf-8")
    for place, part in (
        ("$STYLE_HASH", _hash(style)),
        ("$SCRIPT_HASH", _hash(script)),
        ("$STYLE", style),
        ("$SCRIPT", script),
    ):
        text = text.replace(place, part)
    return text.encode().replace(b"$CONTENT", _json(content))


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _json(value: Any) -> bytes:
    """Returns JSON that cannot end the element around it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # Lone surrogates, which UTF-8 lacks, become escapes of JSON.
    return text.replace("<", "\\u003c").encode("utf-8", "backslashreplace")


class _Held:
    """The records and steps that go into a page, as long as there is room and time."""

    def __init__(self, subject: Subject):
        self._subject = subject
        self._records: dict[str, dict[int, Any]] = {n: {} for n in subject.datasets}
        self._steps: dict[int, Any] = {}
        self._shown: dict[int, bool] = {}
        self._left_bytes = LIMIT_BYTES
        self._until = time.monotonic() + _SECONDS

    def content(self) -> dict[str, Any]:
        """Returns all of the page's content."""
        subject, batches = self._subject, self._subject.batches
        found = {
            "command": subject.command,
            "datasets": [described(one, n) for n, one in subject.datasets.items()],
            "order": None if batches is None else order_text(batches),
            "records": self._records,
            "steps": self._steps,
        }
        self._left_bytes -= len(page(found))
        for name, numbers in subject.records.items():
            for number in numbers:
                self._record(name, subject.datasets[name], number, asked=True)
        for step in subject.steps:
            self._step(step, _MOST_ROWS, asked=True)
        if batches is not None:
            end = batches.steps or batches.schedule.end_of_epoch(
                batches.names[0] if batches.names else "", step=1
            )
            rows = min(batches.batch_size, _ROWS)
            for step in _spread(end, max(2, min(_STEPS, _ROWS // rows))):
                self._step(step, rows)
        for name, dataset in subject.datasets.items():
            first = range(min(len(dataset), _FIRST))
            for number in (*first, *_spread(len(dataset), _SPREAD)):
                self._record(name, dataset, number)
        return found

    def _may_read(self) -> bool:
        return self._left_bytes > 0 and time.monotonic() < self._until

    def _fits(self, found: Any, *, asked: bool) -> bool:
        """Returns whether there is room for a value, and reserves it."""
        size_bytes = len(_json(found)) + _NUMBER_BYTES
        if not asked and size_bytes > self._left_bytes:
            return False
        self._left_bytes -= size_bytes
        return True

    def _record(
        self, name: str, dataset: Dataset, number: int, *, asked: bool = False
    ) -> Any:
        """Returns a record, and adds it if there is room; None if it is not read."""
        held = self._records[name]
        if number in held or not (asked or self._may_read()):
            return held.get(number)
        image_bytes = _ASKED_IMAGE_BYTES if asked else _IMAGE_BYTES
        texts = self._subject.texts
        found = shown(
            dataset, number, name=name or None, texts=texts, image_bytes=image_bytes
        )
        if self._fits(found, asked=asked):
            held[number] = found
        return found

    def _shows(self, name: str, dataset: Dataset) -> bool:
        """Returns whether the page has a dataset, or one that begins with it."""
        if id(dataset) not in self._shown:
            shown = self._subject.datasets[name].stored
            same = shown.begins_with(dataset.stored.content)
            self._shown[id(dataset)] = same
        return self._shown[id(dataset)]

    def _step(self, step: int, most: int, *, asked: bool = False) -> None:
        """Adds the first rows of a step, with their records and sources."""
        batches = self._subject.batches
        if batches is None or step in self._steps or not (asked or self._may_read()):
            return
        count = len(batches.schedule.positions(step))
        rows = []
        for number in range(min(count, most)):
            seen = row_at(batches, step, number)
            name = seen.name if batches.names else ""
            row = {"of": name, "epoch": seen.epoch, "record": seen.record}
            if not self._shows(name, seen.dataset):
                row["other"] = f"of another dataset, {seen.dataset!r}"
            elif found := self._record(name, seen.dataset, seen.record):
                row |= {key: found.get(key) for key in ("bytes", "preview", "source")}
            rows.append(row)
        found = {"count": count, "rows": rows}
        if self._fits(found, asked=asked):
            self._steps[step] = found


def _spread(stop: int, most: int) -> Sequence[int]:
    """Returns numbers below a limit, the first and the last among them.

    >>> _spread(3, 5), _spread(101, 5)
    ([0, 1, 2], [0, 25, 50, 75, 100])
    """
    if stop <= most:
        return list(range(stop))
    return [round(i * (stop - 1) / (most - 1)) for i in range(most)]
