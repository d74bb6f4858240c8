"""The fill of rows, cuts, and the cost of packing, by method.

It prints two tables for made-up lengths of documents, or for those of a file:

- padding and cuts of each method, and of Grain's packers with a number of open rows
- CPU microseconds a document: of the plan, of all that packing does (tokens to disk,
  plan, rows, proof), and of Grain's packers on the same documents; medians of rounds
  that alternate

Grain refuses a document longer than a row. It gets the pieces that gristmill makes of
long documents: whole rows, and the rest.

    python -m benchmarks.packing
    python -m benchmarks.packing --lengths FILE  # a document's tokens on each line
    python -m benchmarks.packing --text DIR  # TFRecords: trains a BPE on their text

Lengths of a file are drawn with a little noise (5 %), as there are seldom enough.
"""

from __future__ import annotations

import argparse
import importlib.util
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.places import Places
from gristmill.transforms.jobs.pack_options import PackOptions, TokenizerSpec
from gristmill.transforms.tokens.best_fit import plan_rows
from gristmill.transforms.tokens.documents import Documents
from gristmill.transforms.tokens.row_packer import RowPacker

METHODS = ("best-fit", "concat", "none")
ROW_LENGTHS = (2048, 4096)
OPEN_ROWS = (16, 64)
ROUNDS = 3
VOCABULARY = 50_257
NOISE = 0.05
BATCH_DOCUMENTS = 1024

Lengths = npt.NDArray[np.uint32]


class Fill(NamedTuple):
    """How a method fills rows, as shares of 1."""

    padding: float
    cut: float
    truncated_tokens: float


# Lengths of documents.


def lognormal(documents: int, *, mean: float, sigma: float, seed: int) -> Lengths:
    """Returns lengths of this mean and spread, each at least 1."""
    chance = np.random.default_rng(seed)
    lengths = chance.lognormal(np.log(mean) - sigma**2 / 2, sigma, documents)
    return np.maximum(lengths, 1).astype(np.uint32)


def drawn(found: Sequence[int], documents: int, *, seed: int) -> Lengths:
    """Returns lengths drawn from some, with noise."""
    chance = np.random.default_rng(seed)
    lengths: npt.NDArray[np.float64]
    lengths = chance.choice(np.asarray(found, np.float64), documents)
    lengths = lengths * chance.normal(1, NOISE, documents)
    return np.maximum(np.rint(lengths), 1).astype(np.uint32)


