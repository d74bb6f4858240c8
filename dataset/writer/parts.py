"""The split that writers of Python loops make together, in one or more parts.

Parts are written at the same time, and no writer knows how many shards the others make.
So a shard is named by its part, its number in the part, and how often the part was
begun anew: files of a killed writer are never taken for another's.

```
c4-train.array_record-0123456789abcdef-00001-0000-00000   the first shard of part 1
index/c4-train.0123456789abcdef.job.json                  what is being written
index/c4-train.0123456789abcdef.part-00001-of-00004.npz   a part, and its table
                                                          once it is finished
```
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.file_writer import check_versions, settled
from gristmill.dataset.arrayrecord.shard_writer import WrittenShard
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.columns import load_arrays, save_arrays
from gristmill.dataset.base.errors import (
    DataLossError,
    GristmillError,
    InputError,
    InvalidDatasetError,
    JobChangedError,
    StorageChangedError,
    parsed,
    some_of,
)
from gristmill.dataset.base.places import Places
from gristmill.dataset.commit.commit import check_files, commit_dataset, write_table
from gristmill.dataset.commit.garbage import SplitFiles, tidy_split
from gristmill.dataset.commit.ownership import check_removal
from gristmill.dataset.commit.write import (
    Output,
    Write,
    described_writes,
    option_differences,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import (
    Manifest,
    is_over,
    read_replaced_manifest,
)
from gristmill.dataset.metadata.shard_files import ShardPlace
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.metadata.shard_table import ShardCollector, ShardTable
from gristmill.dataset.metadata.sources import encode_sources
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.base import map_all
from gristmill.dataset.storage.lookup import delete_all, load_all, storage_for
from gristmill.dataset.storage.paths import StrPath, path_text

_VERSION = 1
_AT_ONCE = 16
_BLOCK = 64
_PART = "part"  # Column of a table of shards: int64 [shards], the part of each.


def checked_part(part: Any, parts: Any) -> tuple[int, int]:
    """Returns the part and the number of parts, of which there is one by default."""
    if part is None and parts is None:
        return 0, 1
    with contextlib.suppress(TypeError):
        number, count = operator.index(part), operator.index(parts)
        if 0 <= number < count:
            return number, count
    raise InputError(
        "not the number of a part",
        expected="part and parts, with 0 <= part < parts, or neither",
        got=f"part={part!r}, parts={parts!r}",
        cure="give each writer its part, and all of them the number of parts",
    )


def unbegun_write(path: StrPath, name: str | None, split: str) -> Write:
    """Returns the write of a split that has no id yet; raises InputError."""
    output = path_text(path, "output")
    return Write(
        output=output.rstrip("/") or output,
        name=layout.check_name(layout.base_name(output) if name is None else name),
        split=layout.check_split(split),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartsJob:
    """A split to write.

    Attributes:
        write: The write; without an id until it has an output.
        parts: How many writers each write a part.
        shard_bytes: Maximum bytes of records in a shard; a larger record has its own.
        records_per_shard: Maximum records in a shard; None for no bound.
        writer: How shards are encoded.
        features: The features of the records, as from `encode_features`, if known.
        sources: The formats of the files that records come from, by path, if known.
    """

    write: Write
    parts: int
    shard_bytes: int
    records_per_shard: int | None
    writer: WriterOptions
    features: Mapping[str, Any] | None
    sources: Mapping[str, str] | None = None

    def options(self) -> dict[str, Any]:
        """Returns the options that decide the bytes of the dataset, as plain values."""
        fields = dataclasses.asdict(self)
        del fields["write"]
        sources = fields.pop("sources")
        if sources is not None:  # Their order gives the numbers of files.
            fields["sources"] = [*map(list, sources.items())]
        return {"name": self.write.name, "split": self.write.split} | fields

    @functools.cached_property
    def content(self) -> str:
        """16 hex digits over these options."""
        text = json.dumps(self.options(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def part_file(self, part: int) -> str:
        """Returns the path of the file that describes a part."""
        path = layout.part_path(self.write.name, self.write.key, part, self.parts)
        return layout.join(self.write.output, path)

    @property
    def source(self) -> dict[str, Any]:
        """The origin of the records, for `dataset.json`."""
        options = self.options()
        # They are in `dataset.json` already, and in a list.
        del options["features"]
        options.pop("sources", None)
        return {
            "content": self.content,
            "parts": self.parts,
            "options": options,
        }


def described_jobs(output: Output) -> Iterator[PartsJob]:
    """Yields the jobs of writers that have begun a split without committing it.

    Raises:
        InvalidDatasetError: The description of one cannot be read.
    """
    write = output.write
    for key in described_writes(write.output, write.name, write.split):
        if is_over(output.manifest, key):
            continue
        path = layout.join(write.output, layout.job_path(write.name, key))
        found = storage_for(path).load(path)
        if found is None:
            continue  # It was committed just now.
        with parsed(
            "the description of unfinished parts cannot be read",
            path,
            "delete this file, then begin again",
        ):
            document = json.loads(found.data)
            if "parts" not in document:
                continue  # It is that of another command.
            fields = dict(document["parts"])
            del fields["name"], fields["split"]
            fields["writer"] = WriterOptions(**fields["writer"])
            if "sources" in fields:
                fields["sources"] = dict(fields["sources"])
            begun = dataclasses.replace(
                write,
                id=document["fingerprint"],
                mark=document["fingerprint"],
                base=document["base"],
                replaces=document["replaces"],
            )
            job = PartsJob(write=begun, **fields)
        yield job


def begin_parts(
    job: PartsJob, *, resume: bool, overwrite: bool
) -> tuple[PartsJob, Split | None]:
    """Gives a job its write, which writers of all its parts share.

    Args:
        job: The job.
        resume: Whether to continue what the same job has begun or committed.
        overwrite: Whether to replace the split in the output.

    Returns:
        The job with its writer's versions and its write; and the split, if the job has
        committed it.

    Raises:
        InputError: The output holds a dataset of another name.
        JobChangedError: It holds the split already, or, to continue with, parts with
            other options.
        DataLossError: The split was committed by this job, and has lost files.
    """
    output, split = job.write.output, job.write.split
    before = Output.read(job.write, replaces=overwrite)
    manifest, there = before.manifest, before.there

    def with_versions(of: Mapping[str, Any] | None) -> PartsJob:
        return dataclasses.replace(job, writer=settled(job.writer, of))

    if there is not None and not overwrite:
        made = with_versions(there.options.get("writer"))
        first = there.parts[0]  # Later editions are of others.
        if not (resume and first.source.get("content") == made.content):
            raise _not_free(made, there)
        check_files(output, {split: there})
        _tidy(output, manifest, split)
        return made, first
    begun = [*described_jobs(before)]
    for other in begun:
        # A job that starts over takes the versions of this machine.
        afresh = overwrite and not resume
        same = with_versions(None if afresh else dataclasses.asdict(other.writer))
        if same.content == other.content and other.write.base == before.base:
            check_versions(same.writer, where=job.write.where)
            return dataclasses.replace(same, write=other.write), None
    if resume and begun:
        raise JobChangedError(
            "unfinished parts were written with other options",
            where=job.write.where,
            got="; ".join(option_differences(begun[0].options(), job.options())),
            cure="give the same options to continue, or resume=False to begin again",
        )
    job = with_versions(None)
    check_versions(job.writer, where=job.write.where)
    if there is not None:
        check_removal(output, manifest, split)
    # Nobody knows whose files have the id that the content alone would give.
    content = job.content + before.damaged
    write = before.next_write(content, replaces=True, plain=False)
    fields = {"parts": job.options(), "base": write.base, "replaces": write.replaces}
    return dataclasses.replace(job, write=write.describe(fields)), None


def _not_free(job: PartsJob, there: Split) -> JobChangedError:
    """Returns the error for a split that is there."""
    own, origin = there.source.get("content") == job.content, "from another source"
    if there.writer_parts is not None:
        changed = option_differences(there.source["options"], job.options())
        changed = [line for line in changed if not line.startswith("features")]
        origin = f"of a Writer: {'; '.join(changed) or 'with the same options'}"
    cure = "choose another split or output, or replace it with overwrite=True"
    return JobChangedError(
        "the output holds this split already",
        where=job.write.where,
        got=f"{there.records:,} records, {origin}",
        cure=cure + (", or keep it with resume=True" if own else ""),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartState:
    """The content of a part's file.

    Attributes:
        attempt: How often it was begun anew before; it is in the names of shards.
        table: The shards, once the part is finished.
        version: The version of the file; "" for a part that was not begun.
    """

    attempt: int = 0
    table: ShardTable | None = None
    version: str = ""

    @classmethod
    def load_all(cls, job: PartsJob, parts: Sequence[int]) -> list[PartState]:
        """Returns the states of parts."""
        paths, states = [job.part_file(part) for part in parts], list[PartState]()
        for path, content in zip(paths, load_all(paths), strict=True):
            if content is None:
                states.append(cls())
                continue
            with parsed(
                "the file of an unfinished part cannot be read",
                path,
                "delete the unfinished parts with gristmill clean --unfinished, then "
                "write them again",
            ):
                arrays = load_arrays(content.data, where=path, version=_VERSION)
                attempt, data = int(arrays["attempt"]), arrays["table"].tobytes()
                table = ShardTable.decode(data, where=path) if data else None
            states.append(cls(attempt=attempt, table=table, version=content.version))
        return states

    def store(self, job: PartsJob, part: int) -> PartState:
        """Writes the file; returns the state with its version.

        Raises:
            StorageChangedError: Another writer has written it meanwhile.
        """
        table = b"" if self.table is None else self.table.encode()
        arrays = {
            "attempt": np.array(self.attempt),
            "table": np.frombuffer(table, np.uint8),
        }
        storage, path = storage_for(job.write.output), job.part_file(part)
        storage.write(path, save_arrays(_VERSION, arrays), replaces=self.version)
        info = storage.stat(path)
        return dataclasses.replace(self, version="" if info is None else info.version)


class Part:
    """One part, which belongs to the writer that began it last.

    Args:
        job: The job.
        part: Number of the part.
        resume: Whether to keep an earlier writer's shards, up to the first that is not
            whole; the rest of the part is deleted.
        overwrite: Whether to begin a finished part again.

    Attributes:
        shards: Finished shards.
        records: Records in them.
        finished: Whether the part is finished: nothing can be added.

    Raises:
        JobChangedError: The part is finished already.
        StorageChangedError: Another writer has begun it at this moment.
    """

    def __init__(self, job: PartsJob, part: int, *, resume: bool, overwrite: bool):
        self._job, self._part = job, part
        self._storage = storage_for(job.write.output)
        self._reports = ShardCollector()
        self.shards = self.records = 0
        (found,) = PartState.load_all(job, [part])
        done = found.table
        self.finished = resume and done is not None
        if done is not None and not (resume or overwrite):
            raise JobChangedError(
                f"{self._name} has been written already, and not committed",
                where=job.write.where,
                cure="keep it with resume=True and commit it, or write it again with "
                "overwrite=True",
            )
        if not (found.version and resume):
            attempt = found.attempt + 1 if found.version else 0
            begun = PartState(attempt=attempt, version=found.version)
            # Earlier writers' files stay until the commit: one of them may be
            # committing at this moment.
            self._state = begun.store(job, part)
            self._check_not_over()
            return
        self._state = found
        if done is not None:
            self.shards, self.records = len(done), done.total("records")
            return
        for report in self._kept():
            self._add(report)
        self._delete_rest()

    def _kept(self) -> Iterator[ShardReport]:
        """Yields the reports of finished shards."""
        output, id_ = self._job.write.output, self._job.write.id

        def finished(shard: int) -> ShardReport | None:
            return ShardPlace.at(output, self._path(shard)).finished(id_)

        for first in itertools.count(0, _BLOCK):
            shards = range(first, first + _BLOCK)
            for report in map_all(finished, shards, at_once=_AT_ONCE):
                if report is None:
                    return
                yield report

    def _delete_rest(self) -> None:
        """Deletes the files of the part from the first shard on that is not whole."""
        self.check_current()
        write = self._job.write
        kept = {self._path(shard) for shard in range(self.shards)}
        kept |= {layout.base_name(layout.index_path(shard)) for shard in kept}
        prefix = layout.part_prefix(write.name, write.key, self._part)
        for directory in ("", layout.INDEX_DIR):
            place = layout.join(write.output, directory)
            there = self._storage.scan(place, prefix=prefix)
            delete_all(i for i in there if layout.base_name(i.path) not in kept)

    @property
    def _name(self) -> str:
        if self._job.parts == 1:
            return "the split"
        return f"part {self._part} of {self._job.parts}"

    def _path(self, shard: int) -> str:
        write, attempt = self._job.write, self._state.attempt
        return layout.part_shard_name(write.name, write.key, self._part, attempt, shard)

    def _add(self, report: ShardReport) -> None:
        self._reports.add(report)
        self.shards += 1
        self.records += report.written.records

    def check_current(self) -> None:
        """Checks that the part still belongs to this writer.

        Raises:
            JobChangedError: Another writer has taken over the part, or the write was
                given up.
        """
        self._check_not_over()
        (found,) = PartState.load_all(self._job, [self._part])
        if not found.version or found.attempt != self._state.attempt:
            raise JobChangedError(
                f"another writer has taken over {self._name}"
                if found.version
                else f"{self._name} is committed, or was given up",
                where=self._job.write.where,
                cure="give each part to one writer at a time",
            )

    def _check_not_over(self) -> None:
        """Raises JobChangedError if the write was given up, or an equal one commits."""
        write = self._job.write
        manifest, _ = read_replaced_manifest(write.output)
        write.check_not_spent(manifest)
        split = manifest.splits.get(write.split)
        if split is not None and write.id in split.writes:
            raise JobChangedError(
                "an equal writer has committed the split meanwhile",
                where=write.where,
                got=f"{split.records:,} records",
                cure="keep it with resume=True, or write it again with overwrite=True",
            )

    def publish(self, local: str, written: WrittenShard, places: Places | None) -> None:
        """Publishes a finished shard, so that a crash does not lose it.

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
        # Replaces nothing: a writer that continues makes the same bytes.
        place = ShardPlace(output=self._job.write.output, path=report.path, seen={})
        self._add(place.publish(local, written, report, places=places))

    def finish(self) -> None:
        """Writes the table: the part is finished. Raises as `publish` does."""
        self.check_current()
        done = dataclasses.replace(self._state, table=self._reports.table())
        try:
            self._state = done.store(self._job, self._part)
        except StorageChangedError:
            self.check_current()
            raise
        self.finished = True


