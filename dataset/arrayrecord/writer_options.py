"""Options of the shard writer: their values, patterns and defaults.

Imports nothing heavy: the command line takes its descriptions from here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
import re
from typing import Any

from gristmill.dataset.base.errors import InputError

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
        versions: Versions of the encoder and the codec, on which the bytes depend too,
            as of the machine that planned the job; empty for any.
    """

    group_size: int = DEFAULT_GROUP_SIZE
    compression: str = DEFAULT_COMPRESSION
    versions: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.group_size <= 1 << 20:
            raise InputError(
                "group size is out of range",
                expected="1 to 1,048,576 records",
                got=self.group_size,
                cure="choose another with --group-size",
            )
        # One spelling for each meaning: it is compared between runs.
        object.__setattr__(self, "compression", _parse_compression(self.compression))

    @property
    def described(self) -> str:
        """The options string of a dataset written with these options."""
        versions = f",{self.versions}" if self.versions else ""
        return f"group_size:{self.group_size},{self.compression}{versions}"

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


def positive(name: str, value: Any) -> Any:
    """Returns an option that is a positive whole number, or None; raises InputError."""
    if value is None:
        return None
    with contextlib.suppress(TypeError):
        if operator.index(value) >= 1:
            return operator.index(value)
    raise InputError(
        f"{name} is not a whole number above 0",
        got=repr(value),
        cure=f"give 1 or more, or leave {name} out",
    )
