"""The description of a split: its storage, its source, and its packed rows."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np

from gristmill.dataset.arrayrecord.simple_chunks import BLOCK_BYTES
from gristmill.dataset.base.errors import InvalidDatasetError, StorageError, some_of
from gristmill.dataset.metadata.manifest import read_table
from gristmill.dataset.metadata.sources import read_inputs
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.packed.counts import PackedSplit
from gristmill.pipelines.text.formatting import plural, size_text
from gristmill.pipelines.text.supervision import supervision_lines

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
    def of(cls, dataset: str, split: Split) -> SplitStorage:
        """Reads the list of input files, and the table of shards.

        Args:
            dataset: The dataset's directory.
            split: The split, or an edition.
        """
        warnings = []
        smallest = median = largest = None
        try:
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
    found = [read_inputs(dataset, part) for part in split.parts]
    sizes = [files.stored_bytes for files in found if files is not None]
    return sum(sizes) if len(sizes) == len(found) and all(sizes) else None


_DIGEST_SHOWN = len("sha256:") + 16


def packed_split(split: Split, dataset: str) -> PackedSplit | None:
    """Returns the description of packed rows of a split, None for another split."""
    if split.packed is None:
        return None
    return PackedSplit.parse(split.packed, where=dataset)


def _tokenizer(split: Split) -> Mapping[str, Any] | None:
    """Returns the facts known about the tokenizer of packed rows."""
    found: Any = split.source
    for name in ("options", "pack", "found"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else None


def tokenizer_digest(split: Split) -> str | None:
    """Returns the digest of the tokenizer's file, None of no file or if not known."""
    digest = (_tokenizer(split) or {}).get("digest")
    return str(digest) if digest else None


def tokenizer_text(split: Split) -> str:
    """Returns of which tokenizer the tokens of packed rows are, as far as known."""
    found = _tokenizer(split)
    if found is None:
        return "not known"
    if found.get("kind") == "ids":
        return "none: the documents were tokens"
    facts = [found.get("kind")]
    if isinstance(size := found.get("vocabulary_size"), int):
        facts.append(f"{size:,} ids")
    libraries = (found.get("library"), found.get("fast_library"))
    facts.append(" and ".join(filter(None, libraries)))
    facts.append((tokenizer_digest(split) or "")[:_DIGEST_SHOWN])
    return ", ".join(filter(None, facts))


def packed_lines(packed: PackedSplit) -> list[tuple[str, str]]:
    """Returns the counts of packed rows, as pairs of a head and a text."""
    counts = packed.counts
    places = counts.tokens + counts.padding_tokens
    share = 100 * counts.padding_tokens / places if places else 0.0
    documents = f"{counts.documents:,}"
    added = f", {counts.special_tokens:,} of them added" * bool(counts.special_tokens)
    lines = [
        (
            "packed",
            f"{documents} documents into rows of {packed.length:,} tokens "
            f"({packed.method}), {share:.2f} % padding",
        ),
        (
            "tokens",
            f"{counts.tokens:,}{added}; targets {counts.targets:,} = tokens - "
            f"{plural(counts.pieces, 'piece')}",
        ),
    ]
    cut = f"{plural(counts.cut_documents, 'document')} in several pieces"
    if counts.truncated_documents:
        cut += (
            f"; {plural(counts.truncated_documents, 'document')} TRUNCATED by "
            f"{plural(counts.truncated_tokens, 'token')}"
        )
    lines.append(("cut", cut))
    aside = sum(counts.set_aside.values())
    if counts.empty_documents > aside:
        empty = plural(counts.empty_documents - aside, "document")
        lines.append(("left out", f"{empty} without a token"))
    lines += supervision_lines(counts)
    return lines


def packed_facts(split: Split, dataset: str) -> list[tuple[str, str]]:
    """Returns the counts of packed rows, as `packed_lines`, and the tokenizer.

    Nothing for other records.
    """
    packed = packed_split(split, dataset)
    if packed is None:
        return []
    return [*packed_lines(packed), ("tokenizer", tokenizer_text(split))]


def source_text(split: Split) -> str | None:
    """Returns the inputs of a split, or of an edition; None if they are not known."""
    if (count := split.writer_parts) is not None:
        return "gristmill.dataset.Writer" + (f", {count:,} parts" if count > 1 else "")
    inputs, files = map(split.source.get, ("inputs", "files"))
    if not (isinstance(inputs, list) and isinstance(files, int)):
        return None
    return f"{some_of(inputs)} ({plural(files, 'file')})"


def skipped_text(split: Split) -> str:
    """Returns how much damaged input a split has left out."""
    regions = plural(split.skipped_regions, "damaged region")
    return regions + f", {size_text(split.skipped_bytes)}" * (split.skipped_bytes > 0)


def map_name(split: Split) -> str | None:
    """Returns the user's function that made all records of a split, None if none."""
    found = {part.function for part in split.parts}
    return found.pop() if len(found) == 1 else None


def selected_text(split: Split) -> str | None:
    """Returns how many records a condition has selected; None if there was none."""
    if (condition := split.source.get("selected")) is None:
        return None
    read, left_out = split.source["records"], split.dropped_records
    noun = plural(read, "record")
    return f"{condition}: {read - left_out:,} of {noun}; {left_out:,} left out"


def map_text(split: Split) -> str | None:
    """Returns the effect of a user's function on the records of a split.

    None if there was no function.
    """
    changed = split.source.get("changed_records")
    counted = isinstance(changed, int)
    if "selected" in split.source or not (
        counted or split.dropped_records or split.added_records
    ):
        return None
    name = map_name(split)
    text = (f"{name}: " if name else "") + (
        f"{plural(split.dropped_records, 'record')} dropped, "
        f"{split.added_records:,} added"
    )
    return f"{text}, {changed:,} changed" if counted else text
