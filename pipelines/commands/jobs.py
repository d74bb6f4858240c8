"""Commands that make and check data: here, by a Beam runner, or on Dataflow."""

from __future__ import annotations

import dataclasses
import functools
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

import click

from gristmill.dataset.metadata import layout
from gristmill.pipelines.commands.command import EXIT_DAMAGED, command
from gristmill.pipelines.commands.messages import (
    command_line,
    is_quiet,
    next_batch,
    next_command,
    next_step,
    refuse,
    show,
)
from gristmill.pipelines.commands.shared_options import (
    BOS_EOS,
    CHAT_COLUMNS,
    DAMAGE,
    FIT,
    INPUT,
    INPUT_FORMAT,
    KEEP_REPLACED,
    LAUNCH,
    LENGTH,
    MAP,
    MAX_REJECTED,
    REPLACING,
    SHARDS,
    SOURCE,
    SPLIT_TO_WRITE,
    TRAINED,
    argument,
    choice,
    dataset_name,
    encoding,
    flag,
    number,
    paths,
    split,
    template,
    text,
    together,
    workers,
)
from gristmill.pipelines.options.job_options import (
    AppendOptions,
    ConvertOptions,
    IndexOptions,
    LaunchOptions,
    Options,
    PackingOptions,
    VerifyOptions,
    default_output,
)
from gristmill.transforms.jobs.pack_options import Method, Rows

if TYPE_CHECKING:
    from gristmill.pipelines.text.conversion import Outcome


Where = dict[str, Any]
"""The fields of a `JobRun`: `workers`, `beam_options` and `show_progress`."""


def _job_command(
    kind: type[Options],
) -> Callable[[Callable[[Any, Where], None]], click.Command]:
    """Makes a function a command that runs here, by a Beam runner, or on Dataflow.

    The function gets the job's options, and the fields of `JobRun`. With Dataflow's
    runner the job is submitted instead.
    """

    def decorated(run: Callable[[Any, Where], None]) -> click.Command:
        @command()
        @functools.wraps(run)
        def job(given: Any) -> None:
            values = vars(given)
            workers = values.pop("workers")
            names = [field.name for field in dataclasses.fields(LaunchOptions)]
            launch = LaunchOptions(**{name: values.pop(name) for name in names})
            options, where = kind(**values), _run_of(launch, workers)
            if launch.on_dataflow:
                from gristmill.pipelines.dataflow.submit import submit

                show(submit(options, launch, where["beam_options"]))
            else:
                run(options, where)

        return job

    return decorated


def _run_of(launch: LaunchOptions, workers: int | None) -> Where:
    """Returns the running command's fields of `JobRun`; refuses useless options."""
    given = click.get_current_context().obj or ()
    refuse(
        given and launch.runner is None,
        "options after -- are for Beam, but no runner is given",
        got=" ".join(given),
        cure="add --runner, such as --runner FnApiRunner",
    )
    refuse(
        launch.runner is not None and workers is not None,
        "--workers has no effect with --runner",
        cure="drop --workers, or use the runner's own option",
    )
    refuse(
        (launch.wait or launch.cross_region or launch.install_on_workers)
        and not launch.on_dataflow,
        "--wait, --cross-region and --install-on-workers only apply to Dataflow",
        cure="drop them, or add --runner DataflowRunner",
    )
    beam_options = None
    if launch.runner is not None:
        from gristmill.pipelines.beam.pipeline_options import checked_options

        beam_options = checked_options(launch.runner, given)
    return {
        "workers": workers,
        "beam_options": beam_options,
        "show_progress": not is_quiet(),
    }


def run_beside_dataflow(given: Any, what: str) -> Where:
    """Returns the fields of `JobRun` for a command that does not run on Dataflow.

    Args:
        given: The values of `RUN`, as attributes.
        what: The work that Dataflow does not do, for the message.

    Raises:
        InputError: The runner is Dataflow's, or an option has no effect.
    """
    launch = LaunchOptions(runner=given.runner)
    refuse(
        launch.on_dataflow,
        f"{what} on Dataflow by this command",
        got=f"--runner {given.runner}",
        cure="leave --runner out: one machine in the region of the bucket does it",
    )
    return _run_of(launch, given.workers)


