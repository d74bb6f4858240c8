"""Damaged regions of input files, set aside with their location."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from gristmill.dataset.commit.publish_shard import ShardPlace
from gristmill.dataset.errors import CorruptFrameError, StorageError
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.sources.damage import too_much_damage


class Quarantine:
    """Collects the damaged regions that one shard's inputs have.

    `quarantine/<shard>.bin` gets the raw bytes end to end, `quarantine/<shard>.jsonl`
    a line for each region. Neither is written if there is no damage. Bytes go
    through a temporary file: memory does not grow with the damage.

    Args:
        place: The shard's place, as it was before the work began.
        temporary_dir: Where temporary files of its split are.
        max_regions: Most regions to accept.
    """

    def __init__(self, place: ShardPlace, temporary_dir: str, *, max_regions: int):
        self._storage = storage_for(place.output)
        self._place = place
        self._temporary_dir = temporary_dir
        self._max_regions = max_regions
        self._stack = contextlib.ExitStack()
        self._regions: list[dict[str, Any]] = []
        self.bytes = 0

    @property
    def regions(self) -> int:
        """Number of regions so far."""
        return len(self._regions)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise StorageError(
                "cannot write to quarantine",
                where=f"{self._place.output}, shard {self._place.path}",
                got=e.strerror,
                cure="free some space, then run the same command again",
            ) from e

    def begin(
        self,
        error: CorruptFrameError,
        path: str,
        *,
        compressed_begin_bytes: int | None = None,
    ) -> None:
        """Starts a region; see `DamageHandler`.

        Raises:
            CorruptInputError: There are more regions than allowed.
        """
        if self.regions >= self._max_regions:
            raise too_much_damage(
                self.regions + 1, self._max_regions, where=_place(error, path)
            ) from error
        if not self._regions:
            self._local = self._stack.enter_context(
                self._storage.temporary(self._temporary_dir)
            )
            with self._explained():
                # Without a buffer: nothing is left to fail when it is closed.
                file = open(self._local, "wb", buffering=0)  # noqa: SIM115
                self._file = self._stack.enter_context(file)
        begin = (
            error.offset if compressed_begin_bytes is None else compressed_begin_bytes
        )
        self._regions.append(
            {
                "file": path,
                "begin_bytes": begin,
                "end_bytes": begin,
                # Whether offsets and bytes are those of the file as it is stored.
                "compressed": compressed_begin_bytes is not None,
                "reason": error.reason,
                "detail": error.detail,
                "bin_begin_bytes": self.bytes,
                "bin_end_bytes": self.bytes,
            }
        )

    def add(self, data: bytes) -> None:
        """Appends bytes to the region; see `DamageHandler`."""
        with self._explained():
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
        self.bytes += len(data)

    def end(self, offset: int) -> None:
        """Ends the region; see `DamageHandler`."""
        self._regions[-1]["end_bytes"] = offset
        self._regions[-1]["bin_end_bytes"] = self.bytes

    def publish(self) -> None:
        """Writes what was collected to its place; removes what an earlier try left."""
        place = self._place
        names = layout.quarantine_paths(place.path)
        data_path, list_path = (layout.join(place.output, name) for name in names)
        data_version, list_version = map(place.version, names)
        if not self._regions:
            for path, version in ((list_path, list_version), (data_path, data_version)):
                if version:
                    self._storage.delete(path, version=version)
            return
        self._file.close()
        self._storage.publish(self._local, data_path, replaces=data_version)
        lines = [json.dumps(region, ensure_ascii=False) for region in self._regions]
        # Names of files can hold bytes that are no UTF-8: as in `dataset.json`.
        text = ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace")
        self._storage.write(list_path, text, replaces=list_version)


def _place(error: CorruptFrameError, path: str) -> str:
    return f"{path}, byte offset {error.offset:,} ({error.detail})"
