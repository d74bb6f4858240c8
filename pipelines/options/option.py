"""The description of an option, and fields of dataclasses that carry one."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

Kind = Literal["paths", "text", "integer", "choice", "flag"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """One option of a pipeline.

    Attributes:
        name: Name of the field, and of the parameter of a template.
        kind: Type of its value. `paths` are several arguments on the command line, and
            a list separated by commas in a template.
        default: Value if the option is not given.
        label: A few words, the heading of its field in the Google Cloud console.
        help: What it does, in sentences.
        group: Heading above its field in the Google Cloud console.
        example: A value, for the help text of a template.
        param_type: Type of the parameter of a template, if `kind` does not say it.
        shown: The default as shown to people, if `default` does not say it.
        metavar: Placeholder of the value in help texts.
        regex: POSIX extended regular expression for the values of a template.
        choices: All values of a `choice`.
        least: Smallest value of an `integer`.
        required: Whether it must be given. On the command line it is then an argument
            without a name.
        first: Whether it stands before all others.
        tells: Whether a template asks for it although it has a default: it tells the
            template from others.
    """

    name: str
    kind: Kind
    default: Any
    label: str
    help: str
    group: str = ""
    example: str = ""
    param_type: str | None = None
    shown: str | None = None
    metavar: str | None = None
    regex: str | None = None
    choices: tuple[str, ...] = ()
    least: int | None = None
    required: bool = False
    first: bool = False
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
    """Returns the field of an option, which need not be given."""
    about = {"kind": kind, "label": label, "help": help, **more}
    return dataclasses.field(default=default, metadata=about)


def required(kind: Kind, label: str, help: str, **more: Any) -> Any:
    """Returns the field of an option that must be given."""
    return option(kind, label, help, dataclasses.MISSING, required=True, **more)
