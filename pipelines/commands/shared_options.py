"""Arguments and options that several commands have, as click's decorators."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args

import click

from gristmill.dataset.arrayrecord.writer_options import (
    DEFAULT_COMPRESSION,
    DEFAULT_GROUP_SIZE,
)
from gristmill.dataset.base.errors import OnCorrupt
from gristmill.pipelines.commands.command import HOME, PATH
from gristmill.transforms.jobs.pack_options import SpecialText, YesNo
from gristmill.transforms.sources.formats import FORMATS, Nulls

_Run = TypeVar("_Run", bound=Callable[..., Any])
Decorator = Callable[[_Run], _Run]

option = click.option


class Whole(click.IntRange):
    """A whole number in a range."""

    name = "integer"  # In messages, where click says "integer range".

    def get_metavar(self, *_: Any, **__: Any) -> str:
        """Returns its name in help texts."""
        return "N"


COUNT, INDEX = Whole(min=1), Whole(min=0)


class _Inputs(click.Argument):
    """One path or more, before other arguments or after them."""

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Reports the last argument as missing if only one path was given.

        Click assigns the only path to the last argument, and would report the inputs.
        """
        last = [each for each in ctx.command.params if isinstance(each, click.Argument)]
        # A missing value is an empty tuple, or a mark of click's own.
        given = isinstance(paths := opts.get(str(self.name)), tuple) and paths
        if not given and isinstance(opts.get(str(last[-1].name)), str):
            raise click.MissingParameter(ctx=ctx, param=last[-1])
        return super().handle_parse_result(ctx, opts, args)


def together(*decorators: Decorator[Any], home: str | None = None) -> Decorator[Any]:
    """Returns one decorator for several, which help texts list in this order.

    Args:
        *decorators: The decorators of options.
        home: The command whose help explains these options; others name them.
    """

    def decorated(run: Any) -> Any:
        before = len(getattr(run, "__click_params__", ()))
        made = functools.reduce(lambda one, each: each(one), decorators[::-1], run)
        for parameter in made.__click_params__[before:] if home else ():
            setattr(parameter, HOME, home)
        return made

    return decorated


def paths(name: str, *, required: bool = True, **about: Any) -> Decorator[Any]:
    """Returns an argument of one path or more."""
    return click.argument(
        name, nargs=-1, required=required, type=PATH, cls=_Inputs, **about
    )


def argument(name: str, *, required: bool = True, **about: Any) -> Decorator[Any]:
    """Returns an argument, by default a path."""
    return click.argument(name, required=required, **{"type": PATH, **about})


def flag(name: str, help: str) -> Decorator[Any]:
    """Returns an option without a value."""
    return option(name, is_flag=True, help=help)


def choice(
    name: str, choices: tuple[str, ...], help: str, default: str | None = None
) -> Decorator[Any]:
    """Returns an option with several choices, the first by default."""
    default = choices[0] if default is None else default
    return option(name, type=click.Choice(choices), default=default, help=help)


def text(
    name: str, metavar: str, help: str, shown: str | None = "none", **about: Any
) -> Decorator[Any]:
    """Returns an option with a text, or a path to a FILE or DIR.

    Args:
        name: Its spelling.
        metavar: The name of its value in help texts.
        help: Its help text.
        shown: The behaviour without it; None if there is a default.
        **about: Further arguments for click.
    """
    about = {"type": PATH, **about} if metavar in ("FILE", "DIR") else about
    return option(name, metavar=metavar, show_default=shown, help=help, **about)


def number(
    *names: str, help: str, shown: str | None = None, least: int = 1, **about: Any
) -> Decorator[Any]:
    """Returns an option with a whole number."""
    return option(*names, type=Whole(min=least), show_default=shown, help=help, **about)


# --- Options that several commands have.

