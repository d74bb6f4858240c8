"""A job with its inputs and its plan, described beside its output.

The description is written before the first shard. Workers load it from there, so that
an element of a pipeline is no more than a number. A later run compares itself with it,
so that no job finishes the work of another one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import posixpath
from typing import NamedTuple, Self

import numpy as np

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.columns import load_arrays
from gristmill.dataset.base.errors import (
    InputError,
    InvalidDatasetError,
    JobChangedError,
    StorageChangedError,
    StorageError,
)
from gristmill.dataset.commit.editions import fingerprint_of, is_removal
from gristmill.dataset.commit.publish_shard import ShardPlace
from gristmill.dataset.commit.write_marker import option_differences
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.lookup import storage_for, version_of
from gristmill.transforms.jobs.conversion_job import (
    ConversionJob,
    ShardNames,
)
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.planning.shard_plan import PlanOptions, ShardPlan
from gristmill.transforms.sources.formats import RecordOptions
from gristmill.transforms.sources.input_files import InputFiles

_VERSION = 1


class DescriptionVersions(NamedTuple):
    """Versions of the two files that describe a conversion, "" for none."""

    job: str
    inputs: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreparedJob:
    """A job with its inputs listed and its shards planned.

    Attributes:
        job: The job.
        files: Its inputs.
        plan: Its shards.
        fresh: Whether no file of a shard was there when it took the output, in this
            run. The description does not say it.
    """

    job: ConversionJob
    files: InputFiles
    plan: ShardPlan
    fresh: bool = dataclasses.field(default=False, compare=False)

    @functools.cached_property
    def fingerprint(self) -> str:
        """16 hex digits over all that decides the bytes of the shards."""
        hasher = hashlib.sha256(json.dumps(self.job.options(), sort_keys=True).encode())
        hasher.update(self.files.digest.encode())
        for version in self.files.versions:
            hasher.update(f"{version}\n".encode())
        hasher.update(self.files.spec.to_json().encode())
        hasher.update(self.plan.cut_bytes.tobytes())
        return hasher.hexdigest()[:16]

    def shard_path(self, shard: int) -> str:
        """Returns the path of a shard, relative to the dataset."""
        job, count = self.job, self.plan.shards
        names = job.names
        if names.kind == "tfds":
            return layout.shard_name(job.name, job.split, shard, count)
        mark = layout.edition_mark(job.split)
        if names.kind == "beam":
            return f"{names.prefix}-{mark}{shard:05d}-of-{count:05d}{names.suffix}"
        base = posixpath.basename(self.files.paths[shard])
        if names.strip_extension:
            base = posixpath.splitext(base)[0]
        return mark + base + names.suffix

    def of_edition(self, key: str) -> PreparedJob:
        """Returns the same job for another edition, by its `layout.edition_key`."""
        job = dataclasses.replace(self.job, split=key)
        return dataclasses.replace(self, job=job)

    def shard_place(self, shard: int, *, fresh: bool = False) -> ShardPlace:
        """Returns the place of a shard, with the files that are there now.

        `fresh` is as for `ShardPlace.at`.
        """
        path, packed = self.shard_path(shard), self.job.pack is not None
        return ShardPlace.at(self.job.output, path, packed=packed, fresh=fresh)

    def check_shard_names(self) -> None:
        """Checks that shards have names that readers can open, and no two the same.

        Raises:
            InputError: They would not.
        """
        kind = self.job.names.kind
        if kind == "beam" and self.plan.shards:
            layout.check_shard(self.shard_path(0), where=self.job.output)
        if kind != "inputs":
            return
        owners: dict[str, str] = {}
        for shard, path in enumerate(self.files.paths):
            name = layout.check_shard(self.shard_path(shard), where=path)
            if name in owners:
                raise InputError(
                    f"two input files would both be written to {name}",
                    where=f"{owners[name]} and {path}",
                    cure="convert them into different directories, or number the "
                    "shards with gristmill convert --match-shards",
                )
            owners[name] = path

    def store(self, *, replaces: DescriptionVersions) -> None:
        """Writes the description beside the output, the file list last.

        One of several conversions that begin at once writes the first file. The
        output is its own: it replaces the list of one that had written the first file
        before.

        Args:
            replaces: Version of the description to replace.

        Raises:
            StorageChangedError: Another conversion has begun there meanwhile.
        """
        self.store_job(replaces=replaces.job)
        self.store_inputs(replaces=replaces.inputs)

    def store_inputs(self, *, replaces: str) -> None:
        """Writes the list of files; raises as `store` does."""
        job = self.job
        storage = storage_for(job.output)
        out = io.BytesIO()
        arrays = self.files.arrays() | {
            "version": np.array(_VERSION),
            "cut_bytes": self.plan.cut_bytes,
        }
        if self.plan.joined is not None:
            arrays["joined"] = self.plan.joined
        np.savez_compressed(out, **arrays)  # type: ignore[arg-type]
        inputs = layout.join(job.output, layout.inputs_path(job.name, job.split))
        try:
            storage.write(inputs, out.getvalue(), replaces=replaces)
        except StorageChangedError:
            # A conversion that lost the output to this one wrote its list afterwards.
            listed = version_of(inputs)
            place = layout.join(job.output, layout.job_path(job.name, job.split))
            found = storage.load(place)
            if found is None or not self._is_described_by(found.data):
                raise
            storage.write(inputs, out.getvalue(), replaces=listed)

    def store_job(self, *, replaces: str) -> None:
        """Writes the description without the list; raises as `store` does."""
        job = self.job
        document = {
            "version": _VERSION,
            "fingerprint": self.fingerprint,
            "input_files_digest": self.files.digest,
            "job": dataclasses.asdict(job) | {"output": None},
        }
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        place = layout.join(job.output, layout.job_path(job.name, job.split))
        storage_for(job.output).write(
            place,
            # Names of files can hold bytes that are not UTF-8: as in `dataset.json`.
            text.encode("utf-8", "backslashreplace"),
            replaces=replaces,
        )

    @classmethod
    def load(cls, output: str, name: str, split: str) -> Self | None:
        """Reads the description from beside the output; None if there is none.

        Raises InvalidDatasetError if it cannot be read, or lacks its list of files.
        """
        found, versions = cls.load_versioned(output, name, split)
        if found is None and versions.job:
            check_no_removal(output, name, split)
            raise InvalidDatasetError(
                "description of a conversion lacks its list of files",
                where=layout.join(output, layout.inputs_path(name, split)),
                got="a conversion that is starting now, or that stopped at its start",
                cure="wait for it, or start over with --overwrite",
            )
        return found

    @classmethod
    def load_versioned(
        cls, output: str, name: str, split: str, *, own: Self | None = None
    ) -> tuple[Self | None, DescriptionVersions]:
        """Reads the description, and the versions that are to be replaced by another.

        Args:
            output: The dataset's directory.
            name: Its name.
            split: The split.
            own: The job that asks. It is the one described where its fingerprint is
                there, but not its list of files, or another job's: an earlier run
                ended in between, or this one has begun elsewhere just now.
                Another job that lacks its list is None, with its version.

        Raises:
            InvalidDatasetError: It cannot be read.
        """
        storage = storage_for(output)
        path = layout.join(output, layout.job_path(name, split))
        inputs = layout.join(output, layout.inputs_path(name, split))
        found, listed = storage.load_all([path, inputs])
        versions = DescriptionVersions(
            found.version if found else "", listed.version if listed else ""
        )
        if found is None:
            return None, versions
        is_own = own is not None and own._is_described_by(found.data)
        if listed is None or is_removal(found.data):
            return own if is_own else None, versions
        arrays = load_arrays(listed.data, where=inputs, version=_VERSION)
        try:
            text = found.data.decode("utf-8", "surrogateescape")
            fields = json.loads(text)["job"] | {"output": output}
            fields["inputs"] = tuple(fields["inputs"])
            fields["plan"] = PlanOptions(**fields["plan"])
            fields["writer"] = WriterOptions(**fields["writer"])
            fields["names"] = ShardNames(**fields["names"])
            fields["records"] = RecordOptions(**fields["records"])
            if fields["pack"] is not None:
                fields["pack"] = PackOptions.of_dict(fields["pack"])
            job = ConversionJob(**fields)
            files = InputFiles.of_arrays(arrays)
            plan = ShardPlan(
                sizes=files.sizes,
                splittable=files.splittable,
                cut_bytes=arrays["cut_bytes"],
                joined=arrays.get("joined"),
            )
        except (KeyError, TypeError, ValueError) as e:
            raise InvalidDatasetError(
                "description of the conversion cannot be read",
                where=path,
                got=repr(e),
                cure="start over with --overwrite",
            ) from e
        described = cls(job=job, files=files, plan=plan)
        if not described._is_described_by(found.data):
            # The list is of another job: this one has still to write its own.
            return own if is_own else None, versions
        return described, versions

    def _is_described_by(self, document: bytes) -> bool:
        return fingerprint_of(document) == self.fingerprint

    def differences(self, found: PreparedJob) -> str:
        """Returns the differences of another job, described beside the output."""
        differences = option_differences(found.job.options(), self.job.options())
        differences += found.files.differences(self.files)
        return "; ".join(differences) or (
            f"the plan of shards differs: that job has {found.plan.shards:,} shards, "
            f"this one {self.plan.shards:,}, as when another release has planned it"
        )


def check_no_removal(output: str, name: str, split: str) -> None:
    """Raises InvalidDatasetError if a removal has begun an edition."""
    path = layout.join(output, layout.job_path(name, split))
    found = storage_for(output).load(path)
    if found is not None and is_removal(found.data):
        raise InvalidDatasetError(
            "a removal of records has begun this edition, and is not finished",
            where=path,
            cure="repeat the same gristmill remove to finish it, or delete its work "
            "with gristmill clean --unfinished",
        )


def load_prepared(output: str, name: str, split: str, fingerprint: str) -> PreparedJob:
    """Reads the description of a job, once per process unless it changes.

    Args:
        output: The dataset's directory.
        name: Its name.
        split: The split.
        fingerprint: Fingerprint of the job that is meant.

    Raises:
        JobChangedError: Another job is described there now.
    """
    # A process can serve several runs: a later one may allow more damage.
    version = version_of(layout.join(output, layout.job_path(name, split)))
    found = None
    with contextlib.suppress(LookupError):
        found = _load_version(output, name, split, version) if version else None
    if found is None or found.fingerprint != fingerprint:
        raise JobChangedError(
            "another conversion has taken over the output",
            where=f"{output}, split {split}",
            expected=f"job {fingerprint}",
            got="none, or another command"
            if found is None
            else f"job {found.fingerprint}",
            cure="run one conversion at a time into one output",
        )
    return found


def described_shards(output: str, name: str, split: str) -> set[str]:
    """Returns the shards of the job that is described beside an output.

    They need not be there, nor have the names that TFDS gives to shards of the split.
    Empty if there is no description, or if it cannot be read.
    """
    # What cannot be read any more must not prevent a fresh start.
    with contextlib.suppress(InvalidDatasetError, StorageError):
        old = PreparedJob.load(output, name, split)
        if old is not None:
            return {old.shard_path(shard) for shard in range(old.plan.shards)}
    return set()


def check_current(prepared: PreparedJob) -> None:
    """Checks that the output still belongs to a job.

    Raises:
        JobChangedError: Another conversion has taken it over.
    """
    job = prepared.job
    found = load_prepared(job.output, job.name, job.split, prepared.fingerprint)
    if changed := found.files.noted_changes(prepared.files):
        raise JobChangedError(
            "another run of this conversion has begun, and inputs changed before",
            where=f"{job.output}, split {job.split}",
            got=f"another change noted of {prepared.files.paths[changed[0]]}",
            cure="run one conversion at a time into one output",
        )


@functools.lru_cache(maxsize=8)
def _load_version(output: str, name: str, split: str, version: str) -> PreparedJob:
    found = PreparedJob.load_versioned(output, name, split)[0]
    if found is None:
        # Its list of files is still to come: an error is not remembered.
        raise LookupError(version)
    return found
