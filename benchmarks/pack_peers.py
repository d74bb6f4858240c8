"""The programs that `gristmill pack` is measured against, one process each.

    python -m benchmarks.pack_peers bare TOKENIZER INPUT...
    python -m benchmarks.pack_peers datatrove TOKENIZER INPUT OUTPUT

Each prints the tokens that it made. Nothing but the standard library is imported
before a program's own packages are: the second runs in an environment of its own.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

_BATCH = 256  # Documents.


def _batches(path: str) -> Iterator[list[bytes]]:
    """Yields the texts of a file of frames, whose checksums nobody looks at."""
    batch: list[bytes] = []
    with open(path, "rb", buffering=1 << 20) as file:
        while header := file.read(12):
            batch.append(file.read(int.from_bytes(header[:8], "little")))
            file.read(4)
            if len(batch) == _BATCH:
                yield batch
                batch = []
    if batch:
        yield batch


def _encode_huggingface(job: tuple[str, str]) -> int:
    """Encodes a file with one thread and drops the ids; returns how many."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(job[0])
    tokens = 0
    for batch in _batches(job[1]):
        texts = [text.decode() for text in batch]
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        tokens += sum(map(len, encodings))
    return tokens


def _encode_fast(job: tuple[str, str]) -> int:
    """The same with gigatoken, one text at a time, which is as fast."""
    encode = _load_fast(job[0]).encode
    return sum(len(encode(text)) for batch in _batches(job[1]) for text in batch)


@functools.lru_cache(maxsize=1)
def _load_fast(path: str) -> Any:
    """Returns the tokenizer, with what it remembers of the files before."""
    from gigatoken import Tokenizer

    return Tokenizer(path)


def run_bare(
    tokenizer: str, inputs: Sequence[str], *, fast: bool = False, workers: int = 2
) -> int:
    """Encodes files of texts in a pool that writes nothing; returns the tokens."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    encode = _encode_fast if fast else _encode_huggingface
    jobs = [(tokenizer, path) for path in inputs]
    if workers == 1:
        return sum(map(encode, jobs))
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        tokens = sum(pool.imap_unordered(encode, jobs))
        pool.close()
        pool.join()
    return tokens


def run_holding(tokenizer: str, inputs: Sequence[str]) -> int:
    """Encodes files in one process that has imported what `gristmill pack` does.

    Its memory is what the imports and the tokenizers themselves take.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer

    import gristmill.pipelines.convert  # noqa: F401

    reference = Tokenizer.from_file(tokenizer)
    reference.encode_batch_fast(["a text"], add_special_tokens=False)
    return run_bare(tokenizer, inputs, fast=True, workers=1)


def run_datatrove(tokenizer: str, source: str, output: str, *, tasks: int) -> int:
    """Writes the tokens of JSON lines with datatrove's `DocumentTokenizer`.

    Documents stay in their order, which is less work than its shuffle.
    """
    from datatrove.executor import LocalPipelineExecutor  # type: ignore[import-not-found]
    from datatrove.pipeline.readers import JsonlReader  # type: ignore[import-not-found]
    from datatrove.pipeline.tokens import DocumentTokenizer  # type: ignore[import-not-found]

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(source, glob_pattern="*.jsonl"),
            DocumentTokenizer(
                f"{output}/tokens",
                tokenizer_name_or_path=tokenizer,
                eos_token=None,
                shuffle_documents=False,
                save_filename="c4",
            ),
        ],
        tasks=tasks,
        workers=2,
        logging_dir=f"{output}/logs",
    ).run()
    written = pathlib.Path(output, "tokens").glob("*.ds")
    return sum(path.stat().st_size for path in written) // 2


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one program as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pack_peers")
    programs = ["bare", "bare_fast", "holding", "datatrove"]
    parser.add_argument("program", choices=programs)
    parser.add_argument("tokenizer")
    parser.add_argument("paths", nargs="+")
    args = parser.parse_args(argv)
    if args.program == "datatrove":
        source, output = args.paths
        files = len(os.listdir(source))
        tokens = run_datatrove(args.tokenizer, source, output, tasks=files)
    elif args.program == "holding":
        tokens = run_holding(args.tokenizer, args.paths)
    else:
        fast = args.program == "bare_fast"
        tokens = run_bare(args.tokenizer, args.paths, fast=fast)
    print(f"tokens: {tokens}")


if __name__ == "__main__":
    main()
