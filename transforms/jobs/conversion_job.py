"""One conversion of one split: what to convert, and how."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, get_args

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.errors import InputError, OnCorrupt
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import path_text, path_texts
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.planning.shard_plan import PlanOptions
from gristmill.transforms.sources.formats import RecordOptions


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


def waits_for_storage(job: ConversionJob) -> bool:
    """Returns whether the inputs or the output of a job answer slowly."""
    return any(storage_for(path).remote for path in (*job.inputs, job.output))
