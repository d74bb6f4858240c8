"""The input files of a job, as far as they can be listed in seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.storage.paths import (
    compile_pattern,
    has_magic,
    listing_of,
    split_path,
)
from gristmill.pipelines.dataflow.buckets import Use, explained
from gristmill.pipelines.dataflow.clients import storage_retry
from gristmill.transforms.planning.shard_plan import PlanOptions

_SECONDS = 10.0
_MOST_FILES = 10_000


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


class Shards(NamedTuple):
    """The shards of a job, as far as its inputs are listed.

    Attributes:
        number: How many there are at least.
        largest_bytes: Stored input of the largest, at least.
        total_bytes: Stored input of all; None where not all is listed.
    """

    number: int
    largest_bytes: int
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


def shards_of(listed: Listed, plan: PlanOptions, *, copies: int = 1) -> Shards:
    """Returns facts about a job's shards; those of more files are no smaller.

    Args:
        listed: The input files.
        plan: How they are cut.
        copies: How often what a shard is made of is on disk at once; each counts.
    """
    sizes = [file.size_bytes for file in listed.files]
    total, value = sum(sizes), plan.value or 1
    number, largest = len(sizes), max(sizes, default=0)
    if plan.kind == "num_shards":
        number, largest = value, -(-total // value)
    elif plan.kind == "shard_bytes":
        number, largest = (
            -(-total // value),
            min(value, total) if listed.whole else value,
        )
    return Shards(number, largest * copies, total * copies if listed.whole else None)
