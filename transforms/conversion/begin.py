"""Beginning a conversion: inputs are listed, shards planned, and the output taken."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence

from gristmill.dataset.arrayrecord.chunk_encoder import with_versions
from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.errors import InvalidDatasetError, StorageError
from gristmill.dataset.commit.write import described_writes
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.transforms.chat.document_reader import reader_of
from gristmill.transforms.chat.template_file import with_template
from gristmill.transforms.conversion.list_inputs import (
    check_job,
    check_shards_apart,
    list_inputs,
    match_job,
)
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
from gristmill.transforms.jobs.conversion_job import ConversionJob, PreparedJob
from gristmill.transforms.jobs.job import Begun, Run, run_here
from gristmill.transforms.planning.shard_plan import (
    ShardPlan,
    SourceRange,
    plan_by_bytes,
)
from gristmill.transforms.sources.find_inputs import (
    Looked,
    LookedPart,
    LookTask,
    look_at_part,
    look_tasks,
    looked_files,
)
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.source import SkippedRegions, source_of
from gristmill.transforms.tokens.fit import check_fit
from gristmill.transforms.tokens.tokenizers import find_tokenizer

_log = logging.getLogger(__name__)

_TRIED_FILES = 8  # The first of them that has a record is taken.
_TRIED_RECORDS = 10
_TRIED_CONVERSATIONS = 64
_READ_BYTES = 1 << 16

TryMap = Callable[[ConversionJob, Sequence[InputFile]], None]


def try_function(job: ConversionJob, files: Sequence[InputFile]) -> None:
    """Calls function and tokenizer of a job on the first records.

    What they return is dropped.

    Raises:
        UserFunctionError: The function fails, or returns a value that cannot be
            written.
        InputError: The tokenizer cannot be used, or the records are not documents.
        CorruptInputError: An input is damaged at its beginning, and the job does not
            accept that.
    """
    function = None if job.map is None else load_function(job.map)
    pack = job.pack
    if pack is not None:
        pack = dataclasses.replace(pack, found=find_tokenizer(pack))
        pack = pack if pack.chat is None else with_template(pack)
    counts = PackedCounts()
    is_chat = pack is not None and pack.chat is not None
    tried = _TRIED_CONVERSATIONS if is_chat else _TRIED_RECORDS
    for number, file in enumerate(files):
        plain = file.compression == "none"
        beginning = SourceRange(
            file_index=number,
            begin_bytes=0,
            end_bytes=min(file.size_bytes, _READ_BYTES) if plain else -1,
        )
        skipped = SkippedRegions() if job.on_corrupt == "skip" else None
        source = source_of(file.spec)
        ranges = source.read(file, beginning, skipped=skipped)
        for batch in map(ranges.taken, ranges.batches()):
            reader = None if pack is None else reader_of(pack, source.spec)
            found = zip(batch.places, batch.records, strict=True)
            for place, record in itertools.islice(found, tried):
                where = f"{file.path}, {source.place_text(place)}"
                results: Sequence[bytes] = (record,)
                if function is not None:
                    results = call(function, record, source=where)
                if reader is not None:
                    made = reader.read(results, functools.partial(_always, where))
                    counts += made.seen()
            if reader is not None and pack is not None:
                check_fit(
                    pack, counts, reader.examples.get, bytes_texts=reader.bytes_texts
                )
            if batch.records:
                return


def _always(place: str, number: int) -> str:
    del number
    return place


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanConversion:
    """The job that begins a conversion. Its step looks into some of the input files.

    Attributes:
        jobs: One for each split, with the same output and name.
        overwrite: Whether to replace what the output holds of these splits; `changed`
            to do so only if earlier jobs with the same kind of names wrote all of it.
        run: Runs the comparison of finished shards with inputs that may have changed.
        try_map: Tries a job's function and tokenizer, by default in this process.
    """

    jobs: tuple[ConversionJob, ...]
    overwrite: Overwrite = False
    run: Run = run_here
    try_map: TryMap = try_function

    def begin(self) -> Begun[LookTask]:
        """Lists the files that the inputs match: a listing has names and sizes only."""
        tasks = list(itertools.chain.from_iterable(map(self._listed, self.jobs)))
        return Begun(
            label="preparing", noun="parts", tasks=tasks, parts=len(tasks), planned=0
        )

    def _listed(self, job: ConversionJob) -> Iterator[LookTask]:
        check_job(job)
        # None of a dataset, which says what its shards are.
        return look_tasks(job.split, match_job(job) or [])

    @property
    def step(self) -> Callable[[LookTask], LookedPart]:
        """Looks into files."""
        return look_at_part

    def commit(self, gathered: Gathered) -> list[TakenOutput]:
        """Plans all jobs, and takes possession of their output."""
        taken = []
        for job in self.jobs:
            looked = looked_files(gathered, job.split)
            taken.append(
                begin_job(
                    job,
                    overwrite=self.overwrite,
                    looked=looked if looked[0] else None,
                    run=self.run,
                    try_map=self.try_map,
                )
            )
        return taken


def begin_job(
    job: ConversionJob,
    *,
    overwrite: Overwrite = False,
    looked: Looked | None = None,
    run: Run = run_here,
    try_map: TryMap = try_function,
) -> TakenOutput:
    """Lists the inputs of a job, plans its shards, and takes possession of its output.

    Args:
        job: The job.
        overwrite: As in `PlanConversion`, and so are `run` and `try_map`.
        looked: As for `list_inputs`.
        run: See there.
        try_map: See there.

    Raises:
        InputError: Inputs or options cannot be used.
        UserFunctionError: The job's function fails at the first records.
        JobChangedError: The output belongs to another job.
    """
    files = list_inputs(job, looked)
    if job.map is not None or job.pack is not None:
        try_map(job, files.first(_TRIED_FILES))
    prepared = plan_job(job, files, overwrite=overwrite)
    taken = take_output(prepared, overwrite=overwrite, run=run)
    where = job.output, taken.prepared.job.split
    if taken.committed is not None:
        _log.info("%s: split %s is committed already; nothing to do", *where)
    else:
        _log.info(
            "%s: split %s: %d files become %d shards, job %s",
            *(*where, len(files), prepared.plan.shards, taken.prepared.fingerprint),
        )
    return taken


def plan_job(
    job: ConversionJob, files: InputFiles, *, overwrite: Overwrite = False
) -> PreparedJob:
    """Plans the shards of a job.

    Args:
        job: The job.
        files: Its input files.
        overwrite: Whether it starts over, whatever was begun before.
    """
    plan = plan_shards(job, files)
    if job.map is not None:
        job = dataclasses.replace(job, map_code_digest=code_digest(job.map))
    if job.pack is not None:
        pack = dataclasses.replace(job.pack, found=find_tokenizer(job.pack))
        if pack.chat is not None:
            date = "" if overwrite is True else _begun_date(job)
            pack = with_template(pack, date=date)
        job = dataclasses.replace(job, pack=pack)
    job = dataclasses.replace(job, writer=with_versions(job.writer))
    prepared = PreparedJob(job=job, files=files, plan=plan)
    prepared.check_shard_names()
    check_shards_apart(prepared)
    return prepared


def plan_shards(job: ConversionJob, files: InputFiles) -> ShardPlan:
    """Returns the cuts between the shards of a job; arguments are as for `plan_job`."""
    plan = plan_by_bytes(job.plan, files.sizes, files.splittable)
    if files.spec.format == "parquet":
        from gristmill.transforms.sources.parquet.shared_groups import joined_shards

        joined = joined_shards(files, plan)
        return dataclasses.replace(plan, joined=joined) if joined.any() else plan
    return plan


def _begun_date(job: ConversionJob) -> str:
    """Returns the date that the template of a job was told by an earlier run, or ""."""
    for key in described_writes(job.output, job.name, job.split):
        with contextlib.suppress(InvalidDatasetError, StorageError):
            begun = PreparedJob.load(job.output, job.name, key)
            pack = None if begun is None else begun.job.pack
            chat = None if pack is None else pack.chat
            if chat is not None and chat.found is not None and chat.found.date:
                return chat.found.date
    return ""
