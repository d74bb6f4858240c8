"""The end of a conversion: checking its shards, and committing its splits."""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.errors import DataLossError, StorageChangedError
from gristmill.dataset.columns.column_file import Values
from gristmill.dataset.commit.attached_split import made_column
from gristmill.dataset.commit.commit import ExtraFiles, commit_dataset, write_table
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.column_table import (
    common_columns,
)
from gristmill.dataset.metadata.layout import TFDS_INFO_JSON
from gristmill.dataset.metadata.manifest import (
    Manifest,
    open_manifest,
    read_split_table,
    read_table,
)
from gristmill.dataset.metadata.shard_table import ShardCollector, ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.transforms.conversion.begin import example_of
from gristmill.transforms.conversion.make_shards import (
    ShardResult,
    ShardTask,
    make_shards,
    shard_tasks,
)
from gristmill.transforms.conversion.take_output import TakenOutput
from gristmill.transforms.directories.tfds_directory import (
    TfdsDirectory,
    check_records_read,
    read_tfds_directory,
    tfds_metadata,
)
from gristmill.transforms.jobs.conversion_job import (
    ConversionJob,
    PreparedJob,
    check_current,
)
from gristmill.transforms.jobs.job import Begun
from gristmill.transforms.sources.input_files import InputFiles
from gristmill.transforms.sources.shards.source_split import (
    SourceSplit,
    SplitColumns,
    selected_records,
)
from gristmill.transforms.sources.source import nothing_read, source_of, too_much_damage
from gristmill.transforms.tokens.documents import check_fit
from gristmill.transforms.tokens.row_packer import described_rows, row_features

_log = logging.getLogger(__name__)


def finish_split(prepared: PreparedJob, collected: ShardCollector) -> Split:
    """Checks all shards of a split and writes their table.

    Raises:
        DataLossError: Shards are missing, or do not hold the records that were read.
        CorruptInputError: There was more damage than allowed.
        JobChangedError: Another conversion has taken over the output.
        StorageChangedError: It has written the table meanwhile.
    """
    job, files = prepared.job, prepared.files
    table = collected.table()
    shards = range(prepared.plan.shards)
    if len(table) != len(shards):
        missing = np.setdiff1d(shards, table.numbers)
        raise DataLossError(
            f"{len(missing):,} of {len(shards):,} shards were not made",
            where=f"{job.output}, " + prepared.shard_path(int(missing[0])),
            cure="run the same command again: finished shards are kept",
        )
    check_spans(table.columns, files)
    mapped, selects = job.map is not None, bool(job.records.select)
    # If records are selected, each shard was compared when it was made.
    table.check_counts(mapped=mapped or selects)
    regions, read = table.total("skipped_regions"), table.read_digest()
    errors = layout.join(job.output, layout.ERRORS_DIR)
    allowed = job.max_corrupt if job.on_corrupt == "skip" else 0
    if regions > allowed:
        # In all shards together, or from an earlier run that allowed more.
        raise too_much_damage(regions, allowed, where=errors)
    if prepared.changed:  # Every shard was compared.
        dataclasses.replace(prepared, changed=frozenset()).store()
    if regions and not read.records:
        raise nothing_read(errors)
    if files.spec.of_dataset:
        SourceSplit.of_spec(files.spec).check_read(read, skipped_regions=regions)
    counts = None if job.pack is None else table.packed_total()
    if job.pack is not None and counts is not None:
        check_fit(job.pack, counts, functools.partial(example_of, prepared))
    split = write_table(
        prepared.write,
        table,
        check_current=prepared.check_current,
        writer_options=job.writer.described,
        source=_described_source(prepared, table),
    )
    columns = carried_columns(prepared, table) if files.spec.of_dataset else {}
    features, packed = source_of(files.spec).features(), None
    if job.pack is not None and counts is not None:
        packed = described_rows(job.pack, counts)
        features = row_features(job.pack)
    elif mapped and (table.total("changed_records") or split.added_records):
        features = None  # The user's function may return any features.
    return dataclasses.replace(split, columns=columns, features=features, packed=packed)


