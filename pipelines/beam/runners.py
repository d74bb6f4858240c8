"""The runners of Beam, by name."""

from __future__ import annotations

import difflib
import importlib

from apache_beam.options.pipeline_options import StandardOptions
from apache_beam.runners.runner import PipelineRunner

from gristmill.dataset.base.errors import InputError, MissingPackageError

# Beam knows this one by its full name only.
_DASK = "apache_beam.runners.dask.dask_runner.DaskRunner"
_KNOWN = {
    path.rpartition(".")[2]: path
    for path in (*StandardOptions.ALL_KNOWN_RUNNERS, _DASK)
}


def runner_path(name: str) -> str:
    """Returns the full name of a runner, once its module is imported.

    The module of a runner may define options of its own, which Beam then knows.

    Args:
        name: Such as `FnApiRunner`, `dataflow` or `my_package.MyRunner`.

    Raises:
        InputError: There is no such runner, or it cannot be imported.
        MissingPackageError: It needs an optional package that is not installed.
    """
    given = name.lower().removesuffix("runner")
    short = {
        known.lower().removesuffix("runner"): path for known, path in _KNOWN.items()
    }
    path = short.get(given, name)
    module, _, attribute = path.rpartition(".")
    if not module:
        raise InputError(
            "unknown Beam runner",
            expected=f"one of {', '.join(sorted(_KNOWN))}",
            got=repr(name),
            cure=f"{_meant(given, short)}give one of these as --runner, or the full "
            "name of a class such as my_package.MyRunner; leave out --runner to run "
            "without Beam",
        )
    try:
        if path == _DASK:  # Its module can be imported without Dask.
            importlib.import_module("dask.distributed")
        kind: object = getattr(importlib.import_module(module), attribute)
    except Exception as e:  # Importing runs foreign code, which can raise anything.
        if isinstance(e, ModuleNotFoundError) and not module.startswith(e.name or ""):
            missing = MissingPackageError.of(e)
            if missing is not None:
                raise missing from e
        raise InputError(
            "the Beam runner cannot be imported",
            where=path,
            got=f"{type(e).__name__}: {e}",
            cure="check the name, and install the packages that the runner needs",
        ) from e
    if not (isinstance(kind, type) and issubclass(kind, PipelineRunner)):
        raise InputError(
            "this is no Beam runner",
            where=path,
            expected="a subclass of apache_beam.runners.PipelineRunner",
            got=repr(kind),
            cure="check the name",
        )
    return path


def _meant(given: str, short: dict[str, str]) -> str:
    near = difflib.get_close_matches(given, short, n=1)
    return f"did you mean {short[near[0]].rpartition('.')[2]}? " if near else ""


def takes_other_options(name: str) -> bool:
    """Returns whether a runner takes options that Beam's parser does not know.

    Job services of portable runners say themselves which options they have.
    """
    from apache_beam.runners.portability.portable_runner import PortableRunner

    module, _, attribute = runner_path(name).rpartition(".")
    kind = getattr(importlib.import_module(module), attribute)
    return issubclass(kind, PortableRunner)