@_job_command(ConvertOptions)
@INPUT
@argument("output")
@SOURCE
@dataset_name("that of a dataset as input, or the last part of the output path")
@SPLIT_TO_WRITE
@SHARDS
@encoding()
@DAMAGE
@REPLACING
@LAUNCH
def convert(options: ConvertOptions, where: Where) -> None:
    """Convert files of records to an ArrayRecord dataset.

    OUTPUT is the directory of the dataset. INPUT is a file, a quoted glob pattern, or a
    directory: the files directly in it, or all splits of a dataset, of a TFDS directory
    or of a Hugging Face repository. Files are TFRecord, ArrayRecord, Parquet,
    WebDataset, JSON lines, CSV, TSV or text.

    After a failure, run the same command again: finished shards are kept.
    """
    _convert(options, where)


@_job_command(AppendOptions)
@argument("output", metavar="DATASET")
@INPUT
@SOURCE
@split("Split to append to. Required if there are several.")
@SHARDS
@encoding(inherited="as in the first edition")
@DAMAGE
@flag(
    "--overwrite",
    "Make finished shards of this append again if their inputs have other records now. "
    "Never deletes anything that is committed.",
)
@LAUNCH
def append(options: AppendOptions, where: Where) -> None:
    """Add records of new files to a split, as its next edition.

    DATASET is the directory of the split, INPUT what `gristmill convert` takes. No
    existing file is changed except dataset.json, which is replaced last. Files that are
    already in the split are refused.

    After a failure, run the same command again: finished shards are kept.
    """
    _convert(options, where)


@_job_command(PackingOptions)
@INPUT
@argument("output")
@text(
    "--tokenizer",
    "FILE",
    "A tokenizer.json of Hugging Face, a SentencePiece model, a tiktoken file, or "
    "module:function. Without one the column holds tokens.",
)
@text(
    "--column",
    "NAME",
    "Column, or feature, that holds the text or the tokens; - for the whole record.",
    None,
    default="text",
)
@number(
    "--vocabulary-size",
    help="Ids are below it. Up to 65,536, a token takes 2 bytes.",
    shown="any id of 32 bits",
)
@LENGTH
@choice(
    "--pack",
    get_args(Method),
    "How documents fill rows: best-fit cuts only documents longer than a row; concat "
    "cuts wherever a row ends; none puts one document into a row.",
    "best-fit",
)
@flag("--truncate", "Cut each document to one row, and leave out the rest.")
@BOS_EOS
@flag(
    "--add-special-tokens",
    "Let the tokenizer add the special tokens that it is configured to add.",
)
@flag(
    "--fast",
    "Tokenise with gigatoken, and fail if it differs from the tokenizer's own library "
    "on a sample.",
)
@FIT
@choice(
    "--rows",
    get_args(Rows),
    "packed, for gristmill.loader.PackedRows, or a tf.train.Example with inputs, "
    "positions and segments.",
    "packed",
)
@flag(
    "--chat",
    "Records are conversations: --template renders them, and the loss counts what "
    "--train says.",
)
@together(template(), home="audit")
@TRAINED
@MAX_REJECTED
@CHAT_COLUMNS
@SOURCE
@together(
    dataset_name("that of a dataset as input, or the last part of the output path"),
    SPLIT_TO_WRITE,
    home="convert",
)
@SHARDS
@encoding()
@DAMAGE
@REPLACING
@LAUNCH
def pack(options: PackingOptions, where: Where) -> None:
    """Tokenise documents, and pack them into rows of tokens.

    INPUT is what `gristmill convert` takes, OUTPUT the directory of the rows. Each
    shard is read back, and every document compared.

    After a failure, run the same command again: finished shards are kept.
    """
    _convert(options, where)


def _convert(options: ConvertOptions, where: Where) -> None:
    outcome = run_conversion(options, where)
    show(outcome)
    if outcome.skipped_regions:
        next_command(_listing(outcome.output), why="what was left out")
        return
    name, _ = layout.parse_write_key(outcome.splits[0])
    next_batch(outcome.output, name, outcome.manifest.splits[name])
    next_step("inspect", outcome.output)


def _listing(output: str) -> str:
    """Returns the command that prints the list of what was skipped."""
    if "://" in output:
        return f"gcloud storage cat {shlex.quote(f'{output}/errors/*.jsonl')}"
    return f"cat {shlex.quote(output)}/errors/*.jsonl"


