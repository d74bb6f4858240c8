"""The pipelines as Beam transforms, made of the options that people give."""

from __future__ import annotations

import dataclasses
from typing import Any

import apache_beam as beam

from gristmill.dataset.errors import CorruptShardError
from gristmill.pipelines.options.definitions import (
    ConvertOptions,
    Options,
    VerifyOptions,
)
from gristmill.pipelines.options.to_jobs import conversion_of
from gristmill.pipelines.results.text import plural
from gristmill.pipelines.verify import Verification, write_report
from gristmill.transforms.convert_tfrecords import ConvertTFRecords
from gristmill.transforms.index_arrayrecords import IndexArrayRecords
from gristmill.transforms.verify_dataset import VerifyDataset, VerifyResult


@dataclasses.dataclass(kw_only=True)
class VerifyAndReport(
    beam.PTransform[beam.pvalue.PBegin, beam.PCollection[Verification]]
):
    """Reads a whole dataset again, and says in a file what is wrong with it.

    Applied to a pipeline; gives a PCollection of one `Verification`. Retries write the
    same file again.

    Attributes:
        dataset: The directory of a committed dataset.
        quick: Whether to look at metadata, presence and sizes only.
        report: The file, or None for none.
        fail: Whether the pipeline fails if anything is wrong, for runners whose jobs
            nobody waits for.
    """

    dataset: str
    quick: bool = False
    report: str | None = None
    fail: bool = False

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
            write_report(found, self.report)
        if self.fail and found.findings:
            raise CorruptShardError(
                f"the dataset is damaged: {plural(len(found.findings), 'finding')}",
                where=found.dataset,
                got=str(found.findings[0]),
                cure=f"see {self.report or 'gristmill verify'} for all of them",
            )
        return found


def graph_of(options: Options) -> beam.PTransform[beam.pvalue.PBegin, Any]:
    """Returns a pipeline that lists and plans inside, for engines elsewhere.

    Nothing of the inputs is listed while the graph is built: only the small metadata
    of a TFDS directory is read.

    Raises:
        InputError: The options cannot be used.
    """
    if isinstance(options, ConvertOptions):
        conversion = conversion_of(options)
        return ConvertTFRecords(
            jobs=conversion.jobs,
            features=conversion.features,
            tfds_directory=conversion.tfds_directory,
            overwrite=options.overwrite,
        )
    if isinstance(options, VerifyOptions):
        return VerifyAndReport(
            dataset=options.dataset,
            quick=options.quick,
            report=options.report,
            fail=True,
        )
    return IndexArrayRecords(**dataclasses.asdict(options))
