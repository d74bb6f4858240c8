"""User-defined tokenizers: functions imported by name."""

from __future__ import annotations

import inspect
import operator
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gristmill.dataset.base.errors import InputError, UserFunctionError
from gristmill.transforms.functions.user_functions import load_function
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.tokens.tokenizers.tokenizer import (
    Encoded,
    Tokenizer,
    end_to_end,
)


class FunctionTokenizer(Tokenizer):
    """A function of a list of texts, which returns a sequence of ids for each.

    Its attribute `vocabulary_size` is the upper bound of ids; the optional
    `special_ids` has its special tokens. A class is called once, without arguments, and
    must return the function.

    Raises:
        InputError: There is no such function, or it lacks an attribute.
    """

    kind = "function"

    def __init__(self, content: bytes, name: str, options: PackOptions) -> None:
        del content, options
        function: Any = load_function(name)
        if inspect.isclass(function):
            try:
                function = function()
            except Exception as e:  # The user's code can raise anything.
                raise InputError(
                    "the class of the tokenizer cannot be used",
                    where=name,
                    expected="one that is called without arguments",
                    got=f"{type(e).__name__}: {e}",
                    cure="fix it",
                ) from e
        self._name, self._function = name, function
        self.library = name
        size = getattr(function, "vocabulary_size", None)
        if isinstance(size, np.integer):
            size = int(size)
        if not isinstance(size, int) or not 0 < size <= 1 << 32:
            raise InputError(
                "the function of the tokenizer does not say how large its vocabulary "
                "is",
                where=name,
                expected="an attribute vocabulary_size: ids are below it",
                got=repr(size),
                cure=f"add a line: {name.rpartition(':')[2]}.vocabulary_size = 50257",
            )
        self.vocabulary_size = size
        self.special_ids = _special_ids(function, size, name)

    def encode(self, texts: Sequence[bytes]) -> Encoded:
        """Returns the tokens of texts."""
        decoded = [text.decode() for text in texts]
        found = self._function(decoded)
        try:
            arrays = [np.asarray(ids) for ids in found]
        except (TypeError, ValueError) as e:
            raise self._wrong(f"{type(e).__name__}: {e}") from e
        if len(arrays) != len(texts):
            raise self._wrong(f"{len(arrays):,} sequences")
        for ids in arrays:
            if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "ui"):
                raise self._wrong(f"{ids.dtype} of shape {ids.shape}")
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < 1 << 32:
                raise self._wrong(f"ids from {ids.min()} to {ids.max()}")
        return end_to_end(arrays)

    def _wrong(self, got: str) -> UserFunctionError:
        return UserFunctionError(
            "the function of the tokenizer returned values that are not tokens",
            where=self._name,
            expected="a sequence of ids, from 0 on, for each text of the list",
            got=got,
            cure="fix the function",
        )

    def id_of(self, token: str) -> int | None:
        """Returns the id of a special token's text."""
        return self.special_ids.get(token)


def _special_ids(function: Any, size: int, name: str) -> Mapping[str, int]:
    """Returns the special tokens of a function by their text.

    Raises:
        InputError: One is not in its vocabulary: rows could not hold it.
    """
    given = getattr(function, "special_ids", {})
    try:
        found = {str(text): operator.index(number) for text, number in given.items()}
    except (AttributeError, TypeError):
        found = {"": -1}
    if any(not 0 <= number < size for number in found.values()):
        raise InputError(
            "special_ids of the tokenizer's function are not in its vocabulary",
            where=name,
            expected=f"the ids of tokens by their text, below {size:,}",
            got=reprlib.repr(given),
            cure="correct them, or make vocabulary_size greater than all ids",
        )
    return found
