"""The progress bar of a conversion, from the files in its output.

Works for every runner: a shard is finished when its index exists. Workers on this
machine also write small progress files.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from gristmill.dataset.errors import GristmillError
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.jobs.prepared_job import PreparedJob

_REFRESH_SECONDS = 0.5
_PLAIN_LINE_SECONDS = 15.0
_REMOTE_LISTING_SECONDS = 15.0


class _Progress(NamedTuple):
    shards: int  # Finished ones, including those of earlier runs.
    input_bytes: int  # Stored input bytes that are converted, approximately.
    records: int  # Read by this run.
    raw_bytes: int  # Their size.


class _ProgressReader:
    """Reads the progress of a conversion."""

    def __init__(self, prepared: Sequence[PreparedJob], progress_dir: str):
        self._prepared = prepared
        self._progress_dir = progress_dir
        self.shards = sum(job.plan.shards for job in prepared)
        self.input_bytes = sum(int(job.plan.sizes.sum()) for job in prepared)
        self._shard_bytes: dict[str, int] = {}
        self._indexes: dict[str, str] = {}
        self._done: set[str] = set()
        self._next_listing = 0.0
        for job in prepared:
            sizes = np.diff(job.plan.cut_bytes).tolist()
            for shard, size in enumerate(sizes):
                key = f"{job.job.split}.{shard}"
                index = layout.index_path(job.shard_path(shard))
                self._indexes[index.rpartition("/")[2]] = key
                self._shard_bytes[key] = size

    def _finished(self, index_dir: str) -> set[str]:
        """Returns the finished shards, from a recent listing."""
        began = time.monotonic()
        if began >= self._next_listing:
            storage = storage_for(index_dir)
            found = {info.path.rpartition("/")[2] for info in storage.list(index_dir)}
            self._done = {self._indexes[name] for name in found & self._indexes.keys()}
            # Long listings take time, and those of a bucket cost money.
            ended = time.monotonic()
            pause = _REMOTE_LISTING_SECONDS if storage.remote else 0.0
            self._next_listing = ended + max(pause, 20 * (ended - began))
        return self._done

    def read(self) -> _Progress:
        output = self._prepared[0].job.output
        done = self._finished(layout.join(output, layout.INDEX_DIR))
        input_bytes = sum(self._shard_bytes[key] for key in done)
        records = raw_bytes = 0
        for entry in os.scandir(self._progress_dir):
            with open(entry.path) as file:
                numbers = file.read().split()
            if len(numbers) != 2:
                continue
            records += int(numbers[0])
            raw_bytes += int(numbers[1])
            if entry.name not in done:
                input_bytes += min(
                    int(numbers[1]), self._shard_bytes.get(entry.name, 0)
                )
        return _Progress(len(done), input_bytes, records, raw_bytes)


@contextlib.contextmanager
def show_progress(prepared: Sequence[PreparedJob], progress_dir: str) -> Iterator[None]:
    """Shows a progress bar while the body runs; plain lines without a terminal.

    Args:
        prepared: The jobs of the conversion.
        progress_dir: Directory where workers on this machine write their progress.
    """
    reader = _ProgressReader(prepared, progress_dir)
    console = Console(stderr=True)
    started = time.monotonic()
    stop = threading.Event()
    bar = Progress(
        TextColumn("[bold]converting"),
        BarColumn(bar_width=None),
        TextColumn("{task.percentage:>3.0f}%  {task.fields[text]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task("", total=max(reader.input_bytes, 1), text="")

    def refresh() -> None:
        next_line = started + _PLAIN_LINE_SECONDS
        while not stop.wait(_REFRESH_SECONDS):
            try:
                progress = reader.read()
            except (GristmillError, OSError, ValueError):
                continue  # Files appear and disappear meanwhile; try again soon.
            now = time.monotonic()
            rate = progress.raw_bytes / 1e6 / max(now - started, 1e-3)
            text = (
                f"{progress.shards:,}/{reader.shards:,} shards  "
                f"{progress.records:,} records  {rate:,.1f} MB/s"
            )
            bar.update(task, completed=progress.input_bytes, text=text)
            if not console.is_terminal and now >= next_line:
                next_line = now + _PLAIN_LINE_SECONDS
                percent = 100 * progress.input_bytes / max(reader.input_bytes, 1)
                console.print(f"{percent:.0f}%  {text}", highlight=False)

    with bar:
        thread = threading.Thread(target=refresh, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            # No longer than that: storage may not answer.
            thread.join(_REFRESH_SECONDS)