INPUT = paths("input")
INPUT_FORMAT = choice(
    "--input-format",
    ("auto", *FORMATS),
    "Format of the input files; auto recognises them by their first bytes.",
)
COLUMNS = text(
    "--columns",
    "NAME,...",
    "Columns to take, separated by commas; for WebDataset, members by extension. For "
    "JSON and CSV, a:float gives the type of a, and * means all others.",
    "all",
)
RECORD = text(
    "--record",
    "KIND",
    "What a record is, in a format with columns: example, a tf.train.Example of them; "
    "column:NAME, the bytes of one column; line, the line as it is.",
    "the usual one of the format",
)
NULLS = choice(
    "--nulls",
    get_args(Nulls),
    "What to do with a row of Parquet or JSON lines whose document, or another "
    "selected column, is null: fail if it cannot become a record, or skip the row.",
)
MAP = text(
    "--map",
    "MODULE:FUNCTION",
    "Function to call on every record. Takes bytes; returns bytes, a list of bytes, or "
    "None to drop the record.",
)
SELECT = text(
    "--select",
    "CONDITION",
    "Take only the records of a dataset whose columns fulfil this condition, such as: "
    "score > 0.5 and language in ('de', 'fr').",
    "all records",
)
SOURCE = together(INPUT_FORMAT, COLUMNS, RECORD, NULLS, SELECT, MAP, home="plan")


def split(help: str, shown: str = "the only one") -> Decorator[Any]:
    """Returns `--split`."""
    return text("--split", "NAME", help, shown)


SPLIT_TO_WRITE = split(
    "Split to write. Other splits in the output are kept. To join input files of "
    "several splits, give a name that none of them has.",
    "train",
)


def edition(help: str) -> Decorator[Any]:
    """Returns `--edition`, a number."""
    return number("--edition", help=help, shown="the newest")


def tokenizer_of_rows(effect: str = "shows tokens as text.") -> Decorator[Any]:
    """Returns `--tokenizer` of a command that shows packed rows."""
    help = f"Tokenizer of packed rows, as for gristmill pack: {effect}"
    return text("--tokenizer", "FILE", help, "none: tokens are ids")


SHARDS = together(
    flag("--match-shards", "Write one shard for each input file."),
    number(
        "--num-shards",
        help="Number of shards. Each gets about the same number of input bytes.",
        shown="as --shard-size says",
    ),
    text(
        "--shard-size",
        "SIZE",
        "Bytes of input per shard, such as 1GiB. Compressed files count as they are "
        "stored.",
        "256MiB",
    ),
    home="convert",
)


def encoding(*, inherited: str | None = None) -> Decorator[Any]:
    """Returns the options of the encoding of shards; with `inherited` no defaults."""
    own = inherited is None
    return together(
        option(
            "--group-size",
            type=int,
            metavar="N",
            default=DEFAULT_GROUP_SIZE if own else None,
            show_default=inherited or True,
            help="Records per chunk: 1 for fast random reads, 16 or more for smaller "
            "files.",
        ),
        text(
            "--compression",
            "CODEC",
            "Compression of chunks: zstd:LEVEL, brotli:LEVEL, snappy or uncompressed.",
            inherited,
            default=DEFAULT_COMPRESSION if own else None,
        ),
        home="convert" if own else None,
    )


DAMAGE = together(
    choice(
        "--on-corrupt",
        get_args(OnCorrupt),
        "What to do with damaged input: fail, or skip it, with a line in errors/ of "
        "the output that names it.",
    ),
    number(
        "--max-corrupt",
        least=0,
        default=100,
        help="Maximum number of damaged regions that --on-corrupt skip leaves out of a "
        "split; with more, the conversion fails.",
    ),
    flag(
        "--whole-files",
        "Read each file from its start, by one worker. For TFRecord files whose "
        "records hold frames of TFRecord themselves.",
    ),
    home="convert",
)
KEEP_REPLACED = flag(
    "--keep-replaced",
    "With --overwrite: keep the replaced split as an edition to go back to, until "
    "gristmill clean.",
)
REPLACING = together(
    flag(
        "--overwrite",
        "Replace the split. The old one stays until the new one is finished. Never "
        "deletes inputs, shards of other splits, or files that were indexed.",
    ),
    KEEP_REPLACED,
    home="convert",
)


