"""The datasets that records passed through before this one.

A conversion of a dataset keeps what that dataset knew about its own inputs: which range
of which file each of its shards came from, and which datasets came before it. So the
original files are found even when the datasets in between are gone.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.columns import Texts, encode_texts
from gristmill.dataset.formats.streams.inflated_stream import COMPRESSIONS
from gristmill.dataset.metadata.manifest import read_table
from gristmill.dataset.metadata.provenance import DamagedRegion, read_damaged_regions
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.dataset.metadata.shard_table import SKIPPED_COLUMN, ShardTable
from gristmill.dataset.metadata.sources import (
    SourceFile,
    SourceFiles,
    kept_inputs,
    load_inputs,
    place_of_inputs,
)
from gristmill.dataset.metadata.splits import Split

_SPAN_COLUMNS = (
    *("span_file", "span_begin_bytes", "span_end_bytes", "span_start_bytes"),
    *("span_stop_bytes", "span_records", "span_whole"),
)
_REGION_COLUMNS = {
    "region_shard": "<i8",
    "region_file": "<i8",
    "region_begin": "<i8",
    "region_end": "<i8",
    "region_compressed": "|b1",
    "region_begin_row": "<i8",  # -1: its file has no rows.
    "region_end_row": "<i8",
}


class Taken(NamedTuple):
    """A run of records of a shard, and the range of an input file that it came from.

    Attributes:
        file: The file.
        span: The range.
        first_record: Number of the first record, among those of all shards.
        regions: Regions of that file that were set aside.
    """

    file: SourceFile
    span: SourceSpan
    first_record: int
    regions: Sequence[DamagedRegion]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ancestor:
    """A split that records were read from, and its inputs.

    Attributes:
        dataset: Its directory, as it was given to the conversion that read it.
        split: Its name.
        function: The user's function that changed its records, or None.
        files: Its input files; empty if they are not known.
        columns: The columns of its table, and the regions of its inputs that were set
            aside. Arrays by name: `records` and `span_ends` [shards], `span_*` [spans],
            `region_*` [regions].
    """

    dataset: str
    split: str
    function: str | None
    files: Sequence[SourceFile]
    columns: Mapping[str, npt.NDArray[Any]]

    def column(self, name: str) -> npt.NDArray[Any]:
        """Returns a column; `skipped_records` is 0 where it is missing."""
        if name == SKIPPED_COLUMN and name not in self.columns:
            return np.zeros(len(self.columns["span_file"]), np.int64)
        return self.columns[name]

    @property
    def records(self) -> int:
        """Number of its records."""
        return int(self.columns["records"].sum())

    @classmethod
    def joined(cls, parts: Sequence[Ancestor]) -> Self:
        """Returns the shards of one or more splits as those of one."""
        if len(parts) == 1:
            return cls(**vars(parts[0]))
        columns: dict[str, npt.NDArray[Any]] = {}
        shifts = {
            "span_ends": [len(part.columns["span_file"]) for part in parts],
            "span_file": [len(part.files) for part in parts],
            "region_file": [len(part.files) for part in parts],
            "region_shard": [len(part.columns["records"]) for part in parts],
        }
        names = {name: None for part in parts for name in part.columns}
        for name in names:
            befores = itertools.accumulate(
                shifts.get(name, [0] * len(parts))[:-1], initial=0
            )
            columns[name] = np.concatenate(
                [
                    part.column(name) + before if before else part.column(name)
                    for part, before in zip(parts, befores, strict=True)
                ]
            )
        named = next((part for part in parts if part.dataset), parts[0])
        functions = (part.function for part in parts)
        return cls(
            dataset=named.dataset,
            split=named.split,
            function=next(filter(None, functions), None),
            files=[file for part in parts for file in part.files],
            columns=columns,
        )

    def taken(self, shard: int, record: int) -> Taken | None:
        """Returns the run that contains a record of a shard, None if unknown."""
        columns = self.columns
        ends = columns["span_ends"]
        rows = slice(int(ends[shard - 1]) if shard else 0, int(ends[shard]))
        counts = columns["span_records"][rows]
        passed = np.cumsum(counts)
        records = columns["records"]
        # With a function that drops or adds records, the spans do not add up.
        if not len(passed) or passed[-1] != records[shard]:
            return None
        number = int(np.searchsorted(passed, record, side="right"))
        if number >= len(passed):
            return None
        row = rows.start + number
        span = _span_of(columns, row)
        if not 0 <= span.file_index < len(self.files):
            return None
        before = int(records[:shard].sum()) + int(passed[number] - counts[number])
        file = self.files[span.file_index]
        return Taken(file, span, before, tuple(self._regions(shard, span.file_index)))

    def _regions(self, shard: int, file: int) -> Iterator[DamagedRegion]:
        columns = [self.columns[name].tolist() for name in _REGION_COLUMNS]
        for of_shard, of_file, begin, end, compressed, *rows in zip(
            *columns, strict=True
        ):
            if (of_shard, of_file) == (shard, file):
                yield DamagedRegion(
                    path=self.files[file].path,
                    begin_bytes=begin,
                    end_bytes=end,
                    compressed=compressed,
                    rows=None if rows[0] < 0 else (rows[0], rows[1]),
                )


class Origins(NamedTuple):
    """Where the documents of packed rows come from.

    Attributes:
        columns: All spans, as in the segment indexes of the shards: arrays `span_ends`
            [shards] and `span_*` [spans].
        files: The files of these spans.
        ancestors: The datasets that the files belong to, the nearest first.
    """

    columns: Mapping[str, npt.NDArray[Any]]
    files: Sequence[SourceFile]
    ancestors: Sequence[Ancestor]

    def span(self, number: int) -> SourceSpan:
        """Returns one of the spans."""
        return _span_of(self.columns, number)


def origins_of(
    columns: Mapping[str, npt.NDArray[Any]],
    shards: range,
    files: Sequence[SourceFile],
    ancestors: Sequence[Ancestor],
) -> Origins:
    """Returns the origin of the documents of shards.

    Args:
        columns: The columns of the table about the spans of all shards.
        shards: The shards in question.
        files: The files of these spans.
        ancestors: The datasets that records were read from, the nearest first.
    """
    ends = columns["span_ends"][shards.start : shards.stop]
    first = int(columns["span_ends"][shards.start - 1]) if shards.start else 0
    last = int(ends[-1]) if len(ends) else first
    names = [*_SPAN_COLUMNS, *(columns.keys() & {SKIPPED_COLUMN})]
    found = {name: columns[name][first:last] for name in names}
    found["span_ends"] = ends - first
    return Origins(found, files, ancestors)


def _span_of(columns: Mapping[str, npt.NDArray[Any]], row: int) -> SourceSpan:
    values = [columns[name][row].item() for name in _SPAN_COLUMNS]
    return SourceSpan(
        file_index=values[0],
        begin_bytes=values[1],
        end_bytes=values[2],
        start_bytes=None if values[3] < 0 else values[3],
        stop_bytes=None if values[4] < 0 else values[4],
        records=values[5],
        whole=values[6],
        skipped_records=int(columns[SKIPPED_COLUMN][row])
        if SKIPPED_COLUMN in columns
        else 0,
    )


def ancestors_of(dataset: str, name: str, split: Split) -> tuple[Ancestor, ...]:
    """Returns a split as an ancestor of its results, then its own ancestors.

    The files of several editions follow one another, as their shards do.

    Raises:
        InvalidDatasetError: A table of it is damaged.
    """
    chains = [_chain_of(dataset, name, part) for part in split.parts]
    longest = max(map(len, chains))
    return tuple(
        Ancestor.joined([_level(chain, level) for chain in chains])
        for level in range(longest)
    )


def _chain_of(dataset: str, name: str, split: Split) -> list[Ancestor]:
    table = read_table(dataset, split)
    place = place_of_inputs(dataset, split)
    arrays = None if place is None else load_inputs(*place)
    files = () if arrays is None else SourceFiles(arrays)
    columns = {"records": table.records, "span_ends": table.columns["span_ends"]}
    columns |= {
        column: table.columns[column]
        for column in (*_SPAN_COLUMNS, SKIPPED_COLUMN)
        if column in table.columns
    }
    own = Ancestor(
        dataset=dataset,
        split=name,
        function=split.function,
        files=files,
        columns=columns | _region_columns(dataset, table, files),
    )
    return [own, *(() if arrays is None else decode_lineage(arrays))]


def _level(chain: Sequence[Ancestor], level: int) -> Ancestor:
    """Returns an ancestor; after the last, one whose shards have no inputs."""
    if level < len(chain):
        return chain[level]
    shards = len(chain[-1].files) if level == len(chain) else 0
    columns = {column: np.zeros(0, np.int64) for column in _SPAN_COLUMNS}
    columns |= {name: np.zeros(0, dtype) for name, dtype in _REGION_COLUMNS.items()}
    columns |= {name: np.zeros(shards, np.int64) for name in ("records", "span_ends")}
    return Ancestor(dataset="", split="", function=None, files=(), columns=columns)


def _region_columns(
    dataset: str, table: ShardTable, files: Sequence[SourceFile]
) -> dict[str, npt.NDArray[Any]]:
    numbers = {file.path: number for number, file in enumerate(files)}
    rows = [
        (
            shard,
            numbers.get(region.path, -1),
            region.begin_bytes,
            region.end_bytes,
            region.compressed,
            *(region.rows or (-1, -1)),
        )
        for shard in np.flatnonzero(table.columns["quarantined_regions"]).tolist()
        for region in read_damaged_regions(dataset, table.paths[shard])
    ]
    values = list(zip(*rows, strict=True)) or [()] * len(_REGION_COLUMNS)
    return {
        column: np.array(found, dtype)
        for (column, dtype), found in zip(_REGION_COLUMNS.items(), values, strict=True)
    }


def encode_lineage(ancestors: Sequence[Ancestor]) -> dict[str, npt.NDArray[Any]]:
    """Returns ancestors as named arrays, to be stored beside a list of files."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    for level, ancestor in enumerate(ancestors):
        files = list(ancestor.files)
        made = [(file.format, file.spec) for file in files]
        kinds = sorted(set(made))
        numbers = {kind: number for number, kind in enumerate(kinds)}
        about = {
            "dataset": ancestor.dataset,
            "split": ancestor.split,
            "function": ancestor.function,
            "formats": [name for name, _ in kinds],
            "specs": [spec for _, spec in kinds],
        }
        blob, ends = encode_texts([file.path for file in files])
        version_blob, version_ends = encode_texts([f.version or "" for f in files])
        own = {
            "about": np.array(json.dumps(about)),
            "path_blob": blob,
            "path_ends": ends,
            "version_blob": version_blob,
            "version_ends": version_ends,
            "sizes": np.array([file.size_bytes for file in files], np.int64),
            "noted_ns": np.array([file.noted_ns for file in files], np.int64),
            "compressions": np.array(
                [COMPRESSIONS.index(file.compression) for file in files], np.uint8
            ),
            "formats": np.array(
                [numbers[kind] for kind in made], np.min_scalar_type(len(kinds))
            ),
            **ancestor.columns,
        }
        arrays |= {f"lineage{level}_{name}": array for name, array in own.items()}
    return arrays


