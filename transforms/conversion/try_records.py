"""The first records of a job: tried before it begins, or searched for an example."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.transforms.chat.document_reader import reader_of
from gristmill.transforms.chat.template_file import with_template
from gristmill.transforms.functions.user_functions import call, load_function
from gristmill.transforms.jobs.conversion_job import ConversionJob, PreparedJob
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.first_records import first_records
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.source import SkippedRegions, source_of
from gristmill.transforms.tokens.fit import check_fit
from gristmill.transforms.tokens.tokenizers import find_tokenizer

TRIED_FILES = 8  # The first of them that has a record is taken.
_TRIED_RECORDS = 10
_TRIED_CONVERSATIONS = 64
_READ_BYTES = 1 << 16
_LOOKED_AT = 10_000

TryMap = Callable[[ConversionJob, Sequence[InputFile]], None]


def try_function(job: ConversionJob, files: Sequence[InputFile]) -> None:
    """Calls function and tokenizer of a job on the first records.

    What they return is dropped.

    Raises:
        UserFunctionError: The function fails, or returns a value that cannot be
            written.
        InputError: The tokenizer cannot be used, or the records are not documents.
        CorruptInputError: An input is damaged at its beginning, and the job does not
            accept that.
    """
    function = None if job.map is None else load_function(job.map)
    pack = job.pack
    if pack is not None:
        pack = dataclasses.replace(pack, found=find_tokenizer(pack))
        pack = with_template(pack)
    counts = PackedCounts()
    is_chat = pack is not None and pack.chat is not None
    tried = _TRIED_CONVERSATIONS if is_chat else _TRIED_RECORDS
    for number, file in enumerate(files):
        plain = file.compression == "none"
        beginning = SourceRange(
            file_index=number,
            begin_bytes=0,
            end_bytes=min(file.size_bytes, _READ_BYTES) if plain else -1,
        )
        skipped = SkippedRegions() if job.on_corrupt == "skip" else None
        source = source_of(file.spec)
        ranges = source.read(file, beginning, skipped=skipped)
        for batch in map(ranges.taken, ranges.batches()):
            tell = None if skipped is None else _accept
            reader = None if pack is None else reader_of(pack, source.spec, tell=tell)
            found = zip(batch.places, batch.records, strict=True)
            for place, record in itertools.islice(found, tried):
                where = f"{file.path}, {source.place_text(place)}"
                results: Sequence[bytes] = (record,)
                if function is not None:
                    results = call(function, record, source=where)
                if reader is not None:
                    made = reader.read(results, functools.partial(_always, where))
                    counts += made.seen()
            if reader is not None and pack is not None:
                check_fit(
                    pack, counts, reader.examples.get, bytes_texts=reader.bytes_texts
                )
            if batch.records:
                return


def _accept(number: int, failure: InputError) -> None:
    """Accepts a document on which the tokenizer fails."""


def _always(place: str, number: int) -> str:
    del number
    return place


def example_of(prepared: PreparedJob, name: str) -> str:
    """Returns where a misfit is seen first: a file, a place and why.

    Args:
        prepared: The job, whose shards were made.
        name: The name of the misfit.
    """
    job, files = prepared.job, prepared.files
    if job.pack is None:
        raise ValueError("a job that packs nothing")
    reader = reader_of(job.pack, files.spec, tell=_accept)
    function = None if job.map is None else load_function(job.map)
    for one in itertools.islice(first_records(files), _LOOKED_AT):
        place = f"{one.path}, {one.place_text}"
        records = [one.record]
        if function is not None:
            records = [*call(function, one.record, source=place)]
        reader.read(records, lambda _, place=place: place)  # type: ignore[misc]
        if name in reader.examples:
            return reader.examples[name]
    return f"{job.output}, after the first {_LOOKED_AT:,} records"
