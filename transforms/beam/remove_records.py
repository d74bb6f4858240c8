"""`RemoveRecords`: records leave a dataset, one element a shard that holds some.

So do documents of packed rows.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.storage.paths import StrPath, path_text
from gristmill.transforms.beam.job_metrics import (
    count,
    count_made,
    report_sink,
    report_sources,
)
from gristmill.transforms.beam.pipeline_input import (
    check_begin,
    check_known,
    displayed,
    gather,
    set_types,
)
from gristmill.transforms.removal.begin_removal import (
    BegunRemoval,
    begin_removal,
    tasks_of,
)
from gristmill.transforms.removal.commit_removal import (
    RemovalResult,
    commit_removal,
)
from gristmill.transforms.removal.cut_shard import CutShard, CutTask, cut_shard

_log = logging.getLogger(__name__)


def _begin(dataset: str, asked: dict[str, Any]) -> Iterator[BegunRemoval | CutTask]:
    begun = begin_removal(dataset, **asked)
    yield begun
    if begun.removal is not None:
        tasks = list(tasks_of(begun.removal))
        count({"planned-shards": len(tasks)})
        _log.info("%s: %d shards lose records", dataset, len(tasks))
        yield from tasks


def _cut(task: BegunRemoval | CutTask) -> BegunRemoval | CutShard:
    if isinstance(task, BegunRemoval):
        return task
    begun = time.monotonic()
    cut = cut_shard(task)
    if cut.resumed:
        count({"resumed-shards": 1})
    else:
        count_made(cut.report, seconds=time.monotonic() - begun)
    return cut


def _commit(cuts: Gathered, dataset: str, *, erase: bool) -> RemovalResult:
    result = commit_removal(dataset, cuts, erase=erase)
    report_sources((dataset,))
    report_sink(dataset)
    return result


@dataclasses.dataclass(kw_only=True)
class RemoveRecords(
    beam.PTransform[beam.pvalue.PBegin, beam.PCollection[RemovalResult]]
):
    """Removes records from a dataset. Only shards that hold some are written again.

    It removes documents of packed rows: their tokens become padding in their places.

    Applied to a pipeline; gives a PCollection of one `RemovalResult`. The dataset is
    the old one until all is done, and the new one then. The same records of the same
    edition are removed once, however often it runs.

    Guarantees: bounded; one linear chain, so that every runner executes it; as many
    shards are written at once as the runner has threads; shards that an earlier run has
    finished are kept, and retries do no harm. Memory per shard in flight: 1 MiB of the
    file (up to 4 MiB decoded), or one chunk if that is larger, and some 30 bytes a
    record of the shard.

    Attributes:
        dataset: The directory of a committed dataset.
        records: Numbers of records of the split. Of packed rows [documents, 2]: row and
            piece with which each document begins.
        split: The split; None for the only one.
        edition: The newest edition, whose records are numbered so; None for any.
        erase: Whether to delete the state before, with the bytes of the records. That
            fails while other work on the split is unfinished.
    """

    dataset: StrPath
    records: npt.ArrayLike
    split: str | None = None
    edition: int | None = None
    erase: bool = False

    def __post_init__(self) -> None:
        """Checks the path.

        Raises:
            InputError: It is none.
        """
        super().__init__()
        set_types(self, gives=RemovalResult)
        self._dataset = path_text(self.dataset, "dataset")
        self._asked: dict[str, Any] = {
            "erase": self.erase,
            "records": np.unique(np.asarray(self.records, np.int64), axis=0),
            "split": self.split,
            "edition": self.edition,
        }
        check_known(self)

    @classmethod
    def asked(
        cls, dataset: str, asked: dict[str, Any], *, erase: bool
    ) -> RemoveRecords:
        """Returns the transform for arguments of `begin_removal`."""
        own = cls(dataset=dataset, records=asked["records"], erase=erase)
        own._asked = {**asked, "erase": erase}
        return own

    def display_data(self) -> dict[str, Any]:
        """Returns the display data for a runner's page."""
        return displayed(
            input=self._dataset,
            records=len(self._asked["records"]),
            split=self.split,
            erase=self.erase,
        )

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection[RemovalResult]:
        """Builds the chain.

        Raises:
            InputError: It is applied to a PCollection.
        """
        check_begin(begin, "RemoveRecords")
        committed: beam.PCollection[RemovalResult] = (
            begin
            | "Dataset" >> beam.Create([self._dataset])
            | "ListShards" >> beam.FlatMap(_begin, self._asked)
            | "SpreadShards" >> beam.Reshuffle()
            | "CutShards" >> beam.Map(_cut)
            | "Gather" >> gather(Gathered)
            | "Commit" >> beam.Map(_commit, self._dataset, erase=self.erase)
        )
        return committed
