"""How a split is stored: the sizes of its shards, beside those of its input."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.dataset.arrayrecord.footer import BLOCK_BYTES
from gristmill.dataset.base.errors import InvalidDatasetError, StorageError
from gristmill.dataset.metadata.provenance import SourceFiles, read_source_files
from gristmill.dataset.metadata.read_manifest import read_table
from gristmill.dataset.metadata.splits import Split
from gristmill.pipelines.text.formatting import map_name, size_text

_UNEVEN_RATIO = 2
_WORTH_A_WARNING_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitStorage:
    """How a split, or one of its editions, is stored.

    Attributes:
        smallest_bytes: Size of the smallest shard; None if there is no shard, or the
            table of shards cannot be read.
        median_bytes: Size of the median shard, likewise.
        largest_bytes: Size of the largest shard, likewise.
        input_bytes: Size of the input files as they are stored; None if not known.
        map: The `--map` function that made the records; None if none, or not known.
        warnings: What is not as one would wish.
    """

    smallest_bytes: int | None
    median_bytes: int | None
    largest_bytes: int | None
    input_bytes: int | None
    map: str | None
    warnings: tuple[str, ...]

    @classmethod
    def of(
        cls,
        dataset: str,
        split: Split,
        sizes: npt.NDArray[np.int64] | None = None,
    ) -> SplitStorage:
        """Reads the list of input files, and the table of shards.

        Args:
            dataset: The dataset's directory.
            split: The split, or an edition.
            sizes: Sizes of its shards, where they are known already.
        """
        warnings = []
        smallest = median = largest = None
        try:
            if sizes is None:
                sizes = read_table(dataset, split).file_bytes
        except (InvalidDatasetError, StorageError) as e:
            warnings.append(f"sizes of shards are not known: {e.what}")
        else:
            if len(sizes):
                smallest, largest = int(sizes.min()), int(sizes.max())
                median = int(np.median(sizes))
                warnings += _uneven(dataset, median, largest)
        input_bytes = _input_bytes(dataset, split)
        if input_bytes is not None:
            warnings += _larger(split, input_bytes)
        return cls(
            smallest_bytes=smallest,
            median_bytes=median,
            largest_bytes=largest,
            input_bytes=input_bytes,
            map=map_name(split),
            warnings=tuple(warnings),
        )

    def lines(self) -> list[str]:
        """Returns the sizes and the warnings for people."""
        lines = []
        if self.largest_bytes is not None:
            sizes = (self.smallest_bytes, self.median_bytes, self.largest_bytes)
            low, middle, high = (size_text(size or 0) for size in sizes)
            lines.append(
                f"  shards    {low} the smallest, {middle} the median, {high} the "
                "largest"
            )
        if self.input_bytes is not None:
            lines.append(f"  input     {size_text(self.input_bytes)} as stored")
        return lines + [f"  warning   {warning}" for warning in self.warnings]

    def as_dict(self) -> dict[str, Any]:
        """Returns it for JSON."""
        return dataclasses.asdict(self)


def _uneven(dataset: str, median: int, largest: int) -> list[str]:
    if largest < max(_UNEVEN_RATIO * median, median + _WORTH_A_WARNING_BYTES):
        return []
    times = f"{largest / median:,.1f} times the median" if median else "most bytes"
    command = ["gristmill", "convert", dataset, f"{dataset.rstrip('/')}-even"]
    return [
        f"the shards are uneven: the largest has {times}; `{shlex.join(command)}` "
        "writes the records into even ones"
    ]


def _larger(split: Split, input_bytes: int) -> list[str]:
    excess = split.file_bytes - input_bytes
    if excess < _WORTH_A_WARNING_BYTES:
        return []
    cure = "a larger --group-size, such as 16, or a higher level of --compression makes"
    if excess < split.shards * BLOCK_BYTES:
        cure = "each is filled up to a multiple of 64 KiB; a smaller --num-shards makes"
    return [
        f"the shards take more than the input, {size_text(split.file_bytes)} instead "
        f"of {size_text(input_bytes)}: {cure} them smaller"
    ]


def _input_bytes(dataset: str, split: Split) -> int | None:
    found = [read_source_files(dataset, part) for part in split.parts]
    sizes = [files.stored_bytes for files in found if isinstance(files, SourceFiles)]
    return sum(sizes) if len(sizes) == len(found) and all(sizes) else None