def commit_parts(
    path: StrPath,
    *,
    name: str | None = None,
    split: str = "train",
    overwrite: bool = False,
    keep_replaced: bool = False,
) -> Manifest:
    """Commits the parts that several writers have finished as one split.

    The records of part 0 come first, then those of part 1, and so on. Call it once all
    writers have ended. It can be repeated: where the parts are committed, it returns
    the present state.

    Args:
        path: The dataset's directory, as the writers got it.
        name: The dataset's name; by default the last part of the directory.
        split: The split.
        overwrite: Whether to replace the split that is there, as for `Writer`.
        keep_replaced: Whether to keep the replaced split, as for `Writer`.

    Returns:
        The committed dataset.

    Raises:
        DataLossError: A part is not finished, or a file of one is gone.
        InputError: No writer has written a part of the split.
        JobChangedError: Writers with different options have, or a writer writes a
            finished part again.
        StorageChangedError: Another command has changed the split since they began.
    """
    write = unbegun_write(path, name, split)
    output = write.output
    before = Output.read(write, replaces=overwrite)
    manifest, there = before.manifest, before.there
    begun = [
        job
        for job in described_jobs(before)
        if job.write.base == before.base and (overwrite or not job.write.replaces)
    ]
    if len(begun) > 1:
        raise JobChangedError(
            "writers with different options have written parts of the split",
            where=f"{output}, split {split}",
            got=some_of(f"write {job.write.id}" for job in begun),
            cure="delete them with gristmill clean --unfinished, then write the parts "
            "with the same options",
        )
    if begun:
        return commit_job(begun[0], keep_replaced=keep_replaced)
    if there is None or there.writer_parts is None or overwrite:
        raise InputError(
            "there are no parts to commit",
            where=f"{output}, split {split}",
            expected="the parts that `Writer(path, part=..., parts=...)` has written",
            cure="check path, name and split; write the parts first",
        )
    _tidy(output, manifest, split)
    return manifest


