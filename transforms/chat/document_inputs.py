"""The records that packing reads from the inputs, and their reader."""

from __future__ import annotations

import dataclasses

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.chat.conversation_reader import (
    DEFAULT_COLUMN,
    ConversationReader,
    columns_of,
)
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.sources.formats import (
    FORMATS,
    MAY_LACK,
    RecordOptions,
    SourceSpec,
)
from gristmill.transforms.tokens.documents import DocumentReader, Tell

_WITH_COLUMNS = ("parquet", "jsonl", "json", "csv", "tsv", "tsv-unquoted", "webdataset")


def reader_of(
    options: PackOptions, source: SourceSpec, *, tell: Tell | None = None
) -> ConversationReader | DocumentReader:
    """Returns the reader of documents from the records of a shard.

    Args:
        options: Options with the tokenizer found, and the template if there is one.
        source: Rules for making the records.
        tell: Called with documents on which the tokenizer fails; None for an error.
    """
    if options.chat is not None:
        return ConversationReader(options)
    return DocumentReader(options, source, tell=tell)


def document_records(
    records: RecordOptions, pack: PackOptions, *, mapped: bool
) -> RecordOptions:
    """Returns the record options for the inputs of a job that packs documents.

    From a table or samples only the column of the documents is read, as text without a
    `tf.train.Example` around it. A user's function gets the requested records.

    Args:
        records: The user's options, with the format of the files.
        pack: The options with the column of the documents.
        mapped: Whether there is a user's function.

    Raises:
        InputError: The user requests other columns, or the inputs have no columns.
    """
    asked = ",".join(records.columns) or records.record
    is_text = records.input_format == "text"
    if pack.chat is not None:
        if asked:
            raise InputError(
                "--columns and --record have no effect on conversations",
                expected="the columns that --column, --tools-column and "
                "--weight-column name",
                got=asked,
                cure="leave them out",
            )
        if records.input_format in ("jsonl", "json", "text"):
            return dataclasses.replace(records, record="" if is_text else "line")
        if records.input_format == "parquet":
            names = columns_of(pack).names
            return dataclasses.replace(records, record="json", columns=names)
        return records
    known = FORMATS.get(records.input_format)
    if known is not None and known.tokens and pack.tokenizer is not None:
        raise InputError(
            "the inputs hold tokens already",
            expected="no --tokenizer",
            got=f"--input-format {records.input_format}",
            cure="leave out --tokenizer; --vocabulary-size says how many ids there are",
        )
    if is_text and not mapped and pack.column not in ("", DEFAULT_COLUMN):
        raise InputError(
            "--column has no effect on lines of text",
            expected="no column: the line is the document",
            got=pack.column,
            cure="leave it out; of a table name the format, such as --input-format csv",
        )
    if known is not None and known.tokens and "no-end" in pack.accept.split(","):
        return dataclasses.replace(records, record=records.record + MAY_LACK)
    if mapped or records.input_format not in _WITH_COLUMNS:
        return records
    if not pack.column:
        if asked:
            return records
        raise InputError(
            "--column - is for records that are the text itself",
            expected="the name of a column",
            got=f"a file of format {records.input_format}, which has columns",
            cure="give --column NAME, or say with --record what a record is",
        )
    if asked:
        raise InputError(
            "--columns and --record have no effect on the documents",
            expected=f"the column {pack.column!r} alone, by --column",
            got=asked,
            cure="leave them out, or use them with --map, which gets such records",
        )
    if pack.tokenizer is None:
        return dataclasses.replace(records, columns=(pack.column,))
    return dataclasses.replace(records, record=f"column:{pack.column}")