def _described_source(prepared: PreparedJob, table: ShardTable) -> dict[str, Any]:
    """Returns the inputs and options of a split, for `Split.source`."""
    job, files, read = prepared.job, prepared.files, table.read_digest()
    source: dict[str, Any] = {
        "content": prepared.content,
        "inputs": list(job.inputs),
        "files": len(files),
        "file_bytes": int(files.sizes.sum()),
        "file_list_digest": files.digest,
        "file_list": layout.inputs_path(job.name, prepared.write.key),
        "records": read.records,
        "raw_bytes": read.raw_bytes,
        "records_digest": read.hex,
        **source_of(files.spec).described(),
        "options": job.options(),
    }
    if job.map is not None:
        source["changed_records"] = table.total("changed_records")
    nulls = table.total("null_rows")
    if nulls or job.records.nulls == "skip":
        source["null_rows"] = nulls
    if job.records.select:
        source["selected"] = job.records.select
    return source


def check_spans(columns: Mapping[str, npt.NDArray[Any]], files: InputFiles) -> None:
    """Checks that the spans of each file meet, from its start to its end.

    Args:
        columns: The columns of spans in the table of all shards.
        files: The inputs.

    Raises:
        DataLossError: Two do not meet, or a file was not read to its end.
    """
    span_files = columns["span_file"]
    order = np.argsort(span_files, kind="stable")
    of_file = span_files[order]
    starts = columns["span_start_bytes"][order]
    stops = columns["span_stop_bytes"][order]
    ends = columns["span_end_bytes"][order]
    holds_frames = (starts >= 0) & (stops >= 0)
    begins_file = np.diff(of_file, prepend=-1) > 0
    # For each span, the stop of the last span with frames before it, or 0.
    rows = np.arange(len(stops))
    last = np.maximum.accumulate(np.where(holds_frames, rows, -1))
    before = np.append([-1], last)[:-1]
    first = np.maximum.accumulate(np.where(begins_file, rows, 0))
    reached = np.where(before >= first, stops[before] if len(stops) else 0, 0)
    # A span without frames fits if the frame before it reaches over it. The end of a
    # compressed file, or of a table, does not follow from its size.
    fits = np.where(
        holds_frames,
        starts == reached,
        (reached >= ends) & (ends >= 0) & files.sized[of_file],
    )
    place_text = source_of(files.spec).place_text
    if not fits.all():
        at = int(np.argmin(fits))
        raise DataLossError(
            "two ranges of an input file do not meet",
            where=files.paths[int(of_file[at])],
            expected=f"a range from {place_text(int(reached[at]))} on",
            got=f"one from {place_text(int(starts[at]))} on"
            if holds_frames[at]
            else f"none up to {place_text(int(ends[at]))}",
            cure="give --whole-files: the search for a record went wrong where the "
            "file is cut, in a record that holds frames of TFRecord, or in damage",
        )
    last = np.zeros(len(files), np.int64)
    whole = np.zeros(len(files), bool)
    # Of several values for one index, numpy keeps the last.
    last[of_file[holds_frames]] = stops[holds_frames]
    whole[of_file[holds_frames]] = columns["span_whole"][order][holds_frames]
    at_end = np.where(files.sized, last == files.sizes, whole | (files.sizes == 0))
    if not at_end.all():
        file = int(np.argmin(at_end))
        raise DataLossError(
            "an input file was not read to its end",
            where=files.paths[file],
            expected=f"{int(files.sizes[file]):,} bytes",
            got=place_text(int(last[file])),
            cure="make sure that no process writes to it, then convert again",
        )


