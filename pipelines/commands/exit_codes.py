"""The exit codes of commands."""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DAMAGED = 3
EXIT_INTERRUPTED = 130

EPILOG = (
    "Exit codes: 0 done; 1 failed (storage, a worker, the --map function); 2 wrong "
    "usage, inputs or options; 3 damaged input, shard or dataset, or not a dataset; "
    "130 interrupted.\n\n"
    "Options can be environment variables: GRISTMILL_CONVERT_GROUP_SIZE is "
    "--group-size of convert."
)


def exit_code_of(error: Exception) -> int:
    """Returns the exit code of a command that an error ends."""
    from gristmill.dataset.base import errors

    damaged = (
        errors.CorruptInputError,
        errors.CorruptShardError,
        errors.InvalidDatasetError,
        errors.NotADatasetError,
        errors.DataLossError,
    )
    if isinstance(error, damaged):
        return EXIT_DAMAGED
    usage = (
        errors.InputError,
        errors.JobChangedError,
        errors.MissingPackageError,
        errors.OutOfRangeError,
        errors.StateMismatchError,
    )
    if isinstance(error, usage):
        return EXIT_USAGE
    return EXIT_FAILED