def lengths_of_text(directory: pathlib.Path) -> list[int]:
    """Returns the tokens of each text, by a BPE of 32,000 ids trained on all of them.

    Args:
      directory: TFRecords of tf.train.Example with a feature `text`.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    from benchmarks.peers import read_frames_unchecked
    from gristmill.dataset.base.example import decode_example

    paths = sorted(path for path in directory.iterdir() if "tfrecord" in path.name)
    texts = [
        str(decode_example(record)["text"][0], "utf-8")  # type: ignore[arg-type]
        for path in paths
        for record in read_frames_unchecked(str(path))
    ]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=32_000, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return [len(encoded) for encoded in tokenizer.encode_batch_fast(texts)]


# What each method does with them.


def fill(lengths: Lengths, length: int, method: str) -> Fill:
    """Returns how full rows are, what is cut and what is lost."""
    kept = np.minimum(lengths, length) if method == "none" else lengths
    packing = plan_rows(kept, length=length, method=method)
    tokens = int(kept.sum(dtype=np.int64))
    pieces = np.bincount(packing.documents, minlength=len(lengths))
    return Fill(
        padding=1 - tokens / (len(packing.row_ends) * length),
        cut=float((pieces > 1).mean()),
        truncated_tokens=1 - tokens / int(lengths.sum(dtype=np.int64)),
    )


def pieces_of(lengths: Lengths, length: int) -> Iterator[int]:
    """Yields whole rows of each document, and its rest."""
    for size in lengths.tolist():
        yield from [length] * (size // length)
        if size % length:
            yield size % length


class GrainPacking(NamedTuple):
    """What Grain made of documents."""

    rows: int
    tokens: int
    seconds: float


def grain_packing(
    lengths: Lengths, length: int, *, packer: str, open_rows: int
) -> GrainPacking:
    """Packs documents with Grain, and returns the result and the CPU time."""
    import grain
    from grain import experimental

    pieces = list(pieces_of(lengths, length))
    tokens = np.arange(length, dtype=np.int32)
    source = grain.MapDataset.source(range(len(pieces)))
    documents = source.map(lambda n: {"tokens": tokens[: pieces[n]]}).to_iter_dataset()
    packed = getattr(experimental, packer)(
        documents, length_struct={"tokens": length}, num_packing_bins=open_rows
    )
    begin = time.process_time()
    rows = filled = 0
    for row in packed:
        rows += 1
        filled += int(np.count_nonzero(row["tokens_segment_ids"]))
    return GrainPacking(rows, filled, time.process_time() - begin)


def made_documents(lengths: Lengths) -> list[Documents]:
    """Returns documents of random tokens: no two are alike."""
    chance = np.random.default_rng(0)
    made = []
    for begin in range(0, len(lengths), BATCH_DOCUMENTS):
        part = lengths[begin : begin + BATCH_DOCUMENTS].astype(np.int64)
        ids = chance.integers(0, VOCABULARY, int(part.sum()), dtype=np.uint32)
        made.append(Documents(ids, part, 0, 0))
    return made


def plan_seconds(lengths: Lengths, length: int) -> float:
    """Returns the CPU time of a plan."""
    begin = time.process_time()
    plan_rows(lengths, length=length, method="best-fit")
    return time.process_time() - begin


def packer_seconds(documents: Sequence[Documents], length: int) -> float:
    """Returns the CPU time of all that packing does to a shard."""
    spec = TokenizerSpec(kind="ids", digest="", library="", vocabulary_size=VOCABULARY)
    options = PackOptions(length=length, found=spec)
    with (
        tempfile.TemporaryDirectory() as directory,
        RowPacker(options, directory=directory) as packer,
    ):
        begin = time.process_time()
        for part in documents:
            places = np.arange(len(part.lengths))
            packer.add(part, Places(np.zeros_like(places), places))
        rows = list(packer.rows())
        packer.prove(rows)
        return time.process_time() - begin


# Tables.


def show_fill(name: str, lengths: Lengths, *, with_grain: bool) -> None:
    """Prints the rows of the first table for these lengths."""
    for length in ROW_LENGTHS:
        needed = float((lengths > length).mean())
        for method in METHODS:
            padding, cut, truncated = fill(lengths, length, method)
            print(
                f"| {name} | {length:,} | {method} | {100 * padding:.3f} % | "
                f"{100 * cut:.1f} % | {100 * needed:.1f} % | {100 * truncated:.1f} % |"
            )
        if not with_grain:
            continue
        for packer in ("FirstFit", "BestFit"):
            for open_rows in OPEN_ROWS:
                rows, tokens, _ = grain_packing(
                    lengths,
                    length,
                    packer=f"{packer}PackIterDataset",
                    open_rows=open_rows,
                )
                padding = 1 - tokens / (rows * length)
                print(
                    f"| {name} | {length:,} | Grain {packer}, {open_rows} open | "
                    f"{100 * padding:.3f} % | {100 * needed:.1f} % | "
                    f"{100 * needed:.1f} % | 0.0 % |"
                )


def show_cost(lengths: Lengths, length: int, *, with_grain: bool) -> None:
    """Prints the second table."""
    documents = made_documents(lengths)
    runs: dict[str, Callable[[], float]] = {
        "plan_rows": lambda: plan_seconds(lengths, length),
        "RowPacker: disk, plan, rows, proof": lambda: packer_seconds(documents, length),
    }
    if with_grain:
        for packer in ("FirstFit", "BestFit"):
            runs[f"Grain {packer}, {OPEN_ROWS[-1]} open"] = lambda packer=packer: (
                grain_packing(  # type: ignore[misc]
                    lengths,
                    length,
                    packer=f"{packer}PackIterDataset",
                    open_rows=OPEN_ROWS[-1],
                ).seconds
            )
    rounds: list[dict[str, float]] = [
        {name: run() for name, run in runs.items()} for _ in range(ROUNDS)
    ]
    medians = {name: statistics.median(r[name] for r in rounds) for name in runs}
    base = medians["RowPacker: disk, plan, rows, proof"]
    print("| what | us a document | of RowPacker |")
    print("| --- | ---: | ---: |")
    for name, seconds in medians.items():
        print(f"| {name} | {1e6 * seconds / len(lengths):.2f} | {seconds / base:.2f} |")


def main(argv: Sequence[str] | None = None) -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.packing", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--documents", type=int, default=20_000, help="(20,000)")
    parser.add_argument("--lengths", type=pathlib.Path, help="a number on each line")
    parser.add_argument("--text", type=pathlib.Path, help="TFRecords to tokenise")
    parser.add_argument("--no-grain", action="store_true", help="leave out Grain")
    parser.add_argument("--seed", type=int, default=0, help="of the lengths (0)")
    args = parser.parse_args(argv)
    with_grain = not args.no_grain and importlib.util.find_spec("grain") is not None
    if not with_grain:
        print("without Grain's packers")
    given: dict[str, Any] = {"documents": args.documents, "seed": args.seed}
    cases = {
        "C4-like (lognormal, mean 458, sigma 1.03)": lognormal(
            mean=458, sigma=1.03, **given
        ),
        "lognormal, mean 500, sigma 1.5": lognormal(mean=500, sigma=1.5, **given),
    }
    if args.lengths is not None:
        found = [int(line) for line in args.lengths.read_text().split()]
        cases = {args.lengths.name: drawn(found, **given)} | cases
    if args.text is not None:
        found = lengths_of_text(args.text)
        cases = {f"text of {args.text.name}": drawn(found, **given)} | cases
    print(f"{args.documents:,} documents")
    print("| lengths | row | method | padding | cut | must be cut | tokens lost |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: |")
    for name, lengths in cases.items():
        show_fill(name, lengths, with_grain=with_grain)
    show_cost(next(iter(cases.values())), ROW_LENGTHS[0], with_grain=with_grain)


if __name__ == "__main__":
    main()
