"""Whole jobs as Beam transforms, without a shuffle of data.

An element of a few hundred bytes names one shard, or all shards made in one pass over a
compressed file. The graph is a linear chain of such elements, which every runner can
execute. A conversion consists of two jobs: the first examines the input files and
plans, the second makes the shards.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args, get_origin, get_type_hints

import apache_beam as beam

from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.storage.paths import StrPath, path_text, path_texts
from gristmill.transforms.beam.pipeline_input import (
    check_begin,
    check_known,
    displayed,
    fields_of,
    set_types,
)
from gristmill.transforms.beam.run_job import JobTransform, RunJob, RunSteps
from gristmill.transforms.checking.verification import VerifyJob, VerifyResult
from gristmill.transforms.conversion.begin import (
    PlanConversion,
    input_notes,
    plan_notes,
)
from gristmill.transforms.conversion.commit_shards import (
    ConversionResult,
    MakeShards,
)
from gristmill.transforms.conversion.take_output import Overwrite
from gristmill.transforms.indexing.index_job import IndexJob
from gristmill.transforms.jobs.conversion_job import ConversionJob, check_jobs
from gristmill.transforms.jobs.job import Begun
from gristmill.transforms.sources.find_inputs import LookedPart, LookTask


class ResultCoder(beam.coders.Coder):
    """Encodes results of one type as JSON.

    Args:
        kind: The type: `Manifest`, or a named tuple or dataclass with fields of such
            types.
    """

    def __init__(self, kind: Any):
        self._kind = kind

    @classmethod
    def from_type_hint(cls, kind: Any, registry: Any) -> Any:
        """Returns the coder of a type."""
        return cls(kind)

    def encode(self, value: Any) -> bytes:
        """Returns the bytes of a result."""
        return json.dumps(_plain(value), sort_keys=True).encode("ascii")

    def decode(self, encoded: bytes) -> Any:
        """Returns the result."""
        return _made(self._kind, json.loads(encoded))

    def is_deterministic(self) -> bool:
        """Returns True: equal results have equal bytes."""
        return True

    def to_type_hint(self) -> Any:
        """Returns the type of the results."""
        return self._kind

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ResultCoder) and other._kind == self._kind

    def __hash__(self) -> int:
        return hash(self._kind)


def _plain(value: Any) -> Any:
    if isinstance(value, Manifest):
        return value.encode().decode("utf-8")
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        plain = [*map(_plain, value)]
        return plain if fields is None else dict(zip(fields, plain, strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(one) for name, one in vars(value).items()}
    return value


def _made(kind: Any, value: Any) -> Any:
    if kind is Manifest:
        return Manifest.decode(value.encode("utf-8"), where="the result of a transform")
    if get_origin(kind) is tuple:
        return tuple(_made(get_args(kind)[0], one) for one in value)
    if get_origin(kind) is types.UnionType:  # With None.
        return None if value is None else _made(get_args(kind)[0], value)
    if isinstance(value, dict):
        hints = get_type_hints(kind)
        return kind(**{name: _made(hints[name], one) for name, one in value.items()})
    return value


_log = logging.getLogger(__name__)


beam.coders.registry.register_coder(ConversionResult, ResultCoder)


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The first job: `PlanConversion`, which returns the second, small one."""

    plan: PlanConversion
    work: MakeShards

    def begin(self) -> Begun[LookTask]:
        return self.plan.begin()

    @property
    def step(self) -> Callable[[LookTask], LookedPart]:
        return self.plan.step

    def commit(self, gathered: Gathered) -> MakeShards:
        taken = self.plan.commit(gathered)
        for one in taken:
            job, files = one.prepared.job, one.prepared.files
            notes = input_notes(job, files)
            if one.committed is None:
                notes += plan_notes(one.prepared)
            for note in notes:
                _log.warning("%s: %s", job.output, note)
        return self.work.begun_by(taken)


@dataclasses.dataclass(kw_only=True)
class ConvertFiles(
    beam.PTransform[beam.pvalue.PBegin, beam.PCollection[ConversionResult]]
):
    """Converts input files of any format into splits of one committed dataset.

    Apply it to a pipeline; it returns a PCollection of one `ConversionResult`. Files
    can be of any format that `gristmill convert` reads: `ConversionJob.records` names
    the format, and what becomes a record.

    Guarantees: bounded; the bytes of a shard depend only on the job, so retries and
    duplicates do no harm; records keep the order of the sorted inputs; the dataset
    appears only if every input byte is accounted for. Each thread of the runner makes a
    shard at a time, but a compressed file is read by one thread. Memory per shard in
    flight: one block of input and output, and some 30 bytes per record; with buckets
    also up to 24 MiB of input fetched ahead, and 16 MiB of an upload. Disk: the shard.

    Attributes:
        jobs: One for each split, with the same output and name.
        features: The schema, where known.
        tfds_directory: The TFDS directory that the jobs come from, if any; its metadata
            is written for the output too.
        overwrite: Whether to replace these splits in the output; `changed` to replace
            them only if jobs with the same kind of names wrote all of them.
        keep_replaced: Whether to keep what is replaced, for a rollback.
    """

    jobs: tuple[ConversionJob, ...]
    features: Mapping[str, Any] | None = None
    tfds_directory: StrPath | None = None
    overwrite: Overwrite = False
    keep_replaced: bool = False

    def __post_init__(self) -> None:
        super().__init__()
        set_types(self, gives=ConversionResult)
        check_known(self)
        check_jobs(self.jobs)

    def display_data(self) -> dict[str, Any]:
        """Returns the display data for a runner's page."""
        own = {n: value for n, value in fields_of(self).items() if n != "jobs"}
        return displayed(**own) | _displayed(self.jobs)

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection[ConversionResult]:
        """Builds the chain.

        Raises:
            InputError: It is applied to a PCollection.
        """
        check_begin(begin, "ConvertFiles")
        tfds = self.tfds_directory
        work = MakeShards(
            jobs=self.jobs,
            features=self.features,
            tfds_directory=None if tfds is None else path_text(tfds, "TFDS directory"),
            keep_replaced=self.keep_replaced,
        )
        plan = PlanConversion(jobs=self.jobs, overwrite=self.overwrite)
        done: beam.PCollection[ConversionResult] = (
            begin | "Plan" >> RunJob(_Plan(plan, work)) | "MakeShards" >> RunSteps(work)
        )
        return done


