"""Options of the shard writer: their values, patterns and defaults.

Imports nothing heavy: the command line takes its descriptions from here.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Literal, get_args

from gristmill.dataset.base.errors import InputError

# What to compare when a finished shard is read back.
Check = Literal["records", "sample"]
# The encoder: this package, or the writer of array_record.
Writer = Literal["gristmill", "official"]

DEFAULT_GROUP_SIZE = 1
DEFAULT_COMPRESSION = "zstd:3"
# A POSIX extended regular expression, which Python's `re` reads alike.
COMPRESSION_PATTERN = "(zstd|brotli)(:-?[0-9]+)?|snappy|uncompressed"

# Window of zstd, as in the official writer: it bounds the memory of readers.
WINDOW_LOG = 20
# Limits of the official writer.
_LEVELS = {"zstd": range(-131072, 23), "brotli": range(12)}
_DEFAULT_LEVELS = {"zstd": 3, "brotli": 6}


@dataclasses.dataclass(frozen=True, kw_only=True)
class WriterOptions:
    """Encoding of shards.

    Attributes:
        group_size: Records in a chunk. 1 gives the fastest random reads; 16 or more
            compresses better and suits readers that read blocks.
        compression: `zstd[:LEVEL]`, `brotli[:LEVEL]`, `snappy` or `uncompressed`.
        writer: `gristmill`, or `official` for the writer of array_record. Both write
            the same format; the bytes differ if their codecs do. None for that of the
            job being continued. A new job gets `gristmill`, or `official` if gristmill
            was installed without a C compiler.
        versions: Versions that decide the bytes besides these options, from the machine
            that planned the job; empty for any.
    """

    group_size: int = DEFAULT_GROUP_SIZE
    compression: str = DEFAULT_COMPRESSION
    writer: Writer | None = None
    versions: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.group_size <= 1 << 20:
            raise InputError(
                "group size is out of range",
                expected="1 to 1,048,576 records",
                got=self.group_size,
                cure="choose another with --group-size",
            )
        if self.writer not in (None, *get_args(Writer)):
            raise InputError(
                "unknown writer",
                expected=" or ".join(get_args(Writer)),
                got=repr(self.writer),
                cure="choose another with --writer",
            )
        # One spelling for each meaning: it is compared between runs.
        object.__setattr__(self, "compression", _parse_compression(self.compression))

    @property
    def official(self) -> str:
        """The options string of the official writer.

        The number of threads is fixed because the writer records it in the footer,
        and equal input must give equal bytes on any machine.
        """
        return f"group_size:{self.group_size},{self.compression},max_parallelism:1"

    @property
    def described(self) -> str:
        """The options string of a dataset written with these options."""
        if self.writer == "official":
            return self.official
        versions = f",{self.versions}" if self.versions else ""
        return f"group_size:{self.group_size},{self.compression}{versions}"

    def as_dict(self) -> dict[str, Any]:
        """Returns the options as plain values, for jobs to compare.

        Jobs of older releases have no choice of writers: theirs is the official one.
        """
        fields = dataclasses.asdict(self)
        if self.writer == "official":
            del fields["writer"], fields["versions"]
        return fields

    @property
    def recorded(self) -> str:
        """The options string in the footer, in the spelling of the official writer."""
        window = (
            f",window_log:{WINDOW_LOG}" if self.compression.startswith("zstd") else ""
        )
        return (
            f"group_size:{self.group_size},transpose:false,pad_to_block_boundary:false,"
            f"{self.compression}{window},max_parallelism:1"
        )


def _parse_compression(text: str) -> str:
    name, _, level = text.partition(":")
    levels = _LEVELS.get(name)
    known = re.fullmatch(COMPRESSION_PATTERN, text) is not None
    if not known or (level and levels is not None and int(level) not in levels):
        raise InputError(
            "unknown compression",
            expected="zstd:LEVEL (-131072 to 22), brotli:LEVEL (0 to 11), snappy or "
            "uncompressed",
            got=repr(text),
            cure="choose another with --compression",
        )
    if levels is None:
        return name
    return f"{name}:{int(level) if level else _DEFAULT_LEVELS[name]}"
