"""`WriteArrayRecords`: any PCollection of records as a split of a committed dataset.

    records -> groups by hash -> count -> plan shards -> shuffle -> write -> commit

Records cannot be written as they come: a runner may deliver them in another order, in
other bundles, or twice. After the shuffle a group is complete, and its shards are
sorted, so that what is written depends on the records alone.
"""

from __future__ import annotations

import array
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import google_crc32c
import numpy as np
from apache_beam.transforms.combiners import ToListCombineFn
from apache_beam.transforms.window import GlobalWindow, GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.arrayrecord.writing.file_writer import with_versions
from gristmill.dataset.digest import RecordsDigest
from gristmill.dataset.errors import InputError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.storage.paths import StrPath, path_text
from gristmill.transforms.graph.applied import check_collection, set_types
from gristmill.transforms.graph.display import displayed
from gristmill.transforms.graph.lineage import report_sink
from gristmill.transforms.planning.write_plan import (
    Key,
    WriteJob,
    WritePlan,
    encode_key,
    group_of,
)
from gristmill.transforms.writing.begin_write import begin_write
from gristmill.transforms.writing.commit_write import WriteResult, commit_write
from gristmill.transforms.writing.write_group import Record, write_group

Element = bytes | tuple[Key, bytes]

# As Beam checks it where the pipeline is built.
_HintedKey: Any = Key | np.integer

_DIGESTS = "digests"
_FLUSH_RECORDS = 1 << 16


def _split_element(element: Element, *, keyed: bool) -> tuple[bytes | None, bytes]:
    """Returns encoded key, if there are keys, and record."""
    key, record = None, element
    if keyed and isinstance(element, tuple) and len(element) == 2:
        key, record = encode_key(element[0]), element[1]
    if not isinstance(record, bytes) or (keyed and key is None):
        raise InputError(
            "element cannot be written as a record",
            expected="(key, bytes)" if keyed else "bytes",
            got=f"{type(element).__name__} {element!r:.100}",
            cure="map elements to bytes first, such as with SerializeToString(); for "
            "(key, bytes), give keyed=True",
        )
    return key, record


class _AssignGroupsFn(beam.DoFn):
    """Gives every record its group, and counts what each group gets."""

    def __init__(self, *, keyed: bool):
        self._keyed = keyed

    def start_bundle(self) -> None:
        self._counts: dict[int, tuple[array.array[int], array.array[int]]] = {}
        self._waiting = 0

    def process(self, element: Element, groups: int) -> Iterator[Any]:
        key, record = _split_element(element, keyed=self._keyed)
        group = group_of(record if key is None else key, groups)
        if group not in self._counts:
            self._counts[group] = array.array("I"), array.array("q")
        crc32cs, lengths = self._counts[group]
        crc32cs.append(google_crc32c.value(record))
        lengths.append(len(record))
        yield group, record if key is None else (key, record)
        self._waiting += 1
        if self._waiting >= _FLUSH_RECORDS:
            for counted in self._flush():
                yield beam.pvalue.TaggedOutput(_DIGESTS, counted)

    def finish_bundle(self) -> Iterator[Any]:
        window = GlobalWindow()
        for counted in self._flush():
            value = WindowedValue(counted, window.max_timestamp(), (window,))
            yield beam.pvalue.TaggedOutput(_DIGESTS, value)

    def _flush(self) -> Iterator[tuple[int, RecordsDigest]]:
        counts, self._counts, self._waiting = self._counts, {}, 0
        for group, (crc32cs, lengths) in counts.items():
            yield (
                group,
                RecordsDigest.of(
                    np.frombuffer(crc32cs, np.uint32), np.frombuffer(lengths, np.int64)
                ),
            )


def _write_group(
    element: tuple[int, Iterable[Record]], plan: WritePlan
) -> Iterator[ShardReport]:
    group, records = element
    for report in write_group(plan, group, records):
        for name, value in (
            ("shards", 1),
            ("records", report.written.records),
            ("raw-bytes", report.written.raw_bytes),
        ):
            beam.metrics.Metrics.counter("gristmill", name).inc(value)
        yield report


def _commit(reports: list[ShardReport], plan: WritePlan) -> WriteResult:
    result = commit_write(plan, reports)
    report_sink(result.output)
    return result


