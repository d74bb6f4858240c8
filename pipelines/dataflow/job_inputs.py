"""The input files of a job, as far as they can be listed in seconds."""

from __future__ import annotations

import functools
import io
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gristmill.dataset.arrayrecord.footer import read_footer
from gristmill.dataset.base.errors import (
    CorruptRecordError,
    CorruptShardError,
    CorruptStreamError,
    InputError,
    MissingPackageError,
)
from gristmill.dataset.formats.file_formats import (
    ARRAY_RECORD,
    HEAD_BYTES,
    compression_of,
    format_of,
)
from gristmill.dataset.formats.parquet.parquet_file import ParquetFile
from gristmill.dataset.formats.streams.inflated_stream import InflatedStream
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import (
    compile_pattern,
    has_magic,
    listing_of,
    split_path,
)
from gristmill.pipelines.dataflow.buckets import Use, explained
from gristmill.pipelines.dataflow.clients import storage_retry
from gristmill.transforms.planning.shard_plan import PlanOptions, plan_by_bytes
from gristmill.transforms.sources.formats import FORMATS

_SECONDS = 10.0
_MOST_FILES = 10_000
_SAMPLE_BYTES = 1 << 18
_SAMPLED_GROUPS, _SAMPLED_ROWS = 4, 64
_MOST_INFLATED_BYTES = 32 << 20


class ListedFile(NamedTuple):
    """An object: its path, and its size in bytes as stored."""

    path: str
    size_bytes: int


class Listed(NamedTuple):
    """What the inputs of a job match.

    Attributes:
        files: The first files of each input.
        whole: Whether these are all.
        notes: Remarks for the user.
    """

    files: list[ListedFile]
    whole: bool
    notes: list[str]


class ShardSizes(NamedTuple):
    """Input of the shards of a job, decompressed, in bytes; None where not known.

    Attributes:
        largest_bytes: Size of the largest shard.
        total_bytes: Size of all shards together.
    """

    largest_bytes: int | None
    total_bytes: int | None


def list_inputs(
    uses: Sequence[Use], *, client: Any, seconds: float = _SECONDS
) -> Listed:
    """Lists the first files of the inputs of a job.

    Args:
        uses: Paths that the job reads and writes.
        client: A client of google-cloud-storage.
        seconds: How long to list, of all inputs together.

    Raises:
        InputError: An input matches nothing.
    """
    ends = time.monotonic() + seconds
    files: list[ListedFile] = []
    whole, notes = True, []
    for use in uses:
        if use.what not in ("input", "files"):
            continue
        found, seen, all_seen = _list_one(use, client, ends)
        if not found and all_seen:
            raise InputError(
                "no input file matches",
                where=use.path,
                got=seen,
                cure="check the path; a directory stands for the files directly in it",
            )
        if not found:
            notes.append(
                f"whether a file matches {use.path} was not checked: none of the first "
                f"ones does, {seen}"
            )
        files += found
        whole = whole and all_seen
    return Listed(files, whole, notes)


def _list_one(use: Use, client: Any, ends: float) -> tuple[list[ListedFile], str, bool]:
    """Returns files that a path matches, what was seen, and whether that was all."""
    bucket, name = split_path(use.path)
    with explained(bucket, use.what):
        # A plain name wins: objects may have `[` in their names.
        plain = client.list_blobs(
            bucket, prefix=name, max_results=1, retry=storage_retry()
        )
        found = [_listed(bucket, blob) for blob in plain if blob.name == name]
        if found and not name.endswith("/"):
            return found, "", True
        prefix, deep, matches = _listing(name)
        blobs = client.list_blobs(
            bucket,
            prefix=prefix,
            delimiter=None if deep else "/",
            fields="items(name,size),nextPageToken,prefixes",
            retry=storage_retry(),
        )
        found, seen, example = [], 0, ""
        for page in blobs.pages:
            for blob in page:
                seen += 1
                example = example or f", such as gs://{bucket}/{blob.name}"
                if matches(blob.name):
                    found.append(_listed(bucket, blob))
            late = time.monotonic() > ends
            if late or (found and len(found) >= _MOST_FILES):
                break
    said = f"{seen or 'no'} object{'s' if seen > 1 else ''} with the prefix"
    return found, f"{said} gs://{bucket}/{prefix}{example}", not blobs.next_page_token


