"""Options of reading MaxText's datasets for which MaxText has no setting."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, Self, get_args

from gristmill.dataset.base.errors import InputError

Shuffled = Literal["global", "block"]
SftEnds = Literal["template", "settings"]

PREFIX = "gristmill_"


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of `install`, and of the command line with `gristmill_` before them.

    Attributes:
        shuffle: Which shuffle `enable_data_shuffling` asks for.
        cache: Local directory for copies of what is in object storage; by default that
            of `loader.open`.
        cache_bytes: Bytes of all copies of shards in it; none by default.
        sft_ends: What puts tokens around the texts of `use_sft`: the template alone, or
            `add_bos` and `add_eos` as they are set.
    """

    shuffle: Shuffled = "global"
    cache: str | None = None
    cache_bytes: int | None = None
    sft_ends: SftEnds = "template"

    def __post_init__(self) -> None:
        _one_of("shuffle", self.shuffle, get_args(Shuffled))
        _one_of("sft_ends", self.sft_ends, get_args(SftEnds))

    @classmethod
    def taken_from(cls, arguments: Sequence[str]) -> tuple[Self, list[str]]:
        """Returns the options among arguments, and the other arguments.

        Raises:
            InputError: There is no such option, or its value is none that it has.
        """
        kinds = {field.name: str(field.type) for field in dataclasses.fields(cls)}
        given: dict[str, Any] = {}
        others = []
        for argument in arguments:
            if not argument.startswith(PREFIX):
                others.append(argument)
                continue
            name, _, text = argument.removeprefix(PREFIX).partition("=")
            if name not in kinds or not text:
                raise InputError(
                    f"there is no argument {argument!r}",
                    expected=", ".join(f"{PREFIX}{known}=..." for known in kinds),
                    cure="correct it, or leave it out",
                )
            given[name] = _integer(argument, text) if "int" in kinds[name] else text
        if any(other.startswith(("add_bos=", "add_eos=")) for other in others):
            given.setdefault("sft_ends", "settings")
        return cls(**given), others


def _one_of(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise InputError(
            f"no such {name} for MaxText's data",
            where=f"{PREFIX}{name}, or {name} of install()",
            expected=" or ".join(known),
            got=repr(value),
            cure="give one of these, or leave it out",
        )


def _integer(argument: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(
            "an argument is not a number",
            expected="a number of bytes",
            got=argument,
            cure="give a whole number after =",
        ) from None
