"""Beginning a conversion: planning its shards, and taking its output."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import posixpath
import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from gristmill.dataset.arrayrecord.file_writer import (
    with_versions,
)
from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.errors import (
    FormatVersionError,
    InputError,
    InvalidDatasetError,
    some_of,
)
from gristmill.dataset.commit.ownership import (
    check_holds_no_input,
    check_not_matched,
)
from gristmill.dataset.formats.file_formats import JoinedFiles, listed
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import open_manifest, read_manifest
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import has_file
from gristmill.transforms.chat.conversation_reader import (
    document_records,
    reader_of,
)
from gristmill.transforms.chat.template import with_template
from gristmill.transforms.conversion.take_output import (
    Overwrite,
    TakenOutput,
    take_output,
)
from gristmill.transforms.functions.user_functions import (
    call,
    code_digest,
    load_function,
)
from gristmill.transforms.jobs.conversion_job import (
    ConversionJob,
    PreparedJob,
)
from gristmill.transforms.jobs.job import Begun
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.planning.shard_plan import (
    DEFAULT_SHARD_BYTES,
    ShardPlan,
    SourceRange,
    plan_by_bytes,
)
from gristmill.transforms.sources.find_inputs import (
    Looked,
    LookTask,
    find_inputs,
    look_at_part,
    look_tasks,
    looked_files,
    match_files,
)
from gristmill.transforms.sources.formats import SourceSpec
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.input_formats import look_at
from gristmill.transforms.sources.shards.source_split import (
    check_apart,
    find_split,
)
from gristmill.transforms.sources.source import (
    ReadRequest,
    SkippedRegions,
    first_records,
    source_of,
)
from gristmill.transforms.tokens.documents import (
    Tried,
    check_fit,
    mostly_unknown,
)
from gristmill.transforms.tokens.load_tokenizer import find_tokenizer

_log = logging.getLogger(__name__)

_MANY_SHARDS = 4
_MEANINGS = {"training": ("train", "training")}  # Meanings of a word in a name.
_TRIED_FILES = 8  # The first of them that has a record is taken.
_TRIED_RECORDS = 10
_TRIED_CONVERSATIONS = 64
_READ_BYTES = 1 << 16
_LOOKED_AT = 10_000

_TABLE = re.compile(
    r"\.(csv|tsv|json|jsonl|ndjson)(\.(gz|gzip|zst|zstd|z|zz|zlib))?$", re.IGNORECASE
)

TryMap = Callable[[ConversionJob, Sequence[InputFile]], None]


class _Trial:
    """The function and the tokenizer of a job, to call on records."""

    def __init__(self, job: ConversionJob, spec: SourceSpec, *, accepts: bool):
        self.unknown_texts = 0  # Documents that are mostly unknown to the tokenizer.
        self._function = None if job.map is None else load_function(job.map)
        tell = (lambda number, failure: None) if accepts else None
        self.reader = None if job.pack is None else reader_of(job.pack, spec, tell=tell)

    def call(self, record: bytes, place: str) -> PackedCounts:
        """Returns the counts of the documents in a record."""
        results: Sequence[bytes] = (record,)
        if self._function is not None:
            results = call(self._function, record, source=place)
        if self.reader is None:
            return PackedCounts()
        counts = self.reader.read(results, lambda number: place).counts
        self.unknown_texts += counts.documents * mostly_unknown(counts)
        return counts


def try_function(job: ConversionJob, files: Sequence[InputFile]) -> None:
    """Calls the function and the tokenizer of a job on the first records.

    Raises:
        UserFunctionError: The function fails, or returns a value that cannot be
            written.
        InputError: The tokenizer cannot be used, or the records are not documents.
        CorruptInputError: An input is damaged at its beginning, and the job does not
            accept that.
    """
    job = _with_tokenizer(job)
    is_chat = job.pack is not None and job.pack.chat is not None
    tried = _TRIED_CONVERSATIONS if is_chat else _TRIED_RECORDS
    counts = PackedCounts()
    for number, file in enumerate(files):
        plain = file.compression == "none"
        beginning = SourceRange(
            file_index=number,
            begin_bytes=0,
            end_bytes=min(file.size_bytes, _READ_BYTES) if plain else -1,
        )
        skips, source = job.on_corrupt == "skip", source_of(file.spec)
        skipped = SkippedRegions() if skips else None
        ranges = source.read(ReadRequest(file, beginning, skipped))
        for batch in map(ranges.taken, ranges.batches()):
            trial = _Trial(job, source.spec, accepts=skips)
            found = zip(batch.places, batch.records, strict=True)
            for place, record in itertools.islice(found, tried):
                where = f"{file.path}, {source.place_text(place)}"
                counts += trial.call(record, where)
            reader = trial.reader
            if job.pack is not None and reader is not None:
                known = Tried(reader.bytes_texts, trial.unknown_texts)
                check_fit(job.pack, counts, reader.examples.get, tried=known)
            if batch.records:
                return


def example_of(prepared: PreparedJob, name: str) -> str:
    """Returns the file, place and reason of the first misfit of a name."""
    trial = _Trial(prepared.job, prepared.files.spec, accepts=True)
    for one in itertools.islice(first_records(prepared.files), _LOOKED_AT):
        trial.call(one.record, f"{one.path}, {one.place_text}")
        if trial.reader is not None and name in trial.reader.examples:
            return trial.reader.examples[name]
    return f"{prepared.job.output}, after the first {_LOOKED_AT:,} records"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanConversion:
    """The job that begins a conversion; its step examines some of the input files.

    Attributes:
        jobs: One for each split, with the same output and name.
        overwrite: Whether to replace these splits in the output; `changed` to replace
            them only if jobs with the same kind of names wrote all of them.
        try_map: Tries a job's function and tokenizer; by default in this process.
    """

    jobs: tuple[ConversionJob, ...]
    overwrite: Overwrite = False
    try_map: TryMap = try_function

    step = staticmethod(look_at_part)

    def begin(self) -> Begun[LookTask]:
        """Lists the files that the inputs match, with names and sizes only."""
        # None for a dataset, which knows its shards.
        tasks = [
            task
            for job in self.jobs
            for task in look_tasks(job.split, _match(job) or [])
        ]
        return Begun(
            label="preparing", noun="parts", tasks=tasks, parts=len(tasks), planned=0
        )

    def commit(self, gathered: Gathered) -> list[TakenOutput]:
        """Plans all jobs, and takes their output."""
        return [
            begin_job(
                job,
                overwrite=self.overwrite,
                looked=looked_files(gathered, job.split),
                try_map=self.try_map,
            )
            for job in self.jobs
        ]


def begin_job(
    job: ConversionJob,
    *,
    overwrite: Overwrite = False,
    looked: Looked | None = None,
    try_map: TryMap = try_function,
) -> TakenOutput:
    """Lists the inputs of a job, plans its shards, and takes its output.

    Args:
        job: The job.
        overwrite: As in `PlanConversion`.
        looked: As for `list_inputs`.
        try_map: As in `PlanConversion`.

    Raises:
        InputError: Inputs or options cannot be used.
        UserFunctionError: The job's function fails at the first records.
        JobChangedError: The output belongs to another job.
    """
    files = list_inputs(job, looked)
    if job.map is not None or job.pack is not None:
        try_map(job, files.first(_TRIED_FILES))
    taken = take_output(plan_job(job, files), overwrite=overwrite)
    prepared = taken.prepared
    _log.info(
        "%s: split %s: %d files, %d bytes become %d shards, job %s%s",
        *(job.output, prepared.write.key, len(files), int(files.sizes.sum())),
        *(prepared.plan.shards, prepared.write.id),
        "" if taken.committed is None else ", committed already: nothing to do",
    )
    return taken


def _with_tokenizer(job: ConversionJob) -> ConversionJob:
    """Returns a job with its tokenizer and template found."""
    if job.pack is None:
        return job
    pack = dataclasses.replace(job.pack, found=find_tokenizer(job.pack))
    return dataclasses.replace(job, pack=with_template(pack))


def plan_job(job: ConversionJob, files: InputFiles) -> PreparedJob:
    """Plans the shards of a job for its input files."""
    plan = plan_shards(job, files)
    if job.map is not None:
        job = dataclasses.replace(job, map_code_digest=code_digest(job.map))
    job = _with_tokenizer(job)
    job = dataclasses.replace(job, writer=with_versions(job.writer))
    prepared = PreparedJob(job=job, files=files, plan=plan, write=job.write)
    prepared.check_shard_names()
    first = prepared.shard_path(0)
    beside = [layout.index_path(first), layout.errors_path(first)]
    if job.pack is not None:
        beside.append(layout.segments_path(first))
    _check_apart(job, files, [*prepared.shards, *beside])
    return prepared


def plan_shards(job: ConversionJob, files: InputFiles) -> ShardPlan:
    """Returns the cuts between the shards of a job; arguments are as for `plan_job`."""
    plan = plan_by_bytes(job.plan, files.sizes, files.splittable)
    if files.spec.format == "parquet":
        from gristmill.transforms.sources.parquet_source import joined_shards

        joined = joined_shards(files, plan)
        return dataclasses.replace(plan, joined=joined) if joined.any() else plan
    return plan


def list_inputs(job: ConversionJob, looked: Looked | None = None) -> InputFiles:
    """Lists the input files of a job.

    Args:
        job: The job.
        looked: The files and their formats, if known; none for a dataset.

    Raises:
        InputError: They cannot be used or are of several splits, or the job's function
            cannot be used.
    """
    if not looked or not looked[0]:
        found = _match(job)
        looked = None if found is None else (found, look_at(found))
    damage = job.on_corrupt == "skip"
    if looked is None:
        directory = job.inputs[0]
        check_apart(job.output, directory)
        check_records(directory, job.split)
        options = job.records
        return find_split(directory, job.split, options=options, allow_damage=damage)
    adapt = None
    if job.pack is not None:
        mapped = job.map is not None
        adapt = functools.partial(document_records, pack=job.pack, mapped=mapped)
    files = find_inputs(
        job.inputs,
        options=job.records,
        adapt=adapt,
        allow_empty_files=job.allow_empty_files,
        allow_other_formats=damage,
        looked=looked,
    )
    if files.spec.format == "arrayrecord":
        _check_files_of_records(files.paths)
    found_text = job.records.input_format == "auto" and files.spec.format == "text"
    if found_text and (job.pack is None or job.map is None):
        check_no_tables(files, job.pack)
    # Other kinds of names come from a function that joins all of its inputs.
    if job.names.kind == "tfds":
        _check_one_split(job, files)
        check_holds_no_input(job.output, files.paths)
    # The shards have names once they are planned.
    written = (layout.DATASET_JSON, *layout.split_paths(job.name, job.split))
    _check_apart(job, files, written)
    return files


def check_no_tables(files: InputFiles, pack: PackOptions | None) -> None:
    """Checks that files that look like lines of text are not tables.

    The first bytes of both look alike. Each line of a table would become a record with
    its separators, even the header, and a row with a newline would become two.

    Args:
        files: The inputs, whose format `text` was guessed.
        pack: The options of packing, if documents are packed.

    Raises:
        InputError: A file has the name of a table.
    """
    if pack is not None and not pack.column:
        return
    lines = "--input-format text" if pack is None else "--column -"
    for path in files.paths:
        if found := _TABLE.search(path):
            kind = found[1].lower()
            known = kind if kind in ("csv", "tsv") else "jsonl"
            raise InputError(
                "a file that is named as a table looks like lines of text",
                where=path,
                expected="a table, or lines that are records"
                if pack is None
                else f"a table with the column {pack.column!r}, or lines that are "
                "documents",
                got="lines that do not have the same number of commas or of tabs",
                cure=f"give --input-format {known}, or {lines} to take its lines",
            )


def _match(job: ConversionJob) -> list[FileInfo] | None:
    """Lists the files that the inputs of a job match; None for a dataset."""
    if job.map is not None:
        load_function(job.map)
    dataset = len(job.inputs) == 1 and has_file(job.inputs[0], layout.DATASET_JSON)
    accepted = job.allow_empty_files or job.on_corrupt == "skip"
    # First, so that a wrong path is reported as such.
    found = None if dataset else match_files(job.inputs, allow_empty_files=accepted)
    if job.records.select and (job.map or not dataset):
        raise InputError(
            "records are selected from a dataset, and are then taken as they are",
            where=some_of(job.inputs),
            expected="a dataset of records, without --map",
            got=f"--select {job.records.select}"
            + (f", --map {job.map}" if dataset and job.map else ""),
            cure="leave out --map, or select first and convert the result"
            if dataset
            else "convert the files to a dataset, and select from that by columns of "
            "gristmill attach",
        )
    return found


def check_records(directory: str, split: str) -> None:
    """Raises InputError if a split of a dataset holds packed rows."""
    found = open_manifest(directory).splits.get(split)
    if found is not None:
        _refuse_packed(directory, split, found)


def _check_files_of_records(paths: Sequence[str]) -> None:
    """Raises InputError if files are shards of packed rows."""
    for place, inside in itertools.groupby(paths, posixpath.dirname):
        directory = place or "."
        try:
            manifest = read_manifest(directory)
        except (FormatVersionError, InvalidDatasetError):
            continue  # Files beside it can be read, whatever it is.
        names = [posixpath.basename(path) for path in inside]
        if manifest is None:
            continue
        for split, one in manifest.splits.items():
            begin = f"{manifest.name}-{split}.array_record"
            if any(name.startswith(begin) for name in names):
                _refuse_packed(directory, split, one)


def _refuse_packed(directory: str, name: str, split: Split) -> None:
    if split.packed is not None:
        raise InputError(
            "the input holds packed rows: other shards would lose the document of "
            "each piece",
            where=f"{directory}, split {name}",
            expected="a dataset of records",
            got="packed rows",
            cure="give the documents that they were packed from; other rows of these "
            "are made with gristmill pack",
        )


def input_notes(job: ConversionJob, files: InputFiles) -> list[str]:
    """Returns notes for the user on the inputs of a job."""
    return [*split_notes(job, files), *files.notes(), *source_of(files.spec).notes()]


def split_notes(job: ConversionJob, files: InputFiles) -> list[str]:
    """Returns a note if files of one split become another split by default."""
    splits = JoinedFiles.of(files.paths).splits
    if job.names.kind != "tfds" or job.join_splits or len(splits) != 1:
        return []
    ((found, count),) = splits.items()
    if count < len(files):
        return []
    if job.split in _MEANINGS.get(found, (found,)):
        return []
    return [
        f"the input files are of split {found}, by their names, and become split "
        f"{job.split}; to keep it, give --split {found} (in Python, split={found!r})"
    ]


def _check_apart(
    job: ConversionJob, inputs: InputFiles, written: Iterable[str]
) -> None:
    """Raises InputError if an input pattern would match a file of the output."""
    # The path of a file matches no other file.
    patterns = set(job.inputs).difference(inputs.paths)
    check_not_matched(job.output, patterns=sorted(patterns), files=written)


def _check_one_split(job: ConversionJob, files: InputFiles) -> None:
    """Raises InputError if inputs of several splits are not joined on purpose."""
    splits = JoinedFiles.of(files.paths).splits
    if len(splits) < 2 or (job.join_splits and job.split not in splits):
        return
    cure = (
        "convert one split at a time, with a narrower pattern and --split; to join "
        "them on purpose, give --split with another name, such as all (in Python, also "
        "join_splits=True)"
    )
    folder = files.paths[0].rpartition("/")[0] or "."
    if has_file(folder, layout.TFDS_INFO_JSON):
        cure = f"give the TFDS directory {folder}, which keeps its splits; or {cure}"
    raise InputError(
        "the input files belong to several splits",
        where=some_of(job.inputs),
        expected="files of one split",
        got=listed(splits),
        cure=cure,
    )


def plan_notes(prepared: PreparedJob) -> list[str]:
    """Returns notes on files that are large for the one worker that reads them."""
    plan, files = prepared.plan, prepared.files
    sizes = np.where(plan.splittable, 0, plan.sizes)
    made = np.diff(plan.pass_begins, append=plan.shards)
    if prepared.job.plan.kind == "match_shards":
        many = int((sizes > DEFAULT_SHARD_BYTES).sum())
        longest = int(sizes.argmax()) if many else 0
        what = f"larger than {DEFAULT_SHARD_BYTES >> 20} MiB"
        told = (
            "becomes one shard, since each file does: one worker makes it, and its "
            "disk must hold what it holds. A plan by size would cut it"
        )
    else:
        many = 0 if plan.splittable.all() else int((made >= _MANY_SHARDS).sum())
        first = int(plan.pass_begins[made.argmax()]) if many else 0
        longest = plan.ranges(first)[0].file_index if many else 0
        what = f"cut into {_MANY_SHARDS} shards or more"
        told = (
            "is the longest. One worker makes all shards of such a file, one after the "
            f"other: {int(made.max(initial=0)):,} of {plan.shards:,} of this one"
        )
    if not many:
        return []
    which = (
        "1 file that is read from its start is"
        if many == 1
        else f"{many:,} files that are read from their start are"
    )
    size = int(plan.sizes[longest])
    return [f"{which} {what}. {files.paths[longest]} ({size:,} bytes) {told}"]
