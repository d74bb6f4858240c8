"""The description of an option, and fields of dataclasses that carry one."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

# POSIX extended regular expressions, as Dataflow checks the parameters of templates.
# They must match the whole value. Python's `re` reads them alike.
GS_PATH = "gs://[^,]+"
GS_PATHS = f"{GS_PATH}(,{GS_PATH})*"
POSITIVE = "0*[1-9][0-9]*"
SIZE = "[0-9]+([.][0-9]+)? *([kKmMgGtTpP]?[bB]|[kKmMgGtTpP][iI][bB])?"

Kind = Literal["paths", "text", "file", "integer", "number", "choice", "flag"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """One option of a command.

    Attributes:
        name: Name of the field, and of the parameter of a template.
        kind: Type of its value. `paths` are several arguments on the command line, and
            a list separated by commas in a template.
        default: Value if the option is not given.
        help: What it does, in sentences; "" of an argument.
        label: A few words, the heading of its field in the Google Cloud console.
        group: Heading above its field in the Google Cloud console.
        example: A value, for the help text of a template.
        param_type: Type of the parameter of a template, if `kind` does not say it.
        shown: The default as shown to people, if `default` does not say it.
        metavar: Placeholder of the value in help texts.
        regex: POSIX extended regular expression for the values of a template.
        choices: All values of a `choice`.
        least: Smallest value of an `integer` or a `number`.
        most: Largest value of an `integer`.
        short: A second spelling on the command line.
        required: Whether it must be given.
        is_argument: Whether it has no name on the command line.
        first: Whether it stands before all others.
        last: Whether it stands after all others.
        tells: Whether a template asks for it although it has a default: it tells the
            template from others.
    """

    name: str
    kind: Kind
    default: Any
    help: str
    label: str = ""
    group: str = ""
    example: str = ""
    param_type: str | None = None
    shown: str | None = None
    metavar: str | None = None
    regex: str | None = None
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: int | None = None
    short: str | None = None
    required: bool = False
    is_argument: bool = False
    first: bool = False
    last: bool = False
    tells: bool = False

    @property
    def is_asked_for(self) -> bool:
        """Whether a template does not go without it."""
        return self.required or self.tells

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return "--" + self.name.replace("_", "-")


def option(kind: Kind, label: str, help: str, default: Any = None, **more: Any) -> Any:
    """Returns the field of an option of a template, which need not be given."""
    about = {"kind": kind, "label": label, "help": help, **more}
    return dataclasses.field(default=default, metadata=about)


def required(kind: Kind, label: str, help: str, **more: Any) -> Any:
    """Returns the field of an argument that must be given."""
    more = {"required": True, "is_argument": True, **more}
    return option(kind, label, help, dataclasses.MISSING, **more)


def argument(kind: Kind = "text", *, required: bool = True, **more: Any) -> Any:
    """Returns the field of an argument of a command alone."""
    default = dataclasses.MISSING if required else None
    return option(kind, "", "", default, required=required, is_argument=True, **more)


def text(help: str, metavar: str, shown: str | None = None, **more: Any) -> Any:
    """Returns the field of a text, which is an option of a command alone."""
    return option("text", "", help, metavar=metavar, shown=shown, **more)


def number(help: str, metavar: str, default: float, **more: Any) -> Any:
    """Returns the field of a number, which is an option of a command alone."""
    return option("number", "", help, default, metavar=metavar, **more)


def integer(help: str, default: int | None = None, **more: Any) -> Any:
    """Returns the field of an integer, which is an option of a command alone."""
    return option("integer", "", help, default, **more)


def choice(help: str, choices: tuple[str, ...], **more: Any) -> Any:
    """Returns the field of a choice, the first by default, of a command alone."""
    return option("choice", "", help, choices[0], choices=choices, **more)


def flag(help: str, **more: Any) -> Any:
    """Returns the field of a flag, which is an option of a command alone."""
    return option("flag", "", help, False, **more)


def split_name(help: str, shown: str = "the only one") -> Any:
    """Returns the field of `--split`."""
    return text(help, "NAME", shown)


def tokenizer_of_rows(effect: str = "shows tokens as text.") -> Any:
    """Returns an option for the tokenizer by which packed rows are shown."""
    help = f"Tokenizer of packed rows, as for gristmill pack: {effect}"
    return text(help, "FILE", "none: tokens are ids")


def worker_count(help: str = "Number of worker processes on this machine.") -> Any:
    """Returns the field of `--workers`."""
    return integer(help, shown="all cores", least=1)


def like(kind: type[Any], name: str, **changes: Any) -> Any:
    """Returns a field with the description of another, and some changes."""
    (field,) = (each for each in dataclasses.fields(kind) if each.name == name)
    default = changes.pop("default", field.default)
    return dataclasses.field(default=default, metadata={**field.metadata, **changes})


def options_of(kind: type[Any]) -> tuple[Option, ...]:
    """Returns the descriptions of all options of a dataclass, in order."""
    options = (
        Option(
            name=field.name,
            default=None if field.default is dataclasses.MISSING else field.default,
            **field.metadata,
        )
        for field in dataclasses.fields(kind)
        if field.metadata
    )
    return tuple(sorted(options, key=lambda option: not option.first))
