"""Tokens of OLMo: a raw `.npy` of dolma, with its documents in a `.csv.gz`."""

from __future__ import annotations

import csv
import functools
import gzip
import io

import numpy as np

from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.sources.formats import RecordOptions, SourceSpec
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.token_files.flat import find_by_end
from gristmill.transforms.sources.token_files.token_documents import (
    Layout,
    TokenSource,
    damaged,
    in_range,
    kind_of,
    read_beside,
)


def make_source(spec: SourceSpec) -> TokenSource:
    """Returns the source of a spec."""
    return TokenSource(spec, functools.partial(_find, spec.record))


def find_spec(files: InputFiles, options: RecordOptions) -> SourceSpec:
    """Returns the rules for documents: `--record` says the type, and the last id.

    Raises:
        InputError: It does not, or files have neither that id nor a `.csv.gz`.
    """
    if kind_of(options, "OLMo's")[1] is None:
        for path in files.paths:
            if storage_for(path).stat(_beside(path)) is None:
                read_beside(_beside(path), "the list of documents")
    return SourceSpec(format="olmo", record=options.record)


def _beside(path: str) -> str:
    return path.removesuffix(".npy") + ".csv.gz"


def _find(record: str, file: InputFile, begin: int, end: int) -> Layout:
    dtype, last = kind_of(RecordOptions(record=record), "OLMo's")
    beside = _beside(file.path)
    if last is not None and storage_for(beside).stat(beside) is None:
        return find_by_end(record, file, begin, end)
    data = gzip.decompress(read_beside(beside, "the list of documents"))
    try:
        rows = [(int(r[0]), int(r[1])) for r in csv.reader(io.StringIO(data.decode()))]
        bounds = np.array([*rows], np.int64).reshape(-1, 2) * dtype.itemsize
        places = np.append(0, bounds[:, 1])
        if not np.array_equal(bounds[:, 0], places[:-1]):
            raise ValueError("documents that do not follow one another")  # noqa: TRY301
        if places[-1] != file.size_bytes:
            got = f"documents of {int(places[-1]):,} bytes"
            raise ValueError(f"{got} in {file.size_bytes:,}")  # noqa: TRY301
    except (ValueError, IndexError) as error:
        raise damaged(beside, 0, str(error)) from error
    decode = functools.partial(np.frombuffer, dtype=dtype)
    return Layout(in_range(places, begin, end), decode)
