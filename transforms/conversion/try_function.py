"""Trying function and tokenizer on the first records, before anything is written."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

from gristmill.transforms.chat.document_reader import reader_of
from gristmill.transforms.chat.template_file import with_template
from gristmill.transforms.functions.user_functions import call, load_function
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.damage import DamageHandler
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.record_source import source_of
from gristmill.transforms.tokens.tokenizers import find_tokenizer

TRIED_FILES = 8  # The first of them that has a record is taken.
TRIED_RECORDS = 10
_READ_BYTES = 1 << 16


def try_function(job: ConversionJob, files: Sequence[InputFile]) -> None:
    """Calls function and tokenizer of a job on the first records.

    What they return is dropped.

    Args:
        job: The job.
        files: Its first input files.

    Raises:
        UserFunctionError: The function fails, or returns a value that cannot be
            written.
        InputError: The tokenizer cannot be used, or the records are not documents.
        CorruptInputError: An input is damaged at its beginning, and the job does not
            accept that.
    """
    if job.map is None and (job.pack is None or job.records.input_format == "packed"):
        return
    function = None if job.map is None else load_function(job.map)
    pack = job.pack
    if pack is not None:
        pack = with_template(dataclasses.replace(pack, found=find_tokenizer(pack)))
    for file in files:
        plain = file.compression == "none"
        beginning = SourceRange(
            file_index=0,
            begin_bytes=0,
            end_bytes=min(file.size_bytes, _READ_BYTES) if plain else -1,
            exact=True,
        )
        damage = DamageHandler() if job.on_corrupt == "quarantine" else None
        source = source_of(file.spec)
        for batch in source.read(file, beginning, on_damage=damage).batches():
            reader = None
            if pack is not None:
                # A shard finds out whether the fast path differs.
                reader = reader_of(pack, source.spec, fast=False)
            found = zip(batch.places, batch.records, strict=True)
            for place, record in itertools.islice(found, TRIED_RECORDS):
                where = f"{file.path}, {source.place_text(place)}"
                results: Sequence[bytes] = (record,)
                if function is not None:
                    results = call(function, record, source=where)
                if reader is not None:
                    reader.read(results, functools.partial(_always, where))
            if batch.records:
                return


def _always(place: str, number: int) -> str:
    del number
    return place
