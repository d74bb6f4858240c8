"""`gristmill plan` and `audit`: results of a conversion or a packing, in advance."""

from __future__ import annotations

import shlex
from typing import Any

from gristmill.pipelines.commands.command import command
from gristmill.pipelines.commands.messages import command_line, next_command, show
from gristmill.pipelines.commands.shared_options import (
    BOS_EOS,
    CHAT_COLUMNS,
    FIT,
    INPUT,
    INPUT_FORMAT,
    LENGTH,
    MAP,
    MAX_REJECTED,
    SOURCE,
    SPLIT_TO_WRITE,
    TRAINED,
    encoding,
    number,
    template,
    text,
    together,
    workers,
)
from gristmill.pipelines.options.job_options import (
    ConvertOptions,
    PackingOptions,
    default_output,
)


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
def plan(
    input: tuple[str, ...], output: str | None, workers: int | None, **given: Any
) -> None:
    """Plan a conversion: how large, how long, and the command.

    INPUT is what `gristmill convert` takes. A sample from all over it is converted into
    a temporary directory. This takes seconds, whatever the input's size.
    """
    from gristmill.pipelines.advice.make_plan import make_plan

    output = output or default_output(input)
    options = ConvertOptions(input=input, output=output, **given)
    show(make_plan(options, workers=workers))


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
def audit(limit: int, input: tuple[str, ...], **given: Any) -> None:
    """Show the parts of conversations that would be trained on.

    INPUT and the options are those of `gristmill pack --chat`. The first conversations
    are rendered and tokenised in the same way, and nothing is written. The output shows
    tokens by role, the share that is trained on, what is set aside and why, which
    pieces of the template are trained on or not, and a conversation as text.
    """
    from gristmill.pipelines.advice.audit_conversations import audit_conversations

    shown = given.pop("show")
    made = PackingOptions(input=input, output=default_output(input), chat=True, **given)
    found = audit_conversations(made, records=limit, shown=shown)
    show(found)
    if found.unfit:
        return  # The result says what to do.
    arguments = command_line(without=("limit", "show"))[1:]
    next_command(
        shlex.join(["gristmill", "pack", "--chat", *arguments, "OUTPUT"]),
        why="to pack all of them",
    )
