"""`gristmill audit` and `unique`: trained parts of conversations, and duplicates."""

from __future__ import annotations

import dataclasses
import json
import shlex
from typing import Any

import click

from gristmill.pipelines.commands.jobs import run_of
from gristmill.pipelines.commands.messages import (
    command_line,
    is_quiet,
    next_command,
    next_step,
)
from gristmill.pipelines.commands.parameters import command
from gristmill.pipelines.options.conversions import ConvertOptions
from gristmill.pipelines.options.definitions import LaunchOptions
from gristmill.pipelines.options.option import (
    flag,
    integer,
    like,
    split_name,
    text,
    worker_count,
)
from gristmill.pipelines.options.packing import PackingOptions
from gristmill.transforms.jobs.pack_options import SpecialInContent, YesNo


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

    records: int = integer(
        "Maximum number of records to read.", 1000, least=1, short="-n"
    )
    show: int = integer("Conversations to show as text.", 1, least=0)


@command("audit", AuditedOptions, AuditOptions)
def audit(packed: AuditedOptions, options: AuditOptions, *, as_json: bool) -> None:
    """Show the parts of conversations that would be trained on.

    INPUT is what `gristmill pack --chat` takes, and so are the options. The first
    conversations are rendered and tokenised as it would do, and nothing is written.
    Shows tokens by role, the share that is trained on, what is set aside and why,
    which pieces of the template are trained on or not, and a conversation as text.
    """
    from gristmill.pipelines.advice.audit_conversations import audit_conversations
    from gristmill.pipelines.options.conversions import default_output

    given = dataclasses.asdict(packed)
    if given["special_in_content"] == "refuse":
        given["special_in_content"] = "set-aside"  # Shown, like all that is wrong.
    made = PackingOptions(output=default_output(packed.input), chat=True, **given)
    found = audit_conversations(made, records=options.records, shown=options.show)
    click.echo(found.json() if as_json else found.text())
    arguments = command_line(without=("records", "show"))[1:]
    next_command(
        shlex.join(["gristmill", "pack", "--chat", *arguments, "OUTPUT"]),
        why="to pack all of them",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class UniqueOptions:
    """Options of `gristmill unique`."""

    input: tuple[str, ...] = like(ConvertOptions, "input", default=dataclasses.MISSING)
    by: str = text(
        "The part that is the same in duplicates: text; record, the stored bytes; or "
        "normalised, the text by NFKC, in lower case, with white space collapsed. "
        "text:NAME and normalised:NAME name the column or feature, - the whole record.",
        "KIND",
        default="text",
    )
    certificate: str = text(
        "File to write: which record is kept for each that is removed.",
        "FILE",
        default="duplicates.certificate",
    )
    split: str | None = split_name("Split of a dataset, whose records get the column.")
    input_format: str = like(ConvertOptions, "input_format")
    columns: str | None = like(ConvertOptions, "columns")
    record: str | None = like(ConvertOptions, "record")
    nulls: str = like(ConvertOptions, "nulls")
    overwrite: bool = flag("Replace a column duplicate_of that the dataset has.")
    workers: int | None = worker_count()
    runner: str | None = like(
        LaunchOptions,
        "runner",
        help="Run on this Beam runner instead of local processes. Beam's options can "
        "follow, or stand after --.",
    )


@command("unique", UniqueOptions)
def unique(options: UniqueOptions, *, as_json: bool) -> None:
    """Find exact duplicates, and list them in a file.

    INPUT is what `gristmill convert` takes. The first of equal records is kept, by file
    in the sorted list and by place in the file. Nothing is removed. A dataset gets the
    column duplicate_of: the number of the record that is kept, or -1 for one that is
    kept itself.
    """
    from gristmill.pipelines.duplicates.search import search

    launch = LaunchOptions(runner=options.runner)
    where = run_of(launch, options.workers)
    found, attached = search(
        ConvertOptions(
            input=options.input,
            output=options.certificate,
            split=options.split,
            input_format=options.input_format,
            columns=options.columns,
            record=options.record,
            nulls=options.nulls,  # type: ignore[arg-type]
        ),
        options.by,
        overwrite=options.overwrite,
        on_dataflow=launch.on_dataflow,
        **where._asdict(),
        show_progress=not is_quiet(),
    )
    if as_json:
        fields: dict[str, Any] = {**found._asdict(), "kept": found.kept}
        if attached is not None:
            fields["column"] = {
                "name": next(iter(attached.columns)),
                "split": attached.split,
                "done_before": attached.done_before,
            }
        click.echo(json.dumps(fields, ensure_ascii=False))
    else:
        click.echo(
            f"{found.records:,} records = {found.kept:,} kept + {found.removed:,} "
            f"duplicates, by {found.by}\n  certificate  {found.certificate}"
        )
        if attached is not None:
            click.echo(attached.text())
    if attached is not None:
        next_step("inspect", options.input[0])
    else:
        line = f"gristmill verify --certificate {found.certificate}"
        next_command(line, why="pairs compared byte by byte")
