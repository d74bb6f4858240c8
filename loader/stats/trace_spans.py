"""Spans of a feed in the traces of JAX's profiler."""

from __future__ import annotations

import contextlib
import sys
from contextlib import AbstractContextManager
from typing import Any

WAIT = "gristmill.wait"
RECEIVE = "gristmill.receive"
SEND = "gristmill.send"

_NO_SPAN = contextlib.nullcontext()


def span(name: str, **fields: int) -> AbstractContextManager[Any]:
    """Returns a context that a trace of JAX shows as a span of this thread.

    Nothing is recorded while no trace runs, and JAX is not imported for it.

    Args:
        name: The name of the span.
        **fields: What the trace tells about it, such as its step.
    """
    annotation = getattr(sys.modules.get("jax.profiler"), "TraceAnnotation", None)
    if annotation is None:
        return _NO_SPAN
    made: AbstractContextManager[Any] = annotation(name, **fields)
    return made
