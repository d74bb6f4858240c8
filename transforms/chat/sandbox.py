"""The sandbox of chat templates: Jinja with the extensions that models' templates use.

Only this module imports jinja2, which is an optional package.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
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
"""Variables whose texts enclose the content of a generation tag."""


_STEP, _SIZED = "gristmill_step", "gristmill_sized"
_RANDOM = ("random", "lipsum", "shuffle")
# Filters and methods of strings that can produce large results from small arguments.
_WIDE = (
    *("center", "ljust", "rjust", "zfill", "expandtabs", "indent", "wordwrap"),
    *("batch", "slice", "tojson", "format", "replace"),
)
_WIDTH = re.compile(r"(?:%[-#0 +]*|\{[^{}]*:[^{}]*?)(\d+)")
_MOST_STEPS = 100_000
_MOST_CHARS = 16 << 20
_MOST_NUMBER = 1_000


class _Generation(jinja2.ext.Extension):
    """The tag `generation`, which holds the text of the assistant."""

    tags = {"generation"}  # noqa: RUF012 as jinja2 declares it

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        around = [
            jinja2.nodes.Output([jinja2.nodes.Name(name, "load")], lineno=line)
            for name in (BEGIN, END)
        ]
        call = self.call_method("held", lineno=line)
        # It has a scope of its own: variables set in it are unknown after it.
        held = jinja2.nodes.CallBlock(call, [], [], [around[0], *body, around[1]])
        return held.set_lineno(line)

    def held(self, caller: Any) -> str:
        """Returns the text within the tag."""
        text: str = caller()
        return text


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox, which bounds a template's turns of loops and size of texts."""

    intercepted_binops = frozenset(("*", "**", "%"))

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._left = threading.local()
        self.filters[_STEP] = jinja2.pass_context(functools.partial(self.step))
        self.filters[_SIZED] = _sized
        for name in _RANDOM:
            self.globals.pop(name, None)
            self.filters[name] = functools.partial(_refuse_random, name)
        self.filters["tojson"] = _to_json
        for name in _WIDE:
            if name in self.filters:
                self.filters[name] = _bounded(name, self.filters[name])

    def begin(self) -> None:
        """Begins a rendering."""
        self._left.steps = _MOST_STEPS

    def step(self, context: Any, value: Any) -> Any:
        """Counts a turn of a loop, or a call."""
        del context
        self._left.steps -= 1
        if self._left.steps < 0:
            raise TemplateError(f"its loops have more than {_MOST_STEPS:,} turns")
        return value

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Checks the size of an operator's result."""
        name = f"the operator {operator}"
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, str | list | tuple) and isinstance(times, int):
                    _check_size(name, len(many) * times)
        elif operator == "**" and isinstance(right, int | float):
            _check_size(name, abs(int(right)))
        elif operator == "%" and isinstance(left, str):
            _check_call("format", (left,), {})
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, called: Any, *args: Any, **named: Any) -> Any:
        """Counts a call, and checks the arguments of methods of strings."""
        self.step(context, None)
        if isinstance(called, jinja2.runtime.Macro):
            for each in (*args, *named.values()):
                _sized(each)
        text = getattr(called, "__self__", None)
        if text is None:  # The sandbox wraps `format`.
            text = getattr(getattr(called, "__wrapped__", None), "__self__", None)
        if isinstance(text, str) and called.__name__ in _WIDE:
            _check_call(called.__name__, (text, *args), named)
        return _sized(super().call(context, called, *args, **named))

    def _parse(self, source: str, name: Any, filename: Any) -> jinja2.nodes.Template:
        parsed = super()._parse(source, name, filename)
        for loop in [*parsed.find_all(jinja2.nodes.For)]:
            turn = _filtered(jinja2.nodes.Const(None), _STEP)
            loop.body.insert(0, jinja2.nodes.ExprStmt(turn, lineno=loop.lineno))
        # A text that grows from turn to turn is assigned, or passed to a macro.
        for assign in [*parsed.find_all(jinja2.nodes.Assign)]:
            parts = (jinja2.nodes.Add, jinja2.nodes.Concat)
            if isinstance(assign.node, parts) or any(map(assign.node.find, parts)):
                assign.node = _filtered(assign.node, _SIZED)
        return parsed


def _filtered(value: Any, name: str) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(value, name, [], [], None, None, lineno=value.lineno)


def _sized(value: Any) -> Any:
    """Returns a value; raises TemplateError for a text that is too long."""
    if isinstance(value, str):
        _check_size("the template", len(value))
    return value


def _bounded(name: str, filter_: Any) -> Any:
    """Returns a filter whose arguments are checked first."""

    @functools.wraps(filter_)
    def checked(*args: Any, **named: Any) -> Any:
        _check_call(name, args, named)
        return filter_(*args, **named)

    return checked


def _refuse_random(name: str, *args: Any, **named: Any) -> str:
    del args, named
    raise TemplateError(f"{name} draws at random: each run would give other rows")


def _check_call(name: str, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Checks the arguments of a filter, or of a method of a string."""
    if name not in _WIDE:
        return
    texts = [each for each in (*args, *named.values()) if isinstance(each, str)]
    if name == "replace" and len(texts) > 2:
        _check_size(f"the filter {name}", len(texts[0]) * (1 + len(texts[-1])))
        return
    numbers = [n for n in (*args, *named.values()) if isinstance(n, int)]
    if name == "format":
        numbers += map(int, _WIDTH.findall(texts[0] if texts else ""))
    if max(numbers, default=0) > _MOST_NUMBER:
        raise TemplateError(
            f"the filter {name} is given {max(numbers):,}; at most {_MOST_NUMBER:,}"
        )


def _check_size(name: str, size: int) -> None:
    if size > _MOST_CHARS:
        raise TemplateError(f"{name} makes {size:,} characters or more")


Render = Callable[[Mapping[str, Any]], str]


def compiled(text: str, *, date: str) -> tuple[Render, frozenset[str]]:
    """Returns a function that renders a template, and its undeclared variables.

    Args:
        text: The template.
        date: The date for `strftime_now`, as YYYY-MM-DD; "" for none.

    Raises:
        RecursionError: It is nested too deeply.
        TemplateError: It is not a template.
    """
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, jinja2.ext.loopcontrols],
    )
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = functools.partial(_told, date)
    variables = frozenset(
        jinja2.meta.find_undeclared_variables(environment.parse(text))
    )
    template = environment.from_string(text)

    def render(given: Mapping[str, Any]) -> str:
        environment.begin()
        return template.render(given)

    return render, variables


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Returns JSON as models' templates expect it: HTML is not escaped."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: object) -> str:
    raise TemplateError(str(message))


def _told(date: str, how: str) -> str:
    if not date:
        raise TemplateError("it prints today's date: give one with --date")
    return datetime.datetime.fromisoformat(date).strftime(how)
