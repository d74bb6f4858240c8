"""Damaged regions of input files that are left out, each with a line in `errors/`."""

from __future__ import annotations

import json
from typing import Any

from gristmill.dataset.base.errors import CorruptInputError, CorruptRecordError
from gristmill.dataset.commit.publish_shard import ShardPlace
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.lookup import storage_for


class SkippedRegions:
    """Takes the damaged regions of inputs, in order.

    Args:
        limit: Maximum number of regions; None for any number.

    Attributes:
        found: The fields of a line for each.
        passed: How many were left to the range before, which names them.
        bytes: Size of all of them.
    """

    def __init__(self, limit: int | None = None):
        self._limit = limit
        self.found: list[dict[str, Any]] = []
        self.passed = self.bytes = 0

    def add(
        self,
        error: CorruptRecordError,
        path: str,
        *,
        region: tuple[int, int],
        rows: tuple[int, int] | None = None,
        compressed: bool = False,
    ) -> None:
        """Leaves out a region.

        Args:
            error: What is wrong, and where.
            path: The file.
            region: Its bytes, half-open; empty where only rows are known.
            rows: Its rows, half-open, if the file is a table.
            compressed: Whether these are bytes of a compressed file as stored.

        Raises:
            CorruptInputError: There are more regions than allowed.
        """
        begin, end = region
        self.bytes += end - begin
        last = self.found[-1] if self.found else {}
        if rows and (last.get("reason"), last.get("end_bytes")) == ("chunk", begin):
            last["end_bytes"], last["end_row"] = end, rows[1]  # It goes on.
            return
        line = {
            "file": path,
            "begin_bytes": begin,
            "end_bytes": end,
            "compressed": compressed,
            "reason": error.reason,
            "detail": error.detail,
        }
        if error.line is not None:
            line["line"] = error.line
        if rows is not None:
            line["begin_row"], line["end_row"] = rows
        self.found.append(line)
        if self._limit is not None and len(self.found) > self._limit:
            where = f"{error.where or path} ({error.detail})"
            found = len(self.found)
            raise too_much_damage(found, self._limit, where=where) from error

    def publish(self, place: ShardPlace) -> None:
        """Writes the lines of a shard; removes those of an earlier try."""
        name = layout.errors_path(place.path)
        path, version = layout.join(place.output, name), place.version(name)
        storage = storage_for(place.output)
        if self.found:
            text = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in self.found)
            # Names of files can hold bytes that are not UTF-8, as in `dataset.json`.
            data = text.encode("utf-8", "backslashreplace")
            storage.write(path, data, replaces=version)
        elif version:
            storage.delete(path, version=version)


def too_much_damage(found: int, limit: int, *, where: str) -> CorruptInputError:
    """Returns the error for more damage than is allowed."""
    return CorruptInputError(
        "more damage in the inputs than --max-corrupt allows",
        where=where,
        expected=f"at most {limit:,} damaged regions",
        got=f"{found:,} or more",
        cure="check the regions listed in errors/, repair the inputs, or raise "
        "--max-corrupt; finished shards are kept",
    )


def nothing_read(where: str) -> CorruptInputError:
    """Returns the error for inputs that were left out entirely."""
    return CorruptInputError(
        "no record of the inputs could be read: everything was left out",
        where=where,
        expected="at least one record",
        got="damage from the first byte of each file to its last, as files of another "
        "format look",
        cure="name the format with --input-format, and give --overwrite; or write the "
        "files again from their source",
    )
