"""A chat template: Jinja in a sandbox, with what templates of models expect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_REASONING = ("reasoning_content", "thinking", "reasoning")

Message = Mapping[str, Any]


class TemplateFailedError(Exception):
    """The template fails at a conversation; its text says why."""


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
        ModuleNotFoundError: jinja2 is not installed.
        TemplateFailedError: It is not a template.
    """

    def __init__(self, text: str, tokens: Mapping[str, str], *, date: str = "") -> None:
        from gristmill.transforms.chat import sandbox

        try:
            self._render, self.variables = sandbox.compiled(text, date=date)
        except sandbox.TemplateError as error:
            raise TemplateFailedError(_reason(error)) from error
        except RecursionError as error:
            raise TemplateFailedError("it is nested too deeply") from error
        self._around = (sandbox.BEGIN, sandbox.END)
        self.has_generation = sandbox.BEGIN in self.variables
        self.variables -= {*self._around}
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
            variables |= zip(self._around, around, strict=True)
        try:
            return self._render(variables)
        except Exception as error:  # The code of a template can raise anything.
            raise TemplateFailedError(_reason(error)) from error


def _with_reasoning(message: Message) -> Message:
    """Returns a message with its reasoning under all names that templates know."""
    for name in _REASONING:
        if message.get(name) is not None:
            found = message[name]
            return {"thinking": found, **message, "reasoning_content": found}
    return message


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    line = getattr(error, "lineno", None)
    return f"{text}, in line {line:,}" if line else text
