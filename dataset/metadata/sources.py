"""The lists of a write: the files that it read, and the sources of its records.

The two lists are the same, unless shards of a dataset were read, whose records keep
their sources. Both are in the file of `layout.inputs_path`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.columns import (
    Texts,
    encode_texts,
    load_arrays,
    save_arrays,
)
from gristmill.dataset.base.errors import GristmillError, InvalidDatasetError
from gristmill.dataset.formats.streams import COMPRESSIONS, Compression
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for

_INPUTS_VERSION = 1
# Prefix of the arrays of the list of sources, in the file of the list of inputs.
SOURCES_PREFIX = "sources_"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file that records were made from.

    Attributes:
        path: As given to the conversion, possibly relative to where that ran.
        compression: One of `COMPRESSIONS`.
        format: The format of the file, such as `tfrecord`.
        size_bytes: Its size as stored; 0 if not known.
        version: A mark that changes when it is written again; None if not known.
        noted_ns: Time when the system recorded its last change; 0 if not known.
        spec: How its records were made, as JSON.
    """

    path: str
    compression: Compression
    format: str = "tfrecord"
    size_bytes: int = 0
    version: str | None = None
    noted_ns: int = 0
    spec: str = ""


class SourceFiles(Sequence[SourceFile]):
    """The files of a list, made on access: there may be hundreds of thousands.

    Args:
        arrays: The list by column: paths and versions as `encode_texts` returns them,
            `sizes`, `compressions`, `noted_ns`. `specs` is a JSON list of texts, and
            `spec_numbers` has one of them for each file; or `spec` is that of all.

    Attributes:
        paths: Their paths.

    Raises a builtin error of any kind if it is not such a list.
    """

    def __init__(self, arrays: Mapping[str, Any]):
        self.paths = Texts(arrays["path_blob"], arrays["path_ends"])
        self._versions = Texts(arrays["version_blob"], arrays["version_ends"])
        if "spec" in arrays:
            self._specs = [str(arrays["spec"])]
            none = np.zeros(len(self.paths), np.int64)
            arrays = {**arrays, "spec_numbers": none}
        else:
            self._specs = list(map(str, json.loads(str(arrays["specs"]))))
        self._numbers: dict[str, npt.NDArray[Any]] = {n: arrays[n] for n in _NUMBERS}
        self._formats = [json.loads(spec)["format"] for spec in self._specs]
        columns = (self._versions, *self._numbers.values())
        if {*map(len, columns)} != {len(self.paths)}:
            raise ValueError("columns of different lengths")
        if self._numbers["compressions"].max(initial=0) >= len(COMPRESSIONS):
            raise ValueError("unknown compression")

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        numbers = (int(self._numbers[name][index]) for name in _NUMBERS)
        size, compression, noted_ns, spec = numbers
        return SourceFile(
            path=self.paths[index],
            compression=COMPRESSIONS[compression],
            format=self._formats[spec],
            size_bytes=size,
            version=self._versions[index] or None,
            noted_ns=noted_ns,
            spec=self._specs[spec],
        )

    @property
    def stored_bytes(self) -> int:
        """Their total size as stored; 0 if not known."""
        return int(self._numbers["sizes"].sum())

    @property
    def digest(self) -> str:
        """SHA-256 of names and sizes, in order."""
        sizes = self._numbers["sizes"].tolist()
        rows = zip(self.paths, sizes, strict=True)
        lines = "".join([f"{path}\t{size}\n" for path, size in rows])
        encoded = lines.encode("utf-8", "surrogateescape")
        return f"sha256:{hashlib.sha256(encoded).hexdigest()}"

    def numbers_of(self, paths: Iterable[str]) -> dict[str, list[int]]:
        """Returns the numbers of the files of each path."""
        found: dict[str, list[int]] = {path: [] for path in paths}
        for number, path in enumerate(self.paths):
            if path in found:
                found[path].append(number)
        return found

    def taken(self, numbers: npt.NDArray[np.int64]) -> SourceFiles:
        """Returns a list of some of the files."""
        paths, versions = (
            [t[n] for n in numbers] for t in (self.paths, self._versions)
        )
        columns = {name: self._numbers[name][numbers] for name in _NUMBERS}
        return SourceFiles(_arrays(paths, versions, self._specs, columns))

    @staticmethod
    def joined(lists: Sequence[SourceFiles]) -> dict[str, npt.NDArray[Any]]:
        """Returns lists that follow one another as the arrays of one."""
        specs = list(dict.fromkeys(spec for one in lists for spec in one._specs))
        columns = {
            name: np.concatenate([one._numbers[name] for one in lists])
            for name in _NUMBERS
        }
        numbers = [
            np.array([specs.index(spec) for spec in one._specs])[
                one._numbers["spec_numbers"]
            ]
            for one in lists
        ]
        columns["spec_numbers"] = np.concatenate(numbers)
        paths = Texts.joined([one.paths for one in lists])
        versions = Texts.joined([one._versions for one in lists])
        return _arrays(paths, versions, specs, columns)


