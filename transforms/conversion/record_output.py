"""Writing the records of a shard, as they are or as a function returns them."""

from __future__ import annotations

from collections.abc import Iterable

import google_crc32c

from gristmill.dataset.arrayrecord.shard_writer import ShardWriter
from gristmill.dataset.formats.streams.record_batch import RecordBatch
from gristmill.transforms.conversion.shard_tally import Progress, Tally
from gristmill.transforms.functions.named_function import load_function
from gristmill.transforms.jobs.prepared_job import PreparedJob
from gristmill.transforms.sources.source_of import source_of


def write_records(
    writer: ShardWriter,
    batches: Iterable[tuple[str, RecordBatch]],
    prepared: PreparedJob,
    tally: Tally,
    progress: Progress | None,
) -> None:
    """Writes the records of a shard.

    Args:
        writer: Takes them.
        batches: The records, each batch with the file that it was read from.
        prepared: The job.
        tally: Counts them.
        progress: Called after each batch.

    Raises:
        UserFunctionError: The user's function failed.
        StorageError: They cannot be written.
    """
    spec = prepared.job.map
    function = None if spec is None else load_function(spec)
    place_text = source_of(prepared.files.spec).place_text
    for path, batch in batches:
        tally.count(batch)
        if function is None:
            writer.write(batch.records, batch.crc32cs)
        else:
            for place, record in zip(batch.places, batch.records, strict=True):
                source = f"{path}, {place_text(place)}"
                results = tally.mapped(function, record, source=source)
                writer.write(results, list(map(google_crc32c.value, results)))
        tally.show(progress)
