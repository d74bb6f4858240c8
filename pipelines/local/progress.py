"""The progress of a command on standard error: a bar, or lines without a terminal."""

from __future__ import annotations

import collections
import contextlib
import datetime
import sys
import threading
import time
from collections.abc import Callable, Iterator

from gristmill.dataset.base.columns import Done

_REFRESH_SECONDS = 0.5
_PLAIN_LINE_SECONDS = 15.0
_WIDE = 110  # Columns of a terminal that has room for the number of records.


class Counter:
    """Counts the work done, where the results of workers arrive.

    Args:
        noun: The plural of an item, such as `shards`.
        items: Number of items.
        stored_bytes: Their size.
    """

    def __init__(self, noun: str, items: int, stored_bytes: int):
        self.noun, self.items, self.stored_bytes = noun, items, max(stored_bytes, 1)
        self.done = collections.Counter[str]()
        self._started = time.monotonic()

    def add(self, done: Done) -> None:
        """Counts one finished item."""
        self.done.update(
            items=1,
            stored_bytes=done.stored_bytes,
            records=done.read.records,
            raw_bytes=done.read.raw_bytes,
            tokens=done.counts.get("tokens", 0),
        )

    def text(self, *, wide: bool = True) -> str:
        """Returns the progress and the speed as text."""
        done, seconds = self.done, max(time.monotonic() - self._started, 1e-3)
        parts = [f"{done['items']:,}/{self.items:,} {self.noun}"]
        parts += [f"{done['records']:,} records"] * wide
        parts.append(f"{done['raw_bytes'] / 1e6 / seconds:,.1f} MB/s")
        if tokens := done["tokens"]:
            parts.append(f"{tokens / 1e6 / seconds:,.2f} M tokens/s")
        return "  ".join(parts)


@contextlib.contextmanager
def shown(
    label: str,
    counter: Counter | None = None,
    *,
    line_seconds: float = _PLAIN_LINE_SECONDS,
) -> Iterator[None]:
    """Shows the progress of the body.

    Args:
        label: The work, such as `verifying`.
        counter: Counts it; None if its duration is unknown.
        line_seconds: The interval of lines if there is no terminal.
    """
    started, stop = time.monotonic(), threading.Event()

    def print_line() -> None:
        parts = [label]
        if counter is not None:
            share = counter.done["stored_bytes"] / counter.stored_bytes
            parts += [f"{100 * share:.0f}%", counter.text()]
        elapsed = datetime.timedelta(seconds=round(time.monotonic() - started))
        with contextlib.suppress(OSError):  # Standard error may be full.
            print("  ".join([*parts, f"{elapsed} elapsed"]), file=sys.stderr)

    with contextlib.ExitStack() as stack:
        refresh, seconds = print_line, line_seconds
        if sys.stderr.isatty():
            refresh, seconds = _bar(label, counter, stack), _REFRESH_SECONDS

        def repeat() -> None:
            while not stop.wait(seconds):
                refresh()

        thread = threading.Thread(target=repeat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            # With a time limit, as storage may not answer.
            thread.join(_REFRESH_SECONDS)
            if refresh is not print_line:
                refresh()


def _bar(
    label: str, counter: Counter | None, stack: contextlib.ExitStack
) -> Callable[[], None]:
    """Begins a bar that `stack` ends, and returns the call that refreshes it."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    console, unbroken = Console(stderr=True), Column(no_wrap=True)
    # On a narrow terminal the bar gets shorter, not the times.
    times: list[ProgressColumn] = [TimeElapsedColumn(table_column=unbroken)]
    times.append(TextColumn("elapsed" if counter is None else "elapsed,"))
    if counter is not None:
        share = TextColumn("{task.percentage:>3.0f}%  {task.fields[text]} ")
        left = TimeRemainingColumn(table_column=unbroken)
        times = [share, *times, left, TextColumn("left")]
    columns = (TextColumn(f"[bold]{label}"), BarColumn(bar_width=None), *times)
    bar = stack.enter_context(Progress(*columns, console=console, transient=True))
    total = None if counter is None else counter.stored_bytes
    task = bar.add_task("", total=total, text="")

    def refresh() -> None:
        if counter is not None:
            text = counter.text(wide=console.width >= _WIDE)
            bar.update(task, completed=counter.done["stored_bytes"], text=text)

    return refresh