def _tidy(output: str, manifest: Manifest, split: str) -> None:
    """Deletes what a killed commit left of the parts of a split."""
    key = layout.write_key(split, manifest.splits[split].parts[0].write)
    tidy_split(output, manifest, split)
    with contextlib.suppress(GristmillError):
        SplitFiles(output, manifest, split).delete_strays(key)
        path = layout.job_path(manifest.name, key)
        storage_for(output).delete(layout.join(output, path))


def commit_job(job: PartsJob, *, keep_replaced: bool) -> Manifest:
    """Commits all parts of a job; raises as `commit_parts` does."""
    output, name, key = job.write.output, job.write.name, job.write.key
    states = PartState.load_all(job, range(job.parts))
    table = _joined(job, [one.table for one in states])
    versions = [one.version for one in states]

    def check_current() -> None:
        job.write.check_current()
        now = PartState.load_all(job, range(job.parts))
        if [one.version for one in now] != versions:
            raise JobChangedError(
                "a writer writes a finished part again",
                where=job.write.where,
                cure="commit the parts once all writers have ended",
            )

    source = job.source
    if job.sources is not None:
        path = layout.inputs_path(name, key)
        data, source["file_list_digest"] = encode_sources(job.sources)
        storage_for(output).write(layout.join(output, path), data)
        source["file_list"] = path
    made = write_table(
        job.write,
        table,
        check_current=check_current,
        writer_options=job.writer.described,
        source=source,
    )
    made = dataclasses.replace(made, features=job.features)
    manifest = commit_dataset(
        *(output, name, {job.write: made}),
        keep_replaced=keep_replaced,
        check_current=check_current,
    )
    with contextlib.suppress(GristmillError):  # The split is committed.
        storage_for(output).delete(job.write.description)
    return manifest


