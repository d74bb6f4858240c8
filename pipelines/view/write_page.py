"""Puts the page, its library and answers into one HTML file."""

from __future__ import annotations

import base64
import datetime
import functools
import hashlib
import importlib.resources
import itertools
import json
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from gristmill.dataset.errors import GristmillError
from gristmill.pipelines.results.formatting import plural
from gristmill.pipelines.view.answers.ask import ask, error_answer
from gristmill.pipelines.view.answers.opened import Opened

LIMIT_BYTES = 2_000_000
"""The most that a page with answers in it takes."""

# What a part of the answers may take, so that none takes all.
_ANSWER_BYTES = 100_000
_STEPS = 100
_SHARDS = 200
# So many answers in a row that do not fit: the others will not either.
_MISSES = 50
_ABOUT_BYTES = 1_000

_FOLDER = importlib.resources.files(__package__) / "page"
_STYLE = re.compile(r'<link rel="stylesheet" href="([\w./-]+)">')
_SCRIPT = re.compile(r'<script src="([\w./-]+)"></script>\n')
_POLICY = re.compile(r'(http-equiv="Content-Security-Policy" content=")[^"]*(")')
_LIBRARY = "echarts/echarts.common.min.js"


@functools.cache
def _parts() -> tuple[str, str]:
    """Returns the page before the answers and after them, with its files in it.

    Its policy names the hashes of its scripts and of its style: a browser runs nothing
    else, whatever a record holds.
    """
    text = _read("index.html")
    (style_name,) = _STYLE.findall(text)
    style = _read(style_name)
    names = _SCRIPT.findall(text)
    ours = "\n".join(_read(name) for name in names if name != _LIBRARY)
    library = _read(_LIBRARY)
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hash(library)} {_hash(ours)}",
            f"style-src {_hash(style)}",
            "img-src data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    text = _POLICY.sub(lambda found: found[1] + policy + found[2], text)
    text = _STYLE.sub(lambda _: f"<style>{style}</style>", text)
    before, _, rest = text.partition(f'<script src="{names[0]}"></script>\n')
    after = _SCRIPT.sub("", rest)
    return before, f"<script>{library}</script>\n<script>{ours}</script>\n{after}"


def _read(name: str) -> str:
    return _FOLDER.joinpath(*name.split("/")).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def page(
    answers: Mapping[str, Any] | None = None, about: Mapping[str, Any] | None = None
) -> bytes:
    """Returns the page: one HTML file that loads nothing else.

    Args:
        answers: By address, such as `/api/step?step=5`; without, the page asks the
            server that it came from.
        about: What the page says of the file: `made`, `command` and `left_out`.
    """
    before, after = _parts()
    if answers is None:
        return (before + after).encode()
    held = _json({"answers": answers, "about": about or {}})
    holder = b'<script type="application/json" id="answers">' + held + b"</script>\n"
    return before.encode() + holder + after.encode()


def _json(value: Any) -> bytes:
    """Returns JSON that cannot end the element which holds it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # Halves of characters, which UTF-8 does not have, become escapes of JSON.
    return text.replace("<", "\\u003c").encode("utf-8", "backslashreplace")


def write_html(opened: Opened, path: str) -> None:
    """Writes the page with answers in it to a file of at most `LIMIT_BYTES`.

    Those are in it that a reader asks for first: of the dataset, of steps from all over
    the run, and of the records in these steps, as many as there is room for.

    Args:
        opened: What the page shows.
        path: The file.

    Raises:
        OSError: The file cannot be written.
    """
    held = _Held(opened, LIMIT_BYTES - len(page({}, {})) - _ABOUT_BYTES)
    overview = held.add("overview")
    if len(opened.datasets) > 1:
        for name in opened.datasets:
            held.add("overview", of=name)
    for name in opened.datasets:
        held.add("sizes", of=name)
        held.add("lineage", of=name)
        if overview.get("order"):
            held.add("spread", of=name)
    if (overview.get("order") or {}).get("mixture"):
        held.add("mixture")
    rows = _add_steps(held, overview.get("order"))
    _add_shards(held)
    for of, record in itertools.chain(rows, _spread_records(opened)):
        if held.misses > _MISSES:
            break
        if held.add("record", record=record, of=of):
            held.add("source", record=record, of=of)
            if overview.get("order"):
                held.add("seen", record=record, of=of)
    about = {"made": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"}
    about["command"] = "gristmill view " + " ".join(
        one.path if not name else f"{name}={one.path}"
        for name, one in opened.datasets.items()
    )
    records = sum(len(one) for one in opened.datasets.values())
    about["left_out"] = (
        f"It holds {plural(held.count('step'), 'step')}, and {held.count('record'):,} "
        f"of {plural(records, 'record')}."
    )
    pathlib.Path(path).write_bytes(page(held.answers, about))


class _Held:
    """The answers that go into a file, as long as there is room."""

    def __init__(self, opened: Opened, room_bytes: int):
        self._opened, self.room_bytes = opened, room_bytes
        self.answers: dict[str, Any] = {}
        self.misses = 0

    def add(self, name: str, *, of: str = "", **numbers: int) -> dict[str, Any]:
        """Adds an answer if there is room; returns it, or {} if it is not there."""
        pairs = [f"{key}={value}" for key, value in numbers.items()]
        pairs += [f"of={quote(of, safe='')}"] if of else []
        address = f"api/{name}" + (f"?{'&'.join(pairs)}" if pairs else "")
        if address in self.answers:
            return {}
        try:
            answer = ask(self._opened, address)
        except GristmillError as e:
            # The page shows what is wrong in its place, as it does with a server.
            answer = error_answer(e)
        if name == "step" and "rows" in answer:
            # The page shows the number of the shard: its path would take most room.
            rows = [{**row, "file": None} for row in answer["rows"]]
            answer = {**answer, "rows": rows}
        size_bytes = len(_json({address: answer}))
        if size_bytes > min(self.room_bytes, _ANSWER_BYTES):
            self.misses += 1
            return {}
        self.misses = 0
        self.answers[address] = answer
        self.room_bytes -= size_bytes
        return {} if "error" in answer else answer

    def count(self, name: str) -> int:
        """Returns how many answers of a name are held."""
        return sum(address.startswith(f"api/{name}?") for address in self.answers)


def _add_steps(
    held: _Held, order: Mapping[str, Any] | None
) -> Iterator[tuple[str, int]]:
    """Adds steps from all over the run; returns their records, a row of each."""
    if not order:
        return iter(())
    stop = order["steps"] or order["epoch_steps"]
    first = held.add("step", step=0, previews=1)
    # The records are to have as much room as the steps.
    fitting = held.room_bytes // 2 // max(1, len(_json(first)))
    steps = {*_spread(stop, max(2, min(_STEPS, fitting)))} - {0}
    if order["state_step"] is not None:
        steps.add(order["state_step"])
    found = [first.get("rows", [])]
    for step in sorted(steps):
        found.append(held.add("step", step=step, previews=1).get("rows", []))
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*found))
    return ((row["of"], row["record"]) for row in in_turn if row is not None)


def _add_shards(held: _Held) -> None:
    for name, dataset in held._opened.datasets.items():
        for shard in _spread(dataset.num_shards, _SHARDS // len(held._opened.datasets)):
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
