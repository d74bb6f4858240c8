"""The places where an output may be: apart from its inputs."""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Iterable

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.lookup import matcher_below


def check_not_matched(
    output: str, *, patterns: Collection[str], files: Iterable[str]
) -> None:
    """Raises InputError if an input pattern would match a file of the output.

    The next run would take it for an input.

    Args:
        output: The dataset's directory.
        patterns: The inputs, as they were given.
        files: Files that the output will have, relative to it.
    """
    matchers = [
        (pattern, matches)
        for pattern in patterns
        if (matches := matcher_below(pattern, output)) is not None
    ]
    for file in files if matchers else ():
        for pattern, matches in matchers:
            if matches(file):
                raise InputError(
                    "the output lies among the inputs: the next run would find it",
                    where=output,
                    expected="a directory where the input pattern matches no file",
                    got=f"{pattern} would match {layout.join(output, file)}",
                    cure=f"choose another output{_example(output, patterns)}, or give "
                    "a pattern of the input files alone",
                )


def check_holds_no_input(output: str, inputs: Iterable[str]) -> None:
    """Raises InputError if an input lies in the output's directory, at any depth.

    Patterns of these inputs would match `dataset.json`, shards or indexes as well, and
    whoever deletes or copies the dataset would take the inputs with it.
    """
    real = functools.lru_cache(maxsize=64)(_real)
    root = real(output.rstrip("/"))
    for path in inputs:
        parent, _, file = path.rpartition("/")
        place = real(parent if parent or not path.startswith("/") else "/")
        if f"{place}/".startswith(f"{root.rstrip('/')}/"):
            raise InputError(
                "the output is the directory of its inputs"
                if place == root
                else "the output is a parent directory of its inputs",
                where=output,
                expected="a directory of its own, without inputs in it",
                got=f"the input {file}" if place == root else f"the input {path}",
                cure=f"choose another output{_example(output, ())}",
            )


def _real(directory: str) -> str:
    return directory if "://" in directory else os.path.realpath(directory or ".")


def _example(output: str, patterns: Iterable[str]) -> str:
    """Returns an example of a directory beside the output or a parent, if there is one.

    No pattern matches `dataset.json` in it.
    """
    path = output.rstrip("/")
    # A bucket has no directory beside it.
    while path.rpartition("/")[2].strip(".") and path.rpartition("/")[0] != "gs:/":
        other = f"{path}-arrayrecord"
        matchers = [matcher_below(pattern, other) for pattern in patterns]
        if not any(matches and matches(layout.DATASET_JSON) for matches in matchers):
            return f", such as {other}"
        path = path.rpartition("/")[0]
    return ""
