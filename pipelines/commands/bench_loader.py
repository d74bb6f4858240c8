"""`gristmill bench-loader`: measures how fast this machine can feed a trainer."""

from __future__ import annotations

import dataclasses
import json
import traceback
from typing import TYPE_CHECKING, cast

import click

from gristmill.pipelines.commands.messages import (
    command_line,
    next_step,
)
from gristmill.pipelines.commands.parameters import command
from gristmill.pipelines.options.option import (
    argument,
    choice,
    integer,
    number,
    split_name,
    text,
)

if TYPE_CHECKING:
    from gristmill.loader.feed.bench import Measured
    from gristmill.loader.feed.step_reads import Decode
    from gristmill.loader.order.shuffle import ShuffleName
    from gristmill.loader.stats.causes import Cause


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Options of `gristmill bench-loader`."""

    dataset: str = argument()
    split: str | None = split_name("Split to read. Required if there are several.")
    batch_size: int = integer(
        "Rows of the global batch, over all hosts.", 1024, least=1
    )
    hosts: int = integer(
        "Number of hosts of the training. This machine reads the rows of the first.",
        1,
        least=1,
    )
    shuffle: ShuffleName = choice(
        "Order of the records: shuffled over all of them, in blocks, or as they are "
        "stored.",
        ("global", "block", "none"),
    )
    seed: int = integer("Seed of the shuffle.", 0)
    decode: str | None = text(
        "Function to call on the records of every batch.", "MODULE:FUNCTION", "none"
    )
    workers: int = integer(
        "Number of processes that read and decode; 0 for threads.", 0, least=0
    )
    prefetch: int = integer("Number of batches to read ahead.", 2, least=1)
    step_ms: float = number(
        "Duration of a training step, in milliseconds, which the trainer sleeps.",
        "MS",
        0.0,
        least=0,
    )
    seconds: float = number(
        "Duration of the measurement, in seconds.", "SECONDS", 5.0, least=0.1
    )
    repeat_cached: int = integer(
        "Number of batches to repeat from memory at the end: the trainer's speed with "
        "a feed that costs nothing. 0 leaves it out.",
        0,
        least=0,
    )
    cache_dir: str | None = text(
        "Local directory that keeps data of buckets, fetched once per host.",
        "DIR",
        "none",
    )
    cache_bytes: str | None = text(
        "Keep copies of whole shards in --cache-dir, up to this size, such as 500GiB.",
        "SIZE",
        "no copies",
    )


@command("bench-loader", BenchOptions)
def bench_loader(options: BenchOptions, *, as_json: bool) -> None:
    """Measure how fast this machine feeds a trainer, and why.

    DATASET is any path that gristmill.loader.open accepts. The command first reads
    batches one after the other, to separate waiting for storage from processor time.
    Then a feed reads ahead for a trainer that sleeps --step-ms per step. With
    --repeat-cached, the same trainer then takes batches from memory. The last lines
    name what limits the trainer, and what to do.
    """
    from gristmill.dataset.base.errors import GristmillError, UserFunctionError
    from gristmill.loader import global_batches
    from gristmill.loader import open as open_dataset
    from gristmill.loader.feed.bench import measure
    from gristmill.pipelines.options.conversion_jobs import parse_size
    from gristmill.transforms.functions.user_functions import load_function

    workers, shuffle = options.workers, options.shuffle
    kept = options.cache_bytes
    opened = open_dataset(
        options.dataset,
        split=options.split,
        cache_dir=options.cache_dir,
        cache_bytes=None if kept is None else parse_size(kept, "--cache-bytes"),
    )
    batches = global_batches(
        opened, batch_size=options.batch_size, seed=options.seed, shuffle=shuffle
    )
    decode, function = options.decode, None
    if decode is not None:
        function = cast("Decode", load_function(decode))
    try:
        measured = measure(
            batches,
            hosts=options.hosts,
            decode=function,
            workers=workers,
            prefetch=options.prefetch,
            step_seconds=options.step_ms / 1000,
            seconds=options.seconds,
            repeat_cached=options.repeat_cached,
        )
    except GristmillError:
        raise
    except Exception as e:
        if decode is None:
            raise
        last = traceback.extract_tb(e.__traceback__)[-1]
        line = f"{last.filename}, line {last.lineno}: {last.line}"
        raise UserFunctionError(
            f"the --decode function failed: {type(e).__name__}: {e}",
            where=", ".join([decode, *getattr(e, "__notes__", ())]),
            expected="a function of a list of records, each of them bytes",
            got=None if workers else line,  # Lines of workers do not come here.
            cure="fix the function",
        ) from e
    if as_json:
        click.echo(_json(measured))
        return
    rows = f"{options.batch_size // options.hosts:,}"
    rows += "" if options.hosts == 1 else f" of {options.batch_size:,} rows"
    how = "1 worker" if workers == 1 else f"{workers or 'no'} workers"
    how += f", batches of {rows}, {shuffle} shuffle, seed {options.seed}"
    click.echo(f"{opened!r}"[1:-1])
    click.echo(measured_text(measured, how))
    _next(measured.waiting.cause, workers, shuffle)


def _next(cause: Cause, workers: int, shuffle: ShuffleName) -> None:
    """Says what to measure next: without the trainer, or what may shorten its wait."""
    from gristmill.pipelines.local.pool import default_workers

    cores = default_workers()
    if cause == "trainer":
        next_step(*command_line(without=("step_ms",)), why="the most it can feed")
    elif cause == "storage" and shuffle == "global":
        again = command_line(without=("shuffle",))
        next_step(*again, "--shuffle", "block", why="with larger reads")
    elif cause in ("decode", "read") and workers < cores:
        again = command_line(without=("workers",))
        next_step(*again, "--workers", cores, why="with a process for each core")


def _json(measured: Measured) -> str:
    fed = measured.fed
    document = dataclasses.asdict(measured) | {
        "records_per_second": fed.records_per_second,
        "record_bytes_per_second": fed.record_bytes_per_second,
        "waiting_share": fed.waiting_share,
        "waits_for": dataclasses.asdict(measured.waiting),
    }
    return json.dumps(document)


def measured_text(measured: Measured, how: str) -> str:
    """Returns the measurements as text.

    Args:
        measured: It.
        how: The options of the feed, for the reader.
    """
    from gristmill.pipelines.text.formatting import size_text

    alone, fed = measured.alone, measured.fed

    def rate(records: float, record_bytes: float) -> str:
        return f"{records:,.0f} records/s, {size_text(record_bytes)}/s"

    def share(seconds: float) -> str:
        return f"{seconds / alone.seconds:.0%}"

    waiting = measured.waiting
    lines = [
        (
            "alone",
            rate(alone.records / alone.seconds, alone.record_bytes / alone.seconds),
        ),
        (
            "",
            f"{share(alone.io_seconds)} waiting for storage, "
            f"{share(alone.read_seconds)} decompression and checks, "
            f"{share(alone.decode_seconds)} decode",
        ),
        ("fed", rate(fed.records_per_second, fed.record_bytes_per_second)),
        ("", how),
        (
            "trainer",
            f"waits {fed.waiting_share:.0%} of its time, at "
            f"{measured.step_seconds * 1000:g} ms a step; "
            f"{fed.startup_seconds:.1f} s for the first",
        ),
        ("cause", f"{waiting.cause}: {waiting.text}"),
        ("", waiting.cure),
    ]
    if (cached := measured.cached) is not None:
        gain = cached.records_per_second / max(fed.records_per_second, 1e-9)
        speed = rate(cached.records_per_second, cached.record_bytes_per_second)
        lines[-2:-2] = [
            ("in memory", speed),
            ("", f"{gain:.2f} times fed: the most that a faster feed can gain"),
        ]
    cache = fed.cache
    if cache.hits or cache.misses:
        local = cache.hits / (cache.hits + cache.misses)
        filled = f"{size_text(cache.filled_bytes)} fetched, {cache.evictions:,} evicted"
        lines.insert(4, ("cache", f"{local:.0%} of records from copies; {filled}"))
    if alone.storage_bytes is not None:
        stored = f"{size_text(alone.storage_bytes)} from disk, the rest from memory"
        lines.insert(2, ("", stored))
    return "\n".join(f"  {name:10}{text}" for name, text in lines)
