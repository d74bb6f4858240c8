"""`AttachColumns`: a function computes columns of a dataset, one element a shard."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import apache_beam as beam

from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.columns.column_type import ColumnType
from gristmill.dataset.commit.attached_split import AttachedSplit, ShardTask, Written
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.storage.paths import StrPath, path_text
from gristmill.transforms.beam.job_metrics import count, report_sink, report_sources
from gristmill.transforms.beam.pipeline_input import (
    check_begin,
    check_known,
    displayed,
    gather,
    set_types,
)
from gristmill.transforms.columns.computed_values import (
    ComputedColumns,
    begin_columns,
    commit_columns,
    write_computed,
)


class AttachResult(NamedTuple):
    """The result of attaching columns.

    Attributes:
        manifest: The dataset as it is now.
        split: The name of the split.
        columns: The types of the columns, by name.
        file_bytes: Size of the files of their values.
        done_before: Whether the same was attached already; the size is 0 then.
    """

    manifest: Manifest
    split: str
    columns: Mapping[str, ColumnType]
    file_bytes: int
    done_before: bool = False


Target = tuple[str, str | None, bool]  # The arguments of `AttachedSplit`.


def _opened(target: Target) -> AttachedSplit:
    dataset, split, overwrite = target
    return AttachedSplit(dataset, split, overwrite=overwrite)


def _begin(target: Target, function: str) -> Iterator[tuple[ComputedColumns, Any]]:
    opened = _opened(target)
    computed = begin_columns(opened, function)
    yield computed, None
    if not opened.has(computed.attachment):
        computed.attachment.begin()
        tasks = [*opened.tasks(computed.attachment)]
        count({"planned-shards": len(tasks)})
        for task in tasks:
            yield computed, task


def _write(
    element: tuple[ComputedColumns, ShardTask | None],
) -> ComputedColumns | Written:
    computed, task = element
    if task is None:
        return computed
    return write_computed(task, function=computed.function, kinds=computed.kinds)


def _commit(gathered: Gathered, target: Target) -> AttachResult:
    opened, computed = _opened(target), gathered.notes["begun"][""]
    manifest, size, there = opened.manifest, 0, opened.has(computed.attachment)
    if not there:
        manifest, size = commit_columns(opened, computed, gathered)
    report_sources((opened.dataset,))
    report_sink(opened.dataset)
    return AttachResult(manifest, opened.name, computed.kinds, size, there)


@dataclasses.dataclass(kw_only=True)
class AttachColumns(
    beam.PTransform[beam.pvalue.PBegin, beam.PCollection[AttachResult]]
):
    """Attaches columns that a function computes from the records of a dataset.

    Applied to a pipeline; gives a PCollection of one `AttachResult`. The records stay
    as they are. The files are those of `gristmill attach --map`, byte for byte.

    Guarantees: bounded; one linear chain, so that every runner executes it; as many
    shards are written at once as the runner has threads; retries do no harm. Memory per
    shard in flight: its values, and 1 MiB of the file (up to 4 MiB decoded), or one
    chunk if that is larger.

    Attributes:
        dataset: The directory of a committed dataset.
        function: `module:function`, which workers can import. It is called with a
            record, and returns a dict of its values by column: numbers, texts, or
            arrays of numbers.
        split: The split; None for the only one.
        overwrite: Whether columns of these names are replaced.
    """

    dataset: StrPath
    function: str
    split: str | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        """Checks the path.

        Raises:
            InputError: It is none.
        """
        super().__init__()
        set_types(self, gives=AttachResult)
        self._dataset = path_text(self.dataset, "dataset")
        check_known(self)

    def display_data(self) -> dict[str, Any]:
        """Returns the display data for a runner's page."""
        return displayed(
            input=self._dataset,
            function=self.function,
            split=self.split,
            overwrite=self.overwrite,
        )

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection[AttachResult]:
        """Builds the chain.

        Raises:
            InputError: It is applied to a PCollection.
        """
        check_begin(begin, "AttachColumns")
        target = self._dataset, self.split, self.overwrite
        committed: beam.PCollection[AttachResult] = (
            begin
            | "Dataset" >> beam.Create([target])
            | "ListShards" >> beam.FlatMap(_begin, self.function)
            | "SpreadShards" >> beam.Reshuffle()
            | "ComputeColumns" >> beam.Map(_write)
            | "Gather" >> gather(Gathered)
            | "Commit" >> beam.Map(_commit, target)
        )
        return committed