def decode_lineage(arrays: Mapping[str, npt.NDArray[Any]]) -> tuple[Ancestor, ...]:
    """Returns the ancestors in named arrays; none from the first damaged one on."""
    found = []
    for level in itertools.count():
        prefix = f"lineage{level}_"
        own = {
            name.removeprefix(prefix): array
            for name, array in arrays.items()
            if name.startswith(prefix)
        }
        try:
            found.append(_decode(own))
        except (IndexError, KeyError, TypeError, ValueError):
            return tuple(found)
    raise AssertionError


def _decode(arrays: dict[str, npt.NDArray[Any]]) -> Ancestor:
    about = json.loads(str(arrays.pop("about")))
    files = [
        SourceFile(
            path=path,
            compression=COMPRESSIONS[compression],
            format=str(about["formats"][number]),
            size_bytes=size,
            version=version or None,
            noted_ns=noted_ns,
            spec=about["specs"][number],
        )
        for path, version, size, noted_ns, compression, number in zip(
            Texts(arrays.pop("path_blob"), arrays.pop("path_ends")),
            Texts(arrays.pop("version_blob"), arrays.pop("version_ends")),
            arrays.pop("sizes").tolist(),
            arrays.pop("noted_ns").tolist(),
            arrays.pop("compressions").tolist(),
            arrays.pop("formats").tolist(),
            strict=True,
        )
    ]
    ancestor = Ancestor(
        dataset=str(about["dataset"]),
        split=str(about["split"]),
        function=about["function"],
        files=files,
        columns=arrays,
    )
    shards = len(arrays["records"])
    spans = int(arrays["span_ends"][-1]) if shards else 0
    of_spans = {*_SPAN_COLUMNS, *(arrays.keys() & {SKIPPED_COLUMN})}
    lengths = {len(arrays[name]) for name in of_spans}
    regions = {len(arrays[name]) for name in _REGION_COLUMNS}
    if len(arrays["span_ends"]) != shards or lengths != {spans} or len(regions) != 1:
        raise ValueError("columns of different lengths")
    return ancestor


def read_lineage(dataset: str, split: Split) -> Sequence[Ancestor]:
    """Returns the ancestors of a split of a dataset, the nearest first."""
    place = place_of_inputs(dataset, split)
    return () if place is None else _lineage(*place)


@functools.lru_cache(maxsize=8)
def _lineage(path: str, digest: str) -> Sequence[Ancestor]:
    arrays = kept_inputs(path, digest)
    return () if arrays is None else decode_lineage(arrays)
