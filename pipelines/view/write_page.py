"""Puts the page and its answers into one HTML file."""

from __future__ import annotations

import functools
import importlib.resources
import json
from collections.abc import Mapping
from typing import Any

from gristmill.pipelines.view.answers.ask import ask
from gristmill.pipelines.view.answers.opened import Opened

_PAGE = importlib.resources.files(__package__) / "page" / "index.html"


@functools.cache
def page() -> bytes:
    """Returns the page that asks a server."""
    return _PAGE.read_bytes()


def write_html(opened: Opened, path: str) -> None:
    """Writes the page with answers in it to a file."""
    address = "api/overview"
    answers: Mapping[str, Any] = {address: ask(opened, address)}
    text = json.dumps(answers).replace("<", "\\u003c")
    data = page().replace(b"null;//answers", text.encode("ascii") + b";")
    with open(path, "wb") as file:
        file.write(data)
