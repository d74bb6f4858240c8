"""Where a command runs its job: on this machine, by a Beam runner, or on Dataflow."""

from __future__ import annotations

from typing import Any

import click

from gristmill.pipelines.options.definitions import LaunchOptions, Options, options_of


def split_launch_options(given: dict[str, Any]) -> tuple[LaunchOptions, dict[str, Any]]:
    """Separates the launch options of a command line from those of its job."""
    names = {option.name for option in options_of(LaunchOptions)}
    launch = LaunchOptions(**{name: given[name] for name in names})
    return launch, {name: given[name] for name in given.keys() - names}


def beam_options_of(
    ctx: click.Context, launch: LaunchOptions, workers: int | None
) -> list[str] | None:
    """Returns the options for Beam, or None to run without it.

    Raises:
        InputError: An option was given that has no effect on such a run.
    """
    from gristmill.dataset.errors import InputError

    beam_options: list[str] = list(ctx.obj or ())
    if launch.runner is None:
        if beam_options:
            raise InputError(
                "options after -- are for Beam, but no runner is given",
                got=" ".join(beam_options),
                cure="add --runner, such as --runner FnApiRunner",
            )
    elif workers is not None:
        raise InputError(
            "--workers has no effect with --runner",
            cure="drop --workers, or use the runner's own option",
        )
    if (launch.wait or launch.cross_region) and not launch.on_dataflow:
        raise InputError(
            "--wait and --cross-region only apply to Dataflow",
            cure="drop them, or add --runner DataflowRunner",
        )
    if launch.runner is None:
        return None
    return [f"--runner={launch.runner}", *beam_options]


def submit_to_dataflow(
    options: Options,
    launch: LaunchOptions,
    beam_options: list[str] | None,
    *,
    as_json: bool,
) -> bool:
    """Submits the job and prints where it runs, if its runner is Dataflow's.

    Returns:
        Whether it is.
    """
    if beam_options is None or not launch.on_dataflow:
        return False
    from gristmill.pipelines.dataflow.submit import submit

    submission = submit(options, launch, beam_options)
    click.echo(submission.json() if as_json else submission.text())
    return True
