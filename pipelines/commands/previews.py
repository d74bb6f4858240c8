"""`gristmill plan` and `audit`: results of a conversion or a packing, in advance."""

from __future__ import annotations

import dataclasses
import shlex

import click

from gristmill.pipelines.commands.messages import command_line, next_command
from gristmill.pipelines.commands.parameters import command
from gristmill.pipelines.options.conversions import ConvertOptions
from gristmill.pipelines.options.option import integer, like, text, worker_count
from gristmill.pipelines.options.packing import PackingOptions
from gristmill.transforms.jobs.pack_options import SpecialInContent, YesNo


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputOptions:
    """Which records a conversion is to make; the other options are what is planned."""

    input: tuple[str, ...] = like(ConvertOptions, "input")
    input_format: str = like(ConvertOptions, "input_format")
    columns: str | None = like(ConvertOptions, "columns")
    record: str | None = like(ConvertOptions, "record")
    map: str | None = like(ConvertOptions, "map")
    split: str | None = like(ConvertOptions, "split")
    group_size: int | None = like(ConvertOptions, "group_size")
    compression: str | None = like(ConvertOptions, "compression")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of `gristmill plan` alone."""

    output: str | None = text(
        "Directory of the dataset, for the command. Nothing is written there.",
        "DIR",
        "named after the input",
    )
    workers: int | None = worker_count(
        "Number of worker processes of the conversion on this machine."
    )


@command("plan", InputOptions, PlanOptions)
def plan(inputs: InputOptions, options: PlanOptions, *, as_json: bool) -> None:
    """Plan a conversion: how large, how long, and the command.

    INPUT is what `gristmill convert` takes. A sample from all over it is converted into
    a temporary directory. This takes seconds, whatever the input's size.
    """
    from gristmill.pipelines.advice.make_plan import make_plan
    from gristmill.pipelines.options.conversions import default_output

    output = options.output or default_output(inputs.input)
    found = make_plan(
        ConvertOptions(output=output, **dataclasses.asdict(inputs)),
        workers=options.workers,
    )
    click.echo(found.json() if as_json else found.text())


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditedOptions:
    """The options of packing that decide what is trained on."""

    input: tuple[str, ...] = like(PackingOptions, "input")
    template: str = like(PackingOptions, "template", required=True)
    tokenizer: str = like(
        PackingOptions,
        "tokenizer",
        help="A tokenizer.json of Hugging Face, or a tiktoken file.",
        required=True,
    )
    input_format: str = like(PackingOptions, "input_format")
    column: str = like(
        PackingOptions,
        "column",
        help="Column of the messages.",
        shown="the usual ones",
    )
    map: str | None = like(PackingOptions, "map")
    split: str | None = like(PackingOptions, "split")
    length: int = like(PackingOptions, "length")
    bos: str | None = like(PackingOptions, "bos")
    eos: str | None = like(PackingOptions, "eos")
    train: str = like(PackingOptions, "train")
    train_without: str | None = like(PackingOptions, "train_without")
    train_end_of_turn: YesNo = like(PackingOptions, "train_end_of_turn")
    special_in_content: SpecialInContent = like(PackingOptions, "special_in_content")
    truncate_turns: YesNo = like(PackingOptions, "truncate_turns")
    tools_column: str = like(PackingOptions, "tools_column")
    weight_column: str = like(PackingOptions, "weight_column")
    date: str | None = like(PackingOptions, "date")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """Options of `gristmill audit` alone."""

    limit: int = integer(
        "Maximum number of records to read.", 1000, least=1, short="-n"
    )
    show: int = integer("Conversations to show as text.", 1, least=0)


@command("audit", AuditedOptions, AuditOptions)
def audit(packed: AuditedOptions, options: AuditOptions, *, as_json: bool) -> None:
    """Show the parts of conversations that would be trained on.

    INPUT and the options are those of `gristmill pack --chat`. The first conversations
    are rendered and tokenised in the same way, and nothing is written. The output shows
    tokens by role, the share that is trained on, what is set aside and why, which
    pieces of the template are trained on or not, and a conversation as text.
    """
    from gristmill.pipelines.advice.audit_conversations import audit_conversations
    from gristmill.pipelines.options.conversions import default_output

    given = dataclasses.asdict(packed)
    if given["special_in_content"] == "refuse":
        given["special_in_content"] = "set-aside"  # Shown, like all that is wrong.
    made = PackingOptions(output=default_output(packed.input), chat=True, **given)
    found = audit_conversations(made, records=options.limit, shown=options.show)
    click.echo(found.json() if as_json else found.text())
    arguments = command_line(without=("limit", "show"))[1:]
    next_command(
        shlex.join(["gristmill", "pack", "--chat", *arguments, "OUTPUT"]),
        why="to pack all of them",
    )