def dataset_name(shown: str) -> Decorator[Any]:
    """Returns `--name`."""
    help = "Dataset name, the first part of every shard's file name."
    return text("--name", "NAME", help, shown)


# --- Rows of tokens, and conversations.

LENGTH = number("--length", least=2, default=2048, help="Maximum tokens in a row.")
BOS_EOS = together(
    text("--bos", "TOKEN", "Token before every document, as text or id.", "none"),
    text("--eos", "TOKEN", "Token after every document, as text or id.", "none"),
    home="pack",
)
FIT = together(
    choice(
        "--special-text",
        get_args(SpecialText),
        "What text becomes that looks like a special token.",
    ),
    text(
        "--accept",
        "NAME,...",
        "Allow trained messages without an end of turn (open-turns), mostly "
        "conversations too long for a row (long), mostly unknown tokens (unknown), "
        "text in Python's notation of bytes (bytes), or no end id in a file of tokens "
        "(no-end).",
    ),
)
MAX_REJECTED = option(
    "--max-rejected",
    type=click.FloatRange(0, 100),
    metavar="PERCENT",
    default=1.0,
    help="Most conversations, in percent, that may be set aside because they cannot be "
    "used with the template; 0 stops at the first.",
)
TRAINED = together(
    text(
        "--train",
        "ROLES",
        "Messages to train on: assistant; last, the last one of the assistant; all; or "
        "roles, separated by commas.",
        None,
        default="assistant",
    ),
    text(
        "--train-without",
        "PARTS",
        "Parts of the assistant's messages not to train on: thinking, tools, or both, "
        "separated by a comma.",
    ),
    choice(
        "--train-end-of-turn",
        get_args(YesNo),
        "Whether to train on the text after a trained message up to and including the "
        "next special token. Generation tags of a template decide it themselves.",
        "yes",
    ),
    choice(
        "--truncate-turns",
        get_args(YesNo),
        "Whether to cut a conversation that is longer than a row at the end of a turn; "
        "otherwise it is set aside.",
        "yes",
    ),
    home="audit",
)
CHAT_COLUMNS = together(
    text(
        "--tools-column",
        "NAME",
        "Column of the tools that a conversation can call.",
        None,
        default="tools",
    ),
    text(
        "--weight-column",
        "NAME",
        "Column of the weight of a conversation in the loss, or of a list of weights, "
        "one per message.",
        None,
        default="weight",
    ),
    text(
        "--date",
        "DATE",
        "Date that the template prints as today's, as YYYY-MM-DD.",
    ),
    home="audit",
)


def template(*, required: bool = False) -> Decorator[Any]:
    """Returns `--template`."""
    return text(
        "--template",
        "FILE",
        "File with the chat template: Jinja, or a tokenizer_config.json that has one.",
        None if required else "none",
        required=required,
    )


# --- Where a command runs.


def workers(
    help: str = "Number of worker processes on this machine.",
) -> Decorator[Any]:
    """Returns `--workers`."""
    return number("--workers", help=help, shown="all cores")


def runner(begin: str = "Run") -> Decorator[Any]:
    """Returns `--runner`, with the beginning of its help text."""
    return text(
        "--runner",
        "RUNNER",
        f"{begin} on this Beam runner instead of local processes. Beam's options can "
        "follow, or come after --.",
    )


RUN = together(workers(), runner())
LAUNCH = together(
    workers(),
    text(
        "--runner",
        "RUNNER",
        "Run on this Beam runner, such as DataflowRunner, instead of local processes. "
        "Beam's options can follow, or come after --.",
    ),
    flag("--wait", "On Dataflow: wait until the job has finished."),
    flag(
        "--cross-region",
        "On Dataflow: allow buckets outside the region of the workers. Google charges "
        "for traffic between regions.",
    ),
    flag(
        "--install-on-workers",
        "On Dataflow: let workers without public addresses install the package when "
        "they start. Their network must reach a package index, such as through Cloud "
        "NAT.",
    ),
    home="verify",
)
