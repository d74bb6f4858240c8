"""Errors as a user is told of them."""

import contextlib

import pytest


@contextlib.contextmanager
def told(error, *parts, match=None, **facts):
    """Expects an error that says some parts, and has some facts, such as `where`."""
    with pytest.raises(error, match=match) as caught:
        yield
    for part in parts:
        assert part in str(caught.value)
    for name, fact in facts.items():
        assert getattr(caught.value, name) == fact
