"""The progress of a command on standard error: a bar, or lines without a terminal."""

from __future__ import annotations

import contextlib
import datetime
import threading
import time
from collections.abc import Iterator
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
    started = time.monotonic()
    stop = threading.Event()
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
    bar = Progress(
        TextColumn(f"[bold]{label}"),
        BarColumn(bar_width=None),
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    total = None if counter is None else max(counter.stored_bytes, 1)
    task = bar.add_task("", total=total, text="")

    def show() -> str:
        if counter is None:
            return ""
        progress = counter.progress
        seconds = max(time.monotonic() - started, 1e-3)
        rate = f"{progress.raw_bytes / 1e6 / seconds:,.1f} MB/s"
        if progress.tokens:
            rate += f"  {progress.tokens / 1e6 / seconds:,.2f} M tokens/s"
        parts = [
            f"{progress.items:,}/{counter.items:,} {counter.noun}",
            f"{progress.records:,} records",
            rate,
        ]
        if console.is_terminal and console.width < _WIDE:
            del parts[1]
        text = "  ".join(parts)
        bar.update(task, completed=progress.stored_bytes, text=text)
        share = progress.stored_bytes / max(counter.stored_bytes, 1)
        return f"{100 * share:.0f}%  {text}  "

    def refresh() -> None:
        next_line = started + line_seconds
        while not stop.wait(min(_REFRESH_SECONDS, line_seconds)):
            line, now = show(), time.monotonic()
            if not console.is_terminal and now >= next_line:
                next_line = now + line_seconds
                elapsed = datetime.timedelta(seconds=round(now - started))
                text = f"{label}  {line}{elapsed} elapsed"
                with contextlib.suppress(OSError):  # Standard error may be full.
                    console.print(text, highlight=False)

    with bar:
        thread = threading.Thread(target=refresh, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            # No longer than that: storage may not answer.
            thread.join(_REFRESH_SECONDS)
            show()
