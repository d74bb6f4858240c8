"""The input files of a conversion: found by patterns, sorted, and recognised."""

from __future__ import annotations

import dataclasses
import hashlib
import posixpath
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, Self, get_args

import numpy as np
import numpy.typing as npt

from gristmill.dataset.errors import InputError, some_of
from gristmill.dataset.file_names import JoinedFiles
from gristmill.dataset.metadata.shard_table import Texts, encode_texts
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import path_texts
from gristmill.dataset.tfrecord import frames as tfrecord
from gristmill.transforms.sources.input_directories import match_inputs
from gristmill.transforms.sources.input_formats import check_formats

COMPRESSIONS: tuple[tfrecord.Compression, ...] = get_args(tfrecord.Compression)


class InputFile(NamedTuple):
    """One input file.

    Attributes:
        path: Its path.
        size_bytes: Its size as it is stored.
        version: What changes when it is written again; None for any.
        compression: How it is compressed.
        noted_ns: When the system noted a change of it, see `FileInfo`; 0 for any.
    """

    path: str
    size_bytes: int
    version: str | None = None
    compression: tfrecord.Compression = "none"
    noted_ns: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputFiles:
    """The input files of one split, in the order in which they are read.

    Attributes:
        paths: [files], sorted.
        sizes: int64 [files], bytes as stored.
        versions: [files], what changes when a file is written again.
        compressions: uint8 [files], index into `none`, `gzip`, `zlib`.
        noted_ns: int64 [files], when the system noted a change, see `FileInfo`.
    """

    paths: Sequence[str]
    sizes: npt.NDArray[np.int64]
    versions: Sequence[str]
    compressions: npt.NDArray[np.uint8]
    noted_ns: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, file: int) -> InputFile:
        return InputFile(
            self.paths[file],
            int(self.sizes[file]),
            self.versions[file],
            COMPRESSIONS[int(self.compressions[file])],
            int(self.noted_ns[file]),
        )

    def first(self, count: int) -> list[InputFile]:
        """Returns the first files, at most so many."""
        return [self[file] for file in range(min(count, len(self)))]

    @property
    def splittable(self) -> npt.NDArray[np.bool_]:
        """Whether reading can begin in the middle: bool [files]."""
        return np.equal(self.compressions, COMPRESSIONS.index("none"))

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
            "noted_ns": self.noted_ns,
        }

    @classmethod
    def of_arrays(cls, arrays: dict[str, npt.NDArray[Any]]) -> Self:
        """Rebuilds the list from its arrays."""
        sizes = arrays["sizes"]
        return cls(
            paths=Texts(arrays["path_blob"], arrays["path_ends"]),
            sizes=sizes,
            versions=Texts(arrays["version_blob"], arrays["version_ends"]),
            compressions=arrays["compressions"],
            # Lists of early releases do not have it.
            noted_ns=arrays.get("noted_ns", np.zeros(len(sizes), np.int64)),
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
            f"{len(paths):,} input files {kind}: {some_of(sorted(paths))}"
            for kind, paths in kinds.items()
            if paths
        ]

    def noted_changes(self, new: Self) -> list[int]:
        """Returns the files that the system says have changed, in a list of the same.

        Their sizes and versions are those of the new list.
        """
        known = (self.noted_ns != 0) & (new.noted_ns != 0)
        found: list[int] = np.flatnonzero(
            known & (self.noted_ns != new.noted_ns)
        ).tolist()
        return found

    def notes(self) -> list[str]:
        """Returns notes for the user that are no errors."""
        joined = JoinedFiles.of(self.paths).notice()
        names = Counter(posixpath.basename(path) for path in self.paths)
        twice = [name for name, count in names.items() if count > 1]
        notes = [] if joined is None else [joined]
        if not twice:
            return notes
        name = twice[0]
        where = [path for path in self.paths if posixpath.basename(path) == name]
        return [
            *notes,
            f"{len(twice):,} file names are there more than once, in different "
            f"directories, such as {where[0]} and {where[1]}: all are converted. If "
            "one is a copy, leave it out",
        ]


def find_inputs(
    patterns: Sequence[str],
    *,
    allow_empty_files: bool = False,
    allow_other_formats: bool = False,
) -> InputFiles:
    """Lists the files that patterns match, sorted, and detects their compression.

    A file that several patterns match is taken once.

    Args:
        patterns: Paths and glob patterns; a directory stands for the files in it.
        allow_empty_files: Whether a file of 0 bytes counts as one without records.
        allow_other_formats: Whether some files may be no TFRecord files.

    Raises:
        InputError: A pattern matches nothing, or a file is empty or of another format.
    """
    files = match_files(patterns, allow_empty_files=allow_empty_files)
    compressions = check_formats(
        files, wanted="TFRecord", allow_some=allow_other_formats
    )
    return InputFiles(
        paths=tuple(info.path for info in files),
        sizes=np.array([info.size_bytes for info in files], np.int64),
        versions=tuple(info.version for info in files),
        compressions=np.array(list(map(COMPRESSIONS.index, compressions)), np.uint8),
        noted_ns=np.array(list(map(_noted_ns, files)), np.int64),
    )


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
    """Recognises one file by its first bytes.

    Raises:
        InputError: It is of another format.
    """
    (compression,) = check_formats([info], wanted="TFRecord")
    return InputFile(
        info.path, info.size_bytes, info.version, compression, _noted_ns(info)
    )


def _noted_ns(info: FileInfo) -> int:
    """Returns when the last change of a file was noted, now that a part was read.

    Some file systems fetch a file when it is read, and note that.
    """
    found = storage_for(info.path).stat(info.path) if info.noted_ns else None
    return info.noted_ns if found is None or found[:3] != info[:3] else found.noted_ns
