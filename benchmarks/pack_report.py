"""The results of `benchmarks.pack`, as Markdown."""

from __future__ import annotations

import json
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import figures
from benchmarks.contest import describe_machine
from benchmarks.rounds import Run, Spread, by_round, ratios, tokens_per_cpu_second

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


def text_speed(run: Run) -> float:
    """Returns MB of text for each CPU second."""
    return float(run["text_bytes"] / 1e6 / run["cpu_seconds"])


def render_part(runs: Sequence[Run], rows: Sequence[tuple[str, str]]) -> str:
    """Returns the table of a part, and how its contestants compare."""
    lines = [
        "| whole process | MB of text | MB per CPU s | M tokens per CPU s | wall s "
        "| rounds |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for key, label in _LABELS.items():
        if own := [run for run in runs if run["contestant"] == key]:
            wall = statistics.median(run["wall_seconds"] for run in own)
            lines.append(
                f"| {label} | {own[0]['text_bytes'] / 1e6:,.0f} "
                f"| {Spread.of([*map(text_speed, own)]).show(1)} "
                f"| {Spread.of([*map(tokens_per_cpu_second, own)]).show(2)} "
                f"| {wall:.1f} | {len(own)} |"
            )
    speeds = {key: by_round(runs, key, text_speed) for key in _LABELS}
    found = [(a, b, each) for a, b in rows if (each := ratios(speeds[a], speeds[b]))]
    if found:
        lines += ["", "| speed by CPU time, round by round | |", "| --- | ---: |"]
        lines += [
            f"| {_SHORT[a]} over {_SHORT[b]} | {Spread.of(each).show(2)} |"
            for a, b, each in found
        ]
    return "\n".join(lines)


def render_memory(runs: Sequence[Run]) -> str:
    """Returns the table of memory."""
    lines = [
        "| text of the shard, MB | peak of the worker, MB "
        "| imports and tokenizers alone, MB | above them, MB |",
        "| ---: | ---: | ---: | ---: |",
    ]
    own = (
        [r for r in runs if r["contestant"] == key] for key in ("pack_one", "holding")
    )
    for pack, base in zip(*own, strict=True):
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
processes on two cores, in rounds that alternate; tables have medians and
(lowest..highest), ratios are computed round by round. CPU seconds are those of all
processes, start-up included. The text is C4-like, and no document occurs twice:
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


_FEED = """## Feeding packed rows

Beside bare rows of tokens, packing on the fly, and a bucket:
[feed_packed.md](feed_packed.md).
"""


def render_document(directory: pathlib.Path) -> str:
    """Returns pack.md, made of the results in its folder.

    Args:
        directory: Has pack.json.
    """
    results = json.loads((directory / "pack.json").read_text())
    parts = results["parts"]
    machine = describe_machine(next(iter(parts.values()))["environment"])
    sections = [f"{_INTRODUCTION}\n{machine}\n"]
    sections += [f"{image}\n" for image in figures.images("pack", results)]
    for name, table in _tables(parts).items():
        sections.append(f"{_HEADS[name]}\n\n{table}\n")
    sections.append(_LEVELS)
    sections.append(_FEED)
    return "\n".join(sections).replace(" us ", " µs ")
