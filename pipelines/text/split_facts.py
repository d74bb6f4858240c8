"""The facts of a split or an edition, for `convert`, `inspect` and `view`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np

from gristmill.dataset.arrayrecord.chunks import BLOCK_BYTES
from gristmill.dataset.base.errors import InvalidDatasetError, StorageError, some_of
from gristmill.dataset.metadata.column_table import column_entries
from gristmill.dataset.metadata.features import FeatureSpec, parse_features
from gristmill.dataset.metadata.manifest import read_table
from gristmill.dataset.metadata.sources import read_inputs
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.packed.counts import PackedCounts, PackedSplit
from gristmill.pipelines.text.printer import plural, size_text
from gristmill.pipelines.text.supervision import supervision_facts

_UNEVEN_RATIO = 2
_WORTH_A_WARNING_BYTES = 1 << 20
_DIGEST_SHOWN = len("sha256:") + 16

Facts = dict[str, Any]


def split_facts(split: Split, dataset: str) -> Facts:
    """Returns the facts of a split from its metadata, for people.

    Facts that its editions do not share are omitted.
    """
    one = not split.editions
    mean = split.raw_bytes / split.records if split.records else 0
    small = split.file_bytes <= 2 * split.shards * BLOCK_BYTES
    facts: Facts = {
        "records": f"{split.records:,} in {plural(split.shards, 'shard')}, "
        f"{mean:,.0f} bytes each on average",
        "size": f"{size_text(split.raw_bytes)} of records, "
        f"{size_text(split.file_bytes)} on storage" + ", in blocks of 64 KiB" * small,
    }
    if one:
        nulls = split.source.get("null_rows")
        by_index = split.source.get("format") in ("megatron", "olmo")
        noun = "empty document" if by_index else "row"
        facts |= {
            "source": source_text(split),
            "nulls": nulls and f"{plural(nulls, noun)} left out",
            "--map": _map_text(split),
            "selected": _selected_text(split),
        }
    if regions := split.skipped_regions:
        facts["LEFT OUT"] = (
            plural(regions, "damaged region")
            + f", {size_text(split.skipped_bytes)}" * (split.skipped_bytes > 0)
            + f": see {dataset}/errors/"
        )
    if split.packed is not None:
        packed = PackedSplit.parse(split.packed, where=dataset)
        facts["packed"] = f"rows of {packed.length:,} tokens ({packed.method})"
        facts |= packed_facts(packed.counts)
        facts["tokenizer"] = _tokenizer_text(split)
    if one:
        facts["written"] = split.writer_options.split(" | ")
    return facts | {"column": _columns(split, dataset), "digest": split.records_digest}


def packed_facts(counts: PackedCounts) -> Facts:
    """Returns the counts of rows of tokens, for people."""
    places = counts.tokens + counts.padding_tokens
    added = f", {counts.special_tokens:,} of them added" * bool(counts.special_tokens)
    empty = counts.empty_documents - sum(counts.set_aside.values())
    truncated = None
    if counts.truncated_documents:
        lost = plural(counts.truncated_tokens, "token")
        truncated = f"{plural(counts.truncated_documents, 'document')} by {lost}"
    return {
        "tokens": f"{counts.tokens:,}{added}; targets {counts.targets:,} = tokens - "
        f"{plural(counts.pieces, 'piece')}; "
        f"{100 * counts.padding_tokens / max(places, 1):.2f} % padding",
        "documents": [
            f"{counts.documents:,}, cut at "
            f"{plural(counts.pieces - counts.documents, 'place')}",
            *(
                f"{100 * count / counts.documents:.2f} % {verb}"
                for count, verb in (
                    (counts.begun_documents, "begin with the token of --bos"),
                    (counts.ended_documents, "end with the token of --eos"),
                )
                if count
            ),
        ],
        "TRUNCATED": truncated,
        "empty": f"{plural(empty, 'document')} without a token" if empty > 0 else None,
        **supervision_facts(counts),
    }


def _tokenizer_text(split: Split) -> str:
    """Returns the tokenizer of packed rows as text, as far as known."""
    found: Any = split.source
    for name in ("options", "pack", "found"):
        found = found.get(name) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping):
        return "not known"
    if found.get("kind") == "ids":
        return "none: the documents were tokens"
    size = found.get("vocabulary_size")
    libraries = (found.get("library"), found.get("fast_library"))
    facts = (
        found.get("kind"),
        f"{size:,} ids" if isinstance(size, int) else None,
        " and ".join(filter(None, libraries)),
        str(found.get("digest") or "")[:_DIGEST_SHOWN],
    )
    return ", ".join(filter(None, facts))


def source_text(split: Split) -> str | None:
    """Returns the inputs of a split, or of an edition; None if they are not known."""
    if (count := split.writer_parts) is not None:
        return "gristmill.dataset.Writer" + (f", {count:,} parts" if count > 1 else "")
    source = split.source
    inputs, files = map(source.get, ("inputs", "files"))
    if not (isinstance(inputs, list) and isinstance(files, int)):
        return None
    text = f"{some_of(inputs)} ({plural(files, 'file')})"
    if "raw_bytes" not in source:
        return text
    read = plural(source["records"], "record")
    return f"{text}, {size_text(source['raw_bytes'])} in {read}"


def map_name(split: Split) -> str | None:
    """Returns the user's function that made all records of a split, or None."""
    found = {part.function for part in split.parts}
    return found.pop() if len(found) == 1 else None


