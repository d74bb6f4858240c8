"""Whether files are of the format that a job reads, by their first bytes."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

from gristmill.dataset.errors import InputError, some_of
from gristmill.dataset.file_formats import (
    ARRAY_RECORD,
    HEAD_BYTES,
    TFRECORD,
    FileFormat,
    format_of,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.base import FileInfo, map_all
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.tfrecord.frames import (
    HEADER_BYTES,
    Compression,
    detect_compression,
)

_INFO_CURE = (
    "it describes a TFDS dataset: give its directory alone, which keeps its splits, or "
    "a narrower pattern"
)
# Files that describe the dataset in a directory: patterns match them all too easily.
_METADATA = {
    layout.DATASET_JSON: "it describes a dataset of ArrayRecord files: give a pattern "
    "that leaves this dataset out",
    layout.TFDS_INFO_JSON: _INFO_CURE,
    "features.json": _INFO_CURE,
}


class _Look(NamedTuple):
    """What the first bytes of a file tell."""

    compression: Compression
    format: FileFormat | None


def check_formats(
    files: Sequence[FileInfo],
    *,
    wanted: Literal["TFRecord", "ArrayRecord"],
    allow_some: bool = False,
) -> list[Compression]:
    """Returns how files are compressed; each is read once, many at a time.

    A file of no known format is not refused: it can be a damaged one of the format that
    is wanted.

    Args:
        files: The files.
        wanted: The format that they should have.
        allow_some: Whether some of them, but not all, may be of other formats.

    Raises:
        InputError: A file is of another format.
    """
    compressions: list[Compression] = []
    others: dict[str, FileFormat] = {}
    # Waiting, not computing: 64 first reads at once hide a bucket's latency.
    looks = map_all(_look, files, at_once=64)
    for file, look in zip(files, looks, strict=True):
        compressions.append(look.compression)
        if look.format is not None and not _is_wanted(look.format, wanted):
            others[file.path] = look.format
    if others and not (allow_some and len(others) < len(files)):
        raise _other_formats(others, of=len(files), wanted=wanted)
    return compressions


def _look(file: FileInfo) -> _Look:
    head = storage_for(file.path).read(file.path, 0, HEAD_BYTES)
    # The first bytes decide: what follows can be damaged.
    return _Look(detect_compression(head[:HEADER_BYTES]), format_of(head))


def _is_wanted(found: FileFormat, wanted: str) -> bool:
    compressed = wanted == TFRECORD and found.name.endswith(f"-compressed {TFRECORD}")
    return found.name == wanted or compressed


def _other_formats(
    others: dict[str, FileFormat], *, of: int, wanted: str
) -> InputError:
    kinds = Counter(others.values())
    ((kind, _),) = kinds.most_common(1)
    paths = [path for path, found in others.items() if found == kind]
    cure = kind.cure
    if len(others) < of:
        cure = f"leave out what is no {wanted} file, by a narrower pattern; or {cure}"
    if wanted == TFRECORD:
        cure = _METADATA.get(posixpath.basename(paths[0]), cure)
    named = [f"{kind.name} ({count:,})" for kind, count in kinds.most_common()]
    article = "an" if wanted == ARRAY_RECORD else "a"
    return InputError(
        f"not {article} {wanted} file, but {kind.name}"
        if len(others) == 1
        else f"{len(others):,} of {of:,} input files are not {wanted} files",
        where=some_of(paths),
        expected="TFRecord files, plain or compressed with gzip or zlib"
        if wanted == TFRECORD
        else "ArrayRecord files",
        got=kind.name if len(others) == 1 else some_of(named),
        cure=cure,
    )
