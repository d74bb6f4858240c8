"""Options of packing: `gristmill pack`."""

from __future__ import annotations

import dataclasses
from typing import get_args

from gristmill.pipelines.options.conversations import ConversationOptions
from gristmill.pipelines.options.conversions import ConvertOptions
from gristmill.pipelines.options.option import POSITIVE, option
from gristmill.transforms.jobs.pack_options import (
    Method,
    Rows,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackingOptions(ConversationOptions, ConvertOptions):
    """Options of `gristmill pack`: those of a conversion, and what rows to make."""

    tokenizer: str | None = option(
        "text",
        "Tokenizer",
        "A tokenizer.json of Hugging Face, a SentencePiece model, a tiktoken file, or "
        "module:function. Without one the column holds tokens.",
        shown="none",
        metavar="FILE",
        regex="[^,]+",
        group="Tokens",
        example="gs://models/llama3/tokenizer.json",
    )
    column: str = option(
        "text",
        "Column",
        "Column, or feature of a tf.train.Example, that holds the text or the tokens; "
        "- if the record itself is the text.",
        default="text",
        metavar="NAME",
        regex=".+",
        group="Tokens",
        example="body",
    )
    vocabulary_size: int | None = option(
        "integer",
        "Size of the vocabulary",
        "Number of ids that a column of tokens can have: each is below it. Up to "
        "65,536, a token takes 2 bytes in a row.",
        shown="any id of 32 bits",
        regex=POSITIVE,
        least=1,
        group="Tokens",
        example="50257",
    )
    length: int = option(
        "integer",
        "Tokens per row",
        "Maximum number of tokens in a row.",
        default=2048,
        regex=POSITIVE,
        least=2,
        group="Tokens",
        example="4096",
        tells=True,
    )
    pack: Method = option(
        "choice",
        "Packing",
        "How documents fill rows: best-fit cuts only documents longer than a row; "
        "concat cuts wherever a row ends; none puts one document into a row.",
        default="best-fit",
        choices=get_args(Method),
        group="Tokens",
        example="concat",
    )
    truncate: bool = option(
        "flag",
        "Truncate",
        "Cut each document to one row, and leave out the rest.",
        default=False,
        group="Tokens",
        example="true",
    )
    bos: str | None = option(
        "text",
        "First token",
        "Token to add before every document, as text or id.",
        shown="none",
        metavar="TOKEN",
        regex=".+",
        group="Tokens",
        example="<s>",
    )
    eos: str | None = option(
        "text",
        "Last token",
        "Token to add after every document, as text or id.",
        shown="none",
        metavar="TOKEN",
        regex=".+",
        group="Tokens",
        example="</s>",
    )
    add_special_tokens: bool = option(
        "flag",
        "Special tokens",
        "Let the tokenizer add the special tokens that it is configured to add.",
        default=False,
        group="Tokens",
        example="true",
    )
    fast: bool = option(
        "flag",
        "Fast tokenizer",
        "Tokenise with gigatoken, compared on a sample with the tokenizer's own "
        "library. Where they differ, the command ends with an error.",
        default=False,
        group="Tokens",
        example="true",
    )
    rows: Rows = option(
        "choice",
        "Form of a row",
        "What a row is: packed, for gristmill.loader.PackedRows, or a tf.train.Example "
        "with inputs, positions and segments.",
        default="packed",
        choices=get_args(Rows),
        group="Tokens",
        example="example",
    )
