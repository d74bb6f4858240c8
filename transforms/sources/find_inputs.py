"""The input files of a job: found by patterns, sorted, and recognised."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.formats.streams.inflated_stream import COMPRESSIONS
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.paths import path_texts
from gristmill.transforms.sources.formats import RecordOptions, check_nulls
from gristmill.transforms.sources.input_directories import match_inputs
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.input_formats import (
    Look,
    check_formats,
    choose_format,
    look_at,
)
from gristmill.transforms.sources.source_of import source_module

# Files, and the look at the first bytes of each.
Looked = tuple[Sequence[FileInfo], Sequence[Look]]


def find_inputs(
    patterns: Sequence[str],
    *,
    options: RecordOptions | None = None,
    adapt: Callable[[RecordOptions], RecordOptions] | None = None,
    allow_empty_files: bool = False,
    allow_other_formats: bool = False,
    looked: Looked | None = None,
) -> InputFiles:
    """Lists the files that patterns match, sorted, and detects their format.

    A file that several patterns match is taken once.

    Args:
        patterns: Paths and glob patterns; a directory stands for the files in it.
        options: The user's options for the records, if any.
        adapt: Takes these options with the format of the files, and returns the options
            to use.
        allow_empty_files: Whether a file of 0 bytes counts as one without records.
        allow_other_formats: Whether some files may be of other formats.
        looked: The result of `match_files`, with the looks at first bytes, if known.

    Raises:
        InputError: A pattern matches nothing, or a file is empty or of another format,
            or the options do not fit the format.
        MissingPackageError: A package is missing that reads the format.
    """
    options = RecordOptions() if options is None else options
    if looked is None:
        found = match_files(patterns, allow_empty_files=allow_empty_files)
        looked = found, look_at(found)
    files, looks = looked
    auto = options.input_format == "auto"
    # An empty file has any format.
    filled = [
        look
        for file, look in zip(files, looks, strict=True)
        if file.size_bytes and not look.is_blank
    ]
    if auto and not filled and not (allow_empty_files or allow_other_formats):
        raise _empty([info.path for info in files], "blanks alone")
    chosen = choose_format(filled, options.input_format)
    compressions = check_formats(
        files,
        wanted=chosen,
        looks=looks,
        allow_some=allow_other_formats,
        asked=not auto,
        auto=auto,
    )
    listed = InputFiles(
        paths=tuple(info.path for info in files),
        sizes=np.array([info.size_bytes for info in files], np.int64),
        versions=tuple(info.version for info in files),
        compressions=np.array(list(map(COMPRESSIONS.index, compressions)), np.uint8),
        noted_ns=np.array([look.noted_ns for look in looks], np.int64),
    )
    options = dataclasses.replace(options, input_format=chosen)
    options = options if adapt is None else adapt(options)
    check_nulls(options, chosen)
    spec = source_module(chosen).find_spec(listed, options)
    spec = spec._replace(nulls=options.nulls)
    return dataclasses.replace(listed, spec=spec)


def match_files(
    patterns: Sequence[str], *, allow_empty_files: bool = False
) -> list[FileInfo]:
    """Lists the files that patterns match, sorted, without opening them.

    Args:
        patterns: Paths and glob patterns; a directory stands for the files in it.
        allow_empty_files: Whether a file of 0 bytes counts as one without records.

    Raises:
        InputError: A pattern matches nothing, or a file is empty.
    """
    found: dict[str, FileInfo] = {}
    for pattern in path_texts(patterns, "input"):
        found.update((info.path, info) for info in match_inputs(pattern))
    files = [found[path] for path in sorted(found)]
    empty = [info.path for info in files if not info.size_bytes]
    if empty and not allow_empty_files:
        raise _empty(empty, "0 bytes, as after an interrupted copy")
    return files


def _empty(paths: Sequence[str], got: str) -> InputError:
    return InputError(
        f"{len(paths):,} input file{'s are' if len(paths) > 1 else ' is'} empty",
        where=some_of(paths),
        expected="at least one record in each file",
        got=got,
        cure="copy them again, or leave them out: a directory as input leaves out "
        "markers such as _SUCCESS; to accept empty files, give --on-corrupt "
        "quarantine",
    )


def look_into(info: FileInfo) -> InputFile:
    """Recognises one TFRecord file by its first bytes.

    Raises:
        InputError: It has another format.
    """
    (look,) = look_at([info])
    (compression,) = check_formats([info], wanted="tfrecord", looks=[look])
    return InputFile(
        info.path, info.size_bytes, info.version, compression, look.noted_ns
    )
