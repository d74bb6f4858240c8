"""A split of a dataset as the input of a conversion: its shards and their columns."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import logging
import os
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import (
    DataLossError,
    InputError,
    some_of,
)
from gristmill.dataset.base.places import Int64
from gristmill.dataset.columns.expression import Expression
from gristmill.dataset.formats.file_formats import check_joined
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.column_table import (
    ColumnEntry,
    column_entries,
    common_columns,
    read_column_table,
    read_values,
)
from gristmill.dataset.metadata.manifest import (
    chosen_split,
    open_manifest,
    read_split_table,
    read_table,
)
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.sources import SourceFiles, read_sources
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.metadata.tfds import match_shards
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import has_file, storage_for
from gristmill.dataset.storage.paths import has_magic
from gristmill.transforms.sources.formats import (
    RecordOptions,
    SourceSpec,
    check_options,
)
from gristmill.transforms.sources.input_files import InputFile, InputFiles

BoolArray = npt.NDArray[np.bool_]
Described = Sequence[tuple[int, dict[str, Any]]]
"""For each edition its number of shards, and its columns as in `dataset.json`."""


class SplitColumns:
    """Columns that all editions of a split share.

    Args:
        dataset: The dataset's directory.
        editions: Their descriptions, possibly parsed from JSON.
        shards: The split's shards, to compare the columns with; None to skip that.

    Attributes:
        editions: As given.
        entries: The columns of the first edition, by name.
    """

    def __init__(
        self, dataset: str, editions: Described, shards: ShardTable | None = None
    ):
        self._dataset, self.editions, self._shards = dataset, editions, shards
        self._entries = [
            {name: ColumnEntry.parse(fields) for name, fields in columns.items()}
            for _, columns in editions
        ]
        self.entries = self._entries[0]
        self._firsts = [*itertools.accumulate((n for n, _ in editions), initial=0)]
        self._table = functools.cache(self._read_table)
        # Consecutive shards of the output come from one or two shards.
        self.values = functools.lru_cache(maxsize=2)(self._values)

    @classmethod
    def of(
        cls,
        dataset: str,
        split: Split,
        shards: ShardTable,
        names: Collection[str] | None = None,
    ) -> Self:
        """Returns the named columns of a split, or all that its editions share."""
        if names is None:
            names = common_columns(split, dataset)
        editions = [
            (part.shards, {name: entries[name].described() for name in names})
            for part in split.parts
            if (entries := column_entries(part, dataset)) is not None
        ]
        return cls(dataset, editions, shards)

    def check(self) -> None:
        """Raises InvalidDatasetError if a column belongs to other records."""
        for edition, entries in enumerate(self._entries):
            for name in entries:
                self._table(edition, name)

    def _read_table(self, edition: int, name: str) -> Any:
        rows = slice(*self._firsts[edition : edition + 2])
        entry = self._entries[edition][name]
        return read_column_table(self._dataset, entry, self._shards, rows)

    def _values(self, name: str, shard: int) -> npt.NDArray[Any]:
        """Returns the values of a shard of the split, by its number."""
        edition = int(np.searchsorted(self._firsts, shard, side="right")) - 1
        kind, table = self.entries[name].kind, self._table(edition, name)
        return read_values(self._dataset, kind, table, shard - self._firsts[edition])


@functools.lru_cache(maxsize=4)
def _selection_of(schema: str) -> tuple[Expression, SplitColumns] | None:
    fields = json.loads(schema) if schema else {}
    if not (selection := fields.get("selection")):
        return None
    columns = SplitColumns(fields["directory"], selection["editions"])
    kinds = {name: entry.kind for name, entry in columns.entries.items()}
    return Expression(selection["expression"], kinds), columns


@functools.lru_cache(maxsize=2)  # Consecutive ranges are of the same file.
def selected_records(spec: SourceSpec, shard: int) -> BoolArray | None:
    """Returns which records of a shard are selected: bool [records]; None for all.

    Args:
        spec: That of a `SourceSplit`.
        shard: The number of the shard in the split.

    Raises:
        InvalidDatasetError: A column is damaged, or was replaced meanwhile.
    """
    if (found := _selection_of(spec.schema)) is None:
        return None
    expression, columns = found
    values = {name: columns.values(name, shard) for name in expression.names}
    (records,) = {len(each) for each in values.values()}
    return np.broadcast_to(expression.evaluate(values), records)


_log = logging.getLogger(__name__)


class SourceSplit(NamedTuple):
    """A split to be read whole, as it was when the conversion was planned.

    Attributes:
        directory: The dataset, with a slash at the end.
        split: The split.
        shards_digest: Digest of its shards, from `dataset.json`.
        records: Number of its records.
        raw_bytes: Their lengths, added.
        records_digest: The digest of all of them.
        features: Their features, from `dataset.json`; None if not known.
        selection: The `expression` that selects records, and its columns as in
            `SplitColumns.editions`; None for all records.
    """

    directory: str
    split: str
    shards_digest: str
    records: int
    raw_bytes: int
    records_digest: str
    features: dict[str, Any] | None = None
    selection: dict[str, Any] | None = None

    @property
    def spec(self) -> SourceSpec:
        """The facts that the readers of its shards need."""
        fields = self._asdict()
        if self.selection is None:
            del fields["selection"]
        return SourceSpec(format="arrayrecord", schema=json.dumps(fields))

    @classmethod
    def of_spec(cls, spec: SourceSpec) -> Self:
        """Returns the split of a spec with `of_dataset`."""
        return cls(**json.loads(spec.schema))

    def check_read(self, read: RecordsDigest, *, skipped_regions: int) -> None:
        """Checks that all records of the split were read.

        Args:
            read: Digest of all records read.
            skipped_regions: Number of regions of shards left out. Their records
                are missing; the records' numbers then show that none occurs twice.

        Raises:
            DataLossError: Not all were read.
        """
        found = read.records, read.raw_bytes, read.hex
        expected = self.records, self.raw_bytes, self.records_digest
        if found == expected:
            return
        if skipped_regions and read.records < self.records:
            return
        raise DataLossError(
            "the records that were read are not those of the source",
            where=f"{self.directory}, split {self.split}",
            expected=_text_of(*expected),
            got=_text_of(*found),
            cure="check the source with `gristmill verify`, then convert it again",
        )


def _text_of(records: int, raw_bytes: int, digest: str) -> str:
    return f"{records:,} records, {raw_bytes:,} bytes, digest {digest}"


def _check_options(options: RecordOptions) -> None:
    """Raises InputError for options that do not apply to ArrayRecord files."""
    check_options(options, "arrayrecord")
    if options.input_format not in ("auto", "arrayrecord"):
        raise InputError(
            "the input is a dataset of ArrayRecord files",
            expected="--input-format arrayrecord",
            got=f"--input-format {options.input_format}",
            cure="leave it out",
        )


def check_apart(output: str, directory: str) -> None:
    """Raises InputError if an output is in the dataset that is its input."""
    places = [output, directory]
    if "://" not in output and "://" not in directory:
        places = list(map(os.path.realpath, places))
    inside, outside = (layout.join(place.rstrip("/"), "") for place in places)
    if inside.startswith(outside):
        raise InputError(
            "the output is the dataset that is the input"
            if inside == outside
            else "the output is in the dataset that is the input",
            where=output,
            expected="another directory",
            got=f"the input {directory}",
            cure="choose another output; it can replace the input afterwards",
        )


def find_split(
    directory: str,
    split: str,
    *,
    options: RecordOptions | None = None,
    allow_damage: bool = False,
    editions: bool = False,
) -> InputFiles:
    """Lists the shards of a split, in the order of its table.

    Args:
        directory: The dataset.
        split: The split.
        options: The user's options for the records, if any.
        allow_damage: Whether shards may have another size than the dataset says.
        editions: Whether `split` may name an edition, by its `layout.write_key`.

    Raises:
        NotADatasetError: It is not a dataset, or the split is being replaced.
        InvalidDatasetError: Its description is damaged.
        InputError: It has no such split, or a shard is missing or has the wrong size,
            or the options do not fit.
    """
    _check_options(options or RecordOptions())
    manifest = open_manifest(directory)
    found = manifest.find(split) if editions else None
    found = found or manifest.splits[chosen_split(split, manifest.splits, directory)]
    table = read_split_table(directory, manifest, split)
    there = _listed(directory, table.paths)
    missing = [path for path in table.paths if path not in there]
    sizes = [there[path].size_bytes for path in table.paths if path in there]
    wrong = [
        path
        for path, expected, size in zip(
            table.paths, table.file_bytes.tolist(), sizes, strict=False
        )
        if expected != size
    ]
    if missing or (wrong and not allow_damage):
        what, which = ("missing", missing) if missing else ("of the wrong size", wrong)
        raise InputError(
            f"{len(which):,} of {len(table):,} shards of the source are {what}",
            where=f"{directory}, split {split}: {some_of(which)}",
            expected="the shards that the dataset lists",
            cure="restore them from a copy; gristmill verify lists all damage",
        )
    prefix = layout.join(directory, "")
    digest = table.digest()
    source = SourceSplit(
        directory=prefix,
        split=split,
        shards_digest=table.shards_digest,
        records=digest.records,
        raw_bytes=digest.raw_bytes,
        records_digest=digest.hex,
        features=None if found.features is None else dict(found.features),
        selection=_selection(directory, found, table, options),
    )
    shards = len(table)
    files = InputFiles(
        paths=tuple(prefix + path for path in table.paths),
        sizes=np.array(sizes, np.int64),
        versions=tuple(there[path].version for path in table.paths),
        compressions=np.zeros(shards, np.uint8),
        # Records are compared with their checksums, so changes need no notes.
        noted_ns=np.zeros(shards, np.int64),
        spec=source.spec,
    )
    return dataclasses.replace(files, sources=_sources(files, directory, found))


def list_shards(source: Sequence[str], split: str | None) -> Iterator[InputFile]:
    """Yields the shards of a dataset, or the ArrayRecord files that patterns match.

    Args:
        source: One dataset, or paths and patterns.
        split: The split of a dataset, or one edition of it; None for all.

    Raises:
        NotADatasetError: A single path is neither a file nor a dataset.
        InputError: A pattern matches nothing or files of several splits, or there is
            no such split, or not all of its shards are there.
    """
    directory = source[0]
    if len(source) == 1 and (
        has_file(directory, layout.DATASET_JSON)
        or not (has_magic(directory) or storage_for(directory).stat(directory))
    ):
        splits = [split] if split else sorted(open_manifest(directory).splits)
        for name in splits:
            files = find_split(directory, name, editions=True)
            # Elements of pipelines should be small.
            small = SourceSplit.of_spec(files.spec)._replace(features=None)
            files = dataclasses.replace(files, spec=small.spec)
            yield from files.first(len(files))
        return
    if split is not None:
        raise InputError(
            "files have no splits",
            where=some_of(source),
            got=f"split {split}",
            cure="give the directory of a dataset, or leave the split out",
        )
    found: dict[str, InputFile] = {}
    for pattern in source:
        matches = match_shards(pattern)
        if not matches:
            raise InputError(
                "no ArrayRecord file matches", where=pattern, cure="check the path"
            )
        for info in matches:
            file = InputFile(info.path, info.size_bytes, info.version)
            found[info.path] = file._replace(spec=SourceSpec("arrayrecord"))
    if notice := check_joined(source, found):
        _log.warning("%s: %s", directory, notice)
    yield from (found[path] for path in sorted(found))


def _selection(
    directory: str, split: Split, table: ShardTable, options: RecordOptions | None
) -> dict[str, Any] | None:
    """Returns `SourceSplit.selection`, checked."""
    if options is None or not options.select:
        return None
    expression = Expression(options.select, common_columns(split, directory))
    columns = SplitColumns.of(directory, split, table, expression.names)
    columns.check()
    return {"expression": options.select, "editions": columns.editions}


def _sources(
    files: InputFiles, directory: str, split: Split
) -> dict[str, npt.NDArray[Any]]:
    """Returns `InputFiles.sources` for the shards of a split.

    A shard whose index has no places is itself the source of its records.
    """
    whole = SourceFiles(files.arrays())
    lists: list[SourceFiles] = []
    firsts: list[Int64] = []
    count = shard = 0
    for part in split.parts:
        listed = read_sources(directory, part)
        known = read_table(directory, part).index_bytes > 0
        known &= listed is not None
        own = shard + np.flatnonzero(~known)
        first = np.full(len(known), count, np.int64)
        if listed is not None and known.any():
            lists.append(listed)
            count += len(listed)
        if len(own):
            lists.append(whole.taken(own))
            first[~known] = -1 - np.arange(count, count + len(own))
            count += len(own)
        firsts.append(first)
        shard += len(known)
    return {**SourceFiles.joined(lists), "first": np.concatenate(firsts)}


def _listed(directory: str, paths: Sequence[str]) -> dict[str, FileInfo]:
    """Returns the files in the directories that hold shards, by relative path."""
    folders = {path.rpartition("/")[0] for path in paths}
    prefix = layout.join(directory, "")
    return {
        info.path.removeprefix(prefix): info
        for folder in sorted(folders)
        for info in storage_for(directory).scan(layout.join(directory, folder))
    }