@dataclasses.dataclass
class WriteArrayRecords(
    beam.PTransform[beam.PCollection[Element], beam.PCollection[WriteResult]]
):
    """Writes records as ArrayRecord shards, and commits them as a split of a dataset.

    Applied to a PCollection of `bytes`, or of `(key, bytes)` with `keyed`; gives a
    PCollection of one `WriteResult`, once `dataset.json` is written.

    Guarantees:

    - Input: bounded. Windows are ignored.
    - Nothing is lost or twice in it: each group's records are counted before the
      shuffle, and number, bytes and digest must be the same in the finished shards.
      The steps before must give the same records when a runner repeats them; where
      they do not, the write fails and says so.
    - Retries: the same records and options give the same bytes under the same names,
      whatever the runner, the bundles and the order of arrival. So attempts that are
      repeated, or run twice at once, do no harm. A run after a crash keeps shards that
      are finished; over a committed dataset of the very same records it does nothing;
      over other records it fails, unless `overwrite`.
    - Order within a shard: by key where records are keyed, then by a hash of the
      content, which mixes them well. None between shards.
    - Placement: by a hash of the key, or else of the content. Equal keys, or equal
      records without keys, share a group, so one worker, and a shard unless the group
      is cut by `shard_bytes`; then they are in neighbouring ones.
    - Size: `shard_bytes` bounds the bytes of the records in each shard, give or take
      one record; with `num_shards` alone there are exactly so many, and nothing but
      their number bounds them.
    - Parallelism: one worker a group: `num_shards`, or as many groups as shards.
    - Memory per group in flight: some 130 bytes a record (180 and the key with keys),
      no matter how long records are. Disk: the group's records, and one shard.
    - Runners: needs side inputs, which Beam's DaskRunner does not have.

    Attributes:
        output: The dataset's directory.
        name: The dataset's name; by default the last part of the directory.
        split: The split to write.
        num_shards: Number of shards, or of groups that `shard_bytes` cuts further. By
            default the records are measured first, which needs one more pass over them.
        shard_bytes: Most bytes of records in a shard; 256 MiB if `num_shards` is not
            given either.
        keyed: Whether elements are `(key, bytes)`; keys are integers, texts or bytes.
        writer: How shards are encoded.
        overwrite: Whether to replace what the output holds of this split.
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

    def __post_init__(self) -> None:
        """Checks the options.

        Raises:
            InputError: They cannot be used.
        """
        super().__init__()
        takes = tuple[_HintedKey, bytes] if self.keyed else bytes
        set_types(self, takes=takes, gives=WriteResult)
        output = path_text(self.output, "output")
        self._job = WriteJob(
            output=output.rstrip("/") or output,
            name=layout.base_name(output) if self.name is None else self.name,
            split=self.split,
            num_shards=self.num_shards,
            shard_bytes=self.shard_bytes,
            keyed=self.keyed,
            writer=with_versions(self.writer),
        )

    def display_data(self) -> dict[str, Any]:
        """Returns what a runner's page shows."""
        job = self._job
        return displayed(
            output=job.output,
            name=job.name,
            split=job.split,
            num_shards=job.num_shards,
            shard_bytes=job.shard_bytes,
            keyed=job.keyed,
            writer=job.writer.described,
            overwrite=self.overwrite,
        )

    def expand(
        self, records: beam.PCollection[Element]
    ) -> beam.PCollection[WriteResult]:
        """Builds the graph.

        Raises:
            InputError: The input is no PCollection, or unbounded.
        """
        check_collection(records, "WriteArrayRecords", "records")
        if not records.is_bounded:
            raise InputError(
                "records without end cannot be committed",
                expected="a bounded PCollection",
                cure="write each window by a batch pipeline of its own",
            )
        job, overwrite = self._job, self.overwrite
        records = records | "ForgetWindows" >> beam.WindowInto(GlobalWindows())
        groups = self._groups(records)
        assigned = records | "AssignGroups" >> beam.ParDo(
            _AssignGroupsFn(keyed=self.keyed), groups=groups
        ).with_outputs(_DIGESTS, main="records")
        plan = beam.pvalue.AsSingleton(
            assigned[_DIGESTS]
            | "CountGroups" >> beam.CombinePerKey(RecordsDigest.total)
            | "GatherCounts" >> beam.CombineGlobally(ToListCombineFn())
            | "PlanShards"
            >> beam.Map(
                lambda digests, groups: begin_write(
                    job, digests, groups=groups, overwrite=overwrite
                ),
                groups=groups,
            )
        )
        written: beam.PCollection[WriteResult] = (
            assigned["records"]
            | "GroupRecords" >> beam.GroupByKey()
            | "WriteShards" >> beam.FlatMap(_write_group, plan=plan)
            | "GatherReports" >> beam.CombineGlobally(ToListCombineFn())
            | "Commit" >> beam.Map(_commit, plan=plan)
        )
        return written

    def _groups(self, records: beam.PCollection[Element]) -> Any:
        """Returns the number of groups, or the side input that will know it."""
        job = self._job
        if job.num_shards is not None:
            return job.num_shards
        return beam.pvalue.AsSingleton(
            records
            | "Measure" >> beam.Map(_raw_bytes, keyed=self.keyed)
            | "SumUp" >> beam.CombineGlobally(sum)
            | "CountShards" >> beam.Map(job.groups)
        )


def _raw_bytes(element: Element, *, keyed: bool) -> int:
    return len(_split_element(element, keyed=keyed)[1])
