"""The input files of a conversion: found by patterns, sorted, and recognised."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import posixpath
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, Self, get_args

import numpy as np
import numpy.typing as npt

from gristmill.dataset.errors import InputError
from gristmill.dataset.metadata.shard_table import Texts, encode_texts
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import path_texts
from gristmill.dataset.tfrecord import frames as tfrecord

_COMPRESSIONS: tuple[tfrecord.Compression, ...] = get_args(tfrecord.Compression)


class InputFile(NamedTuple):
    """One input file.

    Attributes:
        path: Its path.
        size_bytes: Its size as it is stored.
        version: What changes when it is written again; None for any.
        compression: How it is compressed.
    """

    path: str
    size_bytes: int
    version: str | None = None
    compression: tfrecord.Compression = "none"


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputFiles:
    """The input files of one split, in the order in which they are read.

    Attributes:
        paths: [files], sorted.
        sizes: int64 [files], bytes as stored.
        versions: [files], what changes when a file is written again.
        compressions: uint8 [files], index into `none`, `gzip`, `zlib`.
    """

    paths: Sequence[str]
    sizes: npt.NDArray[np.int64]
    versions: Sequence[str]
    compressions: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, file: int) -> InputFile:
        return InputFile(
            self.paths[file],
            int(self.sizes[file]),
            self.versions[file],
            _COMPRESSIONS[int(self.compressions[file])],
        )

    @property
    def splittable(self) -> npt.NDArray[np.bool_]:
        """Whether reading can begin in the middle: bool [files]."""
        return np.equal(self.compressions, _COMPRESSIONS.index("none"))

    @property
    def digest(self) -> str:
        """SHA-256 of the list: names and sizes, in order."""
        hasher = hashlib.sha256()
        for path, size in zip(self.paths, self.sizes.tolist(), strict=True):
            hasher.update(f"{path}\t{size}\n".encode("utf-8", "surrogateescape"))
        return "sha256:" + hasher.hexdigest()

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Returns the list as named arrays, for a file."""
        path_blob, path_ends = encode_texts(self.paths)
        version_blob, version_ends = encode_texts(self.versions)
        return {
            "path_blob": path_blob,
            "path_ends": path_ends,
            "version_blob": version_blob,
            "version_ends": version_ends,
            "sizes": self.sizes,
            "compressions": self.compressions,
        }

    @classmethod
    def of_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> Self:
        """Rebuilds the list from its arrays."""
        return cls(
            paths=Texts(arrays["path_blob"], arrays["path_ends"]),
            sizes=arrays["sizes"],
            versions=Texts(arrays["version_blob"], arrays["version_ends"]),
            compressions=arrays["compressions"],
        )

    def differences(self, new: Self) -> list[str]:
        """Returns a line for each kind of change to a new list, with some names."""

        def listing(files: InputFiles) -> dict[str, tuple[int, str]]:
            rows = zip(files.sizes.tolist(), files.versions, strict=True)
            return dict(zip(files.paths, rows, strict=True))

        before, after = listing(self), listing(new)
        both = before.keys() & after.keys()
        kinds = {
            "gone": before.keys() - after.keys(),
            "new": after.keys() - before.keys(),
            "changed": {path for path in both if before[path] != after[path]},
        }
        return [
            f"{len(paths):,} input files {kind}: {_some(sorted(paths), 3)}"
            for kind, paths in kinds.items()
            if paths
        ]

    def notes(self) -> list[str]:
        """Returns notes for the user that are no errors."""
        names = Counter(posixpath.basename(path) for path in self.paths)
        twice = [name for name, count in names.items() if count > 1]
        if not twice:
            return []
        name = twice[0]
        where = [path for path in self.paths if posixpath.basename(path) == name]
        return [
            f"{len(twice):,} file names are there more than once, in different "
            f"directories, such as {where[0]} and {where[1]}: all are converted. If "
            "one is a copy, leave it out"
        ]


def find_inputs(
    patterns: Sequence[str], *, allow_empty_files: bool = False
) -> InputFiles:
    """Lists the files that patterns match, sorted, and detects their compression.

    A file that several patterns match is taken once.

    Args:
        patterns: Paths and glob patterns.
        allow_empty_files: Whether a file of 0 bytes counts as one without records.

    Raises:
        InputError: A pattern matches nothing, or a file is empty.
    """
    found: dict[str, FileInfo] = {}
    for pattern in path_texts(patterns, "input"):
        matches = storage_for(pattern).match(pattern)
        if not matches:
            raise InputError(
                "no input file matches",
                where=pattern,
                cure="check the path; quote a pattern with * so that it reaches "
                "gristmill as it is",
            )
        found.update((info.path, info) for info in matches)
    files = [found[path] for path in sorted(found)]
    empty = [info.path for info in files if not info.size_bytes]
    if empty and not allow_empty_files:
        raise InputError(
            f"{len(empty):,} input files are empty",
            where=_some(empty, 5),
            expected="at least one record in each file",
            got="0 bytes, as after an interrupted copy",
            cure="copy them again, or leave them out; to accept empty files, give "
            "--on-corrupt quarantine",
        )
    # Waiting, not computing: 64 first reads at once hide a bucket's latency.
    with concurrent.futures.ThreadPoolExecutor(64) as pool:
        compressions = list(pool.map(_compression, files))
    return InputFiles(
        paths=tuple(info.path for info in files),
        sizes=np.array([info.size_bytes for info in files], np.int64),
        versions=tuple(info.version for info in files),
        compressions=np.array(compressions, np.uint8),
    )


def _some(paths: Sequence[str], shown: int) -> str:
    return ", ".join(paths[:shown]) + (", ..." if len(paths) > shown else "")


def _compression(info: FileInfo) -> int:
    head = storage_for(info.path).read(info.path, 0, tfrecord.HEADER_BYTES)
    return _COMPRESSIONS.index(tfrecord.detect_compression(head))
