"""Errors: what is wrong, where, expected and got, and what to do about it."""

from __future__ import annotations


class GristmillError(Exception):
    """Base of every error that gristmill raises on purpose.

    The message has up to four lines: what is wrong, where, expected and got, cure.

    Args:
        what: What is wrong, one sentence without a final full stop.
        where: File, byte offset, record or shard, as far as known.
        expected: What should have been there.
        got: What was there.
        cure: What the reader of the message can do.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        expected: object = None,
        got: object = None,
        cure: str | None = None,
    ) -> None:
        lines = [what]
        if where is not None:
            lines.append(f"  where:    {where}")
        if expected is not None:
            lines.append(f"  expected: {expected}")
        if got is not None:
            lines.append(f"  got:      {got}")
        if cure is not None:
            lines.append(f"  to do:    {cure}")
        # One positional argument: errors travel between processes by pickle, which
        # calls the class with `args` alone.
        super().__init__("\n".join(lines))

    def __str__(self) -> str:
        return str(self.args[0])


class InputError(GristmillError, ValueError):
    """The inputs or options of a job cannot be used as they are."""


class CorruptInputError(GristmillError, ValueError):
    """An input file holds bytes that are not what its format says."""


class CorruptShardError(GristmillError, ValueError):
    """A shard, or the index of one, holds bytes that are not what was written."""


class TransposedChunkError(GristmillError, ValueError):
    """A chunk is transposed: only the official reader decodes those."""


class NotADatasetError(GristmillError, FileNotFoundError):
    """A path holds no committed dataset."""


class FormatVersionError(GristmillError, ValueError):
    """A file was written in a version of the format that this code does not know."""


class InvalidDatasetError(GristmillError, ValueError):
    """What a dataset says of itself does not add up, or must not be trusted."""


class JobChangedError(GristmillError, ValueError):
    """Unfinished output belongs to a job with other inputs or options."""


class DataLossError(GristmillError, RuntimeError):
    """Counts or digests before and after a step differ: nothing was committed."""


class UserFunctionError(GristmillError, RuntimeError):
    """A function given by the user failed, or returned what it must not."""


class StorageError(GristmillError, OSError):
    """Storage refused to list, read, write or delete."""


class StorageChangedError(StorageError):
    """A file is not the one that was seen before: it was written again meanwhile."""


class WorkerDiedError(GristmillError, RuntimeError):
    """A worker process ended without a result."""


class JobError(GristmillError, RuntimeError):
    """A job on an engine elsewhere could not be submitted, or has failed."""
