"""The subject of the page: opened datasets, and the order of a training run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.loader.data.batches import Batches
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.data.open_dataset import open as open_dataset

_KEPT = 64
"""Answers and splits. A thousand epochs may be looked at."""


def checked_number(
    number: int, stop: int, *, what: str, where: str | None = None
) -> int:
    """Returns a number of [0, stop).

    Raises:
        InputError: It is another one.
    """
    if 0 <= number < stop:
        return number
    raise InputError(
        f"there is no such {what}",
        where=where,
        expected=f"0 to {stop - 1:,}" if stop else "none: it is empty",
        got=number,
        cure="give a number of that range" if stop else "look at another dataset",
    )


class TokenTexts(Protocol):
    """What shows tokens as text."""

    @property
    def name(self) -> str:
        """What it is, for people."""

    @property
    def digest(self) -> str:
        """The digest of its file."""

    def texts(self, ids: Sequence[int]) -> Sequence[str | None]:
        """Returns the text of each token, None of one that it does not know."""


class Opened:
    """What the page shows. Safe to share by threads.

    Args:
        datasets: The datasets of a mixture by their names; of a single one, "".
        batches: Their order, None where it is not known.
        state_step: The step that a feed gives next, None where that is not known.
        tokens: Shows tokens of packed rows as text; None for ids alone.

    Attributes:
        datasets: As given.
        batches: As given.
        state_step: As given.
        tokens: As given.
    """

    def __init__(
        self,
        datasets: Mapping[str, Dataset],
        batches: Batches | None = None,
        *,
        state_step: int | None = None,
        tokens: TokenTexts | None = None,
    ):
        self.datasets, self.batches = dict(datasets), batches
        self.state_step, self.tokens = state_step, tokens
        self._kept: dict[Any, Any] = {}
        self._lock = threading.Lock()

    def dataset(self, of: str = "", split: str | None = None) -> Dataset:
        """Returns a dataset.

        Args:
            of: Its name in a mixture; the first by default.
            split: Another split of it than the one that was opened.

        Raises:
            InputError: There is no such dataset or split.
        """
        found = self.datasets[self.name(of)]
        if split is None or split == found.split:
            return found
        manifest = found.manifest
        if manifest is None or split not in manifest.splits:
            known = (found.split,) if manifest is None else sorted(manifest.splits)
            raise InputError(
                "no such split",
                where=found.path,
                expected=f"one of {some_of(filter(None, known), 20)}",
                got=split,
                cure="choose one of these",
            )
        other: Dataset = self.kept(
            ("split", found.path, split), lambda: open_dataset(found.path, split=split)
        )
        return other

    def name(self, of: str = "") -> str:
        """Returns the name of a dataset: of "" the first one's.

        Raises:
            InputError: There is no such dataset.
        """
        if of in self.datasets:
            return of
        names = list(self.datasets)
        if not of:
            return names[0]
        raise InputError(
            "there is no such dataset",
            expected=f"one of {some_of(names, 20)}" if names[0] else "no name",
            got=of,
            cure="choose one of these" if names[0] else "leave the name out",
        )

    def ordered(self) -> Batches:
        """Returns the order.

        Raises:
            InputError: It is not known.
        """
        if self.batches is None:
            raise InputError(
                "the order of the records is not known",
                cure="start gristmill view with --batch-size and the other options of "
                "the training run's order, or with --state",
            )
        return self.batches

    def texts(self, ids: Sequence[int]) -> Sequence[str | None]:
        """Returns the text of each token, None where it is not known."""
        return [None] * len(ids) if self.tokens is None else self.tokens.texts(ids)

    def kept(self, key: Any, make: Callable[[], Any]) -> Any:
        """Returns the cached result of `make` for a key."""
        with self._lock:
            if key in self._kept:
                return self._kept[key]
        made = make()
        with self._lock:
            while len(self._kept) >= _KEPT:
                del self._kept[next(iter(self._kept))]
            return self._kept.setdefault(key, made)
