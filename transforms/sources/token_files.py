"""Files of tokens: Megatron's, MosaicML Streaming's, and flat arrays like OLMo's.

Sources: `megatron/core/datasets/indexed_dataset.py` of Megatron-LM, and
`streaming/base/format/mds` of MosaicML Streaming. One id ends each document of a flat
array, raw or as `.npy` of NumPy. Files of OLMo, raw as dolma writes them, can have the
bounds of their documents in a `.csv.gz` beside them.
"""

from __future__ import annotations

import csv
import functools
import gzip
import io
import json
import posixpath
import zlib
from typing import Any

import numpy as np

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.base.places import Int64
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.sources.formats import MAY_LACK, RecordOptions, SourceSpec
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.token_documents import (
    Ids,
    Layout,
    TokenSource,
    damaged,
    kind_of,
    list_beside,
    no_kind,
    plain_options,
    read_part,
)

_MMIDIDX = b"MMIDIDX\0\0"
_MEGATRON_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_HEADER_BYTES = 34


class MegatronSource(TokenSource):
    """Megatron's files; the index of each has the places of its documents."""

    @classmethod
    def find_spec(cls, files: InputFiles, options: RecordOptions) -> SourceSpec:
        plain_options(options, "Megatron's")
        beside = list_beside(map(_idx_of, files.paths), "the index of Megatron")
        return options.spec(beside)

    def layout(self, file: InputFile, begin: int, end: int) -> Layout:
        dtype, places = self._index(_idx_of(file.path), file.size_bytes)
        decode = functools.partial(np.frombuffer, dtype=dtype)
        return Layout(places, decode)

    @functools.lru_cache(maxsize=2)  # noqa: B019 - Sources are few, and kept.
    def _index(
        self, beside: str, size_bytes: int
    ) -> tuple[np.dtype[np.generic], Int64]:
        """Returns the type of the ids of a `.bin`, and where its documents begin."""
        data = self.read_beside(beside)
        try:
            if data[:9] != _MMIDIDX or data[9:17] != b"\1" + bytes(7):
                raise ValueError("no index of version 1")  # noqa: TRY301
            dtype = np.dtype(_MEGATRON_TYPES[data[17]])
            sequences, bounds = np.frombuffer(data, "<u8", 2, 18).tolist()
            lengths = np.frombuffer(data, "<i4", sequences, _HEADER_BYTES)
            at = _HEADER_BYTES + 4 * sequences
            pointers = np.frombuffer(data, "<i8", sequences, at)
            documents = np.frombuffer(data, "<i8", bounds, at + 8 * sequences)
            ends = np.append(0, np.cumsum(lengths, dtype=np.int64) * dtype.itemsize)
            whole = bounds and documents[0] == 0 and documents[-1] == sequences
            if not whole or (np.diff(documents) < 0).any() or (lengths < 0).any():
                raise ValueError("documents that do not follow one another")  # noqa: TRY301
            if not np.array_equal(pointers, ends[:-1]) or ends[-1] != size_bytes:
                expected = f"{int(ends[-1]):,} bytes of tokens, one after the other"
                raise ValueError(f"{expected}, in a file of {size_bytes:,}")  # noqa: TRY301
        except (ValueError, KeyError, IndexError) as error:
            raise damaged(beside, 0, str(error)) from error
        return dtype, ends[documents]


def _idx_of(path: str) -> str:
    return path.removesuffix(".bin") + ".idx"


_READ_BYTES = 4 << 20
_NPY = b"\x93NUMPY"


