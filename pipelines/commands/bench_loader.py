"""`gristmill bench-loader`: measures how fast this machine can feed a trainer."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import click

from gristmill.dataset.base.errors import GristmillError, UserFunctionError
from gristmill.pipelines.commands.command import command
from gristmill.pipelines.commands.messages import command_line, next_step, show
from gristmill.pipelines.commands.shared_options import (
    argument,
    choice,
    number,
    option,
    split,
    text,
)

if TYPE_CHECKING:
    from gristmill.loader.feed.bench import Measured


@command(looks=True)
@argument("dataset")
@split("Split to read. Required if there are several.")
@number("--batch-size", default=1024, help="Rows of the global batch, over all hosts.")
@number(
    "--hosts",
    default=1,
    help="Number of hosts of the training. This machine reads the rows of the first.",
)
@choice(
    "--shuffle",
    ("global", "block", "none"),
    "Order of the records: shuffled over all of them, in blocks, or as they are "
    "stored.",
)
@option("--seed", type=int, metavar="N", default=0, help="Seed of the shuffle.")
@text(
    "--decode",
    "MODULE:FUNCTION",
    "Function to call on the records of every batch.",
)
@number(
    "--workers",
    default=0,
    least=0,
    help="Number of processes that read and decode; 0 for threads.",
)
@number("--prefetch", default=2, help="Number of batches to read ahead.")
@option(
    "--step-ms",
    type=click.FloatRange(min=0),
    metavar="MS",
    default=0.0,
    help="Duration of a training step, in milliseconds, which the trainer sleeps.",
)
@option(
    "--seconds",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    default=5.0,
    help="Duration of the measurement, in seconds.",
)
@text(
    "--cache-dir",
    "DIR",
    "Local directory that keeps data of buckets, fetched once per host.",
)
@text(
    "--cache-bytes",
    "SIZE",
    "Keep copies of whole shards in --cache-dir, up to this size, such as 500GiB.",
    "no copies",
)
def bench_loader(given: Any) -> None:
    """Measure how fast this machine feeds a trainer, and why.

    DATASET is any path that gristmill.loader.open accepts. A feed reads ahead for a
    trainer that sleeps --step-ms per step. The last line names what limits the trainer,
    and what to do.
    """
    from gristmill.loader import global_batches
    from gristmill.loader import open as open_dataset
    from gristmill.loader.feed.bench import measure
    from gristmill.pipelines.local.pool import default_workers
    from gristmill.pipelines.options.conversion_jobs import parse_size
    from gristmill.transforms.functions.user_functions import load_function

    decode, workers, shuffle = given.decode, given.workers, given.shuffle
    kept = given.cache_bytes and parse_size(given.cache_bytes, "--cache-bytes")
    opened = open_dataset(
        given.dataset, split=given.split, cache_dir=given.cache_dir, cache_bytes=kept
    )
    batches = global_batches(
        opened, batch_size=given.batch_size, seed=given.seed, shuffle=shuffle
    )
    try:
        measured = measure(
            batches,
            hosts=given.hosts,
            decode=None if decode is None else load_function(decode),
            workers=workers,
            prefetch=given.prefetch,
            step_seconds=given.step_ms / 1000,
            seconds=given.seconds,
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
    cause = measured.cause
    fields = {"waiting_share": measured.waiting_share, "cause": cause}
    text = f"{opened!r}"[1:-1] + "\n" + measured_text(measured)
    show(vars(measured) | fields, text)
    cores = default_workers()
    if cause == "trainer":
        next_step(*command_line(without=("step_ms",)), why="the most it can feed")
    elif workers < cores:
        again = command_line(without=("workers",))
        next_step(*again, "--workers", cores, why="with a process for each core")
    elif cause == "read" and shuffle == "global":
        again = command_line(without=("shuffle",))
        next_step(*again, "--shuffle", "block", why="with larger reads")


def measured_text(measured: Measured) -> str:
    """Returns the measurements for people."""
    from gristmill.pipelines.text.printer import fact_lines, size_text

    stats, seconds = measured.stats, measured.seconds
    facts = {
        "speed": f"{stats.records / seconds:,.0f} records/s, "
        f"{size_text(stats.record_bytes / seconds)}/s",
        "stats": stats,
        "first": f"{measured.first_seconds:.1f} s for the first batch, left out above",
        "cause": f"{measured.cause}: {measured.sentence}",
    }
    return "\n".join(fact_lines(facts))
