"""User-defined functions: imported by name, called on records, named in errors."""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import pathlib
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from gristmill.dataset.base.errors import InputError, UserFunctionError

_CURE = "give module:function, importable from the current directory or installed"
_BEAM_WORKER = "apache_beam.runners.worker.sdk_worker_main"
_PATIENCE_SECONDS = 5.0


def split_name(spec: str) -> tuple[str, str]:
    """Returns the module and function named by `module:function`.

    Raises:
        InputError: It does not have that form.
    """
    module_name, colon, name = str(spec).partition(":")
    if not (isinstance(spec, str) and module_name and colon and name):
        raise InputError("not the name of a function", got=repr(spec), cure=_CURE)
    return module_name, name


def load_function(spec: str) -> Callable[..., Any]:
    """Imports the function named by `module:function`.

    The current directory is searched as well, as `python -m` does.

    Args:
        spec: Name such as `my_package.cleaning:lower_case`.

    Raises:
        InputError: There is no such function.
    """
    module_name, name = split_name(spec)
    directory = os.getcwd()
    if directory not in sys.path:
        sys.path.append(directory)
    try:
        function: object = importlib.import_module(module_name)
        for part in name.split("."):
            function = getattr(function, part)
    except Exception as e:  # Importing runs the user's code, which can raise anything.
        raise InputError(
            "cannot import the function",
            where=spec,
            got=f"{type(e).__name__}: {e}",
            cure=_CURE,
        ) from e
    if not callable(function):
        raise InputError("not a function", where=spec, got=repr(function), cure=_CURE)
    _end_beam_worker_in_time()
    return function


@functools.cache
def _end_beam_worker_in_time() -> None:
    """Ends a Beam worker process when it is done, whatever the module left running.

    Beam waits for the process without limit, after the commit.
    """
    main = getattr(sys.modules["__main__"], "__spec__", None)
    if main is not None and main.name == _BEAM_WORKER:
        threading.Thread(target=_end_after_main_thread, daemon=True).start()


def _end_after_main_thread() -> None:
    threading.main_thread().join()
    time.sleep(_PATIENCE_SECONDS)
    os._exit(0)


def code_digest(spec: str) -> str:
    """Returns a digest of the file that holds the function, or "".

    Shards of a resumed run must not come from two versions of the function. Modules
    that the file imports do not count.

    Args:
        spec: As in `load_function`.

    Raises:
        InputError: There is no such function.
    """
    load_function(spec)
    file = getattr(sys.modules[spec.partition(":")[0]], "__file__", None)
    if file is None:  # A module built into the interpreter.
        return ""
    return "sha256:" + hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest()


RecordFunction = Callable[[bytes], bytes | Sequence[bytes] | None]

_forks = 0  # Number of forks from the first process to this one.


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


def call_on_record(
    function: Callable[[bytes], Any], record: bytes, *, source: str, cure: str
) -> Any:
    """Calls the user's function on a record; returns any result.

    Args:
        function: The function.
        record: The record to pass.
        source: Where the record came from, for messages.
        cure: What to do when it fails.

    Raises:
        UserFunctionError: It failed.
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
            cure=cure,
        ) from e
    if forks != _forks:
        _end_forked(forks)
    return result


def call(function: RecordFunction, record: bytes, *, source: str) -> Sequence[bytes]:
    """Calls the user's function on one record.

    Args:
        function: The function.
        record: The record to pass.
        source: Where the record came from, for messages.

    Returns:
        The records to write instead: any number.

    Raises:
        UserFunctionError: It failed, or returned another type.
    """
    result = call_on_record(
        function,
        record,
        source=source,
        cure="fix the function, or return None for records to leave out, and run the "
        "same command again; with --overwrite if shards were finished: they were made "
        "by the old function",
    )
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
        "the --map function returned a value that cannot be written",
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


def _place(error: BaseException, function: Callable[[bytes], Any]) -> str:
    """Returns the last line in the function's own file that an error passed through."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # The first is the call.
    own = [frame for frame in frames if frame.filename == frames[0].filename]
    if not own:
        return repr(function)  # Not written in Python.
    frame = own[-1]
    return f"{frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}"
