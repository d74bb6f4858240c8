"""The job of attaching columns, which writes their values beside the records."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.errors import (
    CorruptShardError,
    InputError,
    InvalidDatasetError,
    StorageError,
    UserFunctionError,
)
from gristmill.dataset.columns.column_file import (
    ColumnType,
    check_column_name,
    kind_of,
    of_python,
)
from gristmill.dataset.commit.attached_split import (
    AttachedSplit,
    Attachment,
    ShardTask,
    Written,
    write_values,
)
from gristmill.dataset.formats.streams import RecordBatch
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.column_table import column_entries
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.transforms.functions.user_functions import (
    call_on_record,
    code_digest,
    load_function,
)
from gristmill.transforms.jobs.job import Begun, Step
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.shards.arrayrecord import ShardRangeReader
from gristmill.transforms.sources.source import ReadRequest


@dataclasses.dataclass(frozen=True)
class AttachResult:
    """The result of attaching columns.

    Attributes:
        manifest: The dataset after the commit.
        split: The name of the split.
        columns: The types of the columns, by name.
        file_bytes: Size of the files of their values.
        done_before: Whether the same columns were attached already.
    """

    manifest: Manifest
    split: str
    columns: Mapping[str, ColumnType]
    file_bytes: int
    done_before: bool = False


def begin_columns(target: AttachedSplit, attachment: Attachment) -> Begun[ShardTask]:
    """Describes columns beside the dataset, unless they exist already."""
    tasks: Iterable[ShardTask] = ()
    if not target.is_done(attachment):
        attachment.begin()
        tasks = target.tasks(attachment)
    return Begun.on(target.dataset, "writing", tasks, attachment)


def commit_columns(gathered: Gathered) -> AttachResult:
    """Commits columns whose shards are all written; see `AttachedSplit.commit`."""
    attachment: Attachment = gathered.notes["begun"][""]
    target = AttachedSplit.of(attachment)
    if target.is_done(attachment):
        return attached(target.manifest, attachment, done_before=True)
    return attached(target.commit(attachment, gathered), attachment)


def attached(
    manifest: Manifest, attachment: Attachment, *, done_before: bool = False
) -> AttachResult:
    """Returns the result for columns that a dataset has."""
    dataset, split = attachment.write.output, attachment.write.split
    parts = [column_entries(part, dataset) for part in manifest.splits[split].parts]
    size = sum(part[name].file_bytes for part in parts for name in attachment.kinds)
    kinds = {name: parts[0][name].kind for name in attachment.kinds}
    return AttachResult(manifest, split, kinds, size, done_before)


@dataclasses.dataclass(frozen=True)
class WriteColumns:
    """The job of attaching columns that are known.

    Attributes:
        columns: The columns.
        step: Finds and writes the values of a shard.
    """

    columns: Attachment
    step: Step[ShardTask]

    commit = staticmethod(commit_columns)

    def begin(self) -> Begun[ShardTask]:
        """Describes the columns."""
        return begin_columns(AttachedSplit.of(self.columns), self.columns)


def batches_of(task: ShardTask) -> Iterator[RecordBatch]:
    """Yields the records of a shard.

    Raises:
        StorageChangedError: The split has other editions by now.
        CorruptShardError: The shard is missing or damaged.
        InvalidDatasetError: Its index is.
    """
    path, size = layout.join(task.attachment.write.output, task.shard), task.file_bytes
    whole = SourceRange(file_index=0, begin_bytes=0, end_bytes=size)
    request = ReadRequest(InputFile(path, size), whole)
    try:
        yield from ShardRangeReader(request, len(path) - len(task.shard)).good()
    except (CorruptShardError, InvalidDatasetError, StorageError):
        # A command that replaced the split meanwhile would explain it.
        AttachedSplit.of(task.attachment).check_editions(task.attachment)
        raise


_CURE = "fix the function, and run the same command again"


@dataclasses.dataclass(frozen=True)
class ComputeJob:
    """The job of columns that a function computes.

    Attributes:
        dataset: The dataset's directory.
        function: `module:function`.
        split: The split; None for the only one.
        overwrite: Whether to replace columns of these names.
    """

    dataset: str
    function: str
    split: str | None = None
    overwrite: bool = False

    commit = staticmethod(commit_columns)

    def begin(self) -> Begun[ShardTask]:
        """Finds the columns that the function computes, by the first record.

        Raises:
            InputError: There is no such function, or no record; or the columns exist.
            UserFunctionError: The function failed, or returned no columns.
        """
        function, digest = self.function, code_digest(self.function)
        target = AttachedSplit(self.dataset, self.split, overwrite=self.overwrite)
        if not target.split.records:
            raise InputError(
                "the split has no records to compute columns from",
                where=f"{target.dataset}, split {target.name}",
                cure="choose another with --split",
            )
        tasks = target.tasks(target.attachment({}, "", {}))
        first = next(task for task in tasks if task.digest.records)
        kinds = kinds_of_function(function, next(_records(first)))
        for name in kinds:
            check_column_name(name)
        source = {"map": function, "code_digest": digest}
        attachment = target.attachment(kinds, [function, digest], source)
        return begin_columns(target, attachment)

    @property
    def step(self) -> Step[ShardTask]:
        """`write_computed`."""
        return functools.partial(write_computed, function=self.function)


def _records(task: ShardTask) -> Iterator[bytes]:
    return (record for batch in batches_of(task) for record in batch.records)


def kinds_of_function(spec: str, record: bytes) -> dict[str, ColumnType]:
    """Returns the columns that a function computes, by its result for a record."""
    found = _called(load_function(spec), record, "record 0")
    kinds = {}
    for name, value in found.items():
        try:
            kinds[name] = kind_of(value)
        except ValueError as e:
            raise UserFunctionError(
                f"the --map function returned no value of a column for {name!r}",
                where=spec,
                expected="a number, True or False, a text, or an array of numbers",
                got=str(e),
                cure=_CURE,
            ) from e
    return kinds


def _called(function: Any, record: bytes, source: str) -> dict[str, Any]:
    found = call_on_record(function, record, source=source, cure=_CURE)
    if isinstance(found, dict) and found and all(isinstance(n, str) for n in found):
        return found
    raise UserFunctionError(
        "the --map function returned no columns",
        where=source,
        expected="a dict with a value for each name of a column",
        got=f"{found!r:.200}",
        cure=_CURE,
    )


def write_computed(task: ShardTask, *, function: str) -> Written:
    """Writes the values that a function computes from a shard's records."""
    kinds, run = task.attachment.kinds, load_function(function)
    values: dict[str, list[Any]] = {name: [] for name in kinds}
    for number, record in enumerate(_records(task), task.first_record):
        found = _called(run, record, f"record {number:,}")
        if found.keys() != kinds.keys():
            raise UserFunctionError(
                "the --map function returned other columns than before",
                where=f"{function}, record {number:,}",
                expected=", ".join(kinds),
                got=", ".join(found),
                cure=_CURE,
            )
        for name, value in found.items():
            values[name].append(value)
    typed = {}
    for name, kind in kinds.items():
        try:
            typed[name] = of_python(kind, values[name])
        except ValueError as e:
            row, got = e.args
            raise UserFunctionError(
                f"the --map function returned values of several types for {name!r}",
                where=f"{function}, record {task.first_record + row:,}",
                expected=f"{kind}, as for the first record",
                got=got,
                cure="return values of one type, such as float(...) for all",
            ) from e
    return write_values(task, typed)
