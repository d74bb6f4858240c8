"""One conversion of one split: what to convert, and how; its inputs and its plan.

The description is written beside the output before the first shard. Workers load it
from there, so that an element of a pipeline is no more than a number. A later run
compares itself with it, so that no job finishes the work of another one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import posixpath
from collections.abc import Sequence
from typing import Any, Literal, Self, get_args

import numpy as np

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.columns import load_arrays
from gristmill.dataset.base.errors import (
    InputError,
    InvalidDatasetError,
    JobChangedError,
    OnCorrupt,
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
    """How shard files are named.

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
    """What to convert, and how.

    Attributes:
        inputs: Paths and glob patterns of the input files; one, or any iterable of
            them, becomes a tuple.
        output: The dataset's directory.
        name: The dataset's name, part of the file names.
        split: The split to write; once it has an output the `layout.write_key` by which
            its files are named.
        plan: How many shards to make.
        writer: How shards are encoded.
        map: `module:function` to call on every record, or None.
        map_code_digest: Digest of the file that holds it, set when the job is planned.
        on_corrupt: `fail` at damaged input, or `skip` it and continue.
        max_corrupt: Maximum damaged regions to skip, in the whole split.
        names: How shard files are named.
        allow_empty_files: Whether an input of 0 bytes counts as one without records.
        records: What is known of the inputs, and of the records to make of them.
        join_splits: Whether inputs that are of several splits, by their names, may
            become this one. It has to have a name that is none of theirs.
        pack: The rows of tokens to make of the records, None to write the records.
        appends: Whether the records come after those that the split has.
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
        layout.parse_write_key(self.split)
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

        The options for damage, empty files and joined splits are left out: they do not
        change a shard that was finished. So is where the records come in the split.
        """
        fields = dataclasses.asdict(self)
        for other in (
            *("inputs", "output"),
            *("on_corrupt", "max_corrupt", "allow_empty_files", "join_splits"),
            "appends",
        ):
            del fields[other]
        fields["records"]["columns"] = list(self.records.columns)  # As JSON has it.
        if self.pack is not None:  # Its content counts, wherever it lies.
            del fields["pack"]["tokenizer"]
            if self.pack.chat is not None:
                del fields["pack"]["chat"]["template"]
                del fields["pack"]["chat"]["date"]  # What was found has it.
        split, _ = layout.parse_write_key(self.split)
        return fields | {"split": split}


