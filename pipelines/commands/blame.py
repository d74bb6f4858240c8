"""`gristmill blame`: ranks the documents that were in the rows of a loss spike."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click

from gristmill.pipelines.commands.errors import (
    EPILOG,
    at_least,
    errors_reported,
    json_option,
)
from gristmill.pipelines.commands.order import opened_batches, order_options
from gristmill.pipelines.console.common_options import command_line
from gristmill.pipelines.console.messages import next_step


@click.command("blame", epilog=EPILOG)
@click.option(
    "--steps",
    metavar="A:B",
    required=True,
    help="Steps of the spike, from A to before B, such as 3000:3005.",
)
@click.option(
    "--losses",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    required=True,
    help="CSV or JSON lines with step, loss and, if known, row, token, end_token.",
)
@click.option(
    "--most",
    type=at_least(1),
    metavar="N",
    default=20,
    show_default=True,
    help="Most documents to show.",
)
@order_options
@json_option
@click.pass_context
@errors_reported
def blame(
    ctx: click.Context,
    /,
    *,
    dataset: tuple[str, ...],
    steps: str,
    losses: str,
    most: int,
    as_json: bool,
    **order: Any,
) -> None:
    """Rank the documents that were in the rows of a loss spike.

    The losses of the steps are compared with the median of those of other steps in the
    file. A document is suspect if the losses that it was in are high, the more of them
    the more. DATASET and the options of the order are those of gristmill trace.
    """
    from gristmill.dataset.errors import InputError, OutOfRangeError, StateMismatchError
    from gristmill.dataset.storage.paths import path_text
    from gristmill.loader.provenance.blame import blame as ranked
    from gristmill.loader.provenance.excess import excess
    from gristmill.pipelines.results.losses import read_losses
    from gristmill.pipelines.results.suspects import suspects_text

    bounds = [int(text) if text.isdecimal() else -1 for text in steps.split(":")]
    if len(bounds) != 2 or not -1 < bounds[0] < bounds[1]:
        raise InputError(
            "not a range of steps",
            expected="--steps A:B, from A to before B",
            got=steps,
            cure="give two steps, such as --steps 3000:3005",
        )
    try:
        batches = opened_batches(ctx, dataset, **order)
        found = excess(read_losses(path_text(losses, "losses")), range(*bounds))
        suspects = ranked(batches, found, most=most)
    except (OutOfRangeError, StateMismatchError) as e:
        raise InputError(**e.facts()) from e
    if not as_json:
        click.echo(suspects_text(found, suspects))
        if suspects:
            same = command_line(ctx, without=("steps", "losses", "most"))[1:]
            step, row = suspects[0].rows[0]
            next_step("trace", *same, "--step", step, "--row", row, "--show")
        return
    fields = {
        "baseline": found.baseline,
        "deviation": found.deviation,
        "losses": len(found.deviations),
        "high": found.high,
        "documents": [dataclasses.asdict(one) for one in suspects],
    }
    click.echo(json.dumps(fields))
