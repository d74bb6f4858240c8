"""The split that writers of Python loops make together, in one or more parts.

Parts are written at the same time, and no writer knows how many shards the others make.
So a shard is named by its part and its number in the part, and by how often the part
was begun anew: what a writer leaves that was killed is never taken for another one's.

```
c4-train.array_record-0123456789abcdef-00001-0000-00000   the first shard of part 1
index/c4-train.0123456789abcdef.job.json                  what is being written
index/c4-train.0123456789abcdef.part-00001-of-00004.npz   a part, and its table
                                                          once it is finished
```
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from gristmill.dataset.arrayrecord.file_writer import (
    check_versions,
    settled,
)
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.errors import InvalidDatasetError, JobChangedError
from gristmill.dataset.commit.commit import check_files
from gristmill.dataset.commit.ownership import (
    check_removal,
)
from gristmill.dataset.commit.write import (
    Write,
    described_writes,
    next_write,
    option_differences,
    read_output,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import (
    Manifest,
    is_over,
)
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartsJob:
    """A split to write.

    Attributes:
        write: The write; without an id until it has an output.
        parts: How many writers each write a part.
        shard_bytes: Maximum bytes of records in a shard; a larger record has its own.
        records_per_shard: Maximum records in a shard; None for no bound.
        writer: How shards are encoded.
        features: What the records hold, as `encode_features` gives it, where known.
        sources: The formats of the files that records come from, by path, where known.
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
        fields = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "write"
        }
        del fields["sources"]
        if self.sources is not None:  # Their order gives the numbers of files.
            fields["sources"] = [*self.sources.items()]
        names = {"name": self.write.name, "split": self.write.split}
        return names | fields | {"writer": dataclasses.asdict(self.writer)}

    @functools.cached_property
    def content(self) -> str:
        """16 hex digits over these options."""
        text = json.dumps(self.options(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def directory(self) -> str:
        """The directory of unfinished files."""
        return layout.temporary_dir(self.write.output, self.write.name, self.write.key)

    def part_file(self, part: int) -> str:
        """Returns the path of the file that describes a part."""
        path = layout.part_path(self.write.name, self.write.key, part, self.parts)
        return layout.join(self.write.output, path)

    @property
    def source(self) -> dict[str, Any]:
        """What `dataset.json` says of where the records come from."""
        options = self.options()
        # They are in `dataset.json` already, and in a list.
        del options["features"]
        options.pop("sources", None)
        return {
            "job": self.write.id,
            "content": self.content,
            "parts": self.parts,
            "options": options,
        }


def described_jobs(
    output: str, name: str, split: str, manifest: Manifest | None
) -> Iterator[PartsJob]:
    """Yields the jobs of writers that have begun a split, and not committed it.

    Raises:
        InvalidDatasetError: The description of one cannot be read.
    """
    for key in described_writes(output, name, split):
        if manifest is not None and is_over(manifest, key):
            continue
        path = layout.join(output, layout.job_path(name, key))
        found = storage_for(output).load(path)
        if found is None:
            continue  # It was committed just now.
        try:
            document = json.loads(found.data)
            if "parts" not in document:
                continue  # It is that of another command.
            fields = dict(document["parts"])
            del fields["name"], fields["split"]
            fields["writer"] = WriterOptions(**fields["writer"])
            if "sources" in fields:
                fields["sources"] = dict(fields["sources"])
            write = Write(
                output=output,
                name=name,
                split=split,
                id=document["fingerprint"],
                mark=document["fingerprint"],
                base=document["base"],
                replaces=document["replaces"],
            )
            job = PartsJob(write=write, **fields)
        except (KeyError, TypeError, ValueError) as e:
            raise InvalidDatasetError(
                "the description of unfinished parts cannot be read",
                where=path,
                got=repr(e),
                cure="delete this file, then begin again",
            ) from e
        yield job


def begin_parts(
    job: PartsJob, *, resume: bool, overwrite: bool
) -> tuple[PartsJob, Split | None]:
    """Gives a job its write, which writers of all its parts share.

    Args:
        job: The job.
        resume: Whether to continue with what the same job has begun, or committed.
        overwrite: Whether to replace what the output holds of the split.

    Returns:
        The job with its writer's versions and its write, and the split, if it has
        committed that.

    Raises:
        InputError: The output holds a dataset of another name.
        JobChangedError: It holds the split already, or, to continue with, parts with
            other options.
        DataLossError: The split was committed by this job, and has lost files.
    """
    output, name, split = place = job.write.output, job.write.name, job.write.split
    manifest, _ = read_output(output, name, replaces=overwrite)
    there = None if manifest is None else manifest.splits.get(split)
    if there is not None and not overwrite:
        options = there.source.get("options", {})
        made = dataclasses.replace(
            job, writer=settled(job.writer, options.get("writer"))
        )
        first = there.parts[0]  # Later editions are of others.
        if not (resume and first.source.get("content") == made.content):
            raise _not_free(made, there)
        check_files(output, {split: there})
        return made, first
    begun = [*described_jobs(*place, manifest)]
    for other in begun:
        # Who starts over has the versions of this machine.
        afresh = overwrite and not resume
        begun_with = None if afresh else dataclasses.asdict(other.writer)
        same = dataclasses.replace(job, writer=settled(job.writer, begun_with))
        if same.content == other.content and _is_next(other, there):
            check_versions(same.writer, where=job.write.where)
            return dataclasses.replace(same, write=other.write), None
    if resume and begun:
        raise JobChangedError(
            "unfinished parts were written with other options",
            where=job.write.where,
            got="; ".join(option_differences(begun[0].options(), job.options())),
            cure="give the same options to continue, or resume=False to begin again",
        )
    job = dataclasses.replace(job, writer=settled(job.writer, None))
    check_versions(job.writer, where=job.write.where)
    if there is not None and manifest is not None:
        check_removal(output, manifest, split)
    write = next_write(
        *(*place, job.content),
        manifest=manifest,
        replaces=True,
        plain=False,
    )
    fields = {"parts": job.options(), "base": write.base, "replaces": write.replaces}
    return dataclasses.replace(job, write=write.describe(fields)), None


def _is_next(job: PartsJob, there: Split | None) -> bool:
    """Returns whether an unfinished job can still be committed."""
    return job.write.base == (0 if there is None else there.edition)


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
