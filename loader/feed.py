"""The feed of one host: its rows of the global batches, read ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from gristmill.loader.index_arrays import checked_count

if TYPE_CHECKING:
    from gristmill.loader.batches import GlobalBatches
    from gristmill.loader.schedule import Rows

Decode: TypeAlias = Callable[[Sequence[bytes]], Any]


class Feed(Iterator[Any]):
    """An iterator of one host's batches. Made by `GlobalBatches.feed`.

    Attributes:
        batches: The global batches.
        rows: Which of their rows this feed gives: a slice, or their numbers.
    """

    def __init__(
        self,
        batches: GlobalBatches,
        *,
        rows: Rows,
        decode: Decode | None,
        workers: int,
        prefetch: int,
        start_step: int,
    ):
        self.batches, self.rows = batches, rows
        self._decode = decode
        self._workers = checked_count(workers, what="workers", least=0)
        self._prefetch = checked_count(prefetch, what="prefetch")
        self._step = checked_count(start_step, what="start_step", least=0)

    def __next__(self) -> Any:
        steps = self.batches.steps
        if steps is not None and self._step >= steps:
            raise StopIteration
        records = self.batches.read(self._step, self.rows)
        batch = records if self._decode is None else self._decode(records)
        self._step += 1
        return batch

    def get_state(self) -> dict[str, Any]:
        """Returns where the consumer stands, as JSON values."""
        return {"step": self._step}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes to where a state says."""
        self._step = state["step"]

    def close(self) -> None:
        """Lets go of everything."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
