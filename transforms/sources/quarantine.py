"""Damaged regions of input files: passed over, or set aside with their location."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from gristmill.dataset.base.errors import (
    CorruptInputError,
    CorruptRecordError,
    GristmillError,
    StorageError,
    SystemLimitError,
)
from gristmill.dataset.commit.publish_shard import ShardPlace
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.lookup import storage_for


class Rows(NamedTuple):
    """Rows of a table, or records with numbers, that are set aside, and their bytes.

    Attributes:
        first_row: Number of the first one in the file.
        end_row: Number of the one after the last.
        begin_bytes: Where the bytes begin in the file.
    """

    first_row: int
    end_row: int
    begin_bytes: int


_PIECE_BYTES = 4 << 20


def stored_pieces(
    path: str, version: str | None, begin: int, end: int
) -> Iterator[bytes]:
    """Yields the bytes of a range of a file, in pieces of some mebibytes."""
    storage = storage_for(path)
    with storage.open(path, offset=begin, end=end, version=version) as file:
        while begin < end and (piece := file.read(min(_PIECE_BYTES, end - begin))):
            yield piece
            begin += len(piece)


class DamageHandler:
    """Takes damaged regions of inputs, one after the other: this one only counts them.

    Args:
        max_regions: Maximum number of regions; None for any number.
    """

    def __init__(self, *, max_regions: int | None = None):
        self._max_regions = max_regions
        self.regions = 0
        self.passed_regions = 0

    def pass_over(self) -> None:
        """Records the start of a region that the previous range sets aside."""
        self.passed_regions += 1

    def begin(
        self,
        error: CorruptRecordError,
        path: str,
        *,
        compressed_begin_bytes: int | None = None,
        rows: Rows | None = None,
    ) -> None:
        """Begins a region. An error raised here ends the reading.

        Args:
            error: What is wrong, and where.
            path: The file.
            compressed_begin_bytes: Where the rest of a compressed file begins that
                cannot be decompressed. The region is that rest, as stored.
            rows: Rows of the region, if the file is a table.

        Raises:
            CorruptInputError: There are more regions than allowed.
        """
        self.regions += 1
        if self._max_regions is not None and self.regions > self._max_regions:
            where = f"{error.where or path} ({error.detail})"
            raise too_much_damage(
                self.regions, self._max_regions, where=where
            ) from error

    def add(self, data: bytes) -> None:
        """Takes bytes of the region, in order."""

    def end(self, offset: int, *, end_row: int | None = None) -> None:
        """Ends the region, with the offset after it.

        Also gives the row after it, if that was not known at the start.
        """


class Quarantine(DamageHandler):
    """Collects the damaged regions that one shard's inputs have.

    `quarantine/<shard>.bin` gets the raw bytes end to end, `quarantine/<shard>.jsonl`
    a line for each region. Neither is written if there is no damage. Bytes go
    through a temporary file, until `close`: memory does not grow with the damage.

    Args:
        place: The shard's place, from before the work began.
        temporary_dir: Where temporary files of its split are.
        max_regions: Maximum number of regions.
    """

    def __init__(self, place: ShardPlace, temporary_dir: str, *, max_regions: int):
        super().__init__(max_regions=max_regions)
        self._storage = storage_for(place.output)
        self._place = place
        self._temporary_dir = temporary_dir
        self._stack = contextlib.ExitStack()
        self._found: list[dict[str, Any]] = []
        self.bytes = 0

    def close(self) -> None:
        """Removes the temporary file."""
        self._stack.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except GristmillError:
            raise
        except OSError as e:
            raise StorageError(
                "cannot write to quarantine",
                where=f"{self._place.output}, shard {self._place.path}",
                got=e.strerror,
                cure=SystemLimitError.CURES.get(
                    e.errno, "free some space, then run the same command again"
                ),
            ) from e

    def begin(
        self,
        error: CorruptRecordError,
        path: str,
        *,
        compressed_begin_bytes: int | None = None,
        rows: Rows | None = None,
    ) -> None:
        """Begins a region; see `DamageHandler`."""
        super().begin(error, path)
        if not self._found:
            self._local = self._stack.enter_context(
                self._storage.temporary(self._temporary_dir)
            )
            with self._explained():
                # Unbuffered: closing it cannot fail.
                file = open(self._local, "wb", buffering=0)  # noqa: SIM115
                self._file = self._stack.enter_context(file)
        begin = error.offset
        if compressed_begin_bytes is not None:
            begin = compressed_begin_bytes
        elif rows is not None:
            begin = rows.begin_bytes
        self._found.append(
            {
                "file": path,
                "begin_bytes": begin,
                "end_bytes": begin,
                # Whether offsets and bytes are those of the file as stored.
                "compressed": compressed_begin_bytes is not None,
                "reason": error.reason,
                "detail": error.detail,
                "bin_begin_bytes": self.bytes,
                "bin_end_bytes": self.bytes,
            }
        )
        if rows is not None:
            first, end = rows.first_row, rows.end_row
            self._found[-1] |= {"begin_row": first, "end_row": end}

    def add(self, data: bytes) -> None:
        """Appends bytes to the region."""
        with self._explained():
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
        self.bytes += len(data)

    def end(self, offset: int, *, end_row: int | None = None) -> None:
        """Ends the region; see `DamageHandler`."""
        self._found[-1] |= {"end_bytes": offset, "bin_end_bytes": self.bytes}
        if end_row is not None:
            self._found[-1]["end_row"] = end_row

    def publish(self) -> None:
        """Writes the regions to their place; removes those of an earlier try."""
        place = self._place
        names = layout.quarantine_paths(place.path)
        data_path, list_path = (layout.join(place.output, name) for name in names)
        data_version, list_version = map(place.version, names)
        if not self._found:
            for path, version in ((list_path, list_version), (data_path, data_version)):
                if version:
                    self._storage.delete(path, version=version)
            return
        self._file.close()
        self._storage.publish(self._local, data_path, replaces=data_version)
        lines = [json.dumps(region, ensure_ascii=False) for region in self._found]
        # Names of files can hold bytes that are not UTF-8, as in `dataset.json`.
        text = ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace")
        self._storage.write(list_path, text, replaces=list_version)


def too_much_damage(found: int, limit: int, *, where: str) -> CorruptInputError:
    """Returns the error for more damage than is allowed."""
    return CorruptInputError(
        "more damage in the inputs than --max-corrupt allows",
        where=where,
        expected=f"at most {limit:,} damaged regions",
        got=f"{found:,} or more",
        cure="check the regions listed in quarantine/, repair the inputs, or raise "
        "--max-corrupt; finished shards are kept",
    )


def nothing_read(where: str) -> CorruptInputError:
    """Returns the error for inputs that were set aside entirely."""
    return CorruptInputError(
        "no record of the inputs could be read: everything was set aside",
        where=where,
        expected="at least one record",
        got="damage from the first byte of each file to its last, as files of another "
        "format look",
        cure="name the format with --input-format, and give --overwrite; or write the "
        "files again from their source",
    )
