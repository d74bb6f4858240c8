"""The handshake: workers run the same sources that built the pipeline.

Functions are pickled by name. In another checkout a name may be missing or mean
something else, although both have the same version. Therefore the first step compares
digests of the sources. It travels as code, since the worker may lack this package.
"""

from __future__ import annotations

import functools
import hashlib
import pathlib
import pickle
from collections.abc import Callable
from importlib.resources import files
from typing import Any, TypeVar

from gristmill import __version__

T = TypeVar("T")

_FOLDERS = ("dataset", "pipelines", "transforms")


@functools.cache
def sources_digest() -> str:
    """Returns a digest of the installed sources, 12 hex digits.

    In a checkout: `find dataset pipelines transforms -name '*.py' | LC_ALL=C sort |
    xargs sha256sum | sha256sum | cut -c1-12`.
    """
    lines = []
    for folder in _FOLDERS:
        # In an editable installation every file is a link to the checkout.
        init = pathlib.Path(str(files(f"gristmill.{folder}") / "__init__.py"))
        place = init.resolve().parent
        for path in place.rglob("*.py"):
            name = f"{folder}/{path.relative_to(place).as_posix()}"
            lines.append((name, hashlib.sha256(path.read_bytes()).hexdigest()))
    text = "".join(f"{digest}  {name}\n" for name, digest in sorted(lines))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def code_here() -> str:
    """Returns this process's version and digest of sources, for messages."""
    return f"gristmill {__version__}, sources {sources_digest()}"


def sent(function: Callable[..., T], *options: Any) -> Callable[[Any], T]:
    """Returns a function for a pipeline's first step, which fails under other sources.

    Args:
        function: A function of a module, called with an element.
        options: Its further arguments.
    """
    expected, content = code_here(), pickle.dumps((function, options))
    said = (
        "the workers have another gristmill than made the pipeline\n"
        f"  expected: {expected}\n  got:      %s\n"
        "  to do:    build the image again with deploy/build.sh, or make the pipeline "
        "where the same sources are installed"
    )

    # It travels as code, since it is a closure.
    def call(element: Any) -> Any:
        try:
            from gristmill.transforms.beam.same_code import code_here, opened
        except ImportError as e:
            raise RuntimeError(said % f"none, or an older one: {e}") from e
        if code_here() != expected:
            raise RuntimeError(said % code_here())
        made, options = opened(content)
        return made(element, *options)

    call.__name__ = function.__name__  # Beam shows it.
    return call


@functools.cache
def opened(content: bytes) -> Any:
    """Returns the function and its options, pickled by `sent`."""
    return pickle.loads(content)