class MakePlanned(
    beam.PTransform[beam.pvalue.PBegin, beam.PCollection[ConversionResult]]
):
    """Makes the shards of conversions that have begun, and commits them.

    It spreads them itself, as some runners do not redistribute elements (Dask).

    Args:
        work: The job, with the conversions that have begun.
    """

    def __init__(self, work: MakeShards):
        super().__init__()
        self._work = work

    def display_data(self) -> dict[str, Any]:
        """Returns the display data for a runner's page."""
        return _displayed(self._work.jobs)

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection[ConversionResult]:
        """Builds the chain."""
        strides = beam.Create(self._work.strides(), reshuffle=True)
        done: beam.PCollection[ConversionResult] = (
            begin | "Strides" >> strides | "MakeShards" >> RunSteps(self._work)
        )
        return done


def _displayed(jobs: Sequence[ConversionJob]) -> dict[str, Any]:
    first = jobs[0]
    shown: dict[str, Any] = {}
    for job in jobs:
        plan = "=".join(map(str, filter(None, (job.plan.kind, job.plan.value))))
        shown |= {f"input_{job.split}": job.inputs, f"plan_{job.split}": plan}
    return displayed(
        **shown,
        output=first.output,
        name=first.name,
        writer=first.writer.described,
        map=first.map,
        records=first.records,
        pack=first.pack,
    )


beam.coders.registry.register_coder(Manifest, ResultCoder)


@dataclasses.dataclass(kw_only=True)
class IndexArrayRecords(JobTransform[Manifest]):
    """Turns existing ArrayRecord files into a dataset, in place.

    Apply it to a pipeline; it returns a PCollection of one `Manifest`.

    Guarantees: bounded; one linear chain, which every runner can execute; each thread
    of the runner reads a file at a time; an index depends only on its file, so retries
    do no harm; the dataset appears only after all files were read and the hashes of
    their chunks compared. Memory per file in flight: 4 MiB decoded, or one chunk if
    that is larger, and 35 bytes per record.

    Attributes:
        files: One or several ArrayRecord files or glob patterns, all in one directory.
        name: The dataset's name; by default from the file names.
        split: The split of all files; by default from their names.
        overwrite: Whether to replace existing splits.
        keep_replaced: Whether to keep what is replaced, for a rollback, until
            `gristmill clean`.
    """

    files: StrPath | Sequence[StrPath]
    name: str | None = None
    split: str | None = None
    overwrite: bool = False
    keep_replaced: bool = False

    _gives = Manifest

    def _make_job(self) -> IndexJob:
        files = path_texts(self.files, "file")
        if not files:
            raise InputError(
                "no files given", cure="give paths or patterns of ArrayRecord files"
            )
        return IndexJob(
            files=files,
            name=self.name,
            split=self.split,
            overwrite=self.overwrite,
            keep_replaced=self.keep_replaced,
        )


beam.coders.registry.register_coder(VerifyResult, ResultCoder)


@dataclasses.dataclass
class VerifyDataset(JobTransform[VerifyResult]):
    """Reads a whole dataset again, and lists its faults.

    Apply it to a pipeline; it returns a PCollection of one `VerifyResult`. Damage does
    not fail the pipeline, see `findings`; a directory without a committed dataset does.

    Guarantees: bounded; one linear chain, which every runner can execute; each thread
    of the runner reads a shard at a time; nothing is written, so retries do no harm.
    Memory per shard in flight: 1 MiB of the file (up to 4 MiB decoded), or one chunk if
    that is larger, and some 20 bytes per record; for packed rows some 80 bytes per
    piece.

    Attributes:
        dataset: The directory of a committed dataset.
        quick: Whether to skip the contents of shards and indexes.
    """

    dataset: StrPath
    quick: bool = False

    _gives = VerifyResult

    def _make_job(self) -> VerifyJob:
        return VerifyJob(path_text(self.dataset, "dataset"), self.quick)
