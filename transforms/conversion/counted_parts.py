"""Counts of parts of input files, as columns, for millions of parts."""

from __future__ import annotations

import dataclasses
import io
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.columns import (
    Gathered,
    RowCollector,
    Texts,
    columns_of,
    encode_texts,
    last_of_each,
    load_arrays,
)
from gristmill.dataset.formats.streams.inflated_stream import COMPRESSIONS, Compression
from gristmill.transforms.sources.formats import TFRECORD, SourceSpec
from gristmill.transforms.sources.input_files import InputFile, InputFiles

Int64 = npt.NDArray[np.int64]

NO_RECORD = -1  # No record begins in the part.
DOUBTED = -2  # What was found may be no frame: only the parts before can tell.

_VERSION = 1
_PART_COLUMNS = {
    "number": "<i8",
    "start_bytes": "<i8",
    "stop_bytes": "<i8",
    "records": "<i8",
}
_FILE_COLUMNS = {"size_bytes": "<i8", "compression": "|u1", "noted_ns": "<i8"}


class CountTask(NamedTuple):
    """A part of one input file, whose records are to be counted. See `InputFile`.

    Attributes:
        split: The split that the file is an input of.
        number: Number of the part, among those of all files in order.
        begin_bytes: Where it begins.
        end_bytes: Where it ends, exclusive; -1 for the end of a compressed file.
    """

    split: str
    number: int
    path: str
    size_bytes: int
    version: str | None
    compression: Compression
    noted_ns: int
    spec: SourceSpec | None
    begin_bytes: int
    end_bytes: int

    @property
    def file(self) -> InputFile:
        """The file."""
        return InputFile(*self[2:8])


class CountedPart(NamedTuple):
    """The good records of a part of a file.

    Attributes:
        split: The split that the file is an input of.
        number: Number of the part, among those of all files in order.
        file: The `InputFile`, as a plain tuple, with its first part; None otherwise.
        start_bytes: Where its first record begins; `NO_RECORD` or `DOUBTED`.
        stop_bytes: Where its last record ends.
        records: How many there are.
        offsets: Where records 0, stride, 2 * stride, ... begin.
    """

    split: str
    number: int
    file: tuple[Any, ...] | None
    start_bytes: int
    stop_bytes: int
    records: int
    offsets: tuple[int, ...]

    def gather(self, gathered: Gathered) -> None:
        """Adds the part to those of its split."""
        gathered.add_row(self.split, self, PartCollector)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CountedParts:
    """All parts of all files of a split, in order. Arrays are [parts].

    Attributes:
        columns: The numbers of each part, by name.
        offsets: int64 [offsets], see `CountedPart`.
        offset_ends: Where the offsets of each part end.
        files: The files.
    """

    columns: dict[str, Int64]
    offsets: Int64
    offset_ends: Int64
    files: InputFiles


class PartCollector(RowCollector[CountedPart]):
    """Collects the parts of one split in any order, and pickles compactly."""

    def _encode(self, rows: Sequence[CountedPart]) -> bytes:
        return _encode(rows)

    def parts(self) -> CountedParts:
        """Returns one part of each number."""
        blocks = [
            load_arrays(block, where="counted records", version=_VERSION)
            for block in self._packed()
        ]
        every = {
            name: np.concatenate([block[name] for block in blocks])
            for name in (*_PART_COLUMNS, "offset_counts", "offsets")
        }
        rows = last_of_each(every["number"])
        counts = every.pop("offset_counts")
        ends = np.cumsum(counts)
        offsets = every.pop("offsets")
        taken = counts[rows]
        new_ends = np.cumsum(taken)
        shifts = np.repeat((ends - counts)[rows] - (new_ends - taken), taken)
        return CountedParts(
            columns={name: column[rows] for name, column in every.items()},
            offsets=offsets[shifts + np.arange(len(shifts))],
            offset_ends=new_ends,
            files=_files_of(blocks),
        )


def _encode(parts: Iterable[CountedPart]) -> bytes:
    # In order, so that neighbours are alike. Those of one number stay in theirs.
    parts = sorted(parts, key=lambda part: part.number)
    files = [InputFile(*part.file) for part in parts if part.file is not None]
    rows = ((part.number, *part[3:6]) for part in parts)
    arrays: dict[str, Any] = columns_of(_PART_COLUMNS, rows)
    arrays |= columns_of(
        _FILE_COLUMNS,
        (
            (file.size_bytes, COMPRESSIONS.index(file.compression), file.noted_ns)
            for file in files
        ),
    )
    arrays["path_blob"], arrays["path_ends"] = encode_texts([f.path for f in files])
    versions = [file.version or "" for file in files]
    arrays["version_blob"], arrays["version_ends"] = encode_texts(versions)
    arrays["file_part"] = np.array(
        [part.number for part in parts if part.file is not None], "<i8"
    )
    for spec in filter(None, {file.spec for file in files}):
        arrays["spec"] = np.array(spec.to_json())
    arrays["offset_counts"] = np.array([len(part.offsets) for part in parts], "<i4")
    arrays["offsets"] = np.array(
        list(itertools.chain.from_iterable(part.offsets for part in parts)), "<i8"
    )
    out = io.BytesIO()
    np.savez_compressed(out, version=np.array(_VERSION), **arrays)
    return out.getvalue()


def _files_of(blocks: Sequence[dict[str, Any]]) -> InputFiles:
    columns = {
        name: np.concatenate([block[name] for block in blocks])
        for name in ("file_part", *_FILE_COLUMNS)
    }
    rows = last_of_each(columns["file_part"])

    def texts(name: str) -> Texts:
        found = [
            text
            for block in blocks
            for text in Texts(block[f"{name}_blob"], block[f"{name}_ends"])
        ]
        return Texts(*encode_texts([found[row] for row in rows.tolist()]))

    specs = {str(block["spec"]) for block in blocks if "spec" in block}
    return InputFiles(
        spec=SourceSpec.from_json(*specs) if specs else TFRECORD,
        paths=texts("path"),
        sizes=columns["size_bytes"][rows],
        versions=texts("version"),
        compressions=columns["compression"][rows],
        noted_ns=columns["noted_ns"][rows],
    )