def check_jobs(jobs: tuple[ConversionJob, ...]) -> None:
    """Checks that jobs make splits of one dataset.

    Raises:
        InputError: They do not.
    """
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreparedJob:
    """A job with its inputs listed and its shards planned.

    Attributes:
        job: The job.
        files: Its inputs.
        plan: Its shards.
        write: The id of the write, once it has an output.
        base: The newest edition of the split when it took the output, in this run; 0
            for no split.
        fresh: Whether no file of a shard was there then. The description says neither.
        changed: The numbers of files of which the system has noted a change since
            shards were begun: what finished shards were made of is compared.
    """

    job: ConversionJob
    files: InputFiles
    plan: ShardPlan
    write: str = ""
    base: int = dataclasses.field(default=0, compare=False)
    fresh: bool = dataclasses.field(default=False, compare=False)
    changed: frozenset[int] = frozenset()

    @property
    def fingerprint(self) -> str:
        """The id of the write, which its shards name; before it has one, `content`."""
        return self.write or self.content

    @functools.cached_property
    def content(self) -> str:
        """16 hex digits over all that decides the bytes of the shards.

        Not the times of files on a disk: where these differ, the bytes are looked at.
        """
        hasher = hashlib.sha256(json.dumps(self.job.options(), sort_keys=True).encode())
        hasher.update(self.files.digest.encode())
        for path, version in zip(self.files.paths, self.files.versions, strict=True):
            hasher.update(f"{version}\n".encode() if "://" in path else b"")
        hasher.update(self.files.spec.to_json().encode())
        hasher.update(self.plan.cut_bytes.tobytes())
        return hasher.hexdigest()[:16]

    def shard_path(self, shard: int) -> str:
        """Returns the path of a shard, relative to the dataset."""
        job, count = self.job, self.plan.shards
        names = job.names
        if names.kind == "tfds":
            return layout.shard_name(job.name, job.split, shard, count)
        mark = layout.parse_write_key(job.split)[1]
        mark = mark and f"{mark}-"
        if names.kind == "beam":
            return f"{names.prefix}-{mark}{shard:05d}-of-{count:05d}{names.suffix}"
        base = posixpath.basename(self.files.paths[shard])
        if names.strip_extension:
            base = posixpath.splitext(base)[0]
        return mark + base + names.suffix

    def index_names(self) -> list[str]:
        """Returns the file name of each shard's index, written when it is finished."""
        paths = map(self.shard_path, range(self.plan.shards))
        return [layout.base_name(layout.index_path(path)) for path in paths]

    def of_write(self, write: Write) -> PreparedJob:
        """Returns the same job with its write."""
        job = dataclasses.replace(self.job, split=write.key)
        return dataclasses.replace(self, job=job, write=write.id, base=write.base)

    @property
    def as_write(self) -> Write:
        """The write that it is."""
        split, mark = layout.parse_write_key(self.job.split)
        return Write(
            output=self.job.output,
            name=self.job.name,
            split=split,
            id=self.fingerprint,
            mark=mark,
            base=self.base,
            replaces=self.replaces,
        )

    @property
    def replaces(self) -> bool:
        """Whether it replaces what the split has."""
        return bool(self.base) and not self.job.appends

    @property
    def split(self) -> str:
        """The name of the split."""
        return layout.parse_write_key(self.job.split)[0]

    def changed_since(self, before: PreparedJob) -> PreparedJob:
        """Returns the job with what has changed since an earlier run described it."""
        changed = before.changed.union(before.files.noted_changes(self.files))
        return dataclasses.replace(self, changed=changed)

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

    def store(self) -> PreparedJob:
        """Writes the description beside the output, the file list last.

        Returns the job with the names that it has, as `Write.describe` does.
        """
        job, write = self.job, self.as_write
        fields = {
            "version": _VERSION,
            "content": self.content,
            "input_files_digest": self.files.digest,
            "job": dataclasses.asdict(job) | {"output": None, "split": self.split},
        }
        write = write.describe(fields)
        inputs = layout.join(job.output, layout.inputs_path(job.name, write.key))
        storage_for(job.output).write(inputs, self._listed())
        return dataclasses.replace(self.of_write(write), fresh=self.fresh)

    def _listed(self) -> bytes:
        out = io.BytesIO()
        arrays = self.files.arrays() | {
            "version": np.array(_VERSION),
            "cut_bytes": self.plan.cut_bytes,
            "changed": np.array(sorted(self.changed), np.int64),
        }
        if self.plan.joined is not None:
            arrays["joined"] = self.plan.joined
        np.savez_compressed(out, **arrays)  # type: ignore[arg-type]
        return out.getvalue()

    @classmethod
    def load(cls, output: str, name: str, split: str) -> Self | None:
        """Reads the description from beside the output; None if there is none.

        Also None if its list of files is not there yet, or it is that of a removal.

        Args:
            output: The dataset's directory.
            name: Its name.
            split: The write, by its `layout.write_key`.

        Raises:
            InvalidDatasetError: It cannot be read.
        """
        path = layout.join(output, layout.job_path(name, split))
        inputs = layout.join(output, layout.inputs_path(name, split))
        found, listed = load_all([path, inputs])
        if found is None or listed is None:
            return None
        arrays = load_arrays(listed.data, where=inputs, version=_VERSION)
        try:
            document = json.loads(found.data.decode("utf-8", "surrogateescape"))
            fields = document["job"] | {"output": output, "split": split}
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
            write, content = str(document["fingerprint"]), document["content"]
            changed = frozenset(arrays["changed"].tolist())
        except (KeyError, TypeError, ValueError) as e:
            raise InvalidDatasetError(
                "description of the conversion cannot be read",
                where=path,
                got=repr(e),
                cure="delete it with gristmill clean --unfinished, then convert again",
            ) from e
        described = cls(job=job, files=files, plan=plan, write=write, changed=changed)
        # Else the list is another one, which is to be replaced.
        return described if described.content == content else None

    def differences(self, found: PreparedJob) -> str:
        """Returns the differences of another job, described beside the output."""
        differences = option_differences(found.job.options(), self.job.options())
        differences += found.files.differences(self.files)
        return "; ".join(differences) or (
            f"the plan of shards differs: that job has {found.plan.shards:,} shards, "
            f"this one {self.plan.shards:,}, as when another release has planned it"
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
            "this conversion was given up, or another command has made the split",
            where=f"{output}, split {split}",
            expected=f"write {fingerprint}",
            got=newest_edition(output, split)
            if found is None
            else f"write {found.fingerprint}",
            cure="look at the split with gristmill inspect, and run the same command "
            "again if its result is still wanted",
        )
    return found


def check_current(*jobs: PreparedJob) -> None:
    """Checks that jobs were not given up, and are the same in other processes.

    Raises:
        JobChangedError: One was, or its inputs have changed there.
    """
    for prepared in jobs:
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
    del version  # In the key of the cache.
    found = PreparedJob.load(output, name, split)
    if found is None:
        # Its list of files is still to come: an error is not remembered.
        raise LookupError(split)
    return found
