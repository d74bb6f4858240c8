"""Commands that run here, by a Beam runner or on Dataflow: they make and check data."""

from __future__ import annotations

import dataclasses
import functools
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gristmill.pipelines.commands.ending import EXIT_DAMAGED
from gristmill.pipelines.commands.messages import is_quiet, next_command, next_step
from gristmill.pipelines.commands.parameters import command
from gristmill.pipelines.options.conversions import AppendOptions, ConvertOptions
from gristmill.pipelines.options.definitions import (
    COMMANDS,
    IndexOptions,
    LaunchOptions,
    VerifyOptions,
)
from gristmill.pipelines.options.option import worker_count
from gristmill.pipelines.options.packing import PackingOptions

if TYPE_CHECKING:
    from gristmill.pipelines.text.conversion import Outcome


class JobRun(NamedTuple):
    """Where a job runs: on this machine, or on a Beam runner.

    Attributes:
        workers: Number of processes on this machine; None for its number of cores.
        beam_options: Options of the Beam pipeline, None to run without Beam.
    """

    workers: int | None = None
    beam_options: Sequence[str] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """How many processes of this machine a job has."""

    workers: int | None = worker_count()


def _job_command(name: str) -> Callable[[Callable[..., None]], click.Command]:
    """Makes a function a command with the options of a pipeline and of its launch.

    The function gets the pipeline's options, where to run, and how to print. With the
    runner of Dataflow, the job is submitted instead.
    """

    def decorated(run: Callable[..., None]) -> click.Command:
        @command(name, COMMANDS[name], WorkerOptions, LaunchOptions)
        @functools.wraps(run)
        def job(
            options: Any,
            local: WorkerOptions,
            launch: LaunchOptions,
            as_json: bool,
        ) -> None:
            where = run_of(launch, local.workers)
            if where.beam_options is not None and launch.on_dataflow:
                from gristmill.pipelines.dataflow.submit import submit

                submission = submit(options, launch, where.beam_options)
                click.echo(submission.json() if as_json else submission.text())
            else:
                run(options, where, as_json=as_json)

        return job

    return decorated


def run_of(launch: LaunchOptions, workers: int | None) -> JobRun:
    """Returns where the command that runs is to run. Refuses useless options."""
    from gristmill.dataset.base.errors import InputError

    given = click.get_current_context().obj or ()

    if launch.runner is None:
        if given:
            raise InputError(
                "options after -- are for Beam, but no runner is given",
                got=" ".join(given),
                cure="add --runner, such as --runner FnApiRunner",
            )
    elif workers is not None:
        raise InputError(
            "--workers has no effect with --runner",
            cure="drop --workers, or use the runner's own option",
        )
    for_dataflow = (launch.wait, launch.cross_region, launch.install_on_workers)
    if any(for_dataflow) and not launch.on_dataflow:
        raise InputError(
            "--wait, --cross-region and --install-on-workers only apply to Dataflow",
            cure="drop them, or add --runner DataflowRunner",
        )
    if launch.runner is None:
        return JobRun(workers)
    from gristmill.pipelines.beam.pipeline_options import checked_options

    return JobRun(beam_options=checked_options(launch.runner, given))


def run_beside_dataflow(
    runner: str | None, workers: int | None, *, what: str, transform: str
) -> JobRun:
    """Returns where a command is to run that submits nothing to Dataflow.

    Args:
        runner: The Beam runner; None for local processes.
        workers: Number of worker processes.
        what: What Dataflow does not do, for the message.
        transform: The transform that does it.

    Raises:
        InputError: The runner is Dataflow's, or an option has no effect.
    """
    from gristmill.dataset.base.errors import InputError

    launch = LaunchOptions(runner=runner)
    if launch.on_dataflow:
        raise InputError(
            f"{what} on Dataflow by this command",
            got=f"--runner {runner}",
            cure=f"leave --runner out, or use gristmill.transforms.{transform} in a "
            "pipeline of your own",
        )
    return run_of(launch, workers)


