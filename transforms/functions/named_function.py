"""User-defined functions, imported by name."""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import pathlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from gristmill.dataset.base.errors import InputError

_CURE = "give module:function, importable from the current directory or installed"
_BEAM_WORKER = "apache_beam.runners.worker.sdk_worker_main"
_PATIENCE_SECONDS = 5.0


def split_name(spec: str) -> tuple[str, str]:
    """Returns the module and function named by `module:function`.

    Raises:
        InputError: It does not have that form.
    """
    module_name, colon, name = spec.partition(":")
    if not (module_name and colon and name):
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
    if file is None:  # It is built into the interpreter.
        return ""
    return "sha256:" + hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest()
