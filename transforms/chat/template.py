"""A chat template: Jinja in a sandbox, with what templates of models expect."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

BEGIN, END = "gristmill_generation_begin", "gristmill_generation_end"
"""Variables whose texts stand around what a generation tag holds."""

_REASONING = ("reasoning_content", "thinking", "reasoning")

Message = Mapping[str, Any]


class TemplateFailedError(Exception):
    """The template fails at a conversation; its text says why."""


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
        """Returns what the tag holds."""
        text: str = caller()
        return text


class Template:
    """Renders conversations.

    Args:
        text: The template.
        tokens: Texts of special tokens, such as `bos_token`.
        date: The date that `strftime_now` tells, as YYYY-MM-DD; "" for none.

    Attributes:
        has_generation: Whether it has generation tags.
        variables: The names that it uses and does not set.

    Raises:
        TemplateFailedError: It is not a template.
    """

    def __init__(self, text: str, tokens: Mapping[str, str], *, date: str = "") -> None:
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, jinja2.ext.loopcontrols],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        told = datetime.datetime.fromisoformat(date or "1970-01-01")
        environment.globals["strftime_now"] = told.strftime
        try:
            parsed = environment.parse(text)
            self.variables = frozenset(jinja2.meta.find_undeclared_variables(parsed))
            self._template = environment.from_string(text)
        except jinja2.TemplateError as error:
            raise TemplateFailedError(_reason(error)) from error
        except RecursionError as error:
            raise TemplateFailedError("it is nested too deeply") from error
        self.has_generation = BEGIN in self.variables
        self.variables -= {BEGIN, END}
        self._tokens = dict(tokens)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None,
        *,
        prompt: bool = False,
        around: tuple[str, str] = ("", ""),
    ) -> str:
        """Returns the text of a conversation.

        Args:
            messages: The messages.
            tools: Descriptions of tools, None for none.
            prompt: Whether the prompt for generation follows them.
            around: Texts to write around what generation tags hold.

        Raises:
            TemplateFailedError: The template fails.
        """
        variables: dict[str, Any] = {
            "messages": [_with_reasoning(message) for message in messages],
            "tools": tools,
            "documents": None,
            "add_generation_prompt": prompt,
            **self._tokens,
        }
        if self.has_generation:
            variables |= {BEGIN: around[0], END: around[1]}
        try:
            return self._template.render(variables)
        except Exception as error:  # The code of a template can raise anything.
            raise TemplateFailedError(_reason(error)) from error


def _with_reasoning(message: Message) -> Message:
    """Returns a message with its reasoning under all names that templates know."""
    for name in _REASONING:
        if message.get(name) is not None:
            found = message[name]
            return {"thinking": found, **message, "reasoning_content": found}
    return message


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
    raise jinja2.TemplateError(str(message))


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    line = getattr(error, "lineno", None)
    return f"{text}, in line {line:,}" if line else text
