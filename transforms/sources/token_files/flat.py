"""Flat arrays of ids: raw or as `.npy` of NumPy, also those of OLMo.

One id ends each document. Files of OLMo, raw as dolma writes them, can have the bounds
of their documents in a `.csv.gz` beside them.
"""

from __future__ import annotations

import csv
import functools
import gzip
import io
import zlib
from typing import Any

import numpy as np

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.sources.formats import MAY_LACK, RecordOptions, SourceSpec
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.token_files.token_documents import (
    Layout,
    TokenSource,
    damaged,
    in_range,
    kind_of,
    list_beside,
    no_kind,
    read_part,
)

_READ_BYTES = 4 << 20
_NPY = b"\x93NUMPY"


class FlatSource(TokenSource):
    """Arrays in which one id ends each document."""

    @classmethod
    def find_spec(cls, files: InputFiles, options: RecordOptions) -> SourceSpec:
        """Returns the rules for documents: `--record` says type and last id.

        Raises:
            InputError: It does not.
        """
        del files
        if options.columns or kind_of(options.record, "flat")[1] is None:
            raise no_kind(options.record, "flat")
        return SourceSpec(format="flat", record=options.record)

    def layout(self, file: InputFile, begin: int, end: int) -> Layout:
        """Returns the documents that begin in a range, by the id that ends each."""
        dtype, last = kind_of(self.spec.record, "flat")
        head = _head_bytes(file, dtype)
        size, width = file.size_bytes, dtype.itemsize
        if (size - head) % width:
            raise damaged(file.path, size, f"{size - head:,} bytes of {dtype.name}")
        # The id before the first that can begin a document may end one.
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
        # The only place is the start of the file, and all of it was read.
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
        inside = found[(found >= begin) & (found < min(end, size))]
        decode = functools.partial(np.frombuffer, dtype=dtype)
        if not len(inside):
            return Layout(inside, decode)
        after = found[found > inside[-1]]
        # Tokens after the last end are a document, too.
        return Layout(np.append(inside, after[0] if len(after) else size), decode)


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
    """Arrays of OLMo, with the bounds of documents beside them, or as others."""

    @classmethod
    def find_spec(cls, files: InputFiles, options: RecordOptions) -> SourceSpec:
        """Returns the rules for documents: `--record` says the type, and the last id.

        Raises:
            InputError: It does not, or files have neither that id nor a `.csv.gz`.
        """
        if options.columns:
            raise no_kind(options.record, "OLMo's")
        needed = kind_of(options.record, "OLMo's")[1] is None
        paths = map(_beside, files.paths)
        beside = list_beside(paths, "the list of documents", needed=needed)
        return SourceSpec(format="olmo", record=options.record, schema=beside)

    def layout(self, file: InputFile, begin: int, end: int) -> Layout:
        """Returns the documents that begin in a range."""
        dtype, _ = kind_of(self.spec.record, "OLMo's")
        beside = _beside(file.path)
        if not self.has_beside(beside):
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
        decode = functools.partial(np.frombuffer, dtype=dtype)
        return in_range(places, begin, end, decode)


def _beside(path: str) -> str:
    return path.removesuffix(".npy") + ".csv.gz"
