"""Documents of tokens in files that hold them one after the other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Unpack

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import (
    CorruptInputError,
    InputError,
    StorageChangedError,
)
from gristmill.dataset.formats.streams import RecordBatch
from gristmill.dataset.storage.base import map_all
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.formats import RecordOptions, SourceSpec
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.source import (
    RangeReader,
    ReadOptions,
    ReadRequest,
    Source,
)

Ids = npt.NDArray[Any]
_BATCH_BYTES = 1 << 20
_MOST_ID = (1 << 32) - 1
_AT_ONCE = 16


class Layout(NamedTuple):
    """Where documents of a file are.

    Attributes:
        places: int64 [documents + 1], the first byte of each, and where the last ends.
        decode: Returns the tokens of a document from its bytes.
    """

    places: npt.NDArray[np.int64]
    decode: Callable[[bytes], Ids]


Find = Callable[[InputFile, int, int], Layout]
"""Returns the documents of a file that begin in a range of its bytes."""


class TokenSource(Source):
    """Files of tokens: a record is the ids of a document, as little-endian uint32.

    Args:
        spec: How records are made.
        find: Finds documents.
    """

    def __init__(self, spec: SourceSpec, find: Find) -> None:
        super().__init__(spec)
        self._find = find

    def read(
        self, file: InputFile, source: SourceRange, **options: Unpack[ReadOptions]
    ) -> TokenRange:
        """Returns a reader of one range of a file."""
        return TokenRange(ReadRequest(file, source, **options), self._find)

    def described(self) -> dict[str, Any]:
        """Returns the facts about the inputs for `dataset.json`, besides their list."""
        columns = {"columns": list(self.spec.columns)} if self.spec.columns else {}
        return {"format": self.spec.format, "record": self.spec.record, **columns}


class TokenRange(RangeReader[Layout]):
    """Reads the documents of one range of a file.

    Args:
        request: The range.
        find: Finds documents.
    """

    def __init__(self, request: ReadRequest, find: Find) -> None:
        super().__init__(request)
        self._find = find

    def _open(self) -> Layout:
        end = self._source.end_bytes
        end = self._file.size_bytes if end < 0 else end
        return self._find(self._file, self._source.begin_bytes, end)

    def batches(self) -> Iterator[RecordBatch]:
        """Yields the documents; see `RangeReader`."""
        places, decode = self._coming()
        begins = places.tolist()
        if len(begins) > 1:
            # What stands before the first document of a file belongs to it.
            self._start = begins[0] if self._source.begin_bytes else 0
        first = 0
        while first < len(begins) - 1:
            limit = np.searchsorted(places, begins[first] + _BATCH_BYTES, "right") - 1
            last = max(first + 1, int(limit))
            data = read_part(self._file, begins[first], begins[last])
            records = [
                self._record(data[a - begins[first] : b - begins[first]], a, decode)
                for a, b in zip(
                    begins[first:last], begins[first + 1 : last + 1], strict=True
                )
            ]
            self._stop = begins[last]
            self._records += len(records)
            crc32cs = [*map(google_crc32c.value, records)]
            yield RecordBatch(begins[first:last], records, crc32cs)
            first = last
        self._check_unchanged()

    def _record(self, data: bytes, place: int, decode: Callable[[bytes], Ids]) -> bytes:
        try:
            ids = decode(data)
        except ValueError as error:
            raise damaged(self.path, place, str(error)) from error
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) <= _MOST_ID:
            raise InputError(
                "a document holds a number that is no token",
                where=f"{self.path}, byte offset {place:,}",
                expected=f"0 to {_MOST_ID:,}",
                got=f"{ids.min():,} to {ids.max():,}",
                cure="check the type of the ids, or correct the file",
            )
        return ids.astype("<u4").tobytes()


def damaged(path: str, place: int, got: str) -> CorruptInputError:
    """Returns the error for a file whose documents cannot be found."""
    return CorruptInputError(
        "the documents of a file of tokens cannot be found",
        where=f"{path}, byte offset {place:,}",
        got=got,
        cure="check that the files belong together, and restore them",
    )


def in_range(places: npt.NDArray[np.int64], begin: int, end: int) -> Any:
    """Returns the places of the documents that begin in a range, and where they end.

    Args:
        places: int64 [documents + 1], of all documents of a file.
        begin: First byte of the range.
        end: The byte after its last.
    """
    # A document without tokens has no bytes, and so no place.
    places = places[np.append(True, np.diff(places) > 0)]
    first, stop = np.searchsorted(places[:-1], (begin, end), "left")
    return places[first : stop + 1] if stop > first else places[:0]


def kind_of(options: RecordOptions, name: str) -> tuple[np.dtype[Any], int | None]:
    """Returns the type of the ids, and the one that ends documents, by `--record`.

    Raises:
        InputError: It does not say so.
    """
    kind, _, end = options.record.partition(":")
    known = kind in ("uint16", "uint32", "int32", "int64")
    if options.columns or not known or int(end or 0) > np.iinfo(kind).max:
        raise InputError(
            f"{name} files do not say what their bytes are",
            expected="--record TYPE:ID, the type of the ids, and the one that ends "
            "a document, such as uint16:50256",
            got=f"--record {options.record}" if options.record else "no --record",
            cure="give it as the files were written",
        )
    return np.dtype(kind).newbyteorder("<"), int(end) if end else None


def plain_options(options: RecordOptions, name: str) -> None:
    """Refuses options that a format with a description of its own does not need."""
    if options.columns or options.record:
        raise InputError(
            f"--columns and --record are not for {name} files",
            got=",".join(options.columns) or options.record,
            cure="leave them out: the index says what the bytes are",
        )


def list_beside(paths: Iterable[str], what: str, *, needed: bool = True) -> str:
    """Returns the checksums of files that describe files of tokens, as a schema.

    So they are inputs, too: with others, a job is another one.

    Args:
        paths: The files.
        what: What each is called in messages.
        needed: Whether none may be missing.

    Raises:
        InputError: One is missing.
    """
    names = [*dict.fromkeys(paths)]
    found = zip(names, map_all(_checksum, names, at_once=_AT_ONCE), strict=True)
    crc32cs = {path: crc32c for path, crc32c in found if crc32c is not None}
    missing = next((path for path in names if path not in crc32cs), None)
    if needed and missing is not None:
        raise InputError(
            f"{what} is missing",
            where=missing,
            expected="it beside the file of tokens",
            cure="copy it there, or give another --input-format",
        )
    return json.dumps({"beside": {p: f"{crc:08x}" for p, crc in crc32cs.items()}})


def _checksum(path: str) -> int | None:
    storage = storage_for(path)
    found = storage.stat(path)
    if found is None or found.crc32c is not None:
        return None if found is None else found.crc32c
    return int(google_crc32c.value(storage.read(path)))


def listed_beside(spec: SourceSpec) -> Mapping[str, str]:
    """Returns the checksums that `list_beside` made for a spec."""
    found: dict[str, str] = json.loads(spec.schema)["beside"]
    return found


def read_beside(path: str, crc32c: str) -> bytes:
    """Returns a file that describes a file of tokens.

    Raises:
        StorageChangedError: It was written again since it was listed.
    """
    data = storage_for(path).read(path)
    found = f"{google_crc32c.value(data):08x}"
    if found != crc32c:
        raise StorageChangedError(
            "file was written again while this command ran",
            where=path,
            expected=f"CRC-32C {crc32c}",
            got=found,
            cure="run the same command again, once nothing writes the inputs",
        )
    return data


def read_part(file: InputFile, begin: int, end: int) -> bytes:
    """Returns bytes of a file, in the version that was listed."""
    with storage_for(file.path).open(
        file.path, offset=begin, end=end, version=file.version
    ) as opened:
        data = opened.read(end - begin)
    if len(data) < end - begin:
        got = f"{len(data):,} bytes of {end - begin:,}"
        raise damaged(file.path, begin, got)
    return data


def numbers(data: bytes, dtype: str, count: int, offset: int) -> Ids:
    """Returns numbers of a file. Raises ValueError if it is too short."""
    return np.frombuffer(data, dtype, count, offset)


def to_whole(parts: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Returns places as one array."""
    return np.concatenate([np.zeros(0, np.int64), *parts])
