"""`FindDuplicates`: exact duplicates among records, by blocks of digests.

Blocks of thousands of digests are shuffled, not records. A run of a million records
sends each digest once, so that no key is hot. The graph is one linear chain, since that
is what every runner executes: what a step need not change passes through it.

    list inputs -> digest -> group by partition -> resolve -> group by run -> commit
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np

from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.duplicates.certificate import REMOVAL, Removals
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import StrPath, path_text, path_texts
from gristmill.transforms.beam.job_metrics import count, report_sources
from gristmill.transforms.beam.pipeline_input import (
    check_begin,
    check_known,
    displayed,
    set_types,
)
from gristmill.transforms.beam.run_job import gather
from gristmill.transforms.conversion.make_shards import ShardTask
from gristmill.transforms.duplicates.commit_certificate import (
    DuplicatesResult,
    checked_shards,
    commit_certificate,
    plan_search,
)
from gristmill.transforms.duplicates.digest_shards import (
    DigestTask,
    digest_pass,
    digest_tasks,
)
from gristmill.transforms.duplicates.runs import (
    ENTRY,
    MOST_PARTITIONS,
    REMOVED,
    Run,
    removals_of,
    resolve,
)
from gristmill.transforms.jobs.conversion_job import ConversionJob, PreparedJob
from gristmill.transforms.jobs.duplicate_comparison import Comparison
from gristmill.transforms.sources.formats import RecordOptions

_PARTITION_BYTES = 64 << 20  # Of input as stored.
_Keyed = tuple[tuple[str, int, int], Any]
_PASSED = ("passed", 0, 0)  # Key of what goes on to the commit as it is.


def _list_inputs(
    source: ConversionJob | ShardTask, by: Comparison
) -> Iterator[PreparedJob | tuple[DigestTask, int]]:
    if isinstance(source, ConversionJob):
        prepared = plan_search(source, by)
    else:
        prepared = source.prepared
    report_sources(prepared.job.inputs)
    wanted = max(int(prepared.files.sizes.sum()) // _PARTITION_BYTES, 1)
    partitions = min(1 << (wanted - 1).bit_length(), MOST_PARTITIONS)
    yield prepared
    for task in digest_tasks(prepared, by):
        yield task, partitions


def _digest(element: PreparedJob | tuple[DigestTask, int]) -> Iterator[_Keyed]:
    if isinstance(element, PreparedJob):
        yield _PASSED, _Found("job", "", element)
        return
    task, partitions = element
    runs: dict[int, Run] = {}

    def keep(shard: int, number: int, run: Run) -> None:
        del shard
        runs[number] = run

    for shard in digest_pass(task, keep):
        for number in range(shard.runs):
            run, key = runs[number], (shard.shard, number)
            ends = run.fences(partitions).tolist()
            for partition in range(partitions):
                rows = run.entries[ends[partition] : ends[partition + 1]]
                if len(rows):
                    yield ("partition", partition, 0), (key, rows.tobytes())
            if len(run.copies):
                yield ("run", *key), ("copies", run.copies.tobytes())
        runs.clear()
        count({"records-read": shard.read.records})
        yield _PASSED, _Found("shard", shard.shard, shard)


def _resolve(group: tuple[tuple[str, int, int], Iterable[Any]]) -> Iterator[_Keyed]:
    key, values = group
    if key[0] != "partition":
        yield from ((key, value) for value in values)
        return
    blocks = sorted(values, key=lambda block: block[0])
    found = resolve([np.frombuffer(data, ENTRY) for _, data in blocks])
    for (run, _), rows in zip(blocks, found, strict=True):
        if len(rows):
            yield ("run", *run), ("resolved", rows.tobytes())


def _join(
    group: tuple[tuple[str, int, int], Iterable[Any]], work_dir: str
) -> Iterator[Any]:
    (kind, *run), values = group
    if kind == "passed":
        yield from values
        return
    found: dict[str, list[Any]] = {"copies": [np.empty(0, REMOVED)], "resolved": []}
    for name, data in values:
        found[name].append(np.frombuffer(data, REMOVED))
    removals = removals_of(np.concatenate(found["copies"]), found["resolved"])
    path = layout.join(work_dir, "-".join(map(str, run)))
    storage_for(path).write(path, removals.tobytes())
    yield _Found("run", tuple(run), (len(removals), path))


class _Found(NamedTuple):
    """What goes to the commit: the job, a digested shard, or the removals of a run."""

    kind: str
    key: Any
    value: Any

    def gather(self, gathered: Gathered) -> None:
        gathered.notes[self.kind][self.key] = self.value


def _commit(
    gathered: Gathered, by: Comparison, certificate: str, work_dir: str
) -> DuplicatesResult:
    (prepared,) = gathered.notes["job"].values()
    shards = [*gathered.notes["shard"].values()]
    parts = [part for _, part in sorted(gathered.notes["run"].items())]

    def removals() -> Iterator[Removals]:
        for _, path in parts:
            yield np.frombuffer(storage_for(path).read(path), REMOVAL)

    return commit_certificate(
        *(certificate, prepared, by),
        checked_shards(prepared, shards),
        removals(),
        removed=sum(removed for removed, _ in parts),
        work_dir=work_dir,
    )


def _delete_parts(found: DuplicatesResult, work_dir: str) -> DuplicatesResult:
    storage_for(work_dir).delete_tree(work_dir)
    return found


@dataclasses.dataclass(kw_only=True)
class FindDuplicates(
    beam.PTransform[beam.pvalue.PBegin, beam.PCollection[DuplicatesResult]]
):
    """Finds exact duplicates among the records of files or of a dataset.

    Applied to a pipeline; gives a PCollection of one `DuplicatesResult`. The first of
    equal records is kept, by file in the sorted list and place in it; the certificate
    lists the others. It is the same, byte for byte, on all runners.

    Guarantees: bounded; one linear chain, so that every runner executes it; nothing but
    the certificate and a directory of its name with `.parts`, which is deleted, is
    written, so that retries do no harm. No key gets more than one digest of a run of a
    million records, however often a record is there. Memory per element in flight: 100
    bytes a record of a range of 256 MiB, and 100 bytes a record of a partition, of
    which there is one for 64 MiB of input, at most 4,096.

    Attributes:
        inputs: Paths or glob patterns of files, or the directory of a dataset.
        certificate: The file to write.
        by: What is the same: `text`, `record` (the stored bytes) or `normalised` (the
            text by NFKC, in lower case, with white space collapsed). `text:NAME` names
            the column or feature, where it is not `text`.
        split: The split of a dataset.
        records: What is known of the inputs, and of the records to make of them.
    """

    inputs: StrPath | Sequence[StrPath]
    certificate: StrPath
    by: str = "text"
    split: str = "train"
    records: RecordOptions = dataclasses.field(default_factory=RecordOptions)

    def __post_init__(self) -> None:
        """Checks the options.

        Raises:
            InputError: An option cannot be used.
        """
        super().__init__()
        set_types(self, gives=DuplicatesResult)
        check_known(self)
        if self.records.select:
            raise InputError(
                "duplicates are found among all records",
                got=f"select={self.records.select!r}",
                cure="select first, with ConvertFiles, and find those of the result",
            )
        self._by = Comparison.parse(self.by)
        self._certificate = path_text(self.certificate, "certificate")
        self._work_dir = f"{self._certificate}.parts"
        self._source: ConversionJob | ShardTask = ConversionJob(
            inputs=path_texts(self.inputs, "input"),
            output=self._certificate,
            name="duplicates",
            split=self.split,
            records=self.records,
        )

    def display_data(self) -> dict[str, Any]:
        """Returns the display data for a runner's page."""
        return displayed(certificate=self._certificate, by=str(self._by))

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection[DuplicatesResult]:
        """Builds the chain.

        Raises:
            InputError: It is applied to a PCollection.
        """
        check_begin(begin, "FindDuplicates")
        work_dir = f"{self._work_dir}-{uuid.uuid4().hex}"
        found: beam.PCollection[DuplicatesResult] = (
            begin
            | "Job" >> beam.Create([self._source])
            | "ListInputs" >> beam.FlatMap(_list_inputs, self._by)
            | "SpreadParts" >> beam.Reshuffle()
            | "DigestRecords" >> beam.FlatMap(_digest).with_output_types(_Keyed)
            | "GroupByPartition" >> beam.GroupByKey()
            | "FindSame" >> beam.FlatMap(_resolve).with_output_types(_Keyed)
            | "GroupByRun" >> beam.GroupByKey()
            | "JoinRemovals" >> beam.FlatMap(_join, work_dir)
            | "Gather" >> gather()
            | "Commit" >> beam.Map(_commit, self._by, self._certificate, work_dir)
            # A commit that is repeated needs the parts.
            | "Committed" >> beam.Reshuffle()
            | "DeleteParts" >> beam.Map(_delete_parts, work_dir)
        )
        return found


def search_of(
    source: ConversionJob | ShardTask,
    by: Comparison,
    certificate: str,
    *,
    work_dir: str,
) -> FindDuplicates:
    """Returns the transform for a job, or for a shard of one that is described."""
    own = FindDuplicates(inputs=(certificate,), certificate=certificate, by=str(by))
    own._source, own._work_dir = source, work_dir
    return own
