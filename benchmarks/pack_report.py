"""What `benchmarks.pack` measured, as Markdown."""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

_LABELS = {
    "pack": "`gristmill pack`, Hugging Face's tokenizers",
    "bare": "a pool of two loops over `encode_batch_fast`, nothing written",
    "pack_fast": "`gristmill pack --fast`, gigatoken",
    "bare_fast": "a pool of two loops over gigatoken, nothing written",
    "datatrove": "datatrove, `DocumentTokenizer`",
    "megatron": "Megatron-LM, `tools/preprocess_data.py`",
}

_SHORT = {
    "pack": "`gristmill pack`",
    "bare": "the bare pool",
    "pack_fast": "`gristmill pack --fast`",
    "bare_fast": "the bare pool",
    "datatrove": "datatrove",
    "megatron": "Megatron-LM",
}

Run = Mapping[str, Any]


def _range(values: Sequence[float], digits: int = 2) -> str:
    middle = statistics.median(values)
    return f"{middle:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def _of(runs: Sequence[Run], key: str) -> list[Run]:
    found = [run for run in runs if run["contestant"] == key]
    return sorted(found, key=lambda run: int(run["round"]))


def text_speed(run: Run) -> float:
    """Returns MB of text for each CPU second."""
    return float(run["text_bytes"] / 1e6 / run["cpu_seconds"])


def token_speed(run: Run) -> float:
    """Returns millions of tokens for each CPU second."""
    return float(run["tokens"] / 1e6 / run["cpu_seconds"])


def ratios(runs: Sequence[Run], key: str, other: str) -> list[float]:
    """Returns how many times another's MB per CPU second, in rounds that both have."""
    pairs = zip(_of(runs, key), _of(runs, other), strict=False)
    return [text_speed(a) / text_speed(b) for a, b in pairs]


