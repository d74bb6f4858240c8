"""Tokens of OLMo: a raw `.npy` of dolma, with its documents in a `.csv.gz`."""

from __future__ import annotations

import csv
import functools
import gzip
import io
import zlib
from collections.abc import Mapping

import numpy as np

from gristmill.transforms.sources.formats import RecordOptions, SourceSpec
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.token_files.flat import find_by_end
from gristmill.transforms.sources.token_files.token_documents import (
    Layout,
    TokenSource,
    damaged,
    in_range,
    kind_of,
    list_beside,
    listed_beside,
    read_beside,
)


def make_source(spec: SourceSpec) -> TokenSource:
    """Returns the source of a spec."""
    crc32cs = listed_beside(spec)
    return TokenSource(spec, functools.partial(_find, spec.record, crc32cs))


def find_spec(files: InputFiles, options: RecordOptions) -> SourceSpec:
    """Returns the rules for documents: `--record` says the type, and the last id.

    Raises:
        InputError: It does not, or files have neither that id nor a `.csv.gz`.
    """
    needed = kind_of(options, "OLMo's")[1] is None
    paths = map(_beside, files.paths)
    beside = list_beside(paths, "the list of documents", needed=needed)
    return SourceSpec(format="olmo", record=options.record, schema=beside)


def _beside(path: str) -> str:
    return path.removesuffix(".npy") + ".csv.gz"


def _find(
    record: str, crc32cs: Mapping[str, str], file: InputFile, begin: int, end: int
) -> Layout:
    dtype, _ = kind_of(RecordOptions(record=record), "OLMo's")
    beside = _beside(file.path)
    if beside not in crc32cs:
        return find_by_end(record, file, begin, end)
    data = read_beside(beside, crc32cs[beside])
    try:
        data = gzip.decompress(data)
        rows = [(int(r[0]), int(r[1])) for r in csv.reader(io.StringIO(data.decode()))]
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
    return Layout(in_range(places, begin, end), decode)
