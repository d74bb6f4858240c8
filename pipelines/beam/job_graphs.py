"""The pipelines as Beam transforms, from their options."""

from __future__ import annotations

import dataclasses
from typing import Any

import apache_beam as beam

from gristmill.dataset.base.errors import CorruptShardError
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.job_options import (
    ConvertOptions,
    Options,
    VerifyOptions,
)
from gristmill.pipelines.text.printer import plural
from gristmill.pipelines.text.verification import Verification
from gristmill.transforms.beam.convert_files import ConvertFiles
from gristmill.transforms.beam.index_arrayrecords import IndexArrayRecords
from gristmill.transforms.beam.verify_dataset import VerifyDataset
from gristmill.transforms.checking.verification import VerifyResult


@dataclasses.dataclass(kw_only=True)
class VerifyAndReport(
    beam.PTransform[beam.pvalue.PBegin, beam.PCollection[Verification]]
):
    """Verifies a dataset, and fails the job if anything is wrong.

    For jobs on a service, which shows nothing but the job's state. Applied to a
    pipeline; gives a PCollection of one `Verification`. Retries write the same report
    again.

    Attributes:
        dataset: The directory of a committed dataset.
        quick: Whether to leave out the contents of shards and indexes.
        report: A file to write the result to, as JSON, or None.
    """

    dataset: str
    quick: bool = False
    report: str | None = None

    def __post_init__(self) -> None:
        """Lets Beam initialise its part."""
        super().__init__()

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection[Verification]:
        """Builds the chain."""
        reported: beam.PCollection[Verification] = (
            begin
            | "Verify" >> VerifyDataset(self.dataset, quick=self.quick)
            | "Report" >> beam.Map(self._report)
        )
        return reported

    def _report(self, result: VerifyResult) -> Verification:
        found = Verification(quick=self.quick, **result._asdict())
        if self.report is not None:
            found.write(self.report)
        if found.findings:
            raise CorruptShardError(
                f"the dataset is damaged: {plural(found.findings_count, 'finding')}",
                where=found.dataset,
                got=str(found.findings[0]),
                cure=f"see {self.report or 'gristmill verify'} for all findings",
            )
        return found


def graph_of(options: Options) -> beam.PTransform[beam.pvalue.PBegin, Any]:
    """Returns a pipeline whose workers list the inputs and plan the shards.

    Building the graph reads only what `conversion_of` does.
    """
    if isinstance(options, ConvertOptions):
        return ConvertFiles(**conversion_of(options)._asdict())
    given = dataclasses.asdict(options)
    if isinstance(options, VerifyOptions):
        return VerifyAndReport(**given)
    return IndexArrayRecords(**given)
