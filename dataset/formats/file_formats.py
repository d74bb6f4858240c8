"""File formats, known by their first bytes, and the names of files.

Sources: the documents of each format, and files that its own writers made.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.formats.streams import (
    Compression,
    detect_compression,
    inflated_head,
    zstd_dictionary,
)
from gristmill.dataset.formats.tfrecord_frames import HEADER_BYTES, is_header

# Enough for the magic number of tar, at byte 257, and for some lines of text.
HEAD_BYTES = 4096
_TELLING_BYTES = 5  # Bytes of a frame's length.

ARRAY_RECORD = "ArrayRecord"
TAR = "tar"
TFRECORD = "TFRecord"

# The command for most formats that can be read, for errors.
CONVERT = "convert it with `gristmill convert`"
_WRITE = (
    "read it with its own library, and write the records with gristmill.dataset.Writer "
    "(docs/prepare/writer.md)"
)
_NO_UTF8 = "text that is not UTF-8"
_CONTROL = "text with control characters"
_UTF16 = "UTF-16 text"
# Converted as they are, also compressed.
_STREAMS = (TFRECORD, "CSV", "JSON array", "JSON lines", "TSV", "text")
_CURES = {
    **dict.fromkeys((*_STREAMS, "Parquet"), CONVERT),
    _UTF16: "write it again as UTF-8, as with: iconv -f UTF-16 -t UTF-8",
    _NO_UTF8: "write it again as UTF-8, as with: iconv -f WINDOWS-1252 -t UTF-8, if "
    "that is its encoding",
    _CONTROL: "remove them from its source: text has no NUL and no Ctrl-Z; to learn "
    "where they are, name its format with --input-format",
    "JSON": "write each object on a line of its own, or all in one array",
    ARRAY_RECORD: "make a dataset of it, in place, with `gristmill index`; or write "
    "its records anew with `gristmill convert`",
    "a Megatron index": "give the .bin beside it, with --input-format megatron",
    "NumPy": f"for tokens give --input-format flat, or olmo; else {_WRITE}",
    "Avro": "read it with Beam's ReadFromAvro, and write the records with "
    "gristmill.transforms.WriteArrayRecords (docs/reference/transforms.md)",
    "bzip2": "decompress it with bunzip2, then give what it holds",
    "LZ4": "decompress it with lz4 -d, then give what it holds",
    "Snappy": "decompress it, then give what it holds",
    "xz": "decompress it with unxz, then give what it holds",
    "7z": "extract it, then give the files in it",
    TAR: f"{CONVERT} if it is a WebDataset; if not, extract it with tar -xf, then give "
    "the files in it",
    "ZIP": "extract it with unzip, then give the files in it",
    "HTML": "download it again: a server sent a page in place of the file",
    "Git LFS pointer": "fetch the file itself with git lfs pull",
    "git-annex pointer": "fetch the file itself with git annex get",
}
# Prefixes; where one begins with another, the longer one is first.
_MAGIC = {
    # The signature of Riegeli, the same in every file.
    b"\x83\xafp\xd1\r\x88J?" + bytes(8) + b"@" + bytes(7): ARRAY_RECORD,
    b"PAR1": "Parquet",
    b"PARE": "Parquet",  # Encrypted.
    b"ARROW1": "Arrow",
    b"FEA1": "Feather",
    b"\xff\xfe": _UTF16,
    b"\xfe\xff": _UTF16,
    b"WARC/1.": "WARC",
    b"Obj\x01": "Avro",
    b"ORC": "ORC",
    b"\x89HDF\r\n\x1a\n": "HDF5",
    b"\x93NUMPY": "NumPy",
    b"SQLite format 3\0": "SQLite",
    b"MMIDIDX\0\0": "a Megatron index",
    b"%PDF-": "PDF",
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"\xff\xd8\xff": "JPEG",
    **{b"BZh%d" % level: "bzip2" for level in range(1, 10)},
    b"\x04\x22M\x18": "LZ4",
    b"\xff\x06\0\0sNaPpY": "Snappy",
    b"\xfd7zXZ\0": "xz",
    b"7z\xbc\xaf'\x1c": "7z",
    b"PK\x03\x04": "ZIP",
    b"PK\x05\x06": "ZIP",
    b"version https://git-lfs": "Git LFS pointer",
    b"/annex/objects/": "git-annex pointer",
}
_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0e-\x1f]+")
_ASCII = bytes(range(128))
_TAR_MAGIC, _TAR_OFFSET = b"ustar", 257


class FileFormat(NamedTuple):
    """The format of a file.

    Attributes:
        name: Its name, such as `Parquet` or `gzip-compressed JSON lines`.
        cure: What can be done with such a file, for an error.
    """

    name: str
    cure: str


def compression_of(head: bytes) -> Compression:
    """Returns how a file is compressed, from its first 12 bytes or more.

    Compressed TFRecord files often keep the plain file name, so the name says
    nothing. A valid frame header wins over the magic numbers of compressions.
    """
    head = head[:HEADER_BYTES]
    return "none" if is_header(head) else detect_compression(head)


def format_of(head: bytes) -> FileFormat | None:
    """Returns the format of a file, or None if its first bytes match none.

    A TFRecord file whose first frame is damaged has no known format.

    >>> format_of(b"PAR1")[0], format_of(b"PAR0")
    ('Parquet', None)

    Args:
        head: The file, or at least its first `HEAD_BYTES` bytes.
    """
    name = _name_of(head)
    # Only the first bytes decide, as the rest of the stream may be damaged.
    compression = "none" if name else compression_of(head)
    if compression == "zstd" and (number := zstd_dictionary(head)):
        name = f"compressed by zstd with dictionary {number}"
    if compression == "none":
        return None if name is None else FileFormat(name, _CURES.get(name, _WRITE))
    if name is not None:
        return FileFormat(name, "decompress it with zstd -d -D DICTIONARY")
    found = inflated_head(head, compression, HEAD_BYTES)
    # Fewer bytes may be the rest of a frame, followed by damage.
    inner = _name_of(found) if len(found) >= _TELLING_BYTES else None
    if inner is None:
        return None
    name = f"{compression}-compressed {inner}"
    if inner in (*_STREAMS, TAR):
        return FileFormat(name, _CURES[inner])
    return FileFormat(name, f"decompress it; then {_CURES.get(inner, _WRITE)}")


def is_blank(head: bytes) -> bool:
    r"""Returns whether a file, by its head, has only blanks and a byte order mark.

    >>> is_blank(b"\xef\xbb\xbf\r\n"), is_blank(b"\0")
    (True, False)
    """
    return len(head) < HEAD_BYTES and not head.removeprefix(codecs.BOM_UTF8).strip()


def _name_of(head: bytes) -> str | None:
    if is_header(head):
        return TFRECORD
    # Checked first: a tar begins with a file name, which can look like any other
    # format.
    if head.startswith(_TAR_MAGIC, _TAR_OFFSET):
        return TAR
    for magic, name in _MAGIC.items():
        if head.startswith(magic):
            return name
    # A stream of Arrow: the length of its schema follows, some kilobytes.
    if head[:4] == b"\xff" * 4 and 0 < int.from_bytes(head[4:8], "little") < 1 << 24:
        return "Arrow"
    return _kind_of_text(head)


def _kind_of_text(head: bytes) -> str | None:
    """Returns the kind of text in a file, None for other files.

    The length of a TFRecord frame has zeros, which text never has: those of a record
    below 4 GiB begin at the fifth byte.
    """
    marked = head.removeprefix(codecs.BOM_UTF8)  # Not counting the mark.
    controls = _CONTROLS.findall(marked)
    try:
        text = marked.decode()
    except UnicodeDecodeError as e:
        if len(marked) - e.start > 3:
            ascii_bytes = len(marked) - len(marked.translate(None, _ASCII))
            return _NO_UTF8 if not controls and ascii_bytes * 20 > len(marked) else None
        text = marked[: e.start].decode()  # It ends within a character.
    if controls:
        return _CONTROL if _are_of_text(marked, controls) else None
    if not text.strip():
        return None
    lines = text.strip("\r\n").split("\n")
    start = text.lstrip()[:100].lower()
    if start.startswith(("<!doctype html", "<html")):
        return "HTML"
    if start.startswith("<?xml"):
        return "XML"
    if start.startswith(("{", "[")):
        # An object alone is a line too, also one that continues after the head.
        cut = len(lines) == 1 and len(head) >= HEAD_BYTES
        several = start[0] == "{" or len(lines) > 1
        if several and (cut or _is_json(lines[0])):
            return "JSON lines"
        return "JSON" if start[0] == "{" else "JSON array"
    whole = lines if len(head) < HEAD_BYTES else lines[:-1]
    # A comma of a sentence is followed by a blank.
    for name, separator in (("TSV", "\t"), ("CSV", ",(?! )")):
        columns = {len(re.findall(separator, line)) for line in whole[:10]}
        if len(whole) > 1 and len(columns) == 1 and columns != {0}:
            return name
    return "text"


def _are_of_text(head: bytes, controls: list[bytes]) -> bool:
    """Returns whether control characters belong to text, and not to a frame."""
    begins = not _CONTROLS.search(head[:_TELLING_BYTES])
    few = sum(map(len, controls)) * 8 <= len(head) + 8
    return begins and few and max(map(len, controls)) < _TELLING_BYTES - 2


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


# As TFDS names files: NAME-SPLIT.FORMAT-00000-of-00010. Those of a later write have its
# id before the number.
_TFDS = re.compile(
    r"(.+)-(\w+)\.(?:array_record|tfrecords?)-(?:([0-9a-f]{16})-)?\d{5,}-of-(\d{5,})"
)
# As others do: NAME-00000-of-00010, with or without an ending.
_NUMBERED = re.compile(r"(.+?)[-_.]\d{5,}-of-\d{5,}(?:\..+)?")
_SHARD = re.compile(r"(?<![0-9a-f])\d{5,}(?![0-9a-f])")
_SPLITS = frozenset(
    ("train", "training", "val", "valid", "validation", "dev", "test", "eval")
)


class FileName(NamedTuple):
    """The parts of a file name; None for those that it lacks.

    Attributes:
        dataset: Name of the dataset.
        split: Name of the split.
        split_files: Number of files of the split, which only names in the style of TFDS
            have; of the write, if the split has several.
        write: The id of the write that the file belongs to, "" for none.
    """

    dataset: str | None
    split: str | None
    split_files: int | None = None
    write: str = ""


def parse_file_name(path: str) -> FileName:
    """Returns the parts of a file name, and of its directory.

    >>> parse_file_name("c4/c4-train_small.tfrecord-00003-of-00008")
    FileName(dataset='c4', split='train_small', split_files=8, write='')
    >>> parse_file_name("imagenet/validation-00003-of-00128.gz")
    FileName(dataset=None, split='validation', split_files=None, write='')
    >>> parse_file_name("texts/dev/part-7.tfrecord")
    FileName(dataset=None, split='dev', split_files=None, write='')
    """
    parent, _, file = path.rpartition("/")
    if named := _TFDS.fullmatch(file):
        return FileName(named[1], named[2], int(named[4]), named[3] or "")
    words = re.findall("[a-z]+", file.lower())
    folder = parent.rpartition("/")[2].lower()
    found = _SPLITS.intersection(words) or _SPLITS.intersection([folder])
    # If there are several words, none names the split.
    split = next(iter(found)) if len(found) == 1 else None
    dataset = None
    if numbered := _NUMBERED.fullmatch(file):
        parts = re.split("[-_.]", numbered[1])
        dataset = "-".join(part for part in parts if part.lower() != split) or None
    return FileName(dataset, split)


class JoinedFiles(NamedTuple):
    """The splits and datasets of files, by their names, with numbers of files.

    Attributes:
        splits: The splits.
        datasets: The datasets.
    """

    splits: Counter[str]
    datasets: Counter[str]

    @classmethod
    def of(cls, paths: Iterable[str]) -> JoinedFiles:
        """Counts the files of each split and dataset."""
        joined = cls(Counter(), Counter())
        # Most of a million names differ in the number of the shard only.
        alike = Counter(_SHARD.sub("00000", path) for path in paths)
        for path, count in alike.items():
            name = parse_file_name(path)
            if name.split is not None:
                joined.splits[name.split] += count
            if name.dataset is not None:
                joined.datasets[name.dataset] += count
        return joined

    def notice(self) -> str | None:
        """Returns a text about the splits or datasets that are joined, or None."""
        for kind, counts in (("splits", self.splits), ("datasets", self.datasets)):
            if len(counts) > 1:
                return f"files of several {kind} are joined: {listed(counts)}"
        return None


def listed(counts: Counter[str]) -> str:
    """Returns names with their numbers of files, for a message.

    >>> listed(Counter(train=1200, test=1))
    'train (1,200 files), test (1 file)'
    """
    return some_of(
        f"{name} ({count:,} {'file' if count == 1 else 'files'})"
        for name, count in counts.most_common()
    )


def check_joined(patterns: Sequence[str], paths: Iterable[str]) -> str | None:
    """Checks which splits and datasets a list of files joins.

    Files of several patterns are meant to be joined.

    Returns:
        A notice that names what is joined, or None.

    Raises:
        InputError: A single pattern matches files of several splits.
    """
    joined = JoinedFiles.of(paths)
    splits = joined.splits
    if len(patterns) == 1 and len(splits) > 1:
        raise InputError(
            "the pattern matches files of several splits",
            where=patterns[0],
            expected="files of one split",
            got=listed(splits),
            cure="give a pattern of one split, or the directory of the dataset and the "
            "split; to join them on purpose, give a list with a pattern of each",
        )
    return joined.notice()
