"""Commands that run here, by a Beam runner or on Dataflow: they make and check data."""

from __future__ import annotations

import dataclasses
import functools
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from gristmill.pipelines.commands.exit_codes import (
    EPILOG,
    EXIT_DAMAGED,
    at_least,
    errors_reported,
    json_option,
)
from gristmill.pipelines.options.conversions import AppendOptions, ConvertOptions
from gristmill.pipelines.options.definitions import (
    COMMANDS,
    IndexOptions,
    LaunchOptions,
    VerifyOptions,
    options_of,
)
from gristmill.pipelines.options.option import Option
from gristmill.pipelines.options.packing import PackingOptions, RepackOptions
from gristmill.pipelines.text.messages import is_quiet, next_command, next_step

if TYPE_CHECKING:
    from gristmill.pipelines.text.conversion import Outcome


class _Inputs(click.Argument):
    """One path or more, before other arguments or after them."""

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Names the argument after these as missing, where one path was given.

        Click gives the only path to the last argument, and misses the inputs.
        """
        last = [each for each in ctx.command.params if isinstance(each, click.Argument)]
        # What is not given is an empty tuple, or a mark of click's own.
        given = isinstance(paths := opts.get(str(self.name)), tuple) and paths
        if not given and isinstance(opts.get(str(last[-1].name)), str):
            raise click.MissingParameter(ctx=ctx, param=last[-1])
        return super().handle_parse_result(ctx, opts, args)


def parameter_of(option: Option) -> click.Parameter:
    """Returns the parameter of click for an option."""
    if option.required:
        kind_of = _Inputs if option.kind == "paths" else click.Argument
        count = -1 if option.kind == "paths" else 1
        return kind_of(
            [option.name], nargs=count, required=True, metavar=option.metavar
        )
    if option.kind == "flag":
        return click.Option([option.flag], is_flag=True, help=option.help)
    kind: click.ParamType[Any] | type[str] = str
    if option.kind == "choice":
        kind = click.Choice(option.choices)
    elif option.kind == "integer":
        kind = click.INT if option.least is None else at_least(option.least)
    return click.Option(
        [option.flag],
        type=kind,
        default=option.default,
        show_default=option.shown or True,
        metavar=option.metavar,
        help=option.help,
    )


def _job_command(name: str) -> Callable[[Callable[..., None]], click.Command]:
    """Makes a function a command with the options of a pipeline and of its launch.

    The function gets the pipeline's options, how to print, and where to run: the number
    of workers on this machine, and Beam's options, None to run without Beam. With the
    runner of Dataflow, the job is submitted instead.
    """
    workers_option = click.Option(
        ["--workers"],
        type=at_least(1),
        metavar="N",
        show_default="all cores",
        help="Number of worker processes on this machine.",
    )
    parameters = [
        *map(parameter_of, options_of(COMMANDS[name])),
        workers_option,
        *map(parameter_of, options_of(LaunchOptions)),
    ]
    launch_names = [option.name for option in options_of(LaunchOptions)]

    def decorated(run: Callable[..., None]) -> click.Command:
        @click.command(name, epilog=EPILOG, params=parameters)
        @json_option
        @click.pass_context
        @errors_reported
        @functools.wraps(run)
        def command(
            ctx: click.Context, /, *, workers: int | None, as_json: bool, **given: Any
        ) -> None:
            launch = LaunchOptions(**{name: given.pop(name) for name in launch_names})
            options = COMMANDS[name](**given)
            beam_options = beam_options_of(launch, workers, ctx.obj or ())
            if beam_options is not None and launch.on_dataflow:
                from gristmill.pipelines.dataflow.submit import submit

                submission = submit(options, launch, beam_options)
                click.echo(submission.json() if as_json else submission.text())
            else:
                where = {"workers": workers, "beam_options": beam_options}
                run(options, as_json=as_json, **where)

        return command

    return decorated


def beam_options_of(
    launch: LaunchOptions, workers: int | None, given: Sequence[str]
) -> list[str] | None:
    """Returns the options for Beam, None to run without it. Refuses useless options."""
    from gristmill.dataset.base.errors import InputError

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
        return None
    from gristmill.pipelines.commands.beam_arguments import checked_options

    return checked_options(launch.runner, given)


@_job_command("convert")
def convert(options: ConvertOptions, *, as_json: bool, **where: Any) -> None:
    """Convert files of records to an ArrayRecord dataset.

    OUTPUT is the directory of the dataset. INPUT is a file, a quoted glob pattern, or a
    directory: the files directly in it, or all splits of a dataset, of a TFDS directory
    or of a Hugging Face repository. Files are TFRecord, ArrayRecord, Parquet,
    WebDataset, JSON lines, CSV, TSV or text.

    After a failure, run the same command again: finished shards are kept.
    """
    _convert(options, as_json=as_json, **where)


@_job_command("append")
def append(options: AppendOptions, *, as_json: bool, **where: Any) -> None:
    """Add records of new files to a split, as its next edition.

    DATASET is where the split is, INPUT what `gristmill convert` takes. No file that is
    there is touched but dataset.json, which is replaced last. Files that are in the
    split already are refused.

    After a failure, run the same command again: finished shards are kept.
    """
    _convert(options, as_json=as_json, **where)


@_job_command("pack")
def pack(options: PackingOptions, *, as_json: bool, **where: Any) -> None:
    """Tokenise documents, and pack them into rows of tokens.

    INPUT is what `gristmill convert` takes, OUTPUT the directory of the rows. Each
    shard is packed by itself. Before it counts, its rows are read again and every
    document is compared.

    After a failure, run the same command again: finished shards are kept.
    """
    _convert(options, as_json=as_json, **where)


@_job_command("repack")
def repack(options: RepackOptions, *, as_json: bool, **where: Any) -> None:
    """Pack the documents of packed rows again, into other rows.

    DATASET is what `gristmill pack` made, OUTPUT the directory of the new rows. Neither
    the text nor the tokenizer is needed. All splits are packed again. That the
    documents are the same is checked.

    After a failure, run the same command again: finished shards are kept.
    """
    _convert(options, as_json=as_json, **where)


def _convert(options: ConvertOptions, *, as_json: bool, **where: Any) -> None:
    outcome = run_conversion(options, **where)
    click.echo(outcome.json() if as_json else outcome.text())
    if outcome.quarantined_regions:
        next_command(_listing(outcome.output), why="what was left out")
    else:
        next_step("inspect", outcome.output)


def _listing(output: str) -> str:
    """Returns the command that prints the list of what is quarantined."""
    if "://" in output:
        return f"gcloud storage cat {shlex.quote(f'{output}/quarantine/*.jsonl')}"
    return f"cat {shlex.quote(output)}/quarantine/*.jsonl"


def run_conversion(
    options: ConvertOptions,
    *,
    workers: int | None = None,
    beam_options: Sequence[str] | None = None,
) -> Outcome:
    """Converts, and shows progress on standard error."""
    from gristmill.pipelines.convert import convert
    from gristmill.pipelines.options.conversion_jobs import conversion_of

    return convert(
        **conversion_of(options)._asdict(),
        workers=workers,
        beam_options=beam_options,
        show_progress=not is_quiet(),
    )


@_job_command("index")
def index(options: IndexOptions, *, as_json: bool, **where: Any) -> None:
    """Make existing ArrayRecord FILES a dataset, in place.

    FILES are files or quoted glob patterns, all in one directory, or that directory.
    The files stay as they are; their indexes and dataset.json are written beside them.
    """
    from gristmill.pipelines.index import index
    from gristmill.pipelines.text.contents import manifest_text

    manifest, directory = index(options, show_progress=not is_quiet(), **where)
    text = manifest.encode() if as_json else manifest_text(manifest, directory)
    click.echo(text, nl=not as_json)
    next_step("verify", directory)


@_job_command("verify")
def verify(options: VerifyOptions, *, as_json: bool, **where: Any) -> None:
    """Check every byte of a dataset against its checksums.

    DATASET is the directory of a committed dataset. Nothing is changed. Exit code 3 if
    anything is wrong; what is wrong and what to do is printed.
    """
    from gristmill.pipelines.verify import verify

    given = dataclasses.asdict(options) | where
    found = verify(**given, show_progress=not is_quiet())
    click.echo(found.json() if as_json else found.text())
    if options.report is not None:
        found.write(options.report)
    if found.findings:
        sys.exit(EXIT_DAMAGED)  # The result says what to do.
    next_step("inspect", found.dataset)