def _selected_text(split: Split) -> str | None:
    if (condition := split.source.get("selected")) is None:
        return None
    read, left_out = split.source["records"], split.dropped_records
    noun = plural(read, "record")
    return f"{condition}: {read - left_out:,} of {noun}; {left_out:,} left out"


def _map_text(split: Split) -> str | None:
    """Returns the effect of a user's function on the records of a split."""
    changed = split.source.get("changed_records")
    counted = isinstance(changed, int)
    if "selected" in split.source or not (
        counted or split.dropped_records or split.added_records
    ):
        return None
    name = map_name(split)
    return (
        (f"{name}: " if name else "")
        + f"{plural(split.dropped_records, 'record')} dropped, "
        + f"{split.added_records:,} added"
        + (f", {changed:,} changed" if counted else "")
    )


def _columns(split: Split, dataset: str) -> list[str]:
    """Returns the columns beside a split's records, and the editions that have each."""
    kinds: dict[str, dict[str, list[int]]] = {}
    sizes: dict[str, int] = {}
    for part in split.parts:
        for name, entry in column_entries(part, dataset).items():
            own = kinds.setdefault(name, {})
            own.setdefault(str(entry.kind), []).append(part.edition)
            sizes[name] = sizes.get(name, 0) + entry.file_bytes
    lines = []
    for name, found in kinds.items():
        line = f"{name}: {' or '.join(found)}, {size_text(sizes[name])}"
        having = [number for numbers in found.values() for number in numbers]
        if len(found) > 1 or len(having) < len(split.parts):
            line += f"; only of edition {some_of(having, 20)}: attach it again"
        lines.append(line)
    return lines


def feature_facts(split: Split) -> list[str]:
    """Returns the features of a split's records, for people."""
    if split.features is None:
        return []
    try:
        features = parse_features(split.features)
    except ValueError as e:
        return [str(e)]
    return [f"{name}: {feature_text(spec)}" for name, spec in features.items()]


def feature_text(spec: FeatureSpec) -> str:
    """Returns the type of a feature, in a few words."""
    text = spec.type or spec.dtype
    if spec.kind != "bytes" and text != spec.dtype:
        text += f" as {spec.dtype}"
    if spec.shape:
        sizes = ["any" if size is None else f"{size:,}" for size in spec.shape]
        text += f" [{', '.join(sizes)}]"
    if spec.names:
        text += f", {plural(len(spec.names), 'name')}"
    return text + (", or none" if spec.optional else "")


def storage_facts(dataset: str, split: Split) -> Facts:
    """Returns the size of the inputs of a split, or an edition, and warnings about it.

    It reads the table of shards and the list of inputs; facts that these lack are None.
    """
    warnings = []
    try:
        sizes = read_table(dataset, split).file_bytes
    except (InvalidDatasetError, StorageError) as e:
        warnings.append(f"sizes of shards are not known: {e.what}")
    else:
        if len(sizes):
            warnings += _uneven(dataset, int(np.median(sizes)), int(sizes.max()))
    inputs = [read_inputs(dataset, part) for part in split.parts]
    stored = [files.stored_bytes or 0 for files in inputs if files is not None]
    known = len(stored) == len(inputs) and all(stored)
    input_bytes = sum(stored) if known else None
    if input_bytes is not None:
        warnings += _larger(split, input_bytes)
    return {"input_bytes": input_bytes, "map": map_name(split), "warnings": warnings}


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