def render_part(runs: Sequence[Run], rows: Sequence[tuple[str, str]]) -> str:
    """Returns the table of a part, and how its contestants compare."""
    lines = [
        "| whole process | MB of text | MB per CPU s | M tokens per CPU s | wall s "
        "| rounds |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for key, label in _LABELS.items():
        if own := _of(runs, key):
            wall = statistics.median(run["wall_seconds"] for run in own)
            lines.append(
                f"| {label} | {own[0]['text_bytes'] / 1e6:,.0f} "
                f"| {_range([text_speed(run) for run in own], 1)} "
                f"| {_range([token_speed(run) for run in own])} "
                f"| {wall:.1f} | {len(own)} |"
            )
    found = [(a, b, each) for a, b in rows if (each := ratios(runs, a, b))]
    if found:
        lines += ["", "| speed by CPU time, round by round | |", "| --- | ---: |"]
        lines += [
            f"| {_SHORT[a]} over {_SHORT[b]} | {_range(each)} |" for a, b, each in found
        ]
    return "\n".join(lines)


def render_memory(runs: Sequence[Run]) -> str:
    """Returns the table of memory."""
    lines = [
        "| text of the shard, MB | peak of the worker, MB "
        "| imports and tokenizers alone, MB | above them, MB |",
        "| ---: | ---: | ---: | ---: |",
    ]
    for pack, base in zip(_of(runs, "pack_one"), _of(runs, "holding"), strict=True):
        peaks = [run["peak_process_bytes"] / 1e6 for run in (pack, base)]
        lines.append(
            f"| {pack['text_bytes'] / 1e6:,.0f} | {peaks[0]:,.0f} | {peaks[1]:,.0f} "
            f"| {peaks[0] - peaks[1]:,.0f} |"
        )
    return "\n".join(lines)


def render(results: Mapping[str, Any]) -> str:
    """Returns the tables of all parts that ran."""
    return "\n\n".join(_tables(results["parts"]).values()) + "\n"


def _tables(parts: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    if part := parts.get("huggingface"):
        found["huggingface"] = render_part(part["runs"], [("pack", "bare")])
    if part := parts.get("fast"):
        rows = [("pack_fast", key) for key in ("bare_fast", "datatrove", "megatron")]
        found["fast"] = render_part(part["runs"], rows)
    if part := parts.get("memory"):
        found["memory"] = render_memory(part["runs"])
    if part := parts.get("packing"):
        text = part["runs"][0].strip().replace("\n| what", "\n\n| what")
        found["packing"] = text.replace("documents\n|", "documents:\n\n|")
    return found


_HEADS = {
    "huggingface": """## With Hugging Face's tokenizers

From TFRecord files to a committed dataset, beside a pool that encodes the same texts
in batches of 256 and drops the ids. The target is at least 0.9 of the speed of the
pool.""",
    "fast": """## With gigatoken

`--fast`, with the comparison with Hugging Face's tokenizers on a sample, and the
proof of every shard. The targets are 18 MB per CPU second, and ten times what the
others do. These have fewer documents, tokenise with Hugging Face's library, and write
a stream of tokens without packing it. Speeds of the contestants are compared by MB
per CPU second.""",
    "memory": """## Memory

One worker makes one shard. The peak of its process, beside one that has imported and
loaded the same and tokenises the same texts with nothing kept: gigatoken remembers
the words that it has seen. The target is at most 300 MB above that, whatever the
shard.""",
    "packing": """## Padding, cuts, and the cost of packing

Lengths of documents are made up. Concatenating cuts most documents that need not be
cut, and one document a row is mostly padding. Best fit over a whole shard has as
little padding as concatenation, and cuts no document that fits a row. The targets are
0.1 % of padding and 5 us a document.""",
}

_INTRODUCTION = """# Packing

`gristmill pack` from text to rows, and the feed of the rows. Everything runs as whole
processes on two cores, in rounds that alternate; tables have medians and (lowest to
highest), ratios are computed round by round. CPU seconds are those of all processes,
start-up included. The text is C4-like, and no document occurs twice:
[benchmarks/pack_text.py](../../benchmarks/pack_text.py). The tokenizer is a byte-level
BPE of 32,768 tokens that was trained on such text; rows have 2,048 tokens.
[benchmarks/README.md](../../benchmarks/README.md) says how to run all of it.
"""

_LEVELS = """## Compression

Rows of token ids are compressed like other records, by default with `zstd:3`. Ids of
two bytes compress little, and cost little: on rows of this text, one row at a time,

| | size | compressing, us a row | decompressing, us a row |
| --- | ---: | ---: | ---: |
| `zstd:1` | 0.80 | 11.0 | 4.8 |
| `zstd:3` | 0.79 | 14.9 | 5.6 |
| `zstd:5` | 0.79 | 35.4 | 6.0 |
| `zstd:9` | 0.79 | 56.8 | 6.3 |

That is 3 us of the time that a document takes, so the default stays. `--compression
uncompressed` trades a quarter more storage for a cheaper feed.
"""


def write_document(directory: pathlib.Path) -> None:
    """Writes pack.md from the results beside it.

    Args:
        directory: Has pack.json, and feed_packed.json.
    """
    results = json.loads((directory / "pack.json").read_text())
    sections = [_INTRODUCTION]
    for name, table in _tables(results["parts"]).items():
        sections.append(f"{_HEADS[name]}\n\n{table}\n")
    sections.append(_LEVELS)
    fed = directory / "feed_packed.json"
    if fed.exists():
        from benchmarks import feed_packed

        text = feed_packed.render(json.loads(fed.read_text()))
        head, _, rest = text.partition("\n")
        sections.append(f"#{head}\n{rest.rstrip()}\n")
    document = "\n".join(sections).replace(" us ", " µs ")
    (directory / "pack.md").write_text(document)


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the document."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pack_report")
    parser.add_argument("directory", type=pathlib.Path, help="with the results")
    write_document(parser.parse_args(argv).directory)


if __name__ == "__main__":
    main()
