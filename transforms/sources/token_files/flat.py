"""Flat arrays of ids in which one id ends each document, raw or as `.npy` of NumPy."""

from __future__ import annotations

import functools
import io
from typing import Any

import numpy as np

from gristmill.transforms.sources.formats import RecordOptions, SourceSpec
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.token_files.token_documents import (
    Layout,
    TokenSource,
    damaged,
    kind_of,
    read_part,
    to_whole,
)

_READ_BYTES = 4 << 20
_NPY = b"\x93NUMPY"


def make_source(spec: SourceSpec) -> TokenSource:
    """Returns the source of a spec."""
    return TokenSource(spec, functools.partial(find_by_end, spec.record))


def find_spec(files: InputFiles, options: RecordOptions) -> SourceSpec:
    """Returns the rules for documents: `--record` says type and last id.

    Raises:
        InputError: It does not.
    """
    del files
    if kind_of(options, "flat")[1] is None:
        kind_of(RecordOptions(), "flat")
    return SourceSpec(format="flat", record=options.record)


def find_by_end(record: str, file: InputFile, begin: int, end: int) -> Layout:
    """Returns the documents that begin in a range, by the id that ends each.

    Args:
        record: Type and last id, as `--record` gives them.
        file: The file.
        begin: First byte of the range.
        end: The byte after its last.
    """
    dtype, last = kind_of(RecordOptions(record=record), "flat")
    head = _head_bytes(file, dtype)
    size, width = file.size_bytes, dtype.itemsize
    if (size - head) % width:
        raise damaged(file.path, size, f"{size - head:,} bytes of {dtype.name}")
    # The id before the first that can begin a document may end one.
    at = head + max(0, -(-(begin - head) // width) - 1) * width
    parts = [np.array([head] if begin <= head else [], np.int64)]
    while at < size:
        stop = min(at + _READ_BYTES, size)
        data = read_part(file, at, stop)
        ends = at + (np.flatnonzero(np.frombuffer(data, dtype) == last) + 1) * width
        parts.append(ends)
        at = stop
        if len(ends) and ends[-1] >= end:
            break
    found = to_whole(parts)
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
