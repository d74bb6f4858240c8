"""One conversion of one split: its options, its inputs and its plan.

The description is written beside the output before the first shard. Workers load it
from there, so that an element of a pipeline is no more than a number. A later run
compares itself with it, so that no job finishes the work of another one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import posixpath
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self, get_args

import numpy as np

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.columns import load_arrays, save_arrays
from gristmill.dataset.base.errors import (
    InputError,
    JobChangedError,
    OnCorrupt,
    parsed,
)
from gristmill.dataset.commit.editions import newest_edition
from gristmill.dataset.commit.write import Write, option_differences
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_files import ShardPlace
from gristmill.dataset.storage.lookup import load_all, storage_for, version_of
from gristmill.dataset.storage.paths import path_text, path_texts
from gristmill.transforms.functions.user_functions import split_name
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.planning.shard_plan import PlanOptions, ShardPlan
from gristmill.transforms.sources.formats import RecordOptions
from gristmill.transforms.sources.input_files import InputFiles


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardNames:
    """The names of shard files.

    Attributes:
        kind: `tfds`, as TFDS names them; `beam`, `PREFIX-00000-of-00008SUFFIX`;
            `inputs`, the base name of the one input file each, and SUFFIX.
        prefix: For `beam`.
        suffix: For `beam` and `inputs`.
        strip_extension: For `inputs`: whether the input's extension goes.
    """

    kind: Literal["tfds", "beam", "inputs"] = "tfds"
    prefix: str = ""
    suffix: str = ""
    strip_extension: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConversionJob:
    """The inputs, the output and the options of a conversion.

    Attributes:
        inputs: Paths and glob patterns of the input files; one, or any iterable of
            them, becomes a tuple.
        output: The dataset's directory.
        name: The dataset's name, part of the file names.
        split: The split to write.
        plan: How many shards to make.
        writer: How shards are encoded.
        map: `module:function` to call on every record, or None.
        map_code_digest: Digest of the file that holds it, set when the job is planned.
        on_corrupt: `fail` at damaged input, or `skip` it and continue.
        max_corrupt: Maximum number of damaged regions to skip in the whole split.
        names: How shard files are named.
        allow_empty_files: Whether to accept an input of 0 bytes as one without records.
        records: The format of the inputs, and the records to make of them.
        join_splits: Whether inputs of several splits, by their names, may become this
            one, which must have another name.
        pack: The rows of tokens to make; None to write the records.
        appends: Whether to append the records to those of the split.
    """

    inputs: tuple[str, ...]
    output: str
    name: str
    split: str = "train"
    plan: PlanOptions = dataclasses.field(default_factory=PlanOptions)
    writer: WriterOptions = dataclasses.field(default_factory=WriterOptions)
    map: str | None = None
    map_code_digest: str = ""
    on_corrupt: OnCorrupt = "fail"
    max_corrupt: int = 100
    names: ShardNames = dataclasses.field(default_factory=ShardNames)
    allow_empty_files: bool = False
    join_splits: bool = False
    records: RecordOptions = dataclasses.field(default_factory=RecordOptions)
    pack: PackOptions | None = None
    appends: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", path_texts(self.inputs, "input"))
        object.__setattr__(self, "output", path_text(self.output, "output"))
        layout.check_name(self.name)
        layout.check_split(self.split)
        if not self.inputs:
            raise InputError(
                "no input files given", cure="give paths or patterns of the input files"
            )
        if self.map is not None:
            split_name(self.map)
        if self.on_corrupt not in get_args(OnCorrupt):
            raise InputError(
                "unknown --on-corrupt",
                expected=" or ".join(get_args(OnCorrupt)),
                got=self.on_corrupt,
                cure="give one of these",
            )

    def options(self) -> dict[str, Any]:
        """Returns the options that decide the bytes of the shards, as plain values.

        Options for damage, empty files, joined splits and appending are omitted, since
        they do not change a finished shard.
        """
        fields = dataclasses.asdict(self)
        for other in (
            *("inputs", "output"),
            *("on_corrupt", "max_corrupt", "allow_empty_files", "join_splits"),
            "appends",
        ):
            del fields[other]
        fields["records"]["columns"] = list(self.records.columns)  # As JSON has it.
        if self.pack is not None:  # Its content counts, not its path.
            del fields["pack"]["tokenizer"]
            if self.pack.chat is not None:
                del fields["pack"]["chat"]["template"]
                del fields["pack"]["chat"][
                    "date"
                ]  # The template that was found has it.
        return fields

    @property
    def write(self) -> Write:
        """The write, without an id."""
        return Write(output=self.output, name=self.name, split=self.split)


def check_jobs(jobs: tuple[ConversionJob, ...]) -> None:
    """Raises InputError unless jobs make different splits of one dataset."""
    given = jobs if isinstance(jobs, Sequence) else (jobs,)
    if given is not jobs or not all(isinstance(job, ConversionJob) for job in given):
        raise InputError(
            "jobs are not conversions",
            expected="jobs=(ConversionJob(...),), one for each split",
            got=repr(jobs)[:200],
            cure="give a tuple of jobs",
        )
    if not jobs:
        raise InputError("no conversion given", cure="give one job for each split")
    if len({(job.output, job.name) for job in jobs}) != 1:
        raise InputError(
            "jobs of one conversion must share output and name",
            cure="give all jobs the same ones, or convert one dataset after the other",
        )
    if len({job.split for job in jobs}) != len(jobs):
        raise InputError(
            "two jobs write the same split", cure="give each job a split of its own"
        )


_VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PreparedJob:
    """A job with its inputs listed and its shards planned.

    Attributes:
        job: The job.
        files: Its inputs.
        plan: Its shards.
        write: The write, with its id once the output is taken.
        fresh: Whether no file of a shard existed then. It is not in the description.
        changed: Numbers of the files with a change noted by the system since shards
            were begun; finished shards are compared with them.
    """

    job: ConversionJob
    files: InputFiles
    plan: ShardPlan
    write: Write
    fresh: bool = False
    changed: frozenset[int] = frozenset()

    @functools.cached_property
    def content(self) -> str:
        """A digest of all that decides the bytes of the shards, 16 hex digits.

        The times of local files are not part of it: if these differ, the bytes are
        compared.
        """
        hasher = hashlib.sha256(json.dumps(self.job.options(), sort_keys=True).encode())
        hasher.update(self.files.digest.encode())
        for path, version in zip(self.files.paths, self.files.versions, strict=True):
            hasher.update(f"{version}\n".encode() if "://" in path else b"")
        hasher.update(self.files.spec.to_json().encode())
        hasher.update(self.plan.cut_bytes.tobytes())
        return hasher.hexdigest()[:16]

    @property
    def shards(self) -> list[str]:
        """The path of each shard, relative to the dataset."""
        return [*map(self.shard_path, range(self.plan.shards))]

    def shard_path(self, shard: int) -> str:
        """Returns the path of a shard, relative to the dataset."""
        names, count = self.job.names, self.plan.shards
        if names.kind == "tfds":
            return layout.shard_name(self.job.name, self.write.key, shard, count)
        mark = self.write.mark and f"{self.write.mark}-"
        if names.kind == "beam":
            return f"{names.prefix}-{mark}{shard:05d}-of-{count:05d}{names.suffix}"
        base = posixpath.basename(self.files.paths[shard])
        if names.strip_extension:
            base = posixpath.splitext(base)[0]
        return mark + base + names.suffix

    def shard_place(self, shard: int) -> ShardPlace:
        """Returns the place of a shard, with the files that exist there."""
        path, packed = self.shard_path(shard), self.job.pack is not None
        return ShardPlace.at(self.job.output, path, packed=packed, fresh=self.fresh)

    def check_shard_names(self) -> None:
        """Raises InputError unless shards have distinct names that readers open."""
        kind = self.job.names.kind
        if kind == "beam" and self.plan.shards:
            layout.check_shard(self.shard_path(0), where=self.job.output)
        owners: dict[str, str] = {}
        for shard, path in enumerate(self.files.paths if kind == "inputs" else ()):
            name = layout.check_shard(self.shard_path(shard), where=path)
            if name in owners:
                raise InputError(
                    f"two input files would both be written to {name}",
                    where=f"{owners[name]} and {path}",
                    cure="convert them into different directories, or number the "
                    "shards with gristmill convert --match-shards",
                )
            owners[name] = path

    def store(self) -> PreparedJob:
        """Writes the description beside the output, and returns the job with its names.

        The file list is written last; see `Write.describe` for the names.
        """
        job = dataclasses.asdict(self.job) | {"output": None}
        write = self.write.describe({"content": self.content, "job": job})
        arrays = self.files.arrays() | {
            "cut_bytes": self.plan.cut_bytes,
            "changed": np.array(sorted(self.changed), np.int64),
        }
        if self.plan.joined is not None:
            arrays["joined"] = self.plan.joined
        inputs = layout.join(write.output, layout.inputs_path(write.name, write.key))
        storage_for(write.output).write(inputs, save_arrays(_VERSION, arrays))
        return dataclasses.replace(self, write=write)

    @classmethod
    def load(cls, output: str, name: str, key: str) -> Self | None:
        """Reads the description beside the output.

        It is None if there is none, if its file list is missing, or for a removal.

        Args:
            output: The dataset's directory.
            name: Its name.
            key: The write, by its `layout.write_key`.

        Raises:
            InvalidDatasetError: It cannot be read.
        """
        path = layout.join(output, layout.job_path(name, key))
        inputs = layout.join(output, layout.inputs_path(name, key))
        found, listed = load_all([path, inputs])
        if found is None or listed is None:
            return None
        arrays = load_arrays(listed.data, where=inputs, version=_VERSION)
        with parsed(
            "description of the conversion cannot be read",
            path,
            "delete it with gristmill clean --unfinished, then convert again",
        ):
            document = json.loads(found.data.decode("utf-8", "surrogateescape"))
            fields = document["job"] | {"output": output}
            fields["inputs"] = tuple(fields["inputs"])
            fields["plan"] = PlanOptions(**fields["plan"])
            fields["writer"] = WriterOptions(**fields["writer"])
            fields["names"] = ShardNames(**fields["names"])
            fields["records"] = RecordOptions(**fields["records"])
            if fields["pack"] is not None:
                fields["pack"] = PackOptions.of_dict(fields["pack"])
            job, files = ConversionJob(**fields), InputFiles.of_arrays(arrays)
            described = cls(
                job=job,
                files=files,
                plan=ShardPlan(
                    sizes=files.sizes,
                    splittable=files.splittable,
                    cut_bytes=arrays["cut_bytes"],
                    joined=arrays.get("joined"),
                ),
                write=dataclasses.replace(
                    job.write,
                    id=str(document["fingerprint"]),
                    mark=layout.parse_write_key(key)[1],
                ),
                changed=frozenset(arrays["changed"].tolist()),
            )
            content = document["content"]
        # Otherwise the list is an old one, about to be replaced.
        return described if described.content == content else None

    def differences(self, found: PreparedJob) -> str:
        """Returns the differences from the job that is described beside the output."""
        differences = option_differences(found.job.options(), self.job.options())
        differences += found.files.differences(self.files)
        return "; ".join(differences) or (
            f"the plan of shards differs: that job has {found.plan.shards:,} shards, "
            f"this one {self.plan.shards:,}, as when another release has planned it"
        )

    def check_current(self) -> None:
        """Raises JobChangedError if the job was given up, or inputs have changed."""
        found = load_prepared(self.write)
        if changed := found.files.noted_changes(self.files):
            raise JobChangedError(
                "another run of this conversion has begun, and inputs changed before",
                where=self.write.where,
                got=f"another change noted of {self.files.paths[changed[0]]}",
                cure="run one conversion at a time into one output",
            )


def check_current(jobs: Iterable[PreparedJob]) -> None:
    """Calls `PreparedJob.check_current` of all jobs."""
    for job in jobs:
        job.check_current()


def load_prepared(write: Write) -> PreparedJob:
    """Reads the description of a write, once per process unless it changes.

    Raises:
        JobChangedError: Another job is described there.
    """
    # A process can serve several runs: a later one may allow more damage.
    version, found = version_of(write.description), None
    with contextlib.suppress(LookupError):
        found = _load_version(write, version) if version else None
    if found is None or found.write.id != write.id:
        raise JobChangedError(
            "this conversion was given up, or another command has made the split",
            where=write.where,
            expected=f"write {write.id}",
            got=newest_edition(write.output, write.split)
            if found is None
            else f"write {found.write.id}",
            cure="look at the split with gristmill inspect, and run the same command "
            "again if its result is still wanted",
        )
    return dataclasses.replace(found, write=write)


@functools.lru_cache(maxsize=8)
def _load_version(write: Write, version: str) -> PreparedJob:
    del version  # In the key of the cache.
    found = PreparedJob.load(write.output, write.name, write.key)
    if found is None:
        # Its file list is still missing; the cache does not keep an error.
        raise LookupError(write.key)
    return found
