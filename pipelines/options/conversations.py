"""Options of conversations: `gristmill pack --chat`, and `audit`."""

from __future__ import annotations

import dataclasses
from typing import get_args

from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.options.option import option
from gristmill.transforms.jobs.pack_options import (
    ChatOptions,
    SpecialInContent,
    Unusable,
    YesNo,
)

_GROUP = "Conversations"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConversationOptions:
    """How conversations are rendered, and what of them is trained on."""

    chat: bool = option(
        "flag",
        "Conversations",
        "Records are conversations: --template renders them, and the loss counts what "
        "--train says.",
        default=False,
        group=_GROUP,
        example="true",
    )
    template: str | None = option(
        "text",
        "Chat template",
        "File with the chat template: Jinja, or a tokenizer_config.json that has one.",
        shown="none",
        metavar="FILE",
        regex="[^,]+",
        group=_GROUP,
        example="gs://models/qwen3/tokenizer_config.json",
    )
    train: str = option(
        "text",
        "Messages to train on",
        "Messages to train on: assistant; last, the last one of the assistant; all; or "
        "roles, separated by commas.",
        default="assistant",
        metavar="ROLES",
        regex="[a-z_]+(,[a-z_]+)*",
        group=_GROUP,
        example="last",
    )
    train_without: str | None = option(
        "text",
        "Parts to leave out",
        "Parts of the assistant's messages not to train on: thinking, tools, or both, "
        "separated by a comma.",
        shown="none",
        metavar="PARTS",
        regex="[a-z]+(,[a-z]+)*",
        group=_GROUP,
        example="thinking",
    )
    train_end_of_turn: YesNo = option(
        "choice",
        "End of turn",
        "Whether to train on the text after a trained message up to and including the "
        "next special token. Generation tags of a template decide it themselves.",
        default="yes",
        choices=get_args(YesNo),
        group=_GROUP,
        example="no",
    )
    special_in_content: SpecialInContent = option(
        "choice",
        "Special tokens in contents",
        "What to do with the text of a special token in a message: make it that token, "
        "as transformers does; keep it as text; set the conversation aside; or stop.",
        default="token",
        choices=get_args(SpecialInContent),
        group=_GROUP,
        example="text",
    )
    truncate_turns: YesNo = option(
        "choice",
        "Long conversations",
        "Whether to cut a conversation that is longer than a row at the end of a turn; "
        "otherwise it is set aside.",
        default="yes",
        choices=get_args(YesNo),
        group=_GROUP,
        example="no",
    )
    unusable: Unusable = option(
        "choice",
        "Unusable conversations",
        "What to do with a record that is not a conversation, for which the template "
        "fails, or whose messages cannot be located with certainty in the text.",
        default="set-aside",
        choices=get_args(Unusable),
        group=_GROUP,
        example="refuse",
    )
    tools_column: str = option(
        "text",
        "Column of tools",
        "Column of the tools that a conversation can call.",
        default="tools",
        metavar="NAME",
        regex=".+",
        group=_GROUP,
        example="functions",
    )
    weight_column: str = option(
        "text",
        "Column of weights",
        "Column of the weight of a conversation in the loss, or of a list of weights, "
        "one per message.",
        default="weight",
        metavar="NAME",
        regex=".+",
        group=_GROUP,
        example="score",
    )
    date: str | None = option(
        "text",
        "Date",
        "Date that the template gets as today's, as YYYY-MM-DD. A repeated job keeps "
        "it.",
        shown="that of today",
        metavar="DATE",
        regex="[0-9]{4}-[0-9]{2}-[0-9]{2}",
        group=_GROUP,
        example="2026-11-24",
    )


def chat_of(options: ConversationOptions) -> ChatOptions | None:
    """Returns how conversations are rendered and trained on; None without --chat.

    Raises:
        InputError: The options do not go together.
    """
    if not options.chat:
        for field in dataclasses.fields(ConversationOptions):
            if getattr(options, field.name) != field.default and options.train:
                raise InputError(
                    f"--{field.name.replace('_', '-')} has no effect without --chat",
                    expected="--chat, for records that are conversations",
                    cure="add --chat, or leave it out",
                )
        return None
    for field in dataclasses.fields(ConversationOptions):
        if getattr(options, field.name) == "":
            raise InputError(
                f"--{field.name.replace('_', '-')} is empty",
                cure="give a value, or leave it out",
            )
    if options.template is None:
        raise InputError(
            "--chat without a template",
            cure="give --template, such as the model's tokenizer_config.json",
        )
    return ChatOptions(
        template=options.template,
        train=options.train,
        train_without=options.train_without or "",
        train_end_of_turn=options.train_end_of_turn,
        special_in_content=options.special_in_content,
        truncate_turns=options.truncate_turns,
        unusable=options.unusable,
        tools_column=options.tools_column,
        weight_column=options.weight_column,
        date=options.date or "",
    )