class FlatSource(TokenSource):
    """Arrays in which one id ends each document."""

    @classmethod
    def find_spec(cls, files: InputFiles, options: RecordOptions) -> SourceSpec:
        """Returns the rules for documents, with type and last id from `--record`.

        Raises:
            InputError: One of these is missing.
        """
        del files
        if options.columns or kind_of(options.record, "flat")[1] is None:
            raise no_kind(options.record, "flat")
        return options.spec()

    def layout(self, file: InputFile, begin: int, end: int) -> Layout:
        """Returns the documents that begin in a range, by the id that ends each."""
        dtype, last = kind_of(self.spec.record, "flat")
        head = _head_bytes(file, dtype)
        size, width = file.size_bytes, dtype.itemsize
        if (size - head) % width:
            raise damaged(file.path, size, f"{size - head:,} bytes of {dtype.name}")
        # The id before the range may end a document.
        at = head + max(0, -(-(begin - head) // width) - 1) * width
        parts = [np.array([head] if begin <= head else [], np.int64)]
        while at < size:
            stop = min(at + _READ_BYTES, size)
            ids = np.frombuffer(read_part(file, at, stop), dtype)
            ends = at + (np.flatnonzero(ids == last) + 1) * width
            parts.append(ends)
            at = stop
            if len(ends) and ends[-1] >= end:
                break
        found = np.concatenate(parts)
        # All of the file was read, and no end was found.
        lacks = begin <= head and at >= size > head and len(found) == 1
        if lacks and last is not None and not self.spec.record.endswith(MAY_LACK):
            raise InputError(
                "the id that ends documents is not in the file",
                where=file.path,
                expected=f"documents that end with {last:,}, as --record says",
                got=f"{(size - head) // width:,} other ids",
                cure="give the id of the tokenizer that made them; or --accept no-end "
                "to take such a file for one document",
            )
        # Tokens after the last end are a document too.
        if at >= size and size not in found[-1:]:
            found = np.append(found, size)
        return Layout(found, functools.partial(np.frombuffer, dtype=dtype))


def _head_bytes(file: InputFile, dtype: np.dtype[Any]) -> int:
    """Returns where the ids begin: after the header of a `.npy`, if there is one."""
    head = read_part(file, 0, min(file.size_bytes, 4096))
    if not head.startswith(_NPY):
        return 0
    stream = io.BytesIO(head)
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0
    shape, _, kind = read(stream)
    if len(shape) != 1 or kind != dtype:
        raise damaged(file.path, 0, f"an array of shape {shape} of {kind}")
    if stream.tell() + shape[0] * dtype.itemsize != file.size_bytes:
        got = f"{shape[0]:,} numbers by its header, in {file.size_bytes:,} bytes"
        raise damaged(file.path, 0, got)
    return stream.tell()


class OlmoSource(FlatSource):
    """OLMo's arrays, with the bounds of documents beside them, or flat."""

    @classmethod
    def find_spec(cls, files: InputFiles, options: RecordOptions) -> SourceSpec:
        """Returns the rules for documents, with type and last id from `--record`.

        Raises:
            InputError: The type is missing, or files have neither that id nor a
                `.csv.gz`.
        """
        if options.columns:
            raise no_kind(options.record, "OLMo's")
        needed = kind_of(options.record, "OLMo's")[1] is None
        paths = map(_bounds_of, files.paths)
        beside = list_beside(paths, "the list of documents", needed=needed)
        return options.spec(beside)

    def layout(self, file: InputFile, begin: int, end: int) -> Layout:
        dtype, _ = kind_of(self.spec.record, "OLMo's")
        beside = _bounds_of(file.path)
        if beside not in self.beside:
            return super().layout(file, begin, end)
        data = self.read_beside(beside)
        try:
            text = gzip.decompress(data).decode()
            rows = [(int(row[0]), int(row[1])) for row in csv.reader(io.StringIO(text))]
            bounds = np.array([*rows], np.int64).reshape(-1, 2) * dtype.itemsize
            places = np.append(0, bounds[:, 1])
            follow = np.array_equal(bounds[:, 0], places[:-1])
            if not follow or (np.diff(places) < 0).any():
                raise ValueError("documents that do not follow one another")  # noqa: TRY301
            if places[-1] != file.size_bytes:
                got = f"documents of {int(places[-1]):,} bytes"
                raise ValueError(f"{got} in {file.size_bytes:,}")  # noqa: TRY301
        except (EOFError, IndexError, OSError, ValueError, zlib.error) as error:
            raise damaged(beside, 0, str(error)) from error
        return Layout(places, functools.partial(np.frombuffer, dtype=dtype))


def _bounds_of(path: str) -> str:
    return path.removesuffix(".npy") + ".csv.gz"


_MDS_TYPES = {8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 32: "<u4", 33: "<i4"} | {
    64: "<u8",
    65: "<i8",
}


class MdsSource(TokenSource):
    """Shards of MDS: each sample is a document, in one column."""

    @classmethod
    def find_spec(cls, files: InputFiles, options: RecordOptions) -> SourceSpec:
        """Returns the rules for documents, with the column, by default the only array.

        Raises:
            InputError: There is no such column, or a shard is missing.
        """
        beside = list_beside(map(_index_of, files.paths), "the index of MDS")
        spec = options.spec(beside)
        source, given = cls(spec), {*files.paths}
        for path in {_index_of(each): each for each in files.paths}.values():
            for name in source._described(path):
                listed = posixpath.join(posixpath.dirname(path), name)
                if listed not in given and storage_for(listed).stat(listed) is None:
                    raise InputError(
                        "a shard that the index lists is missing",
                        where=listed,
                        expected=f"all shards of {_index_of(path)}",
                        cure="copy it there, or take it out of the index",
                    )
        shard = source._of(files.paths[0])
        names, kinds = shard["column_names"], shard["column_encodings"]
        encodings = dict(zip(names, kinds, strict=True))
        arrays = [name for name in names if encodings[name].startswith("ndarray")]
        chosen = options.columns or arrays
        if options.record or len(chosen) != 1 or chosen[0] not in arrays:
            raise InputError(
                "no column of the shards is chosen that holds tokens",
                where=files.paths[0],
                expected="--columns with one column of encoding ndarray",
                got=", ".join(f"{name}: {kind}" for name, kind in encodings.items()),
                cure="name it; columns of other kinds hold no tokens",
            )
        return spec._replace(columns=tuple(chosen))

    def _described(self, path: str) -> dict[str, dict[str, Any]]:
        """Returns the entries of shards in the index beside a shard, by name."""
        beside = _index_of(path)
        content = self.read_beside(beside)
        try:
            shards = json.loads(content)["shards"]
            return {shard["raw_data"]["basename"]: shard for shard in shards}
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(beside, 0, f"no list of shards: {error!r}") from error

    def _of(self, path: str) -> dict[str, Any]:
        """Returns the entry of a shard."""
        name = posixpath.basename(path)
        found = self._described(path).get(name)
        if found is None:
            raise damaged(_index_of(path), 0, f"no shard {name}")
        return found

    def layout(self, file: InputFile, begin: int, end: int) -> Layout:
        shard = self._of(file.path)
        names, sizes = shard["column_names"], shard["column_sizes"]
        try:
            (count,) = np.frombuffer(read_part(file, 0, 4), "<u4").tolist()
            head = read_part(file, 4, 8 + 4 * count)
            places = np.frombuffer(head, "<u4").astype(np.int64)
            if (np.diff(places) < 0).any() or places[-1] != file.size_bytes:
                got = f"samples up to byte {int(places[-1]):,} of {file.size_bytes:,}"
                raise ValueError(got)  # noqa: TRY301
            number = names.index(self.spec.columns[0])
            kind = shard["column_encodings"][number]
        except ValueError as error:
            raise damaged(file.path, 0, str(error)) from error
        decode = functools.partial(
            _ids_of_sample, sizes=sizes, number=number, kind=kind
        )
        return Layout(places, decode)


def _index_of(path: str) -> str:
    return posixpath.join(posixpath.dirname(path), "index.json")


def _ids_of_sample(
    data: bytes, *, sizes: list[int | None], number: int, kind: str
) -> Ids:
    """Returns the ids of a sample."""
    variable = [at for at, size in enumerate(sizes) if size is None]
    told = np.frombuffer(data, "<u4", len(variable)).tolist()
    known = dict(zip(variable, told, strict=True))
    lengths = [known.get(at, size) or 0 for at, size in enumerate(sizes)]
    begin = 4 * len(variable) + sum(lengths[:number])
    if 4 * len(variable) + sum(lengths) != len(data):
        raise ValueError(f"columns of {sum(lengths):,} bytes in {len(data):,}")
    value = data[begin : begin + lengths[number]]
    _, dtype, shape = (*kind.split(":"), "", "")[:3]
    at = 0
    if not dtype:
        dtype, at = _MDS_TYPES.get(value[0], "?"), 1
    if not shape:
        axes, width = value[at] >> 2, 1 << (value[at] & 3)
        at += 1 + axes * width
        if axes != 1:
            raise ValueError(f"an array of {axes} axes")
    found = np.dtype(dtype)
    if found.kind not in "ui" or "," in shape:
        raise ValueError(f"an array of {kind}, {found.name}")
    return np.frombuffer(value[at:], found.newbyteorder("<"))