@_job_command("convert")
def convert(options: ConvertOptions, where: JobRun, *, as_json: bool) -> None:
    """Convert files of records to an ArrayRecord dataset.

    OUTPUT is the directory of the dataset. INPUT is a file, a quoted glob pattern, or a
    directory: the files directly in it, or all splits of a dataset, of a TFDS directory
    or of a Hugging Face repository. Files are TFRecord, ArrayRecord, Parquet,
    WebDataset, JSON lines, CSV, TSV or text.

    After a failure, run the same command again: finished shards are kept.
    """
    _convert(options, where, as_json=as_json)


@_job_command("append")
def append(options: AppendOptions, where: JobRun, *, as_json: bool) -> None:
    """Add records of new files to a split, as its next edition.

    DATASET is the directory of the split, INPUT what `gristmill convert` takes. No
    existing file is changed except dataset.json, which is replaced last. Files that are
    already in the split are refused.

    After a failure, run the same command again: finished shards are kept.
    """
    _convert(options, where, as_json=as_json)


@_job_command("pack")
def pack(options: PackingOptions, where: JobRun, *, as_json: bool) -> None:
    """Tokenise documents, and pack them into rows of tokens.

    INPUT is what `gristmill convert` takes, OUTPUT the directory of the rows. Each
    shard is packed separately. Before it is accepted, its rows are read again and every
    document is compared.

    After a failure, run the same command again: finished shards are kept.
    """
    _convert(options, where, as_json=as_json)


def _convert(options: ConvertOptions, where: JobRun, *, as_json: bool) -> None:
    outcome = run_conversion(options, where)
    click.echo(outcome.json() if as_json else outcome.text())
    if outcome.skipped_regions:
        next_command(_listing(outcome.output), why="what was left out")
    else:
        next_step("inspect", outcome.output)


def _listing(output: str) -> str:
    """Returns the command that prints the list of what was skipped."""
    if "://" in output:
        return f"gcloud storage cat {shlex.quote(f'{output}/errors/*.jsonl')}"
    return f"cat {shlex.quote(output)}/errors/*.jsonl"


def run_conversion(options: ConvertOptions, where: JobRun) -> Outcome:
    """Converts, and shows progress on standard error."""
    from gristmill.pipelines.convert import convert
    from gristmill.pipelines.options.conversion_jobs import conversion_of

    return convert(
        **conversion_of(options)._asdict(),
        **where._asdict(),
        show_progress=not is_quiet(),
    )


@_job_command("index")
def index(options: IndexOptions, where: JobRun, *, as_json: bool) -> None:
    """Turn existing ArrayRecord FILES into a dataset, in place.

    FILES are files or quoted glob patterns, all in one directory, or that directory.
    The files stay as they are; their indexes and dataset.json are written beside them.
    """
    from gristmill.pipelines.index import index
    from gristmill.pipelines.text.contents import manifest_text

    manifest, directory = index(
        options, **where._asdict(), show_progress=not is_quiet()
    )
    text = manifest.encode() if as_json else manifest_text(manifest, directory)
    click.echo(text, nl=not as_json)
    next_step("verify", directory)


@_job_command("verify")
def verify(options: VerifyOptions, where: JobRun, *, as_json: bool) -> None:
    """Check every byte of a dataset against its checksums.

    DATASET is the directory of a committed dataset. Nothing is changed. If anything is
    wrong, the exit code is 3, and the output says what to do.
    """
    from gristmill.pipelines.verify import verify

    given = dataclasses.asdict(options) | where._asdict()
    found = verify(**given, show_progress=not is_quiet())
    click.echo(found.json() if as_json else found.text())
    if options.report is not None:
        found.write(options.report)
    if found.findings:
        sys.exit(EXIT_DAMAGED)  # The result says what to do.
    next_step("inspect", found.dataset)
