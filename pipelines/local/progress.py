"""The progress of a command on standard error: a bar, or lines without a terminal."""

from __future__ import annotations

import contextlib
import datetime
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from gristmill.dataset.base.columns import Done

_REFRESH_SECONDS = 0.5
_PLAIN_LINE_SECONDS = 15.0
_WIDE = 110  # Columns of a terminal that has room for the number of records.


class _Progress(NamedTuple):
    items: int  # Finished ones, including those of earlier runs.
    stored_bytes: int  # Stored bytes that are done, approximately.
    records: int  # Read by this run.
    raw_bytes: int  # Their size.
    tokens: int = 0  # In them, where they are packed.


class Counter:
    """Counts what is done, where the results of workers arrive.

    Args:
        noun: What there are many of, such as `shards`.
        items: How many.
        stored_bytes: Their size.
    """

    def __init__(self, noun: str, items: int, stored_bytes: int):
        self.noun, self.items, self.stored_bytes = noun, items, stored_bytes
        self.progress = _Progress(0, 0, 0, 0)

    def add(self, done: Done) -> None:
        """Counts one item that is done."""
        tokens = done.counts.get("tokens", 0)
        added = 1, done.stored_bytes, done.records, done.raw_bytes, tokens
        self.progress = _Progress(*map(sum, zip(self.progress, added, strict=True)))


@contextlib.contextmanager
def shown(
    label: str,
    counter: Counter | None = None,
    *,
    line_seconds: float = _PLAIN_LINE_SECONDS,
) -> Iterator[None]:
    """Shows the progress of the body.

    Args:
        label: What is being done, such as `verifying`.
        counter: Counts it; None if nobody knows how long it will take.
        line_seconds: How often a line is printed where there is no terminal.
    """
    started, stop = time.monotonic(), threading.Event()

    def text_of(counts: int | None = None) -> str:
        """Returns how far it is, by the first counts of it."""
        if counter is None:
            return ""
        progress = counter.progress
        seconds = max(time.monotonic() - started, 1e-3)
        rate = f"{progress.raw_bytes / 1e6 / seconds:,.1f} MB/s"
        if progress.tokens:
            rate += f"  {progress.tokens / 1e6 / seconds:,.2f} M tokens/s"
        items = f"{progress.items:,}/{counter.items:,} {counter.noun}"
        return "  ".join([*[items, f"{progress.records:,} records"][:counts], rate])

    def print_lines() -> None:
        while not stop.wait(line_seconds):
            share = text = ""
            if counter is not None:
                done = counter.progress.stored_bytes / max(counter.stored_bytes, 1)
                share, text = f"{100 * done:.0f}%  ", f"{text_of()}  "
            elapsed = datetime.timedelta(seconds=round(time.monotonic() - started))
            with contextlib.suppress(OSError):  # Standard error may be full.
                print(f"{label}  {share}{text}{elapsed} elapsed", file=sys.stderr)

    with contextlib.ExitStack() as stack:
        refresh = print_lines
        if sys.stderr.isatty():
            refresh = _bar(label, counter, text_of, stop, stack)
        thread = threading.Thread(target=refresh, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            # No longer than that: storage may not answer.
            thread.join(_REFRESH_SECONDS)


def _bar(
    label: str,
    counter: Counter | None,
    text_of: Callable[[int | None], str],
    stop: threading.Event,
    stack: contextlib.ExitStack,
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

    console = Console(stderr=True)
    # On a narrow terminal the bar gets shorter, not the times.
    elapsed_column = TimeElapsedColumn(table_column=Column(no_wrap=True))
    columns: list[ProgressColumn] = [elapsed_column, TextColumn("elapsed")]
    if counter is not None:
        columns = [
            TextColumn("{task.percentage:>3.0f}%  {task.fields[text]} "),
            elapsed_column,
            TextColumn("elapsed,"),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            TextColumn("left"),
        ]
    bar = stack.enter_context(
        Progress(
            TextColumn(f"[bold]{label}"),
            BarColumn(bar_width=None),
            *columns,
            console=console,
            transient=True,
        )
    )
    total = None if counter is None else max(counter.stored_bytes, 1)
    task = bar.add_task("", total=total, text="")
    counts = 1 if console.width < _WIDE else None

    def refresh() -> None:
        while True:
            ended = stop.wait(_REFRESH_SECONDS)
            if counter is not None:
                done = counter.progress.stored_bytes
                bar.update(task, completed=done, text=text_of(counts))
            if ended:
                return

    return refresh
