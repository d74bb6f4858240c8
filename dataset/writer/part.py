"""One part of a split: its shards as they are finished, and its table in the end."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from gristmill.dataset.arrayrecord.shard_writer import WrittenShard
from gristmill.dataset.base.columns import load_arrays
from gristmill.dataset.base.errors import (
    InvalidDatasetError,
    JobChangedError,
    StorageChangedError,
)
from gristmill.dataset.base.places import Places
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import read_replaced_manifest
from gristmill.dataset.metadata.shard_collector import ShardCollector
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.shards.publish_shard import ShardPlace
from gristmill.dataset.storage.base import map_all
from gristmill.dataset.storage.lookup import delete_all, load_all, storage_for
from gristmill.dataset.writer.parts_job import PartsJob

_VERSION = 1
_AT_ONCE = 16
_BLOCK = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartState:
    """What the file of a part says.

    Attributes:
        attempt: How often it was begun anew before, which is in the names of shards.
        table: The shards, once the part is finished.
        version: The version of the file.
    """

    attempt: int
    table: ShardTable | None
    version: str

    @classmethod
    def load_all(cls, job: PartsJob, parts: Sequence[int]) -> list[PartState | None]:
        """Returns the states of parts; None for those that nobody has begun."""
        paths = [job.part_file(part) for part in parts]
        states: list[PartState | None] = []
        contents = load_all(paths)
        for path, content in zip(paths, contents, strict=True):
            if content is None:
                states.append(None)
                continue
            try:
                arrays = load_arrays(content.data, where=path, version=_VERSION)
                attempt, data = int(arrays["attempt"]), arrays["table"].tobytes()
                table = ShardTable.decode(data, where=path) if data else None
            except (InvalidDatasetError, KeyError, TypeError) as e:
                raise InvalidDatasetError(
                    "the file of an unfinished part cannot be read",
                    where=path,
                    got=str(e),
                    cure="delete the unfinished parts with gristmill clean "
                    "--unfinished, then write them again",
                ) from e
            states.append(cls(attempt=attempt, table=table, version=content.version))
        return states

    def store(self, job: PartsJob, part: int) -> PartState:
        """Writes the file; returns the state with its version.

        Raises:
            StorageChangedError: Another writer has written it meanwhile.
        """
        out = io.BytesIO()
        table = b"" if self.table is None else self.table.encode()
        np.savez(
            out,
            version=np.array(_VERSION),
            attempt=np.array(self.attempt),
            table=np.frombuffer(table, np.uint8),
        )
        storage, path = storage_for(job.write.output), job.part_file(part)
        storage.write(path, out.getvalue(), replaces=self.version)
        info = storage.stat(path)
        return dataclasses.replace(self, version="" if info is None else info.version)


def check_same_parts(job: PartsJob, states: Sequence[PartState | None]) -> None:
    """Raises JobChangedError if a job was given up, or a part has another state now."""
    job.write.check_current()
    now = PartState.load_all(job, range(job.parts))
    before, after = ([one and one.version for one in each] for each in (states, now))
    if before != after:
        raise JobChangedError(
            "a writer writes a finished part again",
            where=job.write.where,
            cure="commit the parts once all writers have ended",
        )


class Part:
    """One part, which belongs to one writer at a time: the last one that began.

    Args:
        job: The job.
        part: Number of the part.
        resume: Whether to keep what an earlier writer has finished, up to the first
            shard that is not whole; all else of the part is deleted.
        overwrite: Whether to begin again also where the part was finished.

    Attributes:
        shards: Finished shards.
        records: Records in them.
        finished: Whether the part is finished: nothing can be added.

    Raises:
        JobChangedError: The part is finished already.
        StorageChangedError: Another writer has begun it at this moment.
    """

    def __init__(self, job: PartsJob, part: int, *, resume: bool, overwrite: bool):
        self._job = job
        self._part = part
        self._storage = storage_for(job.write.output)
        self._reports = ShardCollector(job.write.id)
        self.shards = self.records = 0
        (found,) = PartState.load_all(job, [part])
        done = found is not None and found.table is not None
        if done and not (resume or overwrite):
            raise JobChangedError(
                f"{self._name} has been written already, and not committed",
                where=job.write.where,
                cure="keep it with resume=True and commit it, or write it again with "
                "overwrite=True",
            )
        self.finished = resume and done
        if found is not None and resume:
            self._state = found
            if found.table is not None:
                self.shards = len(found.table)
                self.records = found.table.total("records")
                return
            for report in self._kept():
                self._add(report)
            self._delete_rest()
            return
        begun = PartState(attempt=0, table=None, version="")
        if found is not None:
            begun = dataclasses.replace(found, attempt=found.attempt + 1, table=None)
        # What writers before have left stays until the commit: one of them may be
        # committed at this moment.
        self._state = begun.store(job, part)
        self._check_not_committed()

    def _delete_rest(self) -> None:
        """Deletes what this writer has left after the first shard that is not whole."""
        self.check_current()
        kept = {self._path(shard) for shard in range(self.shards)}
        kept |= {layout.base_name(layout.index_path(shard)) for shard in kept}
        prefix = layout.part_prefix(
            self._job.write.name, self._job.write.key, self._part
        )
        for directory in ("", layout.INDEX_DIR):
            place = layout.join(self._job.write.output, directory)
            delete_all(
                info
                for info in self._storage.scan(place, prefix=prefix)
                if layout.base_name(info.path) not in kept
            )

    @property
    def _name(self) -> str:
        if self._job.parts == 1:
            return "the split"
        return f"part {self._part} of {self._job.parts}"

    def _path(self, shard: int) -> str:
        job, attempt = self._job, self._state.attempt
        key = job.write.key
        return layout.part_shard_name(job.write.name, key, self._part, attempt, shard)

    def _kept(self) -> Iterator[ShardReport]:
        """Yields the reports of finished shards."""
        for first in itertools.count(0, _BLOCK):
            shards = range(first, first + _BLOCK)
            for report in map_all(self._finished, shards, at_once=_AT_ONCE):
                if report is None:
                    return
                yield report

    def _finished(self, shard: int) -> ShardReport | None:
        place = ShardPlace.at(self._job.write.output, self._path(shard))
        return place.finished(self._job.write.id)

    def _add(self, report: ShardReport) -> None:
        self._reports.add(report)
        self.shards += 1
        self.records += report.written.records

    @contextlib.contextmanager
    def temporary(self) -> Iterator[str]:
        """Gives a local path for a shard that is to be published."""
        with self._storage.temporary(self._job.directory) as path:
            yield path

    def check_current(self) -> None:
        """Checks that the part still belongs to this writer.

        Raises:
            JobChangedError: Another writer has taken over the part, or the write was
                given up.
        """
        self._job.write.check_current()
        self._check_not_committed()
        (found,) = PartState.load_all(self._job, [self._part])
        if found is None or found.attempt != self._state.attempt:
            raise JobChangedError(
                f"another writer has taken over {self._name}"
                if found
                else f"{self._name} is committed, or was given up",
                where=self._job.write.where,
                cure="give each part to one writer at a time",
            )

    def _check_not_committed(self) -> None:
        """Raises JobChangedError if an equal writer has committed the split."""
        job = self._job
        manifest, _ = read_replaced_manifest(job.write.output)
        split = None if manifest is None else manifest.splits.get(job.write.split)
        if split is not None and job.write.id in split.writes:
            raise JobChangedError(
                "an equal writer has committed the split meanwhile",
                where=job.write.where,
                got=f"{split.records:,} records",
                cure="keep it with resume=True, or write it again with overwrite=True",
            )

    def publish(self, local: str, written: WrittenShard, places: Places | None) -> None:
        """Keeps a finished shard, so that it is there after a crash.

        Raises as `check_current` does, and StorageError.
        """
        report = ShardReport(
            path=self._path(self.shards),
            shard_index=self.shards,
            job=self._job.write.id,
            file_bytes=written.file_bytes,
            file_crc32c=written.file_crc32c,
            read=written.digest,
            written=written.digest,
        )
        self.check_current()
        # Not over what is there: a writer that continues makes the same bytes.
        place = ShardPlace(output=self._job.write.output, path=report.path, seen={})
        self._add(place.publish(local, written, report, places=places))

    def finish(self) -> None:
        """Writes the table: the part is finished. Raises as `publish` does."""
        self.check_current()
        table = self._reports.table()
        done = dataclasses.replace(self._state, table=table)
        try:
            self._state = done.store(self._job, self._part)
        except StorageChangedError:
            self.check_current()
            raise
        self.finished = True
