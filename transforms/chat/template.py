"""Chat templates: Jinja in a sandbox, read from their file when a job is planned."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.dataset.base.errors import InputError, MissingPackageError, some_of
from gristmill.dataset.metadata.layout import join
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.chat.conversation import UnusableError
from gristmill.transforms.jobs.pack_options import (
    ChatOptions,
    PackOptions,
    TemplateSpec,
)

_CONFIG = "tokenizer_config.json"
_TOKENS = tuple(
    f"{name}_token" for name in ["bos", "eos", "unk", "sep", "pad", "cls", "mask"]
)
_MOST_BYTES = 64 << 20

DEFAULT, WITH_TOOLS = "default", "tool_use"
"""Names of templates: for all conversations, or for those with tools."""


REASONING = ("reasoning_content", "thinking", "reasoning")
"""Fields of messages that hold the assistant's thoughts."""

Message = Mapping[str, Any]


class TemplateFailedError(UnusableError):
    """The template fails at a conversation."""

    what = "the template fails"


class Template:
    """Renders conversations.

    Args:
        text: The template.
        tokens: Texts of special tokens, such as `bos_token`.
        date: The date for `strftime_now`, as YYYY-MM-DD; "" for none.

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
            tools: Descriptions of tools; None for none.
            prompt: Whether to add the prompt for generation.
            around: Texts to write around the contents of generation tags.

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
    """Returns a message with its reasoning under all names that templates use."""
    for name in REASONING:
        if message.get(name) is not None:
            found = message[name]
            return {"thinking": found, **message, "reasoning_content": found}
    return message


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    line = getattr(error, "lineno", None)
    return f"{text}, in line {line:,}" if line else text


def with_template(options: PackOptions) -> PackOptions:
    """Returns options with the template found; unchanged if there are no conversations.

    Raises:
        InputError: The template cannot be used.
        MissingPackageError: jinja2 is not installed.
        StorageError: Its file cannot be read.
    """
    chat = options.chat
    if chat is None:
        return options
    texts, tokens = _read(chat.template)
    known = options.found.special_ids if options.found is not None else {}
    by_id = {str(number): text for text, number in known.items()}
    for name, given in (("bos_token", options.bos), ("eos_token", options.eos)):
        if given:  # The text of a token, or its id.
            tokens[name] = by_id.get(given, given)
    spec = TemplateSpec(texts=texts, tokens=tokens)
    chat = dataclasses.replace(chat, found=spec)
    used = {name for each in templates_of(chat).values() for name in each.variables}
    for name, option in (("bos_token", "--bos"), ("eos_token", "--eos")):
        if name in used and name not in tokens:
            raise InputError(
                f"the template writes {name}, and nothing says which token that is",
                where=chat.template,
                expected=f"{option}, or a {_CONFIG} beside the template",
                cure=f"give {option} with the text of the token",
            )
    return dataclasses.replace(options, chat=chat)


def templates_of(chat: ChatOptions) -> dict[str, Template]:
    """Returns the templates that were found, by name.

    Raises:
        InputError: One is not a template.
        MissingPackageError: jinja2 is not installed.
    """
    if chat.found is None:
        raise ValueError("the template of the job is not known yet")
    tokens = tuple(sorted(chat.found.tokens.items()))
    try:
        return {
            name: _compiled(text, tokens, chat.date)
            for name, text in chat.found.texts.items()
        }
    except ModuleNotFoundError as error:
        missing = MissingPackageError.of(error)
        if missing is None:
            raise
        raise missing from error
    except TemplateFailedError as error:
        raise InputError(
            "the template cannot be used",
            where=chat.template,
            expected="a template in Jinja",
            got=str(error),
            cure="correct the file",
        ) from error


@functools.lru_cache(maxsize=8)
def _compiled(text: str, tokens: tuple[tuple[str, str], ...], date: str) -> Template:
    return Template(text, dict(tokens), date=date)


def _read(path: str) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the templates in a file, and the special tokens that it names."""
    storage = storage_for(path)
    found = storage.stat(path)
    if found is None or found.size_bytes > _MOST_BYTES:
        raise InputError(
            "there is no such template",
            where=path,
            expected=f"a file of Jinja, or a {_CONFIG}",
            got="no file" if found is None else f"{found.size_bytes:,} bytes",
            cure="check the path; nothing is downloaded by name",
        )
    try:
        text = storage.read(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            "the template is not UTF-8",
            where=f"{path}, byte {error.start:,}",
            cure="give a file of text",
        ) from error
    config = _config(text)
    if config is None:  # The tokens are in the file beside the template, if any.
        folder = path.rpartition("/")[0]
        beside = join(folder, _CONFIG) if folder else _CONFIG
        storage = storage_for(beside)
        if storage.stat(beside) is not None:
            config = _config(storage.read(beside))
        return {DEFAULT: text}, _tokens_of(config or {})
    texts = config.get("chat_template")
    if isinstance(texts, str):
        texts = {DEFAULT: texts}
    elif isinstance(texts, list):  # Several templates, each with its name.
        with contextlib.suppress(KeyError, TypeError):
            texts = {each["name"]: each["template"] for each in texts}
    if not isinstance(texts, dict) or not isinstance(texts.get(DEFAULT), str):
        raise InputError(
            "the file has no chat_template",
            where=path,
            expected="a chat_template: a text, or several, one of them named default",
            got=f"JSON with the fields {some_of(config, 6)}",
            cure="give the file of the template, often chat_template.jinja beside it",
        )
    return {str(name): str(each) for name, each in texts.items()}, _tokens_of(config)


def _config(text: str | bytes) -> dict[str, Any] | None:
    """Returns the object of a JSON text, None for any other text."""
    with contextlib.suppress(ValueError, RecursionError):
        config = json.loads(text)
        return config if isinstance(config, dict) else None
    return None


def _tokens_of(config: Mapping[str, Any]) -> dict[str, str]:
    found = {name: config.get(name) for name in _TOKENS}
    texts = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in found.items()
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}