class ConversionResult(NamedTuple):
    """The result of a conversion.

    Attributes:
        manifest: The committed dataset.
        committed_before: Splits that were committed already.
    """

    manifest: Manifest
    committed_before: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MakeShards:
    """The job of a conversion whose shards are planned, small whatever their number.

    Attributes:
        jobs: One for each split.
        features: The schema, if known.
        tfds_directory: The TFDS directory that the jobs come from, if any; its metadata
            is compared with the records read, and written for the output.
        keep_replaced: Whether to keep what is replaced, for a rollback.
        begun: A task for each split to make, which refers to its plan.
        committed: A task for each split that was committed already.
        stride: Start and step of the passes over the inputs that `begin` lists, for
            graphs whose runner does not redistribute elements.
        one_at_a_time: As for `make_shards`.
    """

    jobs: Sequence[ConversionJob]
    features: Mapping[str, Any] | None = None
    tfds_directory: str | None = None
    keep_replaced: bool = False
    begun: tuple[ShardTask, ...] = ()
    committed: tuple[ShardTask, ...] = ()
    stride: tuple[int, int] = (0, 1)
    one_at_a_time: bool = False

    @property
    def label(self) -> str:
        """The work, after the name of its command."""
        if self.jobs[0].pack is not None:
            return "packing"
        return "appending" if self.jobs[0].appends else "converting"

    def begun_by(self, taken: Iterable[TakenOutput]) -> MakeShards:
        """Returns the job for outputs that were taken."""
        tasks: dict[bool, list[ShardTask]] = {False: [], True: []}
        for one in taken:
            task = ShardTask(one.prepared.write, 0, one.prepared.fresh)
            tasks[one.committed is not None].append(task)
        begun, committed = map(tuple, tasks.values())
        return dataclasses.replace(self, begun=begun, committed=committed)

    def strides(self, most: int = 4096) -> list[MakeShards]:
        """Returns the job in at most this many parts."""
        passes = sum(len(task.prepared.plan.pass_begins) for task in self.begun)
        count = max(1, min(most, passes))
        return [dataclasses.replace(self, stride=(n, count)) for n in range(count)]

    def begin(self) -> Begun[ShardTask]:
        """Lists the passes over the inputs."""
        prepared = [task.prepared for task in self.begun]
        plans = [job.plan for job in prepared]
        first, step = self.stride
        return Begun(
            label=self.label,
            tasks=(task for job in prepared for task in shard_tasks(job, first, step)),
            parts=sum(len(plan.pass_begins) for plan in plans),
            planned=0 if first else sum(plan.shards for plan in plans),
            stored_bytes=sum(int(plan.sizes.sum()) for plan in plans),
            known=tuple(ShardResult(task, None) for task in self.committed),
            sources=tuple(path for job in self.jobs for path in job.inputs),
            sink=self.jobs[0].output,
        )

    @property
    def step(self) -> Callable[[ShardTask], Iterator[ShardResult]]:
        """`make_shards`: worker processes import no more for it."""
        return functools.partial(make_shards, one_at_a_time=self.one_at_a_time)

    def commit(self, results: Gathered) -> ConversionResult:
        """Commits the dataset."""
        return commit_shards(
            self.jobs,
            results,
            features=self.features,
            tfds_directory=self.tfds_directory,
            keep_replaced=self.keep_replaced,
        )


