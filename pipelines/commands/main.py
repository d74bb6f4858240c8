"""The command line: each command takes its arguments, runs, and prints what it did.

Only click is imported at start-up: whatever a command needs, it imports itself.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from gristmill.pipelines.options.definitions import (
    ConvertOptions,
    IndexOptions,
    LaunchOptions,
    Option,
    Options,
    VerifyOptions,
    options_of,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gristmill.pipelines.convert import Outcome
    from gristmill.transforms.jobs.conversion_job import PreparedJob

F = TypeVar("F", bound=Callable[..., Any])

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DAMAGED = 3
EXIT_INTERRUPTED = 130

_EPILOG = (
    "Exit codes: 0 done; 1 failed (storage, a worker, the --map function); 2 wrong "
    "usage, inputs or options; 3 damaged input, shard or dataset; 130 interrupted."
)


def _exit_now(code: int) -> NoReturn:
    """Ends the process without waiting for threads that a runner may have left."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _reported(command: F) -> F:
    """Turns errors into a message and an exit code."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        from gristmill.dataset import errors

        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            click.echo(
                "interrupted: run the same command again to do what is missing",
                err=True,
            )
            _exit_now(EXIT_INTERRUPTED)
        except errors.WorkerDiedError as e:
            click.echo(f"error: {e}", err=True)
            _exit_now(EXIT_FAILED)
        except errors.GristmillError as e:
            click.echo(f"error: {e}", err=True)
            damaged = (
                errors.CorruptInputError,
                errors.CorruptShardError,
                errors.InvalidDatasetError,
                errors.NotADatasetError,
                errors.DataLossError,
            )
            usage = (errors.InputError, errors.JobChangedError)
            code = EXIT_FAILED
            if isinstance(e, damaged):
                code = EXIT_DAMAGED
            elif isinstance(e, usage):
                code = EXIT_USAGE
            sys.exit(code)

    return wrapped  # type: ignore[return-value]


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    del param
    if value and not ctx.resilient_parsing:
        from gristmill import __version__

        click.echo(f"gristmill {__version__}")
        ctx.exit()


def _described(kind: type[Options | LaunchOptions]) -> Callable[[F], F]:
    """Gives a command the options that a class describes."""

    def decorated(command: F) -> F:
        for option in reversed(options_of(kind)):
            if not option.required:
                command = _click_option(option)(command)
        return command

    return decorated


def _click_option(option: Option) -> Callable[[F], F]:
    if option.kind == "flag":
        return click.option(option.flag, option.name, is_flag=True, help=option.help)
    kind: click.ParamType[Any] | type[str] = str
    if option.kind == "choice":
        kind = click.Choice(option.choices)
    elif option.kind == "integer":
        kind = click.INT if option.least is None else click.IntRange(min=option.least)
    return click.option(
        option.flag,
        option.name,
        type=kind,
        default=option.default,
        show_default=option.shown or True,
        metavar=option.metavar,
        help=option.help,
    )


_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON for scripts."
)


def _one_core_each(
    ctx: click.Context, param: click.Parameter, workers: int | None
) -> int | None:
    # numpy's linear algebra would start a thread for each core in every process, which
    # wait busily for work that never comes: 0.05 s of CPU as numpy is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return workers


_workers_option = click.option(
    "--workers",
    callback=_one_core_each,
    type=click.IntRange(min=1),
    default=None,
    show_default="all cores",
    help="Processes on this machine.",
)


# Commands that have modules of their own, whose `command` they are.
_MODULES = {
    "bench-loader": "gristmill.pipelines.commands.bench_loader",
    "trace": "gristmill.pipelines.commands.trace",
}


class _Commands(click.Group):
    """The commands, of which some are imported when they are named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_MODULES})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _MODULES.get(cmd_name)
        if module is None:
            return super().get_command(ctx, cmd_name)
        found: click.Command = importlib.import_module(module).command
        return found


