"""`gristmill pack --chat` beside `pack` of the same text, and the rows of both.

    python -m benchmarks.pack_chat --json benchmarks/results/pack_chat.json
    python -m benchmarks.pack_chat --quick

Conversations of C4-like text lie in a file of JSON lines. So does the text that each
template writes for them, as documents. Both are packed by whole processes with one
worker, in rounds that alternate; CPU time is that of the process and of all that it
starts. A feed then gives batches of both kinds of rows.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks import c4_like, pack_text
from benchmarks.contest import (
    describe_environment,
    describe_machine,
    parse_contest,
    say,
    write_reports,
)
from benchmarks.process_cost import measure_command
from benchmarks.rounds import Spread, by_round, ratios, run_process, take_turns

PACKAGES = ("jinja2", "numpy", "tokenizers", "zstandard")
_LENGTH = 2048
_BATCH_ROWS = 64
_WARM_BATCHES = 8
_LIMIT_SECONDS = 1800
_TURNS = 4
_QUESTION_CHARS = 200
_HEADER = "<|start_header_id|>{}<|end_header_id|>\n\n"
TEMPLATES = {
    "chatml": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' "
    "+ message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    # What the template of Llama 3.1 does where no tool is called.
    "llama3": "{{- bos_token }}"
    "{%- if messages[0]['role'] == 'system' %}"
    "{%- set system = messages[0]['content']|trim %}{%- set said = messages[1:] %}"
    "{%- else %}{%- set system = '' %}{%- set said = messages %}{%- endif %}"
    "{{- '" + _HEADER.format("system") + "' }}"
    "{{- 'Cutting Knowledge Date: December 2023\n' }}"
    "{{- 'Today Date: ' + strftime_now('%d %b %Y') + '\n\n' }}"
    "{{- system + '<|eot_id|>' }}"
    "{%- for message in said %}"
    "{%- if not (message.role == 'tool' or 'tool_calls' in message) %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + "
    "message['content']|trim + '<|eot_id|>' }}"
    "{%- else %}{{- raise_exception('no tools here') }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '" + _HEADER.format("assistant") + "' }}{%- endif %}",
}
_SPECIAL = (
    *("<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|eot_id|>"),
    *("<|start_header_id|>", "<|end_header_id|>"),
)
LABELS = {
    f"{kind}_{name}": f"{label}, {name}"
    for name in TEMPLATES
    for kind, label in (("text", "text that was rendered"), ("chat", "conversations"))
}
FEEDS = {
    f"feed_{key}": f"feed of rows of {label}"
    for key, label in LABELS.items()
    if key.endswith("chatml")
}
_DATE = "2026-11-24"


def conversations(size_bytes: int) -> Iterator[list[dict[str, str]]]:
    """Yields conversations of so many bytes of text in all."""
    rng = random.Random(0)
    texts = pack_text.generate_texts(0)
    while size_bytes > 0:
        messages = []
        for _ in range(rng.randint(1, _TURNS)):
            question, answer = (next(texts).decode() for _ in range(2))
            messages.append({"role": "user", "content": question[:_QUESTION_CHARS]})
            messages.append({"role": "assistant", "content": answer})
        yield messages
        size_bytes -= sum(len(message["content"].encode()) for message in messages)


def make_inputs(work: pathlib.Path, size_bytes: int) -> dict[str, Any]:
    """Writes conversations, the text of each template, templates and a tokenizer.

    Returns:
        How many conversations there are, and the bytes that each template writes.
    """
    from tokenizers import Tokenizer

    from gristmill.transforms.chat.template import Template

    say("training a tokenizer")
    path = work / "tokenizer.json"
    pack_text.train_tokenizer(path, size_bytes=min(size_bytes, 20_000_000))
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.add_special_tokens([*_SPECIAL])
    tokenizer.save(str(path))
    say(f"writing {size_bytes / 1e6:,.0f} MB of conversations")
    known = {
        name: Template(text, {"bos_token": "<|begin_of_text|>"}, date=_DATE)
        for name, text in TEMPLATES.items()
    }
    rendered = dict.fromkeys(known, 0)
    count = 0
    with contextlib.ExitStack() as stack:
        files = {
            name: stack.enter_context(open(work / f"{name}.jsonl", "wb"))
            for name in ("chat", *known)
        }
        for messages in conversations(size_bytes):
            count += 1
            files["chat"].write(_line({"messages": messages}))
            for name, template in known.items():
                text = template.render(messages, None)
                rendered[name] += len(text.encode())
                files[name].write(_line({"text": text}))
    for name, text in TEMPLATES.items():
        (work / f"{name}.jinja").write_text(text)
    return {"conversations": count, "bytes": rendered}


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def pack(key: str, work: pathlib.Path, made: dict[str, Any]) -> dict[str, Any]:
    """Packs with one worker; returns its cost and its rows.

    Raises RuntimeError if it failed.
    """
    kind, _, name = key.partition("_")
    output = work / key
    shutil.rmtree(output, ignore_errors=True)
    os.sync()
    command = [sys.executable, "-m", "gristmill", "pack", "--quiet"]
    command += [f"--tokenizer={work / 'tokenizer.json'}", f"--length={_LENGTH}"]
    command += ["--workers=1", "--num-shards=1"]
    if kind == "chat":
        command += ["--chat", f"--template={work / name}.jinja", f"--date={_DATE}"]
        command += ["--bos=<|begin_of_text|>"]
    source = work / ("chat.jsonl" if kind == "chat" else f"{name}.jsonl")
    cost = measure_command(
        [*command, str(source), str(output)], timeout_seconds=_LIMIT_SECONDS
    )
    if cost.exit_code:
        raise RuntimeError(f"{key}: exit code {cost.exit_code}\n{cost.output}")
    fields = json.loads((output / "dataset.json").read_text())
    (split,) = fields["splits"].values()
    return {
        "contestant": key,
        "cpu_seconds": cost.cpu_seconds,
        "wall_seconds": cost.wall_seconds,
        "text_bytes": made["bytes"][name],
        "rows": split["records"],
        "tokens": split["packed"]["tokens"],
        "documents": split["packed"]["documents"],
        "record_bytes": split["raw_bytes"],
    }


def feed(path: pathlib.Path, seconds: float) -> dict[str, Any]:
    """Feeds batches of rows for a while; returns tokens, CPU and wall seconds."""
    from gristmill import loader

    rows = loader.open(path)
    counts = rows.packed_counts()
    assert counts is not None
    batches = loader.global_batches(rows, batch_size=_BATCH_ROWS, seed=1, epochs=None)
    decode = loader.PackedRows.of(rows)
    fed = 0
    with batches.feed(decode=decode, host=(0, 1)) as batch:
        for _ in range(_WARM_BATCHES):
            next(batch)
        cpu, started = time.process_time(), time.perf_counter()
        while time.perf_counter() - started < seconds:
            fed += len(next(batch)["inputs"])
        used = time.process_time() - cpu
    return {
        "tokens": fed * counts.tokens / len(rows),
        "cpu_seconds": used,
        "wall_seconds": time.perf_counter() - started,
    }


def _measure(
    key: str, work: pathlib.Path, made: dict[str, Any], seconds: float
) -> dict[str, Any]:
    if key in LABELS:
        return pack(key, work, made)
    command = [sys.executable, "-m", "benchmarks.pack_chat", "--contestants", key]
    command += ["--feed", str(work / key.removeprefix("feed_"))]
    command += ["--seconds", str(seconds)]
    return run_process(key, command, variables={})


def render(results: dict[str, Any]) -> str:
    """Returns the report as Markdown."""
    runs, made = results["runs"], results["inputs"]
    rounds = max(run["round"] for run in runs)
    lines = [
        "# Packing conversations",
        "",
        "By `python -m benchmarks.pack_chat`; benchmarks/README.md tells how it "
        f"measures. {describe_machine(results['environment'])}",
        "",
        f"{made['conversations']:,} conversations, rows of {_LENGTH:,} tokens. "
        f"Medians of {rounds} rounds (lowest..highest).",
        "",
        "| | per CPU second |",
        "| --- | ---: |",
    ]
    speeds = {}
    for key, label in {**LABELS, **FEEDS}.items():
        unit = "text_bytes" if key in LABELS else "tokens"
        speeds[key] = by_round(
            runs, key, lambda run, u=unit: run[u] / run["cpu_seconds"] / 1e6
        )
        if speeds[key]:
            shown = Spread.of([*speeds[key].values()]).show(2)
            what = "MB of rendered text" if key in LABELS else "M tokens"
            lines.append(f"| {label} | {shown} {what} |")
    lines += ["", "| conversations over rendered text | ratio |", "| --- | ---: |"]
    for key, label in {**LABELS, **FEEDS}.items():
        other = key.replace("chat_", "text_")
        if other == key or not (each := ratios(speeds[key], speeds[other])):
            continue
        lines.append(f"| {label}, by CPU time | {Spread.of(each).show(2)} |")
        if key in LABELS:
            per_token = [
                by_round(runs, k, lambda run: run["record_bytes"] / run["tokens"])
                for k in (key, other)
            ]
            share = Spread.of(ratios(*per_token)).show(4)
            lines.append(f"| {label}, bytes of rows for a token | {share} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark, or one feed of it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pack_chat", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--bytes", type=c4_like.parse_size, help="of text (20MB)")
    parser.add_argument("--seconds", type=float, help="of each feed (3)")
    parser.add_argument("--feed", type=pathlib.Path, help=argparse.SUPPRESS)
    every = [*LABELS, *FEEDS]
    args = parse_contest(
        parser,
        argv,
        every,
        quick={"bytes": 200_000, "rounds": 1, "seconds": 0.1, "contestants": every},
        full={"bytes": 20_000_000, "rounds": 5, "seconds": 3, "contestants": every},
    )
    if args.feed:
        print(json.dumps(feed(args.feed, args.seconds)))
        return 0
    runs = []
    with tempfile.TemporaryDirectory(dir=args.work_dir, prefix="chat-") as directory:
        work = pathlib.Path(directory)
        made = make_inputs(work, args.bytes)
        packs = [key for key in args.contestants if key in LABELS]
        feeds = [key for key in args.contestants if key in FEEDS]
        turns = (take_turns(keys, args.rounds) for keys in (packs, feeds))
        for number, key in itertools.chain(*turns):
            run = _measure(key, work, made, args.seconds)
            runs.append({"round": number + 1, **run})
            say(f"{number + 1} {key:18} {run['cpu_seconds']:7.2f} CPU seconds")
    results = {
        "environment": describe_environment(PACKAGES),
        "inputs": made,
        "runs": runs,
    }
    write_reports(args, "pack_chat", results, render(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
