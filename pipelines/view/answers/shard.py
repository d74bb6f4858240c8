"""One shard: its file, its records and what it was made of."""

from __future__ import annotations

import dataclasses
from typing import Any

from gristmill.dataset.metadata.provenance import read_source_files
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.data.dataset import Dataset, ShardInfo, shards_of, table_of
from gristmill.loader.provenance.source_place import cached_footer
from gristmill.pipelines.view.answers.shown_data import Opened, checked_number

_SOURCES = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """A shard.

    Attributes:
        shard: Its number.
        of: The name of its dataset in a mixture.
        file: Its file.
        bytes: The size of that.
        first_record: The number of its first record in the dataset.
        records: How many records it has.
        raw_bytes: Their size before compression, where known.
        chunks: How many chunks they are in.
        edition: The edition that it was made for, where known.
        digest: Order-independent digest of its records, where known.
        sources: Ranges of the files that it was made of, as far as known.
        num_sources: How many there are.
    """

    shard: int
    of: str
    file: str
    bytes: int
    first_record: int
    records: int
    raw_bytes: int | None
    chunks: int
    edition: int | None
    digest: str | None
    sources: list[dict[str, Any]]
    num_sources: int


def shard(
    opened: Opened, *, shard: int, of: str = "", split: str | None = None
) -> Shard:
    """Returns what is known of a shard; reads its footer."""
    dataset = opened.dataset(of, split)
    name = shards_of(dataset).name
    number = checked_number(shard, dataset.num_shards, what="shard", where=name)
    part, in_part = dataset.part_of(number)
    info, table = part.shard(in_part), table_of(part)
    size = size_of(info)
    footer = cached_footer(info.path, size, info.records_digest)
    return Shard(
        shard=number,
        of=opened.name(of),
        file=info.path,
        bytes=size,
        first_record=dataset.shard(number).first_record,
        records=info.records,
        raw_bytes=None if table is None else int(table.columns["raw_bytes"][in_part]),
        chunks=len(footer.chunk_records),
        edition=info.edition,
        digest=info.records_digest,
        sources=_sources(part, info),
        num_sources=len(info.spans),
    )


def size_of(info: ShardInfo) -> int:
    """Returns the size of a shard's file, in bytes; 0 if it is not there."""
    if info.file_bytes is not None:
        return info.file_bytes
    found = storage_for(info.path).stat(info.path)
    return 0 if found is None else found.size_bytes


def _sources(part: Dataset, info: ShardInfo) -> list[dict[str, Any]]:
    committed = part.committed
    if committed is None or info.edition is None:
        return []
    files = read_source_files(part.path, committed.part(info.edition))
    return [
        {
            "path": files[span.file_index].path,
            "begin_bytes": span.start_bytes,
            "end_bytes": span.stop_bytes,
            "records": span.records,
        }
        for span in info.spans[:_SOURCES]
        if 0 <= span.file_index < len(files)
    ]
