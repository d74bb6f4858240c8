"""Feeding packed rows: beside bare rows of tokens, packing on the fly, and a bucket.

    python -m benchmarks.feed_packed --json benchmarks/results/feed_packed.json \
        --markdown docs/performance/feed_packed.md
    python -m benchmarks.feed_packed --quick

The same documents lie in a packed dataset, in one whose records are the same tokens and
nothing else, and as texts. Every contestant is a process of its own, in rounds that
alternate. It gives batches until it is warm, then for some seconds. CPU time is that of
all its threads; a token counts where it is not a padding. The bucket is a server on
loopback with the latency and the bandwidth of a real one (`benchmarks.gcs_server`).
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks import c4_like, figures, gcs, pack_text
from benchmarks.contest import (
    describe_environment,
    describe_machine,
    parse_contest,
    say,
    write_reports,
)
from benchmarks.gcs_readers import BUCKET
from benchmarks.rounds import (
    run_process,
    take_turns,
    token_tables,
    tokens_per_cpu_second,
)

_LENGTH = 2048
_BATCH_ROWS = 256
_WARM_BATCHES = 8
_SHARDS = 8
_LATENCY_MS = 20.0
_TRAINING_BYTES = 20_000_000
PACKAGES = ("grain", "numpy", "tokenizers", "zstandard")
LABELS = {
    "bare": "bare rows of 2,048 uint16 tokens, as int32",
    "packed": "packed rows, six arrays",
    "grain": "Grain: tokenised and first-fit packed on the fly, six arrays",
    "packed_gcs_global": "packed rows from a bucket, global shuffle",
    "packed_gcs_block": "packed rows from a bucket, block shuffle",
}
_RATIOS = (
    ("packed", "bare", "packed rows over bare rows"),
    ("packed", "grain", "packed rows over packing on the fly"),
)


def make_inputs(work: pathlib.Path, size_bytes: int) -> dict[str, int]:
    """Writes documents, packed rows of them, and bare rows of the same tokens.

    Returns:
        How many documents, rows and tokens there are.
    """
    from gristmill import loader
    from gristmill.dataset import Writer

    say("training a tokenizer")
    tokenizer = work / "tokenizer.json"
    pack_text.train_tokenizer(tokenizer, size_bytes=min(size_bytes, _TRAINING_BYTES))
    say(f"writing and packing {size_bytes / 1e6:,.0f} MB of text")
    texts, packed = work / "texts", work / "bucket" / "packed"
    with Writer(texts, shard_bytes=size_bytes // _SHARDS) as writer:
        for text in pack_text.generate_texts(0):
            writer.write(text)
            size_bytes -= len(text)
            if size_bytes <= 0:
                break
    command = [sys.executable, "-m", "gristmill", "pack", str(texts), str(packed)]
    command += [f"--tokenizer={tokenizer}", "--column=", f"--length={_LENGTH}"]
    command += [f"--num-shards={_SHARDS}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    rows = loader.open(packed)
    decode = loader.PackedRows.of(rows)
    tokens = 0
    per_shard = -(-len(rows) // _SHARDS)
    with Writer(work / "bare", records_per_shard=per_shard) as writer:
        for begin in range(0, len(rows), 1024):
            batch = decode(rows[begin : begin + 1024])
            tokens += int(np.count_nonzero(batch["inputs_segmentation"]))
            for row in batch["inputs"].astype("<u2"):
                writer.write(row.tobytes())
    return {"documents": len(loader.open(texts)), "rows": len(rows), "tokens": tokens}


def _feed(
    path: pathlib.Path | str, decode: Callable[[Any], Any] | None, shuffle: str
) -> Iterator[int]:
    """Yields the rows of each batch of a dataset, without end."""
    from gristmill import loader

    dataset = loader.open(path)
    decode = decode or loader.PackedRows.of(dataset)
    batches = loader.global_batches(
        dataset, batch_size=_BATCH_ROWS, seed=1, shuffle=shuffle
    )
    with batches.feed(decode=decode, host=(0, 1)) as feed:
        for batch in feed:
            yield len(batch["inputs"] if isinstance(batch, dict) else batch)


def _bare(work: pathlib.Path) -> Iterator[int]:
    from gristmill import loader

    decode = loader.TokenDecoder(length=_LENGTH, stored="uint16")
    return _feed(work / "bare", decode, "global")


def _grain(work: pathlib.Path) -> Iterator[tuple[int, int]]:
    """Yields rows and tokens of each batch, as MaxText's pipeline makes them."""
    import grain
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))

    class Tokenize(grain.experimental.FlatMapTransform):  # type: ignore[misc]
        """Makes pieces of documents: shifted by one token, no longer than a row."""

        max_fan_out = 4096

        def flat_map(self, texts: Any) -> list[dict[str, Any]]:
            pieces = []
            decoded = [text.decode() for text in texts]
            for encoding in tokenizer.encode_batch_fast(decoded):
                ids = np.array(encoding.ids, np.int32)
                for begin in range(0, len(ids) - 1, _LENGTH):
                    piece = ids[begin : begin + _LENGTH + 1]
                    pieces.append({"inputs": piece[:-1], "targets": piece[1:]})
            return pieces

    source = grain.sources.ArrayRecordDataSource(
        sorted(map(str, (work / "texts").glob("*.array_record-*")))
    )
    texts = (
        grain.MapDataset.source(source)
        .shuffle(seed=1)
        .repeat()
        .batch(64, batch_fn=list)
    )
    pieces = grain.experimental.FlatMapIterDataset(texts.to_iter_dataset(), Tokenize())
    packed = grain.experimental.FirstFitPackIterDataset(
        pieces,
        length_struct={"inputs": _LENGTH, "targets": _LENGTH},
        num_packing_bins=64,
    )
    for batch in packed.batch(_BATCH_ROWS):
        rows = batch["inputs_segment_ids"]
        yield len(rows), int(np.count_nonzero(rows))


