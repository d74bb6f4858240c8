"""The inputs of a job: of one split, apart from its output, and the same as before.

Size and time of an input can be kept when it is written again. Then the system has
noted a change (ctime), as it does of new permissions or links. What finished shards
were made of is read again: if it is the same, they stay.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing

import numpy as np

from gristmill.dataset.base.errors import (
    CorruptInputError,
    InputError,
    InvalidDatasetError,
    JobChangedError,
    StorageError,
    some_of,
)
from gristmill.dataset.commit.ownership import (
    check_holds_no_input,
    check_not_matched,
)
from gristmill.dataset.commit.write import described_writes
from gristmill.dataset.formats.file_formats import FileFormat, JoinedFiles, listed
from gristmill.dataset.formats.streams.inflated_stream import COMPRESSIONS
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import has_file, storage_for
from gristmill.transforms.chat.document_reader import records_for
from gristmill.transforms.conversion.convert_shard import finished_shard, read_again
from gristmill.transforms.functions.user_functions import load_function
from gristmill.transforms.jobs.conversion_job import ConversionJob, PreparedJob
from gristmill.transforms.sources.find_inputs import (
    LookAt,
    Looked,
    find_inputs,
    match_files,
)
from gristmill.transforms.sources.formats import FORMATS
from gristmill.transforms.sources.input_files import InputFiles
from gristmill.transforms.sources.input_formats import Look, look_at
from gristmill.transforms.sources.shards.source_split import (
    check_apart,
    find_split,
)
from gristmill.transforms.sources.source import KeptPass, source_of
from gristmill.transforms.tokens.documents import (
    check_no_tables,
)


def begun_date(job: ConversionJob) -> str:
    """Returns the date that the template of a job was told by an earlier run, or ""."""
    for key in described_writes(job.output, job.name, job.split):
        with contextlib.suppress(InvalidDatasetError, StorageError):
            begun = PreparedJob.load(job.output, job.name, key)
            pack = None if begun is None else begun.job.pack
            chat = None if pack is None else pack.chat
            if chat is not None and chat.found is not None and chat.found.date:
                return chat.found.date
    return ""


def known_looks(job: ConversionJob, files: Sequence[FileInfo]) -> list[Look] | None:
    """Returns the looks at first bytes of files, if an earlier run recorded them.

    Args:
        job: The job, which may have been begun.
        files: What its inputs match now.

    Returns:
        What was seen of each; None if any of them is another one, or may be.
    """
    if not all(storage_for(info.path).remote for info in files[:1]):
        return None
    for key in described_writes(job.output, job.name, job.split):
        # What cannot be read is of no use.
        with contextlib.suppress(InvalidDatasetError, StorageError):
            begun = PreparedJob.load(job.output, job.name, key)
            if begun is not None and _as_asked(begun.job, job):
                looks = _known_looks(begun.files, files)
                if looks is not None:
                    return looks
    return None


def _known_looks(before: InputFiles, files: Sequence[FileInfo]) -> list[Look] | None:
    if (
        len(before) != len(files)
        or not np.array_equal(before.sizes, [info.size_bytes for info in files])
        or list(before.versions) != [info.version for info in files]
        or list(before.paths) != [info.path for info in files]
    ):
        return None
    # All were of this format, or of no known one, which counts as the same.
    name = FORMATS[before.spec.format].found_as
    looks = [
        Look(
            kind,
            FileFormat(name if kind == "none" else f"{kind}-compressed {name}", ""),
        )
        for kind in COMPRESSIONS
    ]
    return [looks[kind] for kind in before.compressions.tolist()]


def _as_asked(before: ConversionJob, job: ConversionJob) -> bool:
    """Returns whether a job takes the same files for inputs as before."""
    asked = (before.records.input_format, before.on_corrupt)
    return asked == (job.records.input_format, job.on_corrupt)


_log = logging.getLogger(__name__)

_MEANINGS = {"training": ("train", "training")}  # What a word in a name may mean.


def list_inputs(
    job: ConversionJob,
    *,
    look: LookAt = look_at,
    anew: bool = False,
    looked: Looked | None = None,
) -> InputFiles:
    """Lists the input files of a job.

    Args:
        job: The job.
        look: Looks into files, by default in threads of this process.
        anew: Whether what an earlier run saw of the same files does not count.
        looked: What `match_job` returned, and what is in each file, if that is known.

    Raises:
        InputError: They cannot be used or are of several splits, or the job's function
            cannot be used.
    """
    begun = time.monotonic()
    check_job(job)
    if looked is None and (found := match_job(job)) is not None:
        looked = found, (None if anew else known_looks(job, found)) or look(found)
    files = _listed(job, looked)
    _log.info(
        "%s: split %s: %d input files listed, %d bytes, in %.1f s",
        *(job.output, job.split, len(files), int(files.sizes.sum())),
        time.monotonic() - begun,
    )
    return files


def check_job(job: ConversionJob) -> None:
    """Checks what is known of a job before its inputs are listed.

    Raises:
        InputError: Its function cannot be used, or its options do not go together.
    """
    if job.map is not None:
        load_function(job.map)
    _check_selected(job)


def match_job(job: ConversionJob) -> list[FileInfo] | None:
    """Lists the files that the inputs of a job match; None if that is a dataset.

    Raises:
        InputError: A pattern matches nothing, or a file is empty.
    """
    if len(job.inputs) == 1 and has_file(job.inputs[0], layout.DATASET_JSON):
        return None
    accepted = job.allow_empty_files or job.on_corrupt == "skip"
    return match_files(job.inputs, allow_empty_files=accepted)


def _listed(job: ConversionJob, looked: Looked | None) -> InputFiles:
    damage = job.on_corrupt == "skip"
    if looked is None:
        check_apart(job.output, job.inputs[0])
        split, _ = layout.parse_write_key(job.split)
        check_records(job.inputs[0], split)
        return find_split(
            job.inputs[0], split, options=job.records, allow_damage=damage
        )
    adapt = None
    if job.pack is not None:
        mapped = job.map is not None
        adapt = functools.partial(records_for, pack=job.pack, mapped=mapped)
    files = find_inputs(
        job.inputs,
        options=job.records,
        adapt=adapt,
        allow_empty_files=job.allow_empty_files or damage,
        allow_other_formats=damage,
        looked=looked,
    )
    found = job.records.input_format == "auto" and files.spec.format == "text"
    if found and (job.pack is None or job.map is None):
        check_no_tables(files, job.pack)
    # Names of other kinds are those of a function that joins whatever it is given.
    if job.names.kind == "tfds":
        _check_one_split(job, files)
        check_holds_no_input(job.output, files.paths)
    # The shards have names once they are planned.
    written = (layout.DATASET_JSON, *layout.split_paths(job.name, job.split))
    _check_apart(job, files, written)
    return files


def check_records(directory: str, split: str) -> None:
    """Raises InputError if a split holds packed rows."""
    found = open_manifest(directory).splits.get(split)
    if found is not None and found.packed is not None:
        raise InputError(
            "the input holds packed rows: other shards would lose the document of "
            "each piece",
            where=f"{directory}, split {split}",
            expected="a dataset of records",
            cure="make other rows of the documents with gristmill pack",
        )


def _check_selected(job: ConversionJob) -> None:
    """Raises InputError if records cannot be selected from the inputs of a job."""
    if not job.records.select:
        return
    dataset = len(job.inputs) == 1 and has_file(job.inputs[0], layout.DATASET_JSON)
    if dataset and job.map is None:
        return
    raise InputError(
        "records are selected from a dataset, and are then taken as they are",
        where=some_of(job.inputs),
        expected="a dataset of records, without --map",
        got=f"--select {job.records.select}"
        + (f", --map {job.map}" if dataset and job.map else ""),
        cure="leave out --select, or select first and convert the result",
    )


def input_notes(job: ConversionJob, files: InputFiles) -> list[str]:
    """Returns notes for the user on the inputs of a job."""
    return [*split_notes(job, files), *files.notes(), *_rounding_notes(files)]


def _rounding_notes(files: InputFiles) -> list[str]:
    """Returns a note on columns of which fractions are rounded, none without any."""
    features = source_of(files.spec).features() or {}
    names = [
        name
        for name, spec in features.items()
        if spec["kind"] == "float" and spec.get("type") == "double"
    ]
    if not names:
        return []
    return [
        f"fractions of {some_of(names)} are rounded to 32 bits, as a tf.train.Example "
        "holds them"
    ]


def split_notes(job: ConversionJob, files: InputFiles) -> list[str]:
    """Returns a note for the user if files of one split become another by default."""
    splits = JoinedFiles.of(files.paths).splits
    if job.names.kind != "tfds" or job.join_splits or len(splits) != 1:
        return []
    ((found, count),) = splits.items()
    if count < len(files):
        return []
    split, _ = layout.parse_write_key(job.split)
    if split in _MEANINGS.get(found, (found,)):
        return []
    return [
        f"the input files are of split {found}, by their names, and become split "
        f"{split}; to keep it, give --split {found} (in Python, split={found!r})"
    ]


def check_shards_apart(prepared: PreparedJob) -> None:
    """Checks that no input pattern would match a shard in a later run.

    Raises InputError if one does.
    """
    first = prepared.shard_path(0)
    beside = [layout.index_path(first), layout.errors_path(first)]
    if prepared.job.pack is not None:
        beside.append(layout.segments_path(first))
    shards = map(prepared.shard_path, range(prepared.plan.shards))
    written = itertools.chain(shards, beside)
    _check_apart(prepared.job, prepared.files, written)


def _check_apart(
    job: ConversionJob, inputs: InputFiles, written: Iterable[str]
) -> None:
    # The path of a file matches no other.
    patterns = set(job.inputs).difference(inputs.paths)
    check_not_matched(job.output, patterns=sorted(patterns), files=written)


def _check_one_split(job: ConversionJob, files: InputFiles) -> None:
    """Raises InputError if inputs are of several splits, and not joined on purpose."""
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


# Returns those of some shards that were made of other records than are there.
CompareShards = Callable[[PreparedJob, Sequence[int]], Iterable[int]]


def check_same_inputs(
    prepared: PreparedJob,
    found: PreparedJob,
    *,
    compare_shards: CompareShards | None = None,
) -> bool:
    """Checks that finished shards were made of the inputs that are there.

    Args:
        prepared: The job.
        found: The same job, as an earlier run described it.
        compare_shards: By default, one shard after the other.

    Returns:
        Whether inputs have changed, as far as the system tells.

    Raises:
        JobChangedError: Their records have changed.
    """
    files = set(found.files.noted_changes(prepared.files))
    if not files:
        return False
    shards = {
        shard: used
        for shard in range(prepared.plan.shards)
        if (used := files & {r.file_index for r in prepared.plan.ranges(shard)})
    }
    compare = one_by_one if compare_shards is None else compare_shards
    if changed := sorted(compare(prepared, list(shards))):
        paths = {prepared.files.paths[file] for file in shards[changed[0]]}
        raise JobChangedError(
            "the records of an input have changed, its size has not",
            where=some_of(sorted(paths)),
            expected=f"the records that {prepared.shard_path(changed[0])} was made of",
            got=f"others in {len(changed):,} of {len(shards):,} shards",
            cure="restore the input, choose another output, or replace the earlier "
            "work with --overwrite; what is not committed goes with gristmill clean "
            "--unfinished",
        )
    return True


def one_by_one(prepared: PreparedJob, shards: Iterable[int]) -> Iterable[int]:
    """Yields the shards that were made of other records than are there.

    A compressed file is read once for all shards that follow each other.
    """
    with closing(KeptPass()) as kept:
        for shard in shards:
            if has_other_records(prepared, shard, kept=kept):
                yield shard


def has_other_records(
    prepared: PreparedJob, shard: int, *, kept: KeptPass | None = None
) -> bool:
    """Returns whether a shard is finished, but was made from other records.

    `kept` is as for `convert_shard`.
    """
    report = finished_shard(prepared, shard)
    if report is None:
        return False
    try:
        return read_again(prepared, report, kept=kept) != (report.read, report.spans)
    except CorruptInputError:
        return True
