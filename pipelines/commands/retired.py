"""Commands and options that are gone, and what to use instead."""

from __future__ import annotations

import click

# Each completes: "is gone: ...". A command or an option that exists is never looked up.
_INSTEAD = {
    "blame": "`gristmill trace` finds the documents of a step's rows",
    "diff": "compare the digests that `gristmill inspect DATASET --edition N` prints",
    "repack": "pack the documents again, without those that were removed from them",
    "status": "`gristmill inspect DATASET` says how far a job is",
    "--check": "leave it out; every finished shard is compared with what was read",
    "--place": "join by a feature with --key, or by the record's number with --number",
    "--records-per-shard": "give --num-shards N or --shard-size SIZE",
    "--unique": "`gristmill unique DATASET` adds the column duplicate_of; then convert "
    "or pack it with --select 'duplicate_of < 0'",
}


def retired(error: click.UsageError, name: str) -> click.UsageError:
    """Returns the error for a command or option that is gone, else `error` itself."""
    if name not in _INSTEAD:
        return error
    return click.UsageError(f"{name} is gone: {_INSTEAD[name]}")
