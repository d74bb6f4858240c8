"""The end of a conversion: its shards are checked, and its splits committed."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.errors import DataLossError, StorageChangedError
from gristmill.dataset.columns.column_file import Values
from gristmill.dataset.commit.attached_split import made_column
from gristmill.dataset.commit.commit import (
    ExtraFiles,
    check_files,
    commit_dataset,
    write_table,
)
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
from gristmill.transforms.tokens.fit import check_fit
from gristmill.transforms.tokens.row_packer import described_rows, row_features

_log = logging.getLogger(__name__)


def finish_split(prepared: PreparedJob, collected: ShardCollector) -> Split:
    """Checks all shards of a split and writes their table.

    Raises:
        DataLossError: Shards are missing, or hold something else than was read.
        CorruptInputError: There was more damage than allowed.
        JobChangedError: Another conversion has taken over the output.
        StorageChangedError: It has written the table meanwhile.
    """
    job = prepared.job
    table = collected.table()
    shards = range(prepared.plan.shards)
    if len(table) != len(shards):
        missing = np.setdiff1d(shards, table.numbers)
        raise DataLossError(
            f"{len(missing):,} of {len(shards):,} shards were not made",
            where=f"{job.output}, " + prepared.shard_path(int(missing[0])),
            cure="run the same command again: finished shards are kept",
        )
    check_spans(table.columns, prepared.files)
    mapped = job.map is not None
    # Where records are selected, each shard was compared when it was made.
    selects = bool(job.records.select)
    table.check_counts(mapped=mapped or selects)
    regions = table.total("skipped_regions")
    allowed = job.max_corrupt if job.on_corrupt == "skip" else 0
    if regions > allowed:
        # Of several shards together, or of an earlier run that allowed more.
        raise too_much_damage(
            regions,
            allowed,
            where=layout.join(job.output, layout.ERRORS_DIR),
        )
    if prepared.changed:  # Every shard was compared.
        dataclasses.replace(prepared, changed=frozenset()).store()
    made_by, read = source_of(prepared.files.spec), table.read_digest()
    if regions and not read.records:
        raise nothing_read(layout.join(job.output, layout.ERRORS_DIR))
    if prepared.files.spec.of_dataset:
        source = SourceSplit.of_spec(prepared.files.spec)
        source.check_read(read, skipped_regions=regions)
    if job.pack is not None and (counts := table.packed_total()) is not None:
        check_fit(job.pack, counts, functools.partial(example_of, prepared))
    changed: dict[str, Any] = {}
    if mapped:
        changed = {"changed_records": table.total("changed_records")}
    if job.records.nulls == "skip":
        changed["null_rows"] = table.total("null_rows")
    if selects:
        changed["selected"] = job.records.select
    split = write_table(
        job.output,
        job.name,
        job.split,
        table,
        check_current=functools.partial(check_current, prepared),
        writer_options=job.writer.described,
        source={
            "job": prepared.fingerprint,
            "content": prepared.content,
            "inputs": list(job.inputs),
            "files": len(prepared.files),
            "file_bytes": int(prepared.files.sizes.sum()),
            "file_list_digest": prepared.files.digest,
            "file_list": layout.inputs_path(job.name, job.split),
            "records": read.records,
            "raw_bytes": read.raw_bytes,
            "records_digest": read.hex,
            **changed,
            **made_by.described(),
            "options": job.options(),
        },
    )
    if prepared.files.spec.of_dataset:
        split = dataclasses.replace(split, columns=carried_columns(prepared, table))
    if job.pack is not None and (counts := table.packed_total()) is not None:
        split = dataclasses.replace(
            split,
            packed=described_rows(job.pack, counts),
            features=row_features(job.pack),
        )
    elif not (mapped and (table.total("changed_records") or split.added_records)):
        # What the user's function makes may hold anything else.
        split = dataclasses.replace(split, features=made_by.features())
    return split


def check_spans(columns: Mapping[str, npt.NDArray[Any]], files: InputFiles) -> None:
    """Checks that the spans of each file follow one another, from begin to end.

    Args:
        columns: Those of the spans in the table of all shards, in order.
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
    reached = _stop_before(stops, holds_frames, begins_file)
    # Without a frame in it: right if the frame before reaches over it. Where a
    # compressed file ends, its size does not tell; nor does that of a table.
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
    # Of several values for one place, the last stays.
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


