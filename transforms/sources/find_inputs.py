"""Finding the input files of a job: by patterns, sorted, and recognised."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from gristmill.dataset.errors import InputError, some_of
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import path_texts
from gristmill.dataset.streams.inflated_stream import COMPRESSIONS
from gristmill.transforms.sources.formats import RecordOptions
from gristmill.transforms.sources.input_directories import match_inputs
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.input_formats import (
    check_formats,
    choose_format,
    look_at,
)
from gristmill.transforms.sources.source_of import source_module


def find_inputs(
    patterns: Sequence[str],
    *,
    options: RecordOptions | None = None,
    adapt: Callable[[RecordOptions], RecordOptions] | None = None,
    allow_empty_files: bool = False,
    allow_other_formats: bool = False,
) -> InputFiles:
    """Lists the files that patterns match, sorted, and detects their format.

    A file that several patterns match is taken once.

    Args:
        patterns: Paths and glob patterns; a directory stands for the files in it.
        options: What the user says of the records, if anything.
        adapt: Gets these options with the format that the files have, and returns what
            to make of them.
        allow_empty_files: Whether a file of 0 bytes counts as one without records.
        allow_other_formats: Whether some files may be of another format.

    Raises:
        InputError: A pattern matches nothing, or a file is empty or of another format,
            or the options do not fit the format.
        MissingPackageError: A package is missing that reads the format.
    """
    options = RecordOptions() if options is None else options
    files = match_files(patterns, allow_empty_files=allow_empty_files)
    looks = look_at(files)
    # An empty file is of every format.
    filled = [look for file, look in zip(files, looks, strict=True) if file.size_bytes]
    auto = options.input_format == "auto"
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
        noted_ns=np.array(list(map(_noted_ns, files)), np.int64),
    )
    options = dataclasses.replace(options, input_format=chosen)
    options = options if adapt is None else adapt(options)
    spec = source_module(chosen).find_spec(listed, options)
    return dataclasses.replace(listed, spec=spec)


def match_files(
    patterns: Sequence[str], *, allow_empty_files: bool = False
) -> list[FileInfo]:
    """Lists the files that patterns match, sorted, without a look into them.

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
        raise InputError(
            f"{len(empty):,} input file{'s are' if len(empty) > 1 else ' is'} empty",
            where=some_of(empty),
            expected="at least one record in each file",
            got="0 bytes, as after an interrupted copy",
            cure="copy them again, or leave them out: a directory as input leaves out "
            "markers such as _SUCCESS; to accept empty files, give --on-corrupt "
            "quarantine",
        )
    return files


def look_into(info: FileInfo) -> InputFile:
    """Recognises one TFRecord file by its first bytes.

    Raises:
        InputError: It is of another format.
    """
    (compression,) = check_formats([info], wanted="tfrecord")
    return InputFile(
        info.path, info.size_bytes, info.version, compression, _noted_ns(info)
    )


def _noted_ns(info: FileInfo) -> int:
    """Returns when the last change of a file was noted, now that a part was read.

    Some file systems fetch a file when it is read, and note that.
    """
    found = storage_for(info.path).stat(info.path) if info.noted_ns else None
    return info.noted_ns if found is None or found[:3] != info[:3] else found.noted_ns
