"""The sandbox of chat templates: Jinja, with what templates of models expect.

Only this module imports jinja2, which is an optional package.
"""

from __future__ import annotations

import datetime
import json
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
from jinja2 import TemplateError

__all__ = ["BEGIN", "END", "TemplateError", "compiled"]

BEGIN, END = "gristmill_generation_begin", "gristmill_generation_end"
"""Variables whose texts stand around what a generation tag holds."""


class _Generation(jinja2.ext.Extension):
    """The tag `generation`, which holds what the assistant says."""

    tags = {"generation"}  # noqa: RUF012 as jinja2 declares it

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        around = [
            jinja2.nodes.Output([jinja2.nodes.Name(name, "load")], lineno=line)
            for name in (BEGIN, END)
        ]
        call = self.call_method("held", lineno=line)
        # A scope of its own: what is set in it is not known after it.
        held = jinja2.nodes.CallBlock(call, [], [], [around[0], *body, around[1]])
        return held.set_lineno(line)

    def held(self, caller: Any) -> str:
        """Returns the text within the tag."""
        text: str = caller()
        return text


def compiled(text: str, *, date: str) -> tuple[jinja2.Template, frozenset[str]]:
    """Returns a template, and the names that it uses and does not set.

    Args:
        text: The template.
        date: The date that `strftime_now` tells, as YYYY-MM-DD; "" for none.

    Raises:
        RecursionError: It is nested too deeply.
        TemplateError: It is not a template.
    """
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    told = datetime.datetime.fromisoformat(date or "1970-01-01")
    environment.globals["strftime_now"] = told.strftime
    variables = jinja2.meta.find_undeclared_variables(environment.parse(text))
    return environment.from_string(text), frozenset(variables)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Returns JSON as templates of models expect it: HTML is not escaped."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: object) -> str:
    raise TemplateError(str(message))