def _listing(name: str) -> tuple[str, bool, Callable[[str], bool]]:
    """Returns the prefix to list, whether to go below, and what takes a name."""
    if has_magic(name):
        fits = compile_pattern(name).fullmatch
        prefix, deep = listing_of(name)
        return prefix, deep, lambda other: not other.endswith("/") and bool(fits(other))
    prefix = f"{name.rstrip('/')}/" if name.strip("/") else ""

    def directly_in(other: str) -> bool:
        # As `match_inputs` does: others are markers and unfinished files.
        last = other.rpartition("/")[2]
        return bool(last) and not last.startswith((".", "_"))

    return prefix, False, directly_in


def _listed(bucket: str, blob: Any) -> ListedFile:
    return ListedFile(f"gs://{bucket}/{blob.name}", int(blob.size or 0))


def shard_sizes(listed: Listed, plan: PlanOptions, *, copies: int = 1) -> ShardSizes:
    """Returns facts about a job's shards; those of more files are no smaller.

    All files are taken to be compressed if the largest is, and as much: that is seen in
    its first bytes.

    Args:
        listed: The input files.
        plan: How they are cut.
        copies: How often what a shard is made of is on disk at once; each counts.

    Raises:
        InputError: They cannot be cut so.
    """
    sizes = np.array([file.size_bytes for file in listed.files], np.int64)
    if not len(sizes):
        size_bytes = plan.value if plan.kind == "shard_bytes" else None
        return ShardSizes(size_bytes and size_bytes * copies, None)
    largest_file = max(listed.files, key=lambda file: file.size_bytes)
    inflation = _inflation(largest_file.path)
    total = float(sizes.sum())
    if plan.kind == "num_shards" and not listed.whole:
        largest = total / (plan.value or 1)
    else:
        splittable = np.full(len(sizes), inflation is None)
        cuts = plan_by_bytes(plan, sizes, splittable).cut_bytes
        largest = float(np.diff(cuts).max(initial=0))
    times = copies * (inflation or _decoded_times(largest_file))
    return ShardSizes(
        int(largest * times),
        int(total * times) if listed.whole else None,
    )


def _decoded_times(file: ListedFile) -> float:
    """Returns the decoded bytes of a byte of a file.

    The footer of ArrayRecord tells, a sample of Parquet; 1 for others.
    """
    storage = storage_for(file.path)
    found = format_of(storage.read(file.path, 0, HEAD_BYTES))
    if found is not None and found.name == FORMATS["parquet"].found_as:
        return max(1.0, _decoded_rows(file) / file.size_bytes)
    if found is None or found.name != ARRAY_RECORD:
        return 1.0
    read = functools.partial(storage.read, file.path)
    try:
        footer = read_footer(read, file.size_bytes, path=file.path)
    except CorruptShardError:
        return 1.0  # The job says so, with its place.
    return max(1.0, float(footer.chunk_decoded_bytes.sum()) / file.size_bytes)


def _decoded_rows(file: ListedFile) -> float:
    """Returns about how large all rows of a Parquet file are, 0 if that is not known.

    The footer tells the size of encoded pages alone: of values that repeat, a few bytes
    can stand for gigabytes. So the first rows of some row groups are decoded.
    """
    decoded_bytes = 0.0
    try:
        with ParquetFile(file.path, file.size_bytes, None) as table:
            groups = table.places.groups
            some = groups[:: max(1, len(groups) // _SAMPLED_GROUPS)]
            for group in some:
                names = table.schema.names
                sample = table.batches(group, names, most_rows=_SAMPLED_ROWS)
                batch = next(sample, None)
                if batch is not None and batch.num_rows:
                    rows = table.places.rows / len(some)
                    decoded_bytes += batch.nbytes / batch.num_rows * rows
    except (CorruptRecordError, InputError, MissingPackageError):
        return 0.0  # The job says so, with its place.
    return decoded_bytes


def _inflation(path: str) -> float | None:
    """Returns the bytes in one byte of a compressed file, None for a plain one.

    What its first bytes tell: few files are read to plan a job.
    """
    head = storage_for(path).read(path, 0, _SAMPLE_BYTES)
    compression = compression_of(head)
    if compression == "none":
        return None
    stream = InflatedStream(io.BytesIO(head), path=path, compression=compression)
    inflated_bytes = 0
    try:
        while inflated_bytes < _MOST_INFLATED_BYTES and (
            piece := stream.read(_MOST_INFLATED_BYTES - inflated_bytes)
        ):
            inflated_bytes += len(piece)
    except CorruptStreamError:
        if not inflated_bytes:
            return 1.0  # Damaged: the job says so, with its place.
    taken = stream.compressed_offset
    return max(1.0, inflated_bytes / max(1, taken))
