"""The input files of a conversion, in order, and how their records are made."""

from __future__ import annotations

import dataclasses
import hashlib
import operator
import posixpath
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.columns import Texts, encode_texts
from gristmill.dataset.base.errors import InvalidDatasetError, some_of
from gristmill.dataset.base.places import Int64, Places
from gristmill.dataset.formats.file_formats import JoinedFiles
from gristmill.dataset.formats.streams import COMPRESSIONS, Compression
from gristmill.dataset.metadata.sources import SOURCES_PREFIX
from gristmill.dataset.storage.base import map_all
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.sources.formats import FORMATS, TFRECORD, SourceSpec

R = TypeVar("R")
_AT_ONCE = 16


class InputFile(NamedTuple):
    """One input file.

    Attributes:
        path: Its path.
        size_bytes: Its size as stored.
        version: A mark that changes when it is written again; None for any.
        compression: How it is compressed.
        noted_ns: When the system recorded its last change, see `FileInfo`; 0 for any.
        spec: How its records are made; None for `TFRECORD`, as elements of pipelines
            should be small.
    """

    path: str
    size_bytes: int
    version: str | None = None
    compression: Compression = "none"
    noted_ns: int = 0
    spec: SourceSpec | None = None

    @property
    def remote(self) -> bool:
        """Whether it is in object storage."""
        return storage_for(self.path).remote

    def open(
        self, begin: int = 0, end: int | None = None, *, wait: bool = True
    ) -> BinaryIO:
        """Opens the listed version for reading forward; see `Storage.open`."""
        return storage_for(self.path).open(
            self.path, offset=begin, end=end, version=self.version, wait=wait
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputFiles:
    """The input files of one split, in reading order.

    Attributes:
        paths: [files], sorted.
        sizes: int64 [files], bytes as stored.
        versions: [files], a mark that changes when a file is written again.
        compressions: uint8 [files], index into `COMPRESSIONS`.
        noted_ns: int64 [files], when the system recorded its last change, see
            `FileInfo`.
        spec: The rules for making records from all of them.
        sources: Of the shards of a dataset: the list of the sources of their records,
            as `SourceFiles` takes it, and `first` for each file, see `origins`.
        whole: Whether each is read from its start, by one worker.
    """

    paths: Sequence[str]
    sizes: Int64
    versions: Sequence[str]
    compressions: npt.NDArray[np.uint8]
    noted_ns: Int64
    spec: SourceSpec = TFRECORD
    sources: Mapping[str, npt.NDArray[Any]] = dataclasses.field(default_factory=dict)
    whole: bool = False

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, file: int) -> InputFile:
        return InputFile(
            self.paths[file],
            int(self.sizes[file]),
            self.versions[file],
            COMPRESSIONS[int(self.compressions[file])],
            int(self.noted_ns[file]),
            None if self.spec == TFRECORD else self.spec,
        )

    def first(self, count: int) -> list[InputFile]:
        """Returns at most `count` first files."""
        return [self[file] for file in range(min(count, len(self)))]

    def spread(self, count: int) -> list[InputFile]:
        """Returns at most `count` files, spread over all."""
        count = min(len(self), count)
        return [self[at * len(self) // count] for at in range(count)]

    def looked(
        self, look: Callable[[InputFile], R], count: int
    ) -> list[tuple[InputFile, R]]:
        """Calls a function on `count` files, spread over all, several at a time."""
        chosen = self.spread(count)
        found = map_all(look, chosen, at_once=_AT_ONCE)
        return list(zip(chosen, found, strict=True))

    @property
    def splittable(self) -> npt.NDArray[np.bool_]:
        """Whether reading can begin in the middle: bool [files]."""
        stream = self.whole or FORMATS[self.spec.format].stream
        return self._plain & (not stream)

    @property
    def _plain(self) -> npt.NDArray[np.bool_]:
        return np.equal(self.compressions, COMPRESSIONS.index("none"))

    @property
    def sized(self) -> npt.NDArray[np.bool_]:
        """Whether the last record ends at the file's size: bool [files].

        It does in an empty file of any format, as no range of it is read.
        """
        empty = np.equal(self.sizes, 0)
        return self._plain & (empty | FORMATS[self.spec.format].sized)

    @property
    def digest(self) -> str:
        """SHA-256 of the list: names and sizes, in order."""
        hasher = hashlib.sha256()
        for path, size in zip(self.paths, self.sizes.tolist(), strict=True):
            hasher.update(f"{path}\t{size}\n".encode("utf-8", "surrogateescape"))
        return "sha256:" + hasher.hexdigest()

    def origins(self, file: int, places: Int64, stored: Places | None) -> Places:
        """Returns the sources of records of a file.

        Args:
            file: The number of the file.
            places: int64 [records], their places there.
            stored: What the index of a shard says of all its records.
        """
        first = int(self.sources["first"][file]) if self.sources else file
        if not self.sources or first < 0:  # The file itself is their source.
            first = first if first >= 0 else -1 - first
            return Places(np.full(len(places), first), places)
        if stored is None:
            raise InvalidDatasetError(
                "shard index has no places of records, which the table of shards says "
                "it has",
                where=self.paths[file],
                cure="restore the index from a copy",
            )
        taken = stored.taken(places)
        return Places(taken.files + first, taken.places)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Returns the list as named arrays, for a file."""
        path_blob, path_ends = encode_texts(self.paths)
        version_blob, version_ends = encode_texts(self.versions)
        return {
            "spec": np.array(self.spec.to_json()),
            **{SOURCES_PREFIX + name: array for name, array in self.sources.items()},
            "whole": np.array(self.whole),
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
        return cls(
            paths=Texts(arrays["path_blob"], arrays["path_ends"]),
            sizes=arrays["sizes"],
            versions=Texts(arrays["version_blob"], arrays["version_ends"]),
            compressions=arrays["compressions"],
            noted_ns=arrays["noted_ns"],
            spec=SourceSpec.from_json(str(arrays["spec"])),
            sources={
                name.removeprefix(SOURCES_PREFIX): array
                for name, array in arrays.items()
                if name.startswith(SOURCES_PREFIX)
            },
            whole=bool(arrays["whole"]),
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
        lines = [
            f"{len(paths):,} input file{'s' * (len(paths) > 1)} {kind}: "
            f"{some_of(sorted(paths))}"
            for kind, paths in kinds.items()
            if paths
        ]
        return lines + self.spec.differences(new.spec)

    def noted_changes(self, new: Self) -> list[int]:
        """Returns the files of a list that changed according to the system.

        The new list has the same names and sizes.
        """
        known = (self.noted_ns != 0) & (new.noted_ns != 0)
        changed = known & (self.noted_ns != new.noted_ns)
        if list(self.versions) != list(new.versions):
            changed |= np.array([*map(operator.ne, self.versions, new.versions)], bool)
        found: list[int] = np.flatnonzero(changed).tolist()
        return found

    def notes(self) -> list[str]:
        """Returns notes for the user that are not errors."""
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
            "several files have the same name, in different "
            f"directories, such as {where[0]} and {where[1]}: all are "
            "converted. If one is a copy, leave it out",
        ]