_CONTESTANTS: dict[str, Callable[[pathlib.Path], Iterator[Any]]] = {
    "bare": _bare,
    "packed": lambda work: _feed(work / "bucket" / "packed", None, "global"),
    "grain": _grain,
    "packed_gcs_global": lambda _: _feed(f"gs://{BUCKET}/packed", None, "global"),
    "packed_gcs_block": lambda _: _feed(f"gs://{BUCKET}/packed", None, "block"),
}


def run_contestant(key: str, work: pathlib.Path, seconds: float) -> dict[str, Any]:
    """Measures one contestant in this process.

    Returns:
        Rows, their tokens where it counts them, CPU and wall seconds.
    """
    batches = _CONTESTANTS[key](work)
    for _ in range(1 if key == "grain" else _WARM_BATCHES):
        next(batches)
    rows, tokens = 0, 0
    cpu, started = time.process_time(), time.perf_counter()
    while time.perf_counter() - started < seconds:
        batch = next(batches)
        given, counted = batch if isinstance(batch, tuple) else (batch, 0)
        rows, tokens = rows + given, tokens + counted
    return {
        "rows": rows,
        "tokens": tokens,
        "cpu_seconds": time.process_time() - cpu,
        "wall_seconds": time.perf_counter() - started,
    }


def _measure(
    key: str, work: pathlib.Path, seconds: float, made: dict[str, int]
) -> dict[str, Any]:
    """Runs a contestant in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.feed_packed", "--contestant", key]
    command += ["--work-dir", str(work), "--seconds", str(seconds)]
    environment = {
        # Of Hugging Face's tokenizers: threads would only cost more CPU time.
        "TOKENIZERS_PARALLELISM": "false",
        "GRISTMILL_CACHE_DIR": str(work / "cache"),
    }
    with gcs.serve(work / "bucket", _LATENCY_MS, 0) as url:
        environment["STORAGE_EMULATOR_HOST"] = url
        run = run_process(key, command, variables=environment)
    run["tokens"] = run["tokens"] or run["rows"] * made["tokens"] / made["rows"]
    return run


def render(results: dict[str, Any]) -> str:
    """Returns the report as Markdown."""
    made, runs = results["inputs"], results["runs"]
    rounds = max(run["round"] for run in runs)
    share = 1 - made["tokens"] / made["rows"] / _LENGTH
    lines = [
        "# Feeding packed rows",
        "",
        "By `python -m benchmarks.feed_packed`; benchmarks/README.md tells how it "
        f"measures. {describe_machine(results['environment'])}",
        "",
        f"{made['documents']:,} documents, {made['tokens']:,} tokens in "
        f"{made['rows']:,} rows of {_LENGTH:,}, {share:.2%} padding. Medians of "
        f"{rounds} rounds (lowest..highest).",
        "",
        *(f"{image}\n" for image in figures.images("feed_packed", results)),
        *token_tables(runs, LABELS, _RATIOS),
    ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark, or one contestant of it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.feed_packed", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--bytes", type=c4_like.parse_size, help="of text (50MB)")
    parser.add_argument("--seconds", type=float, help="of each run (3)")
    parser.add_argument("--contestant", choices=LABELS, help=argparse.SUPPRESS)
    every = [*LABELS]
    args = parse_contest(
        parser,
        argv,
        LABELS,
        quick={"bytes": 1_000_000, "rounds": 1, "seconds": 0.1, "contestants": every},
        full={"bytes": 50_000_000, "rounds": 5, "seconds": 3, "contestants": every},
    )
    if args.contestant:
        run = run_contestant(args.contestant, args.work_dir, args.seconds)
        print(json.dumps(run))
        return 0
    runs = []
    with tempfile.TemporaryDirectory(dir=args.work_dir, prefix="feed-") as directory:
        work = pathlib.Path(directory)
        made = make_inputs(work, args.bytes)
        for number, key in take_turns(args.contestants, args.rounds):
            run = _measure(key, work, args.seconds, made)
            runs.append({"round": number + 1, **run})
            speed = tokens_per_cpu_second(run)
            say(f"{number + 1} {key:18} {speed:7.2f} M tokens per CPU second")
    results = {
        "environment": describe_environment(PACKAGES),
        "settings": {
            "rounds": args.rounds,
            "seconds": args.seconds,
            "latency_ms": _LATENCY_MS,
        },
        "inputs": made,
        "runs": runs,
    }
    write_reports(args, "feed_packed", results, render(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
