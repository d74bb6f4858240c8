"""The lists of a write: the files that it read, and the sources of its records.

These are the same, unless shards of a dataset were read: its records have the sources
that they had there. Both are in the file of `layout.inputs_path`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.columns import Texts, encode_texts, load_arrays
from gristmill.dataset.base.errors import GristmillError, InvalidDatasetError
from gristmill.dataset.formats.streams import COMPRESSIONS, Compression
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for

_INPUTS_VERSION = 1
# Of the arrays of a list of sources, in the file of a list of inputs.
SOURCES_PREFIX = "sources_"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file that records were made of.

    Attributes:
        path: As the conversion was given it, possibly relative to where that ran.
        compression: One of `COMPRESSIONS`.
        format: What the file is, such as `tfrecord`.
        size_bytes: Its size as stored; 0 if not known.
        version: A mark that changes when it is written again; None if not known.
        noted_ns: When the system recorded its last change; 0 if not known.
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

    Raises a builtin error of any kind if it is not such a list.
    """

    def __init__(self, arrays: Mapping[str, Any]):
        self._sizes, self._compressions = arrays["sizes"], arrays["compressions"]
        self._noted_ns = arrays["noted_ns"]
        self._paths = Texts(arrays["path_blob"], arrays["path_ends"])
        self._versions = Texts(arrays["version_blob"], arrays["version_ends"])
        if "spec" in arrays:
            self._specs = [str(arrays["spec"])]
            self._spec_numbers = np.zeros(len(self._sizes), np.int64)
        else:
            self._specs = list(map(str, json.loads(str(arrays["specs"]))))
            self._spec_numbers = arrays["spec_numbers"]
        self._formats = [json.loads(spec)["format"] for spec in self._specs]
        columns = (self._paths, self._versions, self._noted_ns, self._compressions)
        if {*map(len, columns), len(self._spec_numbers)} != {len(self._sizes)}:
            raise ValueError("columns of different lengths")
        if self._compressions.max(initial=0) >= len(COMPRESSIONS):
            raise ValueError("unknown compression")

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        spec = int(self._spec_numbers[index])
        return SourceFile(
            path=self._paths[index],
            compression=COMPRESSIONS[int(self._compressions[index])],
            format=self._formats[spec],
            size_bytes=int(self._sizes[index]),
            version=self._versions[index] or None,
            noted_ns=int(self._noted_ns[index]),
            spec=self._specs[spec],
        )

    @property
    def stored_bytes(self) -> int:
        """Their total size as stored; 0 if not known."""
        return int(self._sizes.sum())

    @property
    def digest(self) -> str:
        """SHA-256 of names and sizes, in order."""
        rows = zip(self._paths, self._sizes.tolist(), strict=True)
        lines = "".join([f"{path}\t{size}\n" for path, size in rows])
        encoded = lines.encode("utf-8", "surrogateescape")
        return f"sha256:{hashlib.sha256(encoded).hexdigest()}"

    def numbers_of(self, paths: Iterable[str]) -> dict[str, list[int]]:
        """Returns the numbers of the files of each path."""
        found: dict[str, list[int]] = {path: [] for path in paths}
        for number, path in enumerate(self._paths):
            if path in found:
                found[path].append(number)
        return found

    def taken(self, numbers: npt.NDArray[np.int64]) -> SourceFiles:
        """Returns a list of some of the files."""
        path_blob, path_ends = encode_texts([self._paths[n] for n in numbers])
        version_blob, version_ends = encode_texts([self._versions[n] for n in numbers])
        return SourceFiles(
            {
                "path_blob": path_blob,
                "path_ends": path_ends,
                "version_blob": version_blob,
                "version_ends": version_ends,
                "sizes": self._sizes[numbers],
                "compressions": self._compressions[numbers],
                "noted_ns": self._noted_ns[numbers],
                "specs": np.array(json.dumps(self._specs)),
                "spec_numbers": self._spec_numbers[numbers],
            }
        )

    @staticmethod
    def joined(lists: Sequence[SourceFiles]) -> dict[str, npt.NDArray[Any]]:
        """Returns lists that follow one another as the arrays of one."""
        specs = list(dict.fromkeys(spec for one in lists for spec in one._specs))
        paths, versions = (
            Texts.joined([one._paths for one in lists]).encoded,
            Texts.joined([one._versions for one in lists]).encoded,
        )
        numbers = [
            np.array([specs.index(spec) for spec in one._specs])[one._spec_numbers]
            for one in lists
        ]
        return {
            "path_blob": paths[0],
            "path_ends": paths[1],
            "version_blob": versions[0],
            "version_ends": versions[1],
            "sizes": np.concatenate([one._sizes for one in lists]),
            "compressions": np.concatenate([one._compressions for one in lists]),
            "noted_ns": np.concatenate([one._noted_ns for one in lists]),
            "specs": np.array(json.dumps(specs)),
            "spec_numbers": np.concatenate(numbers),
        }


def encode_sources(formats: Mapping[str, str]) -> tuple[bytes, str]:
    """Returns a list of files of which only the formats are known, and its digest.

    Args:
        formats: The format of each file, by its path.
    """
    names, count = [*dict.fromkeys(formats.values())], len(formats)
    gzip, plain = COMPRESSIONS.index("gzip"), COMPRESSIONS.index("none")
    path_blob, path_ends = encode_texts([*formats])
    version_blob, version_ends = encode_texts([""] * count)
    kinds = [gzip if path.endswith(".gz") else plain for path in formats]
    arrays: dict[str, Any] = {
        "version": np.array(_INPUTS_VERSION),
        "path_blob": path_blob,
        "path_ends": path_ends,
        "version_blob": version_blob,
        "version_ends": version_ends,
        "sizes": np.zeros(count, np.int64),
        "noted_ns": np.zeros(count, np.int64),
        "compressions": np.array(kinds, np.uint8),
        "specs": np.array(json.dumps([json.dumps({"format": n}) for n in names])),
        "spec_numbers": np.array([names.index(n) for n in formats.values()], np.int64),
    }
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue(), SourceFiles(arrays).digest


def read_inputs(dataset: str, split: Split) -> SourceFiles | None:
    """Returns the files that an edition was made of; None if there is no list.

    Also None if it is damaged or another list: records can be read without it.
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
    """Returns those of some files of which an edition was made, by absolute paths.

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
    known = {_absolute(file.path) for file in inputs}
    return sorted(known.intersection(map(_absolute, paths)))


def _absolute(path: str) -> str:
    return path if "://" in path or path.startswith("/") else os.path.abspath(path)
