"""Documents of tokens in files that hold them end to end."""

from __future__ import annotations

import abc
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import (
    CorruptInputError,
    InputError,
    StorageChangedError,
)
from gristmill.dataset.base.places import Int64
from gristmill.dataset.formats.streams import RecordBatch
from gristmill.dataset.storage.base import map_all
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.sources.formats import MAY_LACK, RecordOptions
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.source import RangeReader, ReadRequest, Source

Ids = npt.NDArray[Any]
_BATCH_BYTES = 1 << 20
_MOST_ID = (1 << 32) - 1
_AT_ONCE = 16


class Layout(NamedTuple):
    """The places of documents in a file.

    Attributes:
        places: int64 [documents + 1], the first byte of each, and the end of the last.
        decode: Returns the tokens of a document from its bytes.
    """

    places: Int64
    decode: Callable[[bytes], Ids]


class TokenSource(Source):
    """Files of tokens: a record is the ids of a document, as little-endian uint32.

    Files beside them that describe them are inputs too, so the schema of the spec has
    their checksums.
    """

    @abc.abstractmethod
    def layout(self, file: InputFile, begin: int, end: int) -> Layout:
        """Returns the documents of a file, or those around a range of its bytes."""

    def read(self, request: ReadRequest) -> TokenRange:
        return TokenRange(request, self)

    def described(self) -> dict[str, Any]:
        columns = {"columns": list(self.spec.columns)} if self.spec.columns else {}
        return super().described() | columns

    @property
    def beside(self) -> dict[str, str]:
        """The checksums of listed files that describe others, by path."""
        found: dict[str, str] = json.loads(self.spec.schema)["beside"]
        return found

    def read_beside(self, path: str) -> bytes:
        """Returns a file that describes others.

        Raises:
            StorageChangedError: It was written again since it was listed.
        """
        expected = self.beside[path]
        data = storage_for(path).read(path)
        found = f"{google_crc32c.value(data):08x}"
        if found != expected:
            raise StorageChangedError(
                "file was written again while this command ran",
                where=path,
                expected=f"CRC-32C {expected}",
                got=found,
                cure="run the same command again, once nothing writes the inputs",
            )
        return data


class TokenRange(RangeReader[tuple[Layout, int]]):
    """Reads the documents of one range of a file."""

    def __init__(self, request: ReadRequest, format: TokenSource) -> None:
        super().__init__(request)
        self._format = format

    def _open(self) -> tuple[Layout, int]:
        """Returns the documents that begin in the range, and how many are empty."""
        begin, end = self._source.begin_bytes, self._end_bytes
        places, decode = self._format.layout(self._file, begin, end)
        # A document without tokens has no bytes, and so no place.
        filled = np.diff(places) > 0
        empty = places[:-1][~filled]
        inside = (empty >= begin) & ((empty < end) | (end >= places[-1]))
        places = places[np.append(True, filled)]
        first, stop = np.searchsorted(places[:-1], (begin, end), "left")
        own = places[first : stop + 1] if stop > first else places[:0]
        return Layout(own, decode), int(np.count_nonzero(inside))

    def batches(self) -> Iterator[RecordBatch]:
        (places, decode), empty = self._coming()
        begins = places.tolist()
        if empty:
            yield RecordBatch([], [], [], null_rows=empty)
        if len(begins) > 1:
            # Bytes before the first document of a file belong to it.
            self._start = begins[0] if self._source.begin_bytes else 0
        first = 0
        while first < len(begins) - 1:
            limit = np.searchsorted(places, begins[first] + _BATCH_BYTES, "right") - 1
            last = max(first + 1, int(limit))
            data = read_part(self._file, begins[first], begins[last])
            edges = [place - begins[first] for place in begins[first : last + 1]]
            records = [
                self._record(data[a:b], begins[first] + a, decode)
                for a, b in itertools.pairwise(edges)
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


def kind_of(record: str, name: str) -> tuple[np.dtype[Any], int | None]:
    """Returns the type of ids, and the id that ends documents, from `--record`."""
    kind, _, end = record.removesuffix(MAY_LACK).partition(":")
    known = kind in ("uint16", "uint32", "int32", "int64")
    if not known or int(end or 0) > np.iinfo(kind).max:
        raise no_kind(record, name)
    return np.dtype(kind).newbyteorder("<"), int(end) if end else None


def no_kind(record: str, name: str) -> InputError:
    """Returns the error for files whose type is missing in `--record`."""
    return InputError(
        f"{name} files do not say what their bytes are",
        expected="--record TYPE:ID, the type of the ids, and the one that ends a "
        "document, such as uint16:50256, and no --columns",
        got=f"--record {record}" if record else "no --record",
        cure="give it as the files were written",
    )


def list_beside(paths: Iterable[str], what: str, *, needed: bool = True) -> str:
    """Returns the checksums of files that describe files of tokens, as a schema.

    Raises:
        InputError: One is missing.
    """
    names = [*dict.fromkeys(paths)]
    found = zip(names, map_all(_checksum, names, at_once=_AT_ONCE), strict=True)
    crc32cs = {path: f"{crc:08x}" for path, crc in found if crc is not None}
    missing = next((path for path in names if path not in crc32cs), None)
    if needed and missing is not None:
        raise InputError(
            f"{what} is missing",
            where=missing,
            expected="it beside the file of tokens",
            cure="copy it there, or give another --input-format",
        )
    return json.dumps({"beside": crc32cs})


def _checksum(path: str) -> int | None:
    storage = storage_for(path)
    found = storage.stat(path)
    if found is None or found.crc32c is not None:
        return None if found is None else found.crc32c
    return int(google_crc32c.value(storage.read(path)))


def plain_options(options: RecordOptions, name: str) -> None:
    """Refuses options that a format with a description of its own does not need."""
    if options.columns or options.record:
        raise InputError(
            f"--columns and --record are not for {name} files",
            got=",".join(options.columns) or options.record,
            cure="leave them out: the index says what the bytes are",
        )


def read_part(file: InputFile, begin: int, end: int) -> bytes:
    """Returns bytes of a file, in the version that was listed."""
    with file.open(begin, end) as opened:
        data = opened.read(end - begin)
    if len(data) < end - begin:
        got = f"{len(data):,} bytes of {end - begin:,}"
        raise damaged(file.path, begin, got)
    return data