@click.group(
    cls=_Commands,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """TFRecords in, committed and indexed ArrayRecord datasets out."""


@cli.command(epilog=_EPILOG)
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.argument("output")
@_described(ConvertOptions)
@_workers_option
@_described(LaunchOptions)
@_json_option
@click.pass_context
@_reported
def convert(
    ctx: click.Context,
    /,
    *,
    inputs: tuple[str, ...],
    output: str,
    workers: int | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Convert TFRecord files (or a TFDS directory) into a dataset at OUTPUT.

    INPUT are files or quoted glob patterns. Run the same command again after a crash:
    only what is missing is done. A Beam runner's options may stand beside ours.
    """
    launch, given = _launch_options(given)
    options = ConvertOptions(input=inputs, output=output, **given)
    beam = _beam_arguments(ctx, launch, workers)
    if _submitted(options, launch, beam, as_json=as_json):
        return
    from gristmill.pipelines.results.text import outcome_json, outcome_text

    outcome = _convert(options, workers=workers, beam_options=beam)
    click.echo(outcome_json(outcome) if as_json else outcome_text(outcome))


def _launch_options(given: dict[str, Any]) -> tuple[LaunchOptions, dict[str, Any]]:
    """Parts the options of a launch from those of a pipeline."""
    names = {option.name for option in options_of(LaunchOptions)}
    launch = LaunchOptions(**{name: given[name] for name in names})
    return launch, {name: given[name] for name in given.keys() - names}


def _beam_arguments(
    ctx: click.Context, launch: LaunchOptions, workers: int | None
) -> list[str] | None:
    """Returns the arguments for Beam; None to run without it."""
    from gristmill.dataset.errors import InputError

    beam_arguments: list[str] = list(ctx.obj or ())
    if launch.runner is None:
        if beam_arguments:
            raise InputError(
                "options after -- are for Beam, which is not used",
                got=" ".join(beam_arguments),
                cure="add --runner, such as --runner FnApiRunner",
            )
    elif workers is not None:
        raise InputError(
            "--workers is for this machine without Beam",
            cure="drop it, or give the runner's own option",
        )
    if (launch.wait or launch.cross_region) and not launch.on_dataflow:
        raise InputError(
            "--wait and --cross-region are for Dataflow",
            cure="drop them, or add --runner DataflowRunner",
        )
    if launch.runner is None:
        return None
    return [f"--runner={launch.runner}", *beam_arguments]


def _submitted(
    options: Options, launch: LaunchOptions, beam: list[str] | None, *, as_json: bool
) -> bool:
    """Submits a pipeline to Dataflow if it is to run there; tells whether it is."""
    if beam is None or not launch.on_dataflow:
        return False
    from gristmill.pipelines.dataflow.submit import submit

    submission = submit(options, launch, beam)
    click.echo(submission.json() if as_json else submission.text())
    return True


def _convert(
    options: ConvertOptions,
    *,
    workers: int | None = None,
    beam_options: Sequence[str] | None = None,
) -> Outcome:
    from gristmill.pipelines.convert import convert as run
    from gristmill.pipelines.local.pool import default_workers
    from gristmill.pipelines.options.to_jobs import conversion_of

    conversion = conversion_of(options)
    return run(
        conversion.jobs,
        workers=workers or default_workers(),
        overwrite=options.overwrite,
        features=conversion.features,
        tfds_directory=conversion.tfds_directory,
        beam_options=beam_options,
        show=_show,
    )


def _show(
    prepared: Sequence[PreparedJob], progress_dir: str
) -> AbstractContextManager[None]:
    from rich.console import Console

    from gristmill.pipelines.local.progress import Watch, show_progress

    return show_progress(Watch(prepared, progress_dir), Console(stderr=True))


@cli.command(epilog=_EPILOG)
@click.argument("dataset")
@_described(VerifyOptions)
@_workers_option
@_described(LaunchOptions)
@_json_option
@click.pass_context
@_reported
def verify(
    ctx: click.Context,
    /,
    *,
    dataset: str,
    workers: int | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Check a dataset: every byte, checksum and digest."""
    launch, given = _launch_options(given)
    options = VerifyOptions(dataset=dataset, **given)
    beam = _beam_arguments(ctx, launch, workers)
    if _submitted(options, launch, beam, as_json=as_json):
        return
    from gristmill.pipelines.verify import verification_json, verification_text
    from gristmill.pipelines.verify import verify as run

    found = run(
        dataset,
        quick=options.quick,
        report=options.report,
        workers=workers,
        beam_options=beam,
    )
    click.echo(verification_json(found) if as_json else verification_text(found))
    if found.findings:
        sys.exit(EXIT_DAMAGED)


@cli.command(epilog=_EPILOG)
@click.argument("dataset")
@_json_option
@_reported
def inspect(*, dataset: str, as_json: bool) -> None:
    """Show what a dataset is and where it came from."""
    from gristmill.dataset.metadata.manifest import open_manifest
    from gristmill.pipelines.results.text import manifest_text

    manifest = open_manifest(dataset)
    if as_json:
        click.echo(manifest.encode(), nl=False)
    else:
        click.echo(manifest_text(manifest, dataset))


@cli.command(epilog=_EPILOG)
@click.argument("dataset")
@click.option(
    "-n", "--records", type=click.IntRange(min=1), default=3, show_default=True
)
@click.option("--split", default="train", show_default=True)
@_json_option
@_reported
def head(*, dataset: str, records: int, split: str, as_json: bool) -> None:
    """Show the first records; tf.train.Example is decoded."""
    from gristmill.dataset.shard_reader import first_records
    from gristmill.pipelines.results.text import record_json, record_text

    show = record_json if as_json else record_text
    for number, record in enumerate(first_records(dataset, split, records)):
        click.echo(show(number, record))


@cli.command(epilog=_EPILOG)
@click.argument("files", nargs=-1, required=True)
@_described(IndexOptions)
@_workers_option
@_described(LaunchOptions)
@_json_option
@click.pass_context
@_reported
def index(
    ctx: click.Context,
    /,
    *,
    files: tuple[str, ...],
    workers: int | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Make a dataset, in place, of ArrayRecord FILES that exist already."""
    launch, given = _launch_options(given)
    options = IndexOptions(files=files, **given)
    beam = _beam_arguments(ctx, launch, workers)
    if _submitted(options, launch, beam, as_json=as_json):
        return
    from gristmill.pipelines.index import index as run
    from gristmill.pipelines.results.text import manifest_text

    manifest, directory = run(options, workers=workers, beam_options=beam)
    if as_json:
        click.echo(manifest.encode(), nl=False)
    else:
        click.echo(manifest_text(manifest, directory))


@cli.command(epilog=_EPILOG)
@click.argument("dataset")
@_json_option
@_reported
def status(*, dataset: str, as_json: bool) -> None:
    """Show how far a conversion is, wherever it runs."""
    from gristmill.pipelines.results.status import read_status

    found = read_status(dataset)
    click.echo(found.json() if as_json else found.text())


@cli.command(epilog=_EPILOG)
@click.argument("directory", required=False)
@_reported
def demo(*, directory: str | None) -> None:
    """Make TFRecords, convert them, and read a few records back.

    Everything goes to DIRECTORY, by default a new temporary one.
    """
    import tempfile

    from gristmill.dataset.shard_reader import first_records
    from gristmill.pipelines.commands.demo import write_demo_tfrecords
    from gristmill.pipelines.results.text import outcome_text, record_text

    directory = directory or tempfile.mkdtemp(prefix="gristmill-demo-")
    pattern = write_demo_tfrecords(f"{directory}/tfrecords")
    output = f"{directory}/demo"
    click.echo(f"$ gristmill convert '{pattern}' {output} --num-shards 8")
    outcome = _convert(ConvertOptions(input=(pattern,), output=output, num_shards=8))
    click.echo(outcome_text(outcome))
    click.echo(f"\n$ gristmill head {output}")
    for number, record in enumerate(first_records(output, "train", 3)):
        click.echo(record_text(number, record))


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    beam_arguments: list[str] = []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, beam_arguments = arguments[:at], arguments[at + 1 :]
    if any(argument.partition("=")[0] == "--runner" for argument in arguments):
        from gristmill.pipelines.commands.beam_arguments import part_arguments

        ours = cli.commands.get(arguments[0])
        arguments, beside = part_arguments(ours, arguments)
        beam_arguments = beside + beam_arguments
    cli(arguments, prog_name="gristmill", obj=beam_arguments)