def _stop_before(
    stops: npt.NDArray[np.int64],
    holds_frames: npt.NDArray[np.bool_],
    begins_file: npt.NDArray[np.bool_],
) -> npt.NDArray[np.int64]:
    """Returns where the last span with frames before each one stops, or 0."""
    rows = np.arange(len(stops))
    last = np.maximum.accumulate(np.where(holds_frames, rows, -1))
    before = np.append([-1], last)[:-1]
    first = np.maximum.accumulate(np.where(begins_file, rows, 0))
    return np.where(before >= first, stops[before], 0)


class ConversionResult(NamedTuple):
    """The result of a conversion.

    Attributes:
        manifest: The committed dataset.
        committed_before: Splits for which there was nothing to do.
    """

    manifest: Manifest
    committed_before: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommitOptions:
    """What a conversion commits besides its shards, and what becomes of old ones.

    Attributes:
        features: The schema, where known.
        tfds_directory: The TFDS directory that the jobs come from, if any: its
            metadata is compared with what was read, and written for the output.
        keep_replaced: Whether what is replaced is kept, to go back to.
        delete: As for `commit`.
    """

    features: Mapping[str, Any] | None = None
    tfds_directory: str | None = None
    keep_replaced: bool = False
    delete: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class MakeShards:
    """The job of a conversion whose shards are planned; it does not grow with these.

    Attributes:
        jobs: One for each split.
        options: What else is committed.
        begun: A task for each split that is to be made, which refers to its plan.
        committed: The same for each split that was committed before.
        stride: Which passes over the inputs `begin` lists: those from the first number
            on, at a distance of the second. For graphs whose runner spreads nothing.
        one_at_a_time: As for `make_shards`.
    """

    jobs: Sequence[ConversionJob]
    options: CommitOptions
    begun: tuple[ShardTask, ...] = ()
    committed: tuple[ShardTask, ...] = ()
    stride: tuple[int, int] = (0, 1)
    one_at_a_time: bool = False

    @property
    def label(self) -> str:
        """What it does, as the name of its command says."""
        if self.jobs[0].pack is not None:
            return "packing"
        return "appending" if self.jobs[0].appends else "converting"

    def begun_by(self, taken: Iterable[TakenOutput]) -> MakeShards:
        """Returns the job for outputs that were taken."""
        begun: list[ShardTask] = []
        committed: list[ShardTask] = []
        for one in taken:
            task = ShardTask.of(one.prepared, 0)
            (begun if one.committed is None else committed).append(task)
        return dataclasses.replace(self, begun=tuple(begun), committed=tuple(committed))

    def strides(self, most: int = 4096) -> list[MakeShards]:
        """Returns the job in parts."""
        prepared = (task.prepared for task in self.begun)
        passes = sum(len(job.plan.pass_begins) for job in prepared)
        count = max(1, min(most, passes))
        return [dataclasses.replace(self, stride=(n, count)) for n in range(count)]

    def begin(self) -> Begun[ShardTask]:
        """Lists the passes over the inputs."""
        prepared = [task.prepared for task in self.begun]
        plans = [job.plan for job in prepared]
        first, step = self.stride
        tasks = itertools.chain.from_iterable(
            shard_tasks(job, first, step) for job in prepared
        )
        return Begun(
            label=self.label,
            tasks=tasks,
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
        return commit_shards(self.jobs, results, self.options)


def commit_shards(
    jobs: Iterable[ConversionJob],
    results: Gathered | Iterable[ShardResult],
    options: CommitOptions | None = None,
) -> ConversionResult:
    """Commits the dataset from the results of all shards of all jobs.

    Args:
        jobs: The jobs, all of one dataset, with its directory as output.
        results: A result for every shard; None as report where a split was there.
        options: What else is committed.

    Raises:
        DataLossError: Shards are missing or do not hold what was read, or a split that
            was there is gone.
    """
    options = options or CommitOptions()
    jobs, features = list(jobs), options.features
    output, name = jobs[0].output, jobs[0].name
    if not isinstance(results, Gathered):
        results = Gathered.of(results)
    begun = time.monotonic()  # All shards are there by now.
    committed = results.notes["committed"].keys()
    made = {layout.parse_write_key(k)[0]: k for k in (*results.rows, *committed)}
    keys = {j.split: made.get(layout.parse_write_key(j.split)[0]) for j in jobs}
    before = tuple(split for split, key in keys.items() if key in committed)
    splits = {}
    owners: dict[str, PreparedJob] = {}
    for job in jobs:
        key = keys[job.split]
        if job.split in before:
            continue
        if key is None:
            raise DataLossError(
                "no shard of a split was made",
                where=f"{job.output}, split {job.split}",
                cure="run the same command again: finished shards are kept",
            )
        own = results.notes["task"][key].prepared
        splits[key] = finish_split(own, results.rows[key])
        owners[key] = own
    extra_files = None
    if options.tfds_directory is not None:
        source = read_tfds_directory(options.tfds_directory)
        features = source.features if features is None else features
        # A split of a dataset was compared with the dataset.
        of_dataset = {
            split for split, own in owners.items() if own.files.spec.of_dataset
        }
        extra_files = _tfds_files(source, output, splits, of_dataset)

    # Hours may have passed since the first split was finished.
    current = functools.partial(check_current, *owners.values())
    check = functools.partial(check_files, output, splits, check_current=current)
    manifest = commit_dataset(
        output,
        name,
        splits,
        based_on={key: own.base for key, own in owners.items()},
        replaces=[key for key, own in owners.items() if own.replaces],
        keep_replaced=options.keep_replaced,
        keeps=committed,
        features=features,
        extra_files=extra_files,
        check=check,
        delete=options.delete,
    )
    parts = [
        f"split {job.split}: {split.records:,} records in {split.shards:,} shards, "
        f"{split.file_bytes:,} bytes, {split.skipped_regions:,} damaged regions"
        + ", committed before"
        * (job.split in before)
        for job in jobs
        if (split := manifest.find(job.split)) is not None
    ]
    _log.info(
        "%s: committed in %.1f s; %s",
        *(output, time.monotonic() - begun, "; ".join(parts)),
    )
    return ConversionResult(manifest, before)


def _tfds_files(
    source: TfdsDirectory,
    output: str,
    splits: Mapping[str, Split],
    of_dataset: Collection[str],
) -> ExtraFiles:
    """Checks new splits against TFDS metadata, of which it makes the output's.

    Those in `of_dataset` need not be checked.
    """
    for key, split in splits.items():
        name, _ = layout.parse_write_key(key)
        if key not in of_dataset:
            table = read_table(output, split)
            check_records_read(source.splits[name], table, where=source.path)

    def make(manifest: Manifest) -> list[bytes]:
        tables = {
            layout.write_key(name, split.write): read_table(output, split)
            for name, split in manifest.splits.items()
            if name in source.splits and not split.editions
        }
        return list(tfds_metadata(source, name=manifest.name, tables=tables).values())

    return ExtraFiles((*source.files, TFDS_INFO_JSON), make)


def carried_columns(
    prepared: PreparedJob, table: ShardTable
) -> Mapping[str, Mapping[str, Any]]:
    """Returns the columns of a finished split, for `Split.columns`; writes their files.

    They are those that all editions of the input have alike. There are none where it is
    not known which record became which: of packed rows, and where a function of the
    user's was called or damage was left out.

    Args:
        prepared: The job.
        table: The shards that it has made.

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
    write = prepared.as_write
    return {
        name: made_column(
            write, name, entry, table, _values(prepared, columns, name, table)
        )
        for name, entry in columns.entries.items()
    }


def _values(
    prepared: PreparedJob, columns: SplitColumns, name: str, table: ShardTable
) -> Iterator[Values]:
    """Yields the values of each shard, of the ranges that it was made of."""
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
