"""Which records to make of the inputs, so that each holds a document."""

from __future__ import annotations

import dataclasses

from gristmill.dataset.errors import InputError
from gristmill.transforms.sources.formats import RecordOptions
from gristmill.transforms.tokens.pack_options import PackOptions

_WITH_COLUMNS = ("parquet", "jsonl", "csv", "tsv", "webdataset")


def document_records(
    records: RecordOptions, pack: PackOptions, *, mapped: bool
) -> RecordOptions:
    """Returns what to make of the inputs of a job that packs documents.

    Of a table, or of samples, the column of the documents is all that is needed: text
    is taken as it is, without a `tf.train.Example` around it. A user's function gets
    the records that the user asks for.

    Args:
        records: What the user says, with the format that the files have.
        pack: Where the documents are.
        mapped: Whether there is a user's function.

    Raises:
        InputError: The user asks for other columns.
    """
    if mapped or records.input_format not in _WITH_COLUMNS:
        return records
    asked = records.columns or records.record
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
            got=",".join(records.columns) or records.record,
            cure="leave them out, or use them with --map, which gets such records",
        )
    if pack.tokenizer is None:
        return dataclasses.replace(records, columns=(pack.column,))
    return dataclasses.replace(records, record=f"column:{pack.column}")
