"""`WriteArrayRecords`: any PCollection of records as a split of a committed dataset.

    records -> groups by hash ------------------> shuffle -> write -> gather -> commit
                        |-> count -> plan -> tasks --^

Records cannot be written as they arrive: a runner may deliver them in another order, in
other bundles, or twice. After the shuffle a group is complete, and its shards are
sorted, so the output depends only on the records.

The plan reaches the groups through the shuffle too, as a small task for each: no group
is complete before the plan exists, and no worker has to hold all of it.
"""

from __future__ import annotations

import array
import dataclasses
import logging
import time
from collections.abc import Iterable, Iterator
from typing import Any, get_type_hints

import apache_beam as beam
import google_crc32c
import numpy as np
from apache_beam.transforms.window import GlobalWindows

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.paths import StrPath, path_text
from gristmill.transforms.beam.pipeline_input import (
    check_collection,
    check_known,
    displayed,
    fields_of,
    set_types,
)
from gristmill.transforms.beam.run_job import count, gather, report_sink
from gristmill.transforms.beam.same_code import sent
from gristmill.transforms.writing.write_group import (
    Element,
    assign_record,
    encode_task,
    record_of,
    split_element,
    write_group,
)
from gristmill.transforms.writing.write_split import (
    GroupResult,
    Key,
    WriteJob,
    WriteResult,
    begin_write,
    commit_write,
    pack_count,
)

_log = logging.getLogger(__name__)

# As Beam checks it where the pipeline is built.
_HintedKey: Any = Key | np.integer

# A row, which other languages can read. Beam needs the types themselves: string
# annotations would become opaque Python types.
WriteResult.__annotations__.update(get_type_hints(WriteResult))
beam.coders.registry.register_coder(WriteResult, beam.coders.RowCoder)

_WAITING_RECORDS = 256  # Per group: more are counted faster, and take more memory.


class _AssignFn(beam.DoFn):
    """Assigns every record to its group."""

    def __init__(self, keyed: bool):
        self._keyed = keyed

    def process(self, element: Any, groups: int) -> tuple[tuple[int, bytes]]:
        return (assign_record(element, groups, keyed=self._keyed),)


class _ChecksumFn(beam.DoFn):
    """Yields crc32c and length of each record as one number, by group."""

    def process(self, assigned: tuple[int, bytes]) -> tuple[tuple[int, int]]:
        group, element = assigned
        record = record_of(element)
        return ((group, google_crc32c.value(record) | len(record) << 32),)


class _CountFn(beam.CombineFn):
    """Adds up records, given by checksum and length, to packed digests.

    An accumulator is a packed digest, or a digest and the records to add to it.
    """

    def create_accumulator(self) -> list[Any]:
        return [RecordsDigest(), array.array("Q")]

    def add_input(self, counted: list[Any], word: int) -> list[Any]:
        words = counted[1]
        words.append(word)
        if len(words) >= _WAITING_RECORDS:
            counted[:] = self._total(counted), array.array("Q")
        return counted

    def compact(self, counted: list[Any]) -> bytes:
        return self._total(counted).pack()

    def merge_accumulators(self, parts: Iterable[list[Any] | bytes]) -> list[Any]:
        return [RecordsDigest.total(map(self._total, parts)), array.array("Q")]

    def extract_output(self, counted: list[Any] | bytes) -> bytes:
        return self._total(counted).pack()

    def _total(self, counted: list[Any] | bytes) -> RecordsDigest:
        if isinstance(counted, bytes):
            return RecordsDigest.unpack(counted)
        words = np.frombuffer(counted[1], np.uint64)
        return RecordsDigest.total([counted[0], RecordsDigest.of_words(words)])


class _GatherFn(beam.CombineFn):
    """Gathers the rows of all groups in one element."""

    def create_accumulator(self) -> bytearray:
        return bytearray()

    def add_input(self, rows: bytearray, row: bytes) -> bytearray:
        rows += row
        return rows

    def merge_accumulators(self, parts: Iterable[bytearray]) -> bytearray:
        return bytearray().join(parts)

    def extract_output(self, rows: bytearray) -> bytes:
        return bytes(rows)


