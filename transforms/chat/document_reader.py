"""The reader of the documents of a job, and what it needs of the inputs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.sources.formats import RecordOptions, SourceSpec
from gristmill.transforms.tokens.documents import DocumentReader, Tell, document_records

if TYPE_CHECKING:
    from gristmill.transforms.chat.conversation_reader import ConversationReader

_LINES = ("jsonl", "json", "text")


def reader_of(
    options: PackOptions, source: SourceSpec, *, tell: Tell | None = None
) -> ConversationReader | DocumentReader:
    """Returns the reader of documents from the records of a shard.

    Args:
        options: Options with the tokenizer found, and the template if there is one.
        source: Rules for making the records.
        tell: Takes documents on which the tokenizer fails; None for an error.
    """
    if options.chat is not None:
        from gristmill.transforms.chat.conversation_reader import ConversationReader

        return ConversationReader(options)
    return DocumentReader(options, source, tell=tell)


def records_for(
    records: RecordOptions, pack: PackOptions, *, mapped: bool
) -> RecordOptions:
    """Returns the record options for the inputs of a job that packs documents.

    Args:
        records: The user's options, with the format of the files.
        pack: Place of the documents.
        mapped: Whether there is a user's function.

    Raises:
        InputError: The options do not fit the documents.
    """
    if pack.chat is None:
        return document_records(records, pack, mapped=mapped)
    if records.columns or records.record:
        raise InputError(
            "--columns and --record have no effect on conversations",
            expected="the columns that --column, --tools-column and --weight-column "
            "name",
            got=",".join(records.columns) or records.record,
            cure="leave them out",
        )
    if records.input_format in _LINES:
        return dataclasses.replace(
            records, record="" if records.input_format == "text" else "line"
        )
    if records.input_format == "parquet":
        from gristmill.transforms.chat.conversation_reader import columns_of

        return dataclasses.replace(
            records, record="json", columns=columns_of(pack).names
        )
    return records
