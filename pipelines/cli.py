"""The command line: `gristmill convert`, `verify`, `inspect`, `head`, `index`, `demo`.

Only click is imported at start-up: whatever a command needs, it imports itself.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import click

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gristmill.pipelines.convert import Outcome
    from gristmill.transforms.conversion_job import PreparedJob
    from gristmill.transforms.shard_plan import PlanKind, PlanOptions

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
        from gristmill.dataset.version import __version__

        click.echo(f"gristmill {__version__}")
        ctx.exit()


_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON for scripts."
)
_workers_option = click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=None,
    show_default="all cores",
    help="Processes on this machine.",
)


@click.group(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
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
@click.option("--name", help="Dataset name.  [default: the output's last part]")
@click.option("--split", help="Split to write.  [default: train]")
@click.option("--match-shards", is_flag=True, help="One shard for each input file.")
@click.option("--num-shards", type=click.IntRange(min=1), help="Number of shards.")
@click.option(
    "--shard-size",
    metavar="SIZE",
    help="Input for each shard, such as 1GiB.  [default: 256MiB]",
)
@click.option(
    "--records-per-shard",
    type=click.IntRange(min=1),
    help="Records in each shard; counts all records first.",
)
@click.option("--group-size", type=int, default=1, show_default=True, help="Per chunk.")
@click.option(
    "--compression",
    default="zstd:3",
    show_default=True,
    help="zstd:LEVEL, brotli:LEVEL, snappy or uncompressed.",
)
@click.option(
    "--map",
    "map_function",
    metavar="MODULE:FUNCTION",
    help="Call it on every record: bytes to bytes, None or a list of bytes.",
)
@click.option(
    "--on-corrupt",
    type=click.Choice(["fail", "quarantine"]),
    default="fail",
    show_default=True,
    help="Damaged input: stop, or set it aside and keep all other records.",
)
@click.option(
    "--max-corrupt",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="Most damaged regions to set aside.",
)
@click.option(
    "--check",
    type=click.Choice(["records", "sample"]),
    default="records",
    show_default=True,
    help="What of a finished shard is read again and compared before it counts: the "
    "checksum of every record, or its length and the checksums of a sample, which "
    "is cheaper.",
)
@click.option("--overwrite", is_flag=True, help="Replace what the output holds.")
@_workers_option
@click.option(
    "--runner", help="A Beam runner instead of --workers; its options after --."
)
@_json_option
@click.pass_context
@_reported
def convert(
    ctx: click.Context,
    *,
    inputs: tuple[str, ...],
    output: str,
    name: str | None,
    split: str | None,
    match_shards: bool,
    num_shards: int | None,
    shard_size: str | None,
    records_per_shard: int | None,
    group_size: int,
    compression: str,
    map_function: str | None,
    on_corrupt: str,
    max_corrupt: int,
    check: str,
    overwrite: bool,
    workers: int | None,
    runner: str | None,
    as_json: bool,
) -> None:
    """Convert TFRecord files (or a TFDS directory) into a dataset at OUTPUT.

    INPUT are files or quoted glob patterns. Run the same command again after a crash:
    only what is missing is done. Options after -- go to Beam.
    """
    from gristmill.dataset.errors import InputError
    from gristmill.dataset.shard_writer import WriterOptions
    from gristmill.pipelines.sizes import parse_size
    from gristmill.pipelines.summary import outcome_json, outcome_text

    beam_arguments: list[str] = list(ctx.obj or ())
    if runner is not None and workers is not None:
        raise InputError(
            "--workers is for this machine without Beam",
            cure="drop it, or give the runner's own option after --",
        )
    if beam_arguments and runner is None:
        raise InputError(
            "options after -- are for Beam, which is not used",
            got=" ".join(beam_arguments),
            cure="add --runner, such as --runner FnApiRunner",
        )
    outcome = _convert(
        inputs,
        output,
        name=name,
        split=split,
        options={
            "plan": _plan_options(
                match_shards=True if match_shards else None,
                num_shards=num_shards,
                shard_bytes=None if shard_size is None else parse_size(shard_size),
                records_per_shard=records_per_shard,
            ),
            "writer": WriterOptions(group_size=group_size, compression=compression),
            "map": map_function,
            "on_corrupt": on_corrupt,
            "max_corrupt": max_corrupt,
            "check": check,
        },
        overwrite=overwrite,
        workers=workers,
        beam_options=None
        if runner is None
        else [f"--runner={runner}", *beam_arguments],
    )
    click.echo(outcome_json(outcome) if as_json else outcome_text(outcome))


def _plan_options(**given: int | None) -> PlanOptions:
    """Returns the plan that was asked for; the default if none was."""
    from gristmill.dataset.errors import InputError
    from gristmill.transforms.shard_plan import PlanOptions

    wanted = {kind: value for kind, value in given.items() if value is not None}
    if not wanted:
        return PlanOptions()
    if len(wanted) > 1:
        raise InputError(
            "more than one way to make shards",
            expected="one of --match-shards, --num-shards, --shard-size and "
            "--records-per-shard",
        )
    ((kind, value),) = wanted.items()
    if kind == "match_shards":
        return PlanOptions(kind="match_shards", value=None)
    return PlanOptions(kind=cast("PlanKind", kind), value=value)


def _convert(
    inputs: Sequence[str],
    output: str,
    *,
    name: str | None,
    split: str | None,
    options: dict[str, Any],
    overwrite: bool,
    workers: int | None,
    beam_options: Sequence[str] | None,
) -> Outcome:
    from gristmill.dataset import layout
    from gristmill.pipelines.convert import convert as run
    from gristmill.pipelines.local_pool import default_workers
    from gristmill.transforms.conversion_job import ConversionJob
    from gristmill.transforms.tfds_directory import is_tfds_directory, tfds_jobs

    output = output.rstrip("/") or output
    features, tfds_directory = None, None
    if len(inputs) == 1 and is_tfds_directory(inputs[0]):
        tfds_directory = inputs[0]
        found = tfds_jobs(
            tfds_directory,
            output,
            name=name,
            splits=None if split is None else (split,),
            **options,
        )
        jobs, features = found.jobs, found.features
    else:
        jobs = (
            ConversionJob(
                inputs=tuple(inputs),
                output=output,
                name=name or layout.base_name(output),
                split=split or "train",
                **options,
            ),
        )
    return run(
        jobs,
        workers=workers or default_workers(),
        overwrite=overwrite,
        features=features,
        tfds_directory=tfds_directory,
        beam_options=beam_options,
        show=_show,
    )


def _show(
    prepared: Sequence[PreparedJob], progress_dir: str
) -> AbstractContextManager[None]:
    from rich.console import Console

    from gristmill.pipelines.progress import Watch, show_progress

    return show_progress(Watch(prepared, progress_dir), Console(stderr=True))


@cli.command(epilog=_EPILOG)
@click.argument("dataset")
@click.option("--quick", is_flag=True, help="Metadata, presence and sizes only.")
@_workers_option
@_json_option
@_reported
def verify(*, dataset: str, quick: bool, workers: int | None, as_json: bool) -> None:
    """Check a dataset: every byte, checksum and digest."""
    from gristmill.pipelines.verify import verification_json, verification_text
    from gristmill.pipelines.verify import verify as run

    found = run(dataset, quick=quick, workers=workers)
    click.echo(verification_json(found) if as_json else verification_text(found))
    if found.findings:
        sys.exit(EXIT_DAMAGED)


@cli.command(epilog=_EPILOG)
@click.argument("dataset")
@_json_option
@_reported
def inspect(*, dataset: str, as_json: bool) -> None:
    """Show what a dataset is and where it came from."""
    from gristmill.dataset.manifest import open_manifest
    from gristmill.pipelines.summary import manifest_text

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
    from gristmill.pipelines.summary import record_json, record_text

    show = record_json if as_json else record_text
    for number, record in enumerate(first_records(dataset, split, records)):
        click.echo(show(number, record))


@cli.command(epilog=_EPILOG)
@click.argument("files", nargs=-1, required=True)
@click.option("--name", help="Dataset name.  [default: from the file names]")
@click.option("--split", help="One split for all files.  [default: from their names]")
@click.option("--overwrite", is_flag=True, help="Index splits again that are there.")
@_workers_option
@_json_option
@_reported
def index(
    *,
    files: tuple[str, ...],
    name: str | None,
    split: str | None,
    overwrite: bool,
    workers: int | None,
    as_json: bool,
) -> None:
    """Make a dataset, in place, of ArrayRecord FILES that exist already."""
    from gristmill.pipelines.local_pool import default_workers, map_unordered
    from gristmill.pipelines.summary import manifest_text
    from gristmill.transforms.index_shard import commit_index, index_shard, plan_index

    plan = plan_index(files, name=name, split=split, overwrite=overwrite)
    count = min(workers or default_workers(), len(plan.tasks))
    results = list(map_unordered(index_shard, plan.tasks, workers=count))
    manifest = commit_index(plan, results, inputs=files)
    if as_json:
        click.echo(manifest.encode(), nl=False)
    else:
        click.echo(manifest_text(manifest, plan.dataset))


@cli.command(epilog=_EPILOG)
@click.argument("directory", required=False)
@_reported
def demo(*, directory: str | None) -> None:
    """Make TFRecords, convert them, and read a few records back.

    Everything goes to DIRECTORY, by default a new temporary one.
    """
    import tempfile

    from gristmill.dataset.shard_reader import first_records
    from gristmill.pipelines.demo import write_demo_tfrecords
    from gristmill.pipelines.summary import outcome_text, record_text

    directory = directory or tempfile.mkdtemp(prefix="gristmill-demo-")
    pattern = write_demo_tfrecords(f"{directory}/tfrecords")
    output = f"{directory}/demo"
    click.echo(f"$ gristmill convert '{pattern}' {output} --num-shards 8")
    options = {"plan": _plan_options(num_shards=8)}
    outcome = _convert(
        (pattern,),
        output,
        name=None,
        split=None,
        options=options,
        overwrite=False,
        workers=None,
        beam_options=None,
    )
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
    cli(arguments, prog_name="gristmill", obj=beam_arguments)


if __name__ == "__main__":
    main()
