"""One part of a split: its shards as they are finished, and its table in the end."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterator

from gristmill.dataset.arrayrecord.shard_writer import WrittenShard
from gristmill.dataset.base.errors import JobChangedError
from gristmill.dataset.commit.claim import again_if_changed, fence
from gristmill.dataset.commit.publish_shard import ShardPlace
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.report_columns import ReportCollector
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.storage.base import FileInfo, is_unfinished, map_all
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.writer.parts_job import OWNER_JSON, PartsJob, staged_name

_READ_AT_ONCE = 16


class Part:
    """One part, which belongs to one writer at a time: the last one that began.

    Args:
        job: The job.
        part: Number of the part.
        resume: Whether to keep what an earlier writer has finished; else it is deleted.
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
        self._directory = job.part_dir(part)
        self._storage = storage_for(job.output)
        self._owner_path = layout.join(self._directory, OWNER_JSON)
        self._owner = json.dumps(
            {"fingerprint": job.fingerprint, "writer": secrets.token_hex(8)}
        ).encode()
        self._reports = ReportCollector(job.fingerprint)
        self.shards = self.records = 0
        # What another job left may be being deleted, by the writer of another part.
        there = again_if_changed(lambda: self._take(resume=resume, overwrite=overwrite))
        table_path = job.part_table(part)
        self.finished = resume and table_path in there
        if self.finished:
            table = ShardTable.decode(self._storage.read(table_path), where=table_path)
            self.shards, self.records = len(table), table.total("records")
            return
        # First: without its table, a part is not finished.
        if (found := there.pop(table_path, None)) is not None:
            self._storage.delete(table_path, version=found.version)
            # Another writer may be committing what it found finished.
            again_if_changed(lambda: fence(job.output))
        if resume:
            for report in self._kept(there):
                self._add(report)
        self._storage.delete_all(there.values())

    def _take(self, *, resume: bool, overwrite: bool) -> dict[str, FileInfo]:
        """Takes possession of the part; returns this job's own earlier result."""
        # Before it is taken: nothing is listed that this very writer makes.
        there = {
            info.path: info
            for info in self._storage.list_tree(self._directory)
            # The writer that lost the part may live, and is told where it checks.
            if not is_unfinished(layout.base_name(info.path))
        }
        listed = there.pop(self._owner_path, None)
        owner = self._storage.load(self._owner_path) if listed else None
        if owner is None or not self._is_of_job(owner.data):
            self._storage.delete_all(there.values())
            there = {}
        if self._job.part_table(self._part) in there and not (resume or overwrite):
            raise JobChangedError(
                f"{self._name} has been written already, and not committed",
                where=self._job.where,
                cure="keep it with resume=True and commit it, or write it again with "
                "overwrite=True",
            )
        version = "" if owner is None else owner.version
        self._storage.write(self._owner_path, self._owner, replaces=version)
        return there

    def _is_of_job(self, owner: bytes) -> bool:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            return bool(json.loads(owner)["fingerprint"] == self._job.fingerprint)
        return False

    @property
    def _name(self) -> str:
        if self._job.parts == 1:
            return "the split"
        return f"part {self._part} of {self._job.parts}"

    def _kept(self, there: dict[str, FileInfo]) -> Iterator[ShardReport]:
        """Yields the reports of finished shards, and takes these out of a listing."""
        paths = [staged_name(shard) for shard in range(len(there))]
        files = [
            (layout.join(self._directory, path), layout.join(self._directory, index))
            for path, index in zip(paths, map(layout.index_path, paths), strict=True)
        ]
        count = next(
            (i for i, pair in enumerate(files) if not there.keys() >= {*pair}),
            len(files),
        )

        def report(shard: int) -> ShardReport | None:
            seen = {
                path: there[file]
                for path, file in zip(
                    (paths[shard], layout.index_path(paths[shard])),
                    files[shard],
                    strict=True,
                )
            }
            place = ShardPlace(output=self._directory, path=paths[shard], seen=seen)
            return place.finished(self._job.fingerprint)

        reports = map_all(report, range(count), at_once=_READ_AT_ONCE)
        for shard, found in enumerate(reports):
            if found is None:
                return
            for file in files[shard]:
                del there[file]
            yield found

    def _add(self, report: ShardReport) -> None:
        self._reports.add(report)
        self.shards += 1
        self.records += report.written.records

    @contextlib.contextmanager
    def temporary(self) -> Iterator[str]:
        """Gives a local path for a shard that is to be published."""
        # Not where the aside has unfinished files: it deletes them when the writer of
        # another part begins, where a file system does not tell that they are in use.
        with self._storage.temporary(layout.join(self._directory, "tmp")) as path:
            yield path

    def check_current(self) -> None:
        """Checks that the part still belongs to this writer.

        Raises:
            JobChangedError: Another writer has taken over the part, or the output.
        """
        self._job.marker.check_current(version=self._job.taken)
        owner = self._storage.load(self._owner_path)
        if owner is None or owner.data != self._owner:
            raise JobChangedError(
                f"another writer has taken over {self._name}",
                where=self._job.where,
                cure="give each part to one writer at a time",
            )

    def publish(self, local: str, written: WrittenShard) -> None:
        """Keeps a finished shard, so that it is there after a crash.

        Raises as `check_current` does, and StorageError.
        """
        report = ShardReport(
            path=staged_name(self.shards),
            shard_index=self.shards,
            job=self._job.fingerprint,
            file_bytes=written.file_bytes,
            file_crc32c=written.file_crc32c,
            read=written.digest,
            written=written.digest,
        )
        self.check_current()
        place = ShardPlace(output=self._directory, path=report.path, seen={})
        place.publish(local, written, report)
        self._add(report)

    def finish(self) -> None:
        """Writes the table: the part is finished. Raises as `publish` does."""
        self.check_current()
        table = self._reports.reports().table
        place = self._job.part_table(self._part)
        self._storage.write(place, table.encode(), replaces="")
        self.finished = True
