"""Recognition of the format of files, by their first bytes."""

from __future__ import annotations

import contextlib
import posixpath
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from gristmill.dataset.base.errors import (
    CorruptStreamError,
    InputError,
    some_of,
)
from gristmill.dataset.formats.file_formats import (
    ARRAY_RECORD,
    CONVERT,
    HEAD_BYTES,
    TFRECORD,
    FileFormat,
    compression_of,
    format_of,
    is_blank,
)
from gristmill.dataset.formats.streams import Compression, inflated_head
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.base import FileInfo, map_all
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.sources.formats import FORMATS, SourceFormat

# A block is decompressed as a whole; it has at most 128 KiB.
_ZSTD_HEAD_BYTES = HEAD_BYTES + (128 << 10)
_INFO_CURE = (
    "it describes a TFDS dataset: give its directory alone, which keeps its splits, or "
    "a narrower pattern"
)
# Files that describe the dataset in a directory: patterns often match them.
_METADATA = {
    layout.DATASET_JSON: "it describes a dataset of ArrayRecord files: give a pattern "
    "that leaves this dataset out",
    layout.TFDS_INFO_JSON: _INFO_CURE,
    "features.json": _INFO_CURE,
}


class Look(NamedTuple):
    """The facts that the first bytes of a file tell.

    Attributes:
        compression: How it is compressed.
        format: Its format, None if unknown.
        is_blank: Whether it is all blanks, which have any format.
        noted_ns: When the system recorded the last change, see `FileInfo`, after a part
            was read: some file systems fetch a file on reading, and record that.
    """

    compression: Compression
    format: FileFormat | None
    is_blank: bool = False
    noted_ns: int = 0

    @property
    def content(self) -> str:
        """The name of the format, without its compression; "" if unknown."""
        name = "" if self.format is None else self.format.name
        return name.removeprefix(f"{self.compression}-compressed ")


def look_at(files: Sequence[FileInfo]) -> list[Look]:
    """Returns the looks at the first bytes of files, read once each, many at a time."""
    # Waiting, not computing: 64 first reads at once hide a bucket's latency.
    return list(map_all(_look, files, at_once=64))


def choose_format(looks: Sequence[Look], input_format: str) -> str:
    """Returns the format, one of `FORMATS`, to read files in."""
    if input_format != "auto":
        return input_format
    found = Counter(look.content for look in looks)
    names = [name for name in FORMATS if found[FORMATS[name].found_as]]
    if not names or "tfrecord" in names:
        return "tfrecord"
    # Files of other formats are refused.
    chosen = max(names, key=lambda name: found[FORMATS[name].found_as])
    # Files of no known format can be damaged TFRecord files, and text beside them may
    # describe them.
    return "tfrecord" if found[""] and FORMATS[chosen].is_text else chosen


def check_formats(
    files: Sequence[FileInfo],
    looks: Sequence[Look],
    wanted: str,
    *,
    allow_some: bool = False,
    auto: bool | None = None,
) -> list[Compression]:
    """Checks the format of files, and returns how they are compressed.

    A file of unknown format is accepted: it may be a damaged one of the expected
    format.

    Args:
        files: The files.
        looks: Looks at their first bytes.
        wanted: The expected format, one of `FORMATS`.
        allow_some: Whether some of them, but not all, may be of other formats.
        auto: Whether the format was chosen as that of most files; False if the user
            requests it, whatever files look like.

    Raises:
        InputError: A file has another format.
    """
    known, asked = FORMATS[wanted], auto is False
    if known.tokens:  # Their first bytes can look like anything.
        return ["none"] * len(files)
    others = {
        file.path: look.format
        for file, look in zip(files, looks, strict=True)
        if look.format is not None and not _is_wanted(look, known, asked)
    }
    some = 0 < len(others) < len(files)
    in_doubt = some and wanted == "tfrecord" and not asked and _in_doubt(looks)
    if others and (in_doubt or not (allow_some and some)):
        raise _other_formats(others, known, of=len(files), auto=auto, in_doubt=in_doubt)
    return [look.compression for look in looks]


def _in_doubt(looks: Sequence[Look]) -> bool:
    """Returns whether text is refused only because of files of unknown format.

    It may be the only readable data, so it is not left out as damage.
    """
    contents = {look.content for look in looks}
    texts = {known.found_as for known in FORMATS.values() if known.is_text}
    return TFRECORD not in contents and not contents.isdisjoint(texts)


def _look(file: FileInfo) -> Look:
    storage = storage_for(file.path)
    head = storage.read(file.path, 0, HEAD_BYTES)
    if compression_of(head) == "zstd" and format_of(head) is None:
        head = storage.read(file.path, 0, _ZSTD_HEAD_BYTES)
    # Only the first bytes decide, as the rest can be damaged.
    found, compression = format_of(head), compression_of(head)
    blank = found is None and is_blank(head)
    if found is None and compression != "none" and file.size_bytes <= len(head):
        with contextlib.suppress(CorruptStreamError):
            blank = is_blank(inflated_head(head, compression, HEAD_BYTES, whole=True))
    return Look(compression, found, blank, _noted_ns(file))


def _noted_ns(info: FileInfo) -> int:
    found = storage_for(info.path).stat(info.path) if info.noted_ns else None
    return info.noted_ns if found is None or found[:3] != info[:3] else found.noted_ns


def _is_wanted(look: Look, known: SourceFormat, asked: bool) -> bool:
    if look.compression != "none" and not known.compressed:
        return False
    return look.content == known.found_as or (asked and look.content in known.accepts)


def _other_formats(
    others: dict[str, FileFormat],
    known: SourceFormat,
    *,
    of: int,
    auto: bool | None,
    in_doubt: bool,
) -> InputError:
    name, kinds = known.found_as, Counter(others.values())
    ((kind, _),) = kinds.most_common(1)
    paths = [path for path, found in others.items() if found == kind]
    named = [f"{kind.name} ({count:,})" for kind, count in kinds.most_common()]
    got = kind.name if len(others) == 1 else some_of(named)
    cure = kind.cure
    if auto is False and cure == CONVERT:
        cure = "leave out --input-format, which is then recognised"
    if in_doubt:
        cure = (
            "leave out the text if the other files, which are of no known format, are "
            "damaged TFRecord files; if all of them are text, name its format with "
            "--input-format"
        )
    elif len(others) < of:
        cure = f"leave out other files than {name}, with a narrower pattern; or {cure}"
        if auto and cure.endswith(CONVERT):
            cure = cure.removesuffix(CONVERT) + "convert each format separately: "
            cure += "`gristmill append` adds records to a dataset, and rows of tokens "
            cure += "in several datasets are joined by loader.open([one, other])"
    file = posixpath.basename(paths[0])
    if name == TFRECORD:
        cure = _METADATA.get(file, cure)
    elif name == ARRAY_RECORD and file in _METADATA:
        cure = (
            "it describes the other files: give their directory alone, which keeps its "
            "splits, or a narrower pattern"
        )
    if auto and len(others) == of and len(kinds) == 1:
        return InputError(
            f"unsupported format: {kind.name}",
            where=some_of(paths),
            expected=", ".join(one.found_as for one in FORMATS.values()),
            got=got,
            cure=cure,
        )
    article = "an" if name == ARRAY_RECORD else "a"
    compressed = ", plain or compressed with gzip, zlib or zstd"
    return InputError(
        f"not {article} {name} file, but {kind.name}"
        if len(others) == 1
        else f"{len(others):,} of {of:,} input files are not {name} files",
        where=some_of(paths),
        expected=f"{name} files{compressed if known.compressed else ''}",
        got=got,
        cure=cure,
    )
