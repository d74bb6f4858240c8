"""Calls of the user's function on every record, with errors that name it."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence

from gristmill.dataset.base.errors import UserFunctionError

RecordFunction = Callable[[bytes], bytes | Sequence[bytes] | None]

_forks = 0  # Number of forks from the first process to this one.


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


def call(function: RecordFunction, record: bytes, *, source: str) -> Sequence[bytes]:
    """Calls the user's function on one record.

    Args:
        function: The function.
        record: The record to pass.
        source: Where the record came from, for messages.

    Returns:
        The records to write instead: any number.

    Raises:
        UserFunctionError: It failed, or returned something else.
    """
    forks = _forks
    try:
        result = function(record)
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # sys.exit() too: the run would seem to succeed.
        _end_forked(forks)
        raise UserFunctionError(
            f"the --map function failed: {type(e).__name__}: {e}",
            where=_place(e, function),
            got=f"the record of {len(record):,} bytes at {source}",
            cure="fix the function, or return None for records to leave out, and run "
            "the same command again; with --overwrite if shards were finished: they "
            "were made by the old function",
        ) from e
    if forks != _forks:
        _end_forked(forks)
    if result is None:
        return ()
    if isinstance(result, bytes):
        return (result,)
    if isinstance(result, (list, tuple)) and all(isinstance(r, bytes) for r in result):
        return result
    kind = type(result).__name__
    if isinstance(result, (list, tuple)):
        kind += f" of {sorted({type(r).__name__ for r in result})}"
    raise UserFunctionError(
        "the --map function returned what cannot be written",
        where=f"the record of {len(record):,} bytes at {source}",
        expected="bytes, None, or a list of bytes",
        got=kind,
        cure="serialise the record in the function, with SerializeToString() for a "
        "tf.train.Example",
    )


def _end_forked(forks: int) -> None:
    """Ends a process that the function forked: it would write the shard as well."""
    if forks != _forks:
        os.write(
            2,
            b"note: the --map function forked a process, which was ended when "
            b"it returned\n",
        )
        os._exit(1)


def _place(error: BaseException, function: RecordFunction) -> str:
    """Returns the last line in the function's own file that an error passed through."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # The first one is `call`.
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    if not own:
        return repr(function)  # Not written in Python.
    frame = own[-1]
    return f"{frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}"
