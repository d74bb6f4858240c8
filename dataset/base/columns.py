"""Columns of numbers and texts: in versioned files, and gathered from many workers."""

from __future__ import annotations

import io
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import FormatVersionError, InvalidDatasetError

# Python 3.11.7, for example, fails now and then when several threads parse the headers
# of arrays at once: "AST constructor recursion depth mismatch".
_TRIES = 10
# Maximum ratio of decompressed to stored bytes: an array of one value may reach it, but
# not all of them.
_LEAST_BYTES, _MOST_RATIO = 64 << 20, 64


def columns_of(
    types: Mapping[str, str], rows: Iterable[Sequence[Any]]
) -> dict[str, npt.NDArray[Any]]:
    """Returns rows as columns of these names and types."""
    values = list(zip(*rows, strict=True)) or [()] * len(types)
    return {
        name: np.array(column, dtype)
        for (name, dtype), column in zip(types.items(), values, strict=True)
    }


def save_arrays(version: int, arrays: Mapping[str, Any]) -> bytes:
    """Returns arrays as the bytes of an `.npz` file, which `load_arrays` reads."""
    out = io.BytesIO()
    # No `allow_pickle=`: older NumPy would take it for an array of the file.
    np.savez_compressed(out, version=np.array(version), **arrays)
    return out.getvalue()


def load_arrays(data: bytes, *, where: str, version: int) -> dict[str, Any]:
    """Returns the arrays of an `.npz` file that carries a version.

    Raises InvalidDatasetError if it cannot be read, and FormatVersionError if its
    version is unknown.
    """
    try:
        arrays = _arrays(data)
        found = arrays.pop("version").item()
    except Exception as e:  # numpy, zipfile and zlib raise a dozen kinds of errors.
        raise InvalidDatasetError(
            "table cannot be read",
            where=where,
            got=str(e) or type(e).__name__,
            cure="restore it from a copy, or run the conversion again with --overwrite",
        ) from e
    if found != version:
        raise FormatVersionError.unknown(
            "table", where=where, expected=version, got=found
        )
    return arrays


def _arrays(data: bytes) -> dict[str, Any]:
    tries = 0
    while True:
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                _check_size(file, len(data))
                return {name: np.asarray(file[name]) for name in file.files}
        except SystemError:
            tries += 1
            if tries == _TRIES:
                raise


def _check_size(file: Any, stored_bytes: int) -> None:
    """Raises ValueError if arrays would take far more memory than their file."""
    most_bytes = _LEAST_BYTES + _MOST_RATIO * stored_bytes
    # No more than this is decompressed from a member.
    found_bytes = sum(member.file_size for member in file.zip.infolist())
    if found_bytes > most_bytes:
        raise ValueError(
            f"{stored_bytes:,} bytes that decompress to {found_bytes:,}, more than "
            f"{most_bytes:,}"
        )


Int64 = npt.NDArray[np.int64]


def encode_texts(texts: Sequence[str]) -> tuple[npt.NDArray[np.uint8], Int64]:
    """Returns texts as uint8 [bytes] and int64 [texts], the end of each."""
    if isinstance(texts, Texts):  # A million texts need not be decoded.
        return texts.encoded
    encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
    ends = np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)))
    return np.frombuffer(b"".join(encoded), np.uint8), ends.astype("<i8")


def are_ends(ends: npt.NDArray[Any], total: int) -> bool:
    """Returns whether an array can be the ends of runs that cover `total` items."""
    if ends.ndim != 1 or ends.dtype != "<i8":
        return False
    bounds = np.append(0, ends)
    return bool((bounds[1:] >= bounds[:-1]).all() and bounds[-1] == total)


def check_columns(
    columns: Mapping[str, npt.NDArray[Any]], types: Mapping[str, str], length: int
) -> None:
    """Raises ValueError unless there are columns of these types and this length."""
    if missing := sorted(types.keys() - columns.keys()):
        raise ValueError(f"it lacks the columns {', '.join(missing)}")
    for name, dtype in types.items():
        if columns[name].shape != (length,) or columns[name].dtype != dtype:
            raise ValueError(f"a column {name} of the wrong type or length")


class Texts(Sequence[str]):
    """Texts, decoded on access."""

    def __init__(self, blob: npt.NDArray[np.uint8], ends: Int64):
        self._blob = blob.tobytes()
        self._ends = ends

    @classmethod
    def parse(cls, blob: npt.NDArray[Any], ends: npt.NDArray[Any]) -> Self:
        """Returns such texts; raises ValueError if they contradict each other."""
        if blob.ndim != 1 or blob.dtype != np.uint8 or not are_ends(ends, len(blob)):
            raise ValueError("paths that contradict each other")
        return cls(blob, ends)

    @property
    def encoded(self) -> tuple[npt.NDArray[np.uint8], Int64]:
        """The texts as `encode_texts` returns them."""
        return np.frombuffer(self._blob, np.uint8), self._ends

    @classmethod
    def joined(cls, parts: Sequence[Texts]) -> Self:
        """Returns the texts of one or more columns, in order."""
        lengths = [np.diff(part._ends, prepend=0) for part in parts]
        ends = np.cumsum(np.concatenate(lengths)).astype("<i8")
        blob = b"".join(part._blob for part in parts)
        return cls(np.frombuffer(blob, np.uint8), ends)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        begin = int(self._ends[index - 1]) if index else 0
        text = self._blob[begin : int(self._ends[index])]
        return text.decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        for begin, end in itertools.pairwise([0, *self._ends.tolist()]):
            yield self._blob[begin:end].decode("utf-8", "surrogateescape")


def last_of_each(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the row of the last occurrence of each number, by number."""
    found: npt.NDArray[np.int64] = np.unique(numbers[::-1], return_index=True)[1]
    return len(numbers) - 1 - found


class Done(NamedTuple):
    """The contribution of a result to a progress bar, the log and metrics.

    Attributes:
        path: The file that was done.
        said: The text for the log.
        stored_bytes: Size of the files that were read.
        read: Digest of the records in them.
        counts: Additions to `run_job.COUNTERS` and `DISTRIBUTIONS`.
    """

    path: str
    said: str
    stored_bytes: int = 0
    read: RecordsDigest = RecordsDigest()
    counts: Mapping[str, int] = {}


@runtime_checkable
class Gatherable(Protocol):
    """A small result of a worker, which adds itself to `Gathered`."""

    def gather(self, gathered: Gathered) -> None:
        """Adds itself to the gathered results."""


class Gathered:
    """The results of any number of workers, in any order; it pickles compactly.

    Attributes:
        rows: Rows as columns, by the part of the job that they belong to: of a type
            that has `extend`, and is empty at first.
        notes: Single values, by kind, then by key. One of each is kept.
    """

    def __init__(self) -> None:
        self.rows: dict[Any, Any] = {}
        self.notes: defaultdict[str, dict[Any, Any]] = defaultdict(dict)

    @classmethod
    def of(cls, results: Iterable[Gatherable]) -> Self:
        """Gathers results."""
        gathered = cls()
        for result in results:
            result.gather(gathered)
        return gathered

    def extend(self, other: Gathered) -> None:
        """Takes all results of another collection."""
        for part, rows in other.rows.items():
            self.rows.setdefault(part, type(rows)()).extend(rows)
        for kind, notes in other.notes.items():
            self.notes[kind] |= notes