def _joined(job: PartsJob, tables: list[ShardTable | None]) -> ShardTable:
    """Returns the table of all shards; raises DataLossError if a part has none."""
    found = [table for table in tables if table is not None]
    if len(found) < len(tables):
        missing = [str(part) for part, table in enumerate(tables) if table is None]
        raise DataLossError(
            f"{len(missing):,} of {job.parts:,} parts are not finished",
            where=job.write.where,
            got=f"no table of part {some_of(missing)}",
            cure="write these parts, then commit again: finished parts are kept",
        )
    column = np.repeat(np.arange(job.parts), [len(table) for table in found])
    joined = ShardTable.joined(found)
    # A part without records has an empty shard; the split has one if it has no other.
    rows = np.flatnonzero(joined.records) if joined.records.any() else np.zeros(1, int)
    joined.columns[_PART] = column
    return joined.taken(rows)


def part_column(table: ShardTable, *, where: str) -> npt.NDArray[np.int64]:
    """Returns the part of each shard, int64 [shards], for a split that has parts.

    Args:
        table: The table of its shards.
        where: The table's path, for messages.

    Raises:
        InvalidDatasetError: It lacks them.
    """
    column = table.columns.get(_PART)
    if column is None or column.shape != (len(table),) or column.dtype != np.int64:
        raise InvalidDatasetError(
            "table of shards does not say which part each is of",
            where=where,
            cure="restore it from a copy, or write the split again with overwrite=True",
        )
    return column