def run_conversion(options: ConvertOptions, where: Where) -> Outcome:
    """Converts, and shows progress on standard error."""
    from gristmill.pipelines.convert import convert
    from gristmill.pipelines.options.conversion_jobs import conversion_of

    return convert(**conversion_of(options)._asdict(), **where)


@_job_command(IndexOptions)
@paths("files")
@dataset_name("from the file names")
@split("Put all files into this split.", "from the file names")
@flag("--overwrite", "Index splits again that are already in dataset.json.")
@KEEP_REPLACED
@LAUNCH
def index(options: IndexOptions, where: Where) -> None:
    """Turn existing ArrayRecord FILES into a dataset, in place.

    FILES are files or quoted glob patterns, all in one directory, or that directory.
    The files stay as they are; their indexes and dataset.json are written beside them.
    """
    from gristmill.pipelines.anywhere import index
    from gristmill.pipelines.text.split_editions import manifest_text

    manifest, directory = index(options, **where)
    show(manifest, manifest_text(manifest, directory))
    next_step("verify", directory)


@_job_command(VerifyOptions)
@argument("dataset")
@flag(
    "--quick",
    "Check metadata, names and sizes only, in a bucket also the checksums of shards; "
    "read no shard and no index.",
)
@text("--report", "FILE", "Also write the result to this file, as JSON.")
@LAUNCH
def verify(options: VerifyOptions, where: Where) -> None:
    """Check every byte of a dataset against its checksums.

    DATASET is the directory of a committed dataset. Nothing is changed. If anything is
    wrong, the exit code is 3, and the output says what to do.
    """
    from gristmill.pipelines.anywhere import verify

    found = verify(**vars(options), **where)
    show(found)
    if options.report is not None:
        found.write(options.report)
    if found.findings:
        sys.exit(EXIT_DAMAGED)  # The result says what to do.
    next_step("inspect", found.dataset)


@command(looks=True)
@INPUT
@SOURCE
@together(SPLIT_TO_WRITE, home="convert")
@encoding()
@text(
    "--output",
    "DIR",
    "Directory of the dataset, for the command. Nothing is written there.",
    "named after the input",
)
@workers("Number of worker processes of the conversion on this machine.")
def plan(given: Any) -> None:
    """Plan a conversion: how large, how long, and the command.

    INPUT is what `gristmill convert` takes. A sample from all over it is converted into
    a temporary directory. This takes seconds, whatever the input's size.
    """
    from gristmill.pipelines.advice.make_plan import make_plan

    given.output = given.output or default_output(given.input)
    workers = vars(given).pop("workers")
    show(make_plan(ConvertOptions(**vars(given)), workers=workers))


@command(looks=True)
@INPUT
@template(required=True)
@text(
    "--tokenizer",
    "FILE",
    "A tokenizer.json of Hugging Face, or a tiktoken file.",
    None,
    required=True,
)
@together(INPUT_FORMAT, MAP, home="plan")
@text("--column", "NAME", "Column of the messages.", "the usual ones", default="text")
@together(SPLIT_TO_WRITE, home="convert")
@together(LENGTH, home="pack")
@BOS_EOS
@TRAINED
@FIT
@MAX_REJECTED
@CHAT_COLUMNS
@number("-n", "--limit", default=1000, help="Maximum number of records to read.")
@number("--show", default=1, least=0, help="Conversations to show as text.")
def audit(given: Any) -> None:
    """Show the parts of conversations that would be trained on.

    INPUT and the options are those of `gristmill pack --chat`. The first conversations
    are rendered and tokenised in the same way, and nothing is written. The output shows
    tokens by role, the share that is trained on, what is set aside and why, which
    pieces of the template are trained on or not, and a conversation as text.
    """
    from gristmill.pipelines.advice.audit_conversations import audit_conversations

    values = vars(given)
    wanted = {"records": values.pop("limit"), "shown": values.pop("show")}
    output = default_output(given.input)
    made = PackingOptions(output=output, chat=True, **values)
    found = audit_conversations(made, **wanted)
    show(found)
    if found.unfit:
        return  # The result says what to do.
    arguments = command_line(without=("limit", "show"))[1:]
    next_command(
        shlex.join(["gristmill", "pack", "--chat", *arguments, "OUTPUT"]),
        why="to pack all of them",
    )
