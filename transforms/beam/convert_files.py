"""`ConvertFiles`: the conversion as one Beam transform, without a shuffle of data.

An element of a few hundred bytes names one shard, or all shards made in one pass over a
compressed file. The graph is a linear chain of such elements, which every runner can
execute. It consists of two jobs: the first examines the input files and plans, the
second makes the shards.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import apache_beam as beam

from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.storage.paths import StrPath, path_text
from gristmill.transforms.beam.pipeline_input import (
    check_begin,
    check_known,
    displayed,
    fields_of,
    set_types,
)
from gristmill.transforms.beam.result_coders import ResultCoder
from gristmill.transforms.beam.run_job import RunJob, RunSteps
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
from gristmill.transforms.jobs.conversion_job import ConversionJob, check_jobs
from gristmill.transforms.jobs.job import Begun
from gristmill.transforms.sources.find_inputs import LookedPart, LookTask

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