def _no_records(group: int) -> tuple[int, bytes]:
    return group, RecordsDigest().pack()


def _plan(
    gathered: tuple[bytes, bytes], groups: int, job: WriteJob, *, overwrite: bool
) -> Iterator[tuple[int, bytes]]:
    plan = begin_write(job, gathered[1], groups=groups, overwrite=overwrite)
    if not plan.write.committed:
        count({"planned-shards": plan.write.shards})
    for group, task in plan.tasks():
        yield group, encode_task(task)


def _write_group(element: tuple[int, Iterable[Any]], job: WriteJob) -> GroupResult:
    begun = time.monotonic()
    result = write_group(job, *element)
    seconds = (time.monotonic() - begun) / max(1, len(result.reports))
    for report in result.reports:
        count(report.counts(resumed=result.resumed), seconds=seconds)
    return result


def _commit(gathered: Gathered, *, keep_replaced: bool) -> WriteResult:
    result = commit_write(gathered, keep_replaced=keep_replaced)
    report_sink(result.output)
    return result


@dataclasses.dataclass
class WriteArrayRecords(
    beam.PTransform[beam.PCollection[Element], beam.PCollection[WriteResult]]
):
    """Writes records as ArrayRecord shards, and commits them as a split of a dataset.

    Apply it to a PCollection of `bytes`, or of `(key, bytes)` with `keyed`; it returns
    a PCollection of one `WriteResult`, once `dataset.json` is written.

    Guarantees:

    - Input: bounded. Windows are ignored.
    - Nothing is lost or duplicated: each group's records are counted before the
      shuffle, and number, bytes and digest must be the same in the finished shards.
      Earlier steps must return the same records when a runner repeats them; otherwise
      the write fails and says so.
    - Retries: the same records and options give the same bytes under the same names,
      whatever the runner, the bundles and the order of arrival. So repeated or
      concurrent attempts do no harm. A run after a crash keeps finished shards; over a
      committed dataset of the same records it does nothing; over other records it fails
      unless `overwrite` is set.
    - Order within a shard: by key if there are keys, then by a hash of the content,
      which mixes records well. Shards are in no order.
    - Placement: by a hash of the key, or else of the content. Equal keys, or equal
      records without keys, share a group and its worker, and a shard unless
      `shard_bytes` cuts the group; then they are in neighbouring shards.
    - Size: `shard_bytes` bounds the bytes of the records in each shard, give or take
      one record; with `num_shards` alone there are exactly that many shards of any
      size.
    - Parallelism: one worker per group; there are `num_shards` groups, or as many as
      shards.
    - Memory per group in flight: some 130 bytes per record (with keys 180 and the key),
      whatever its length. Disk: the group's records, and one shard.
    - Runners: all that have a shuffle. There are no tagged outputs; the only side input
      is the number of groups if `num_shards` is not set.

    Attributes:
        output: The dataset's directory.
        name: The dataset's name; by default the last part of the directory.
        split: The split to write.
        num_shards: Number of shards, or of groups that `shard_bytes` cuts further. By
            default all records are measured first: the runner stores them before the
            shuffle and reads them again, so 1 PB of records moves another 2 PB. To
            avoid that, set an estimate, and `shard_bytes`.
        shard_bytes: Maximum bytes of records in a shard; 256 MiB if `num_shards` is not
            given either.
        keyed: Whether elements are `(key, bytes)`; keys are `int`, `str` or `bytes`.
        writer: How shards are encoded.
        overwrite: Whether to replace this split in the output.
        keep_replaced: Whether to keep what is replaced, for a rollback, until
            `gristmill clean`.
    """

    output: StrPath
    _: dataclasses.KW_ONLY
    name: str | None = None
    split: str = "train"
    num_shards: int | None = None
    shard_bytes: int | None = None
    keyed: bool = False
    writer: WriterOptions = dataclasses.field(default_factory=WriterOptions)
    overwrite: bool = False
    keep_replaced: bool = False

    def __post_init__(self) -> None:
        """Checks the options.

        Raises:
            InputError: They cannot be used.
        """
        super().__init__()
        takes: Any = tuple[_HintedKey, bytes] if self.keyed else bytes
        # For each output of a step with tagged outputs Beam infers both types.
        takes |= beam.pvalue.TaggedOutput
        set_types(self, takes=takes, gives=WriteResult)
        output = path_text(self.output, "output")
        check_known(self)
        self._job = WriteJob(
            output=output.rstrip("/") or output,
            name=layout.base_name(output) if self.name is None else self.name,
            split=self.split,
            num_shards=self.num_shards,
            shard_bytes=self.shard_bytes,
            keyed=self.keyed,
            writer=self.writer,
        )
        if self.num_shards is None:
            _log.warning(
                "%s: WriteArrayRecords without num_shards measures all records first: "
                "the runner stores them before the shuffle, and reads them again. For "
                "more than some gigabytes, give an estimate as num_shards, and "
                "shard_bytes=%d to bound the shards",
                *(self._job.output, self._job.shard_bytes),
            )

    def display_data(self) -> dict[str, Any]:
        """Returns the display data for a runner's page."""
        job = fields_of(self._job) | {"writer": self.writer.described}
        return displayed(**fields_of(self) | job)

    def expand(
        self, records: beam.PCollection[Element]
    ) -> beam.PCollection[WriteResult]:
        """Builds the graph.

        Raises:
            InputError: The input is not a PCollection, or unbounded.
        """
        check_collection(records, "WriteArrayRecords", "records")
        if not records.is_bounded:
            raise InputError(
                "records without end cannot be committed",
                expected="a bounded PCollection",
                cure="write each window by a batch pipeline of its own",
            )
        job = self._job
        if not records.windowing.is_default():
            records = records | "ForgetWindows" >> beam.WindowInto(GlobalWindows())
        groups = self._groups(records)
        assigned = records | "AssignGroups" >> beam.ParDo(
            _AssignFn(self.keyed), groups
        ).with_output_types(tuple[int, bytes])
        counts = (
            assigned
            | "Checksum" >> beam.ParDo(_ChecksumFn()).with_output_types(tuple[int, int])  # type: ignore[no-untyped-call]
            | "CountGroups" >> beam.CombinePerKey(_CountFn())  # type: ignore[no-untyped-call]
        )
        none = (
            records.pipeline
            | "NoGroup" >> beam.Create([0])
            | "NoRecords"
            >> beam.Map(sent(_no_records)).with_output_types(tuple[int, bytes])
        )
        tasks = (
            # The count of no records, so that there is a plan even without any.
            (counts, none)
            | "AllCounts" >> beam.Flatten()
            | "CountRows" >> beam.MapTuple(lambda *count: (b"", pack_count(*count)))
            | "GatherCounts" >> beam.CombinePerKey(_GatherFn())  # type: ignore[no-untyped-call]
            | "PlanShards"
            >> beam.FlatMap(
                _plan, groups, job, overwrite=self.overwrite
            ).with_output_types(tuple[int, bytes])
        )
        written: beam.PCollection[WriteResult] = (
            # A group is complete once its task has arrived, and so after the plan.
            (assigned, tasks)
            | "WithTasks" >> beam.Flatten()
            | "GroupRecords" >> beam.GroupByKey()
            | "WriteShards" >> beam.Map(_write_group, job)
            | "GatherReports" >> gather()
            | "Commit" >> beam.Map(_commit, keep_replaced=self.keep_replaced)
        )
        return written

    def _groups(self, records: beam.PCollection[Element]) -> Any:
        """Returns the number of groups, or a side input that holds it."""
        job = self._job
        if job.num_shards is not None:
            return job.num_shards
        sizes = records | "Measure" >> beam.Map(_raw_bytes, keyed=self.keyed)
        none = records.pipeline | "NoBytes" >> beam.Create([0])
        return beam.pvalue.AsSingleton(
            (sizes, none)
            | "AllSizes" >> beam.Flatten()
            | "SumUp" >> beam.CombineGlobally(sum).without_defaults()
            | "CountShards" >> beam.Map(job.groups)
        )


def _raw_bytes(element: Any, *, keyed: bool) -> int:
    return len(split_element(element, keyed=keyed)[1])