# Columns of one number a file.
_NUMBERS = ("sizes", "compressions", "noted_ns", "spec_numbers")


def _arrays(
    paths: Sequence[str],
    versions: Sequence[str],
    specs: Sequence[str],
    columns: Mapping[str, npt.NDArray[Any]],
) -> dict[str, npt.NDArray[Any]]:
    """Returns a list by column, as `SourceFiles` takes it."""
    texts = {"path": encode_texts(paths), "version": encode_texts(versions)}
    return {
        **{f"{name}_blob": blob for name, (blob, _) in texts.items()},
        **{f"{name}_ends": ends for name, (_, ends) in texts.items()},
        **columns,
        "specs": np.array(json.dumps([*specs])),
    }


def encode_sources(formats: Mapping[str, str]) -> tuple[bytes, str]:
    """Returns a list of files with known formats only, and its digest.

    Args:
        formats: The format of each file, by its path.
    """
    names, none = [*dict.fromkeys(formats.values())], np.zeros(len(formats), np.int64)
    gzip, plain = COMPRESSIONS.index("gzip"), COMPRESSIONS.index("none")
    kinds = [gzip if path.endswith(".gz") else plain for path in formats]
    columns: dict[str, npt.NDArray[Any]] = {
        "sizes": none,
        "noted_ns": none,
        "compressions": np.array(kinds, np.uint8),
        "spec_numbers": np.array([names.index(n) for n in formats.values()], np.int64),
    }
    specs = [json.dumps({"format": name}) for name in names]
    arrays = _arrays([*formats], [""] * len(formats), specs, columns)
    return save_arrays(_INPUTS_VERSION, arrays), SourceFiles(arrays).digest


def read_inputs(dataset: str, split: Split) -> SourceFiles | None:
    """Returns the files that an edition was made from; None if there is no list.

    Also None if it is damaged or is another list: records can be read without it.
    """
    lists = _read_lists(dataset, split)
    return None if lists is None else lists[0]


def read_sources(dataset: str, split: Split) -> SourceFiles | None:
    """Returns the sources of the records of an edition, as `read_inputs` does."""
    lists = _read_lists(dataset, split)
    return None if lists is None else lists[1]


def _read_lists(dataset: str, split: Split) -> tuple[SourceFiles, SourceFiles] | None:
    relative, digest = map(split.source.get, ("file_list", "file_list_digest"))
    if not isinstance(relative, str) or not isinstance(digest, str):
        return None
    place = layout.join(dataset, layout.DATASET_JSON)
    layout.check_relative(relative, where=place)
    return _lists(layout.join(dataset, relative), digest)


@functools.lru_cache(maxsize=8)
def _lists(path: str, digest: str) -> tuple[SourceFiles, SourceFiles] | None:
    found = storage_for(path).load(path)
    if found is None:
        return None
    try:
        arrays = load_arrays(found.data, where=path, version=_INPUTS_VERSION)
        own = {
            name.removeprefix(SOURCES_PREFIX): array
            for name, array in arrays.items()
            if name.startswith(SOURCES_PREFIX)
        }
        inputs = SourceFiles(arrays)
        sources = SourceFiles(own) if own else inputs
    except (GristmillError, IndexError, KeyError, TypeError, ValueError):
        return None
    return (inputs, sources) if inputs.digest == digest else None


def common_inputs(dataset: str, split: Split, paths: Iterable[str]) -> list[str]:
    """Returns the files, of some, that an edition was made from, by absolute paths.

    Raises:
        InvalidDatasetError: The list of its files is missing or damaged.
    """
    inputs = read_inputs(dataset, split)
    if inputs is None:
        if "file_list" not in split.source:
            return []
        raise InvalidDatasetError(
            "the list of the files that an edition was made of is missing or damaged",
            where=f"{dataset}, edition {split.edition:,}",
            expected="the list, so that no file is appended twice",
            cure="restore it from a copy, or convert the dataset again with "
            "--overwrite",
        )
    known = {*map(_absolute, inputs.paths)}
    return sorted(known.intersection(map(_absolute, paths)))


def _absolute(path: str) -> str:
    return path if "://" in path or path.startswith("/") else os.path.abspath(path)