def commit_shards(
    jobs: Iterable[ConversionJob],
    results: Gathered | Iterable[ShardResult],
    *,
    features: Mapping[str, Any] | None = None,
    tfds_directory: str | None = None,
    keep_replaced: bool = False,
) -> ConversionResult:
    """Commits the dataset from the results of all shards of all jobs.

    Args:
        jobs: The jobs, all of one dataset.
        results: A result for every shard, and one without a report for each split that
            was committed already.
        features: As in `MakeShards`.
        tfds_directory: As in `MakeShards`.
        keep_replaced: As in `MakeShards`.

    Raises:
        DataLossError: Shards are missing or do not hold the records that were read, or
            a split that was committed already is gone.
    """
    jobs, begun = list(jobs), time.monotonic()
    output = jobs[0].output
    if not isinstance(results, Gathered):
        results = Gathered.of(results)
    committed = results.notes["committed"].keys()
    keys = {layout.parse_write_key(k)[0]: k for k in (*results.rows, *committed)}
    before = tuple(job.split for job in jobs if keys.get(job.split) in committed)
    owners: dict[str, PreparedJob] = {}
    splits: dict[str, Split] = {}
    for job in jobs:
        key = keys.get(job.split)
        if key is None:
            raise DataLossError(
                "no shard of a split was made",
                where=f"{job.output}, split {job.split}",
                cure="run the same command again: finished shards are kept",
            )
        if key not in committed:
            owners[key] = results.notes["task"][key].prepared
            splits[key] = finish_split(owners[key], results.rows[key])
    extra_files = None
    if tfds_directory is not None:
        source = read_tfds_directory(tfds_directory)
        features = source.features if features is None else features
        for key, own in owners.items():
            # A split of a dataset was compared with the dataset.
            if not own.files.spec.of_dataset:
                table = read_table(output, splits[key])
                check_records_read(
                    source.splits[own.job.split], table, where=source.path
                )
        make = functools.partial(_tfds_files, source, output)
        extra_files = ExtraFiles((*source.files, TFDS_INFO_JSON), make)

    # Hours may have passed since the first split was finished.
    current = functools.partial(check_current, owners.values())
    manifest = commit_dataset(
        *(output, jobs[0].name),
        {own.write: splits[key] for key, own in owners.items()},
        keep_replaced=keep_replaced,
        keeps=committed,
        features=features,
        extra_files=extra_files,
        check_current=current,
    )
    for job in jobs:
        split = manifest.splits[job.split]
        _log.info(
            "%s: committed%s in %.1f s; split %s: %d records in %d shards, %d bytes, "
            "%d damaged regions",
            *(output, " before" * (job.split in before), time.monotonic() - begun),
            *(job.split, split.records, split.shards, split.file_bytes),
            split.skipped_regions,
        )
    return ConversionResult(manifest, before)


def _tfds_files(source: TfdsDirectory, output: str, manifest: Manifest) -> list[bytes]:
    """Returns TFDS's metadata for a committed dataset."""
    tables = {
        layout.write_key(name, split.write): read_table(output, split)
        for name, split in manifest.splits.items()
        if name in source.splits and not split.editions
    }
    return list(tfds_metadata(source, name=manifest.name, tables=tables).values())


def carried_columns(
    prepared: PreparedJob, table: ShardTable
) -> Mapping[str, Mapping[str, Any]]:
    """Returns the columns of a finished split, for `Split.columns`; writes their files.

    They are the columns that all editions of the input share. There are none if records
    do not correspond to those of the input: for packed rows, after a user's function,
    or if damage was skipped.

    Raises:
        InvalidDatasetError: A column is damaged, or belongs to other records.
        StorageChangedError: The input was replaced meanwhile.
    """
    source, job = SourceSplit.of_spec(prepared.files.spec), prepared.job
    if job.map is not None or job.pack is not None or table.total("skipped_regions"):
        return {}
    dataset = source.directory.rstrip("/") or "/"
    manifest = open_manifest(dataset)
    split = manifest.splits.get(source.split)
    if split is None or not common_columns(split, dataset):
        return {}
    shards = read_split_table(dataset, manifest, source.split)
    if shards.shards_digest != source.shards_digest:
        raise StorageChangedError(
            "the dataset was changed while it was converted",
            where=f"{dataset}, split {source.split}",
            expected=source.shards_digest,
            got=shards.shards_digest,
            cure="run the same command again with --overwrite, when nothing writes to "
            "the dataset",
        )
    columns = SplitColumns.of(dataset, split, shards)
    write = prepared.write
    return {
        name: made_column(
            write, name, entry, table, _values(prepared, columns, name, table)
        )
        for name, entry in columns.entries.items()
    }


def _values(
    prepared: PreparedJob, columns: SplitColumns, name: str, table: ShardTable
) -> Iterator[Values]:
    """Yields the values of each shard, from the ranges that it was made from."""
    for shard in range(len(table)):
        parts = [columns.entries[name].kind.empty()]
        for span in table.spans(shard):
            if span.start_bytes is None:
                continue
            rows = slice(span.start_bytes, span.stop_bytes)  # Numbers of records.
            values = columns.values(name, span.file_index)[rows]
            taken = selected_records(prepared.files.spec, span.file_index)
            parts.append(values if taken is None else values[taken[rows]])
        yield np.concatenate(parts)
