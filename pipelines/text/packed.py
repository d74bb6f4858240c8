"""What is said of packed rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.packed.packed_split import PackedSplit
from gristmill.pipelines.text.formatting import plural

_DIGEST_SHOWN = len("sha256:") + 16


def packed_split(split: Split, dataset: str) -> PackedSplit | None:
    """Returns what a split of packed rows says of them, None of another split."""
    if split.packed is None:
        return None
    return PackedSplit.parse(split.packed, where=dataset)


def _tokenizer(split: Split) -> Mapping[str, Any] | None:
    """Returns what is known of the tokenizer of packed rows."""
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
    """Returns what packed rows hold, as pairs of a head and a text."""
    counts = packed.counts
    places = counts.tokens + counts.removed_tokens + counts.padding_tokens
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
    if counts.removed_documents:
        gone = plural(counts.removed_documents, "document")
        tokens = plural(counts.removed_tokens, "token")
        lines.append(("removed", f"{gone} of {tokens}, which are padding now"))
    if counts.empty_documents:
        empty = plural(counts.empty_documents, "document")
        lines.append(("left out", f"{empty} without a token"))
    if counts.reference_shards:
        shards = plural(counts.reference_shards, "shard")
        lines.append(
            (
                "--fast",
                f"DIFFERS from the tokenizer: {shards} made again without it",
            )
        )
    return lines
