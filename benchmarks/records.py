"""The cost of a record that a pipeline of Grain gets one by one.

Documents of 2.4 kB in a shuffled order without end, on one host: `batches.records`
with steps of several sizes, and Grain's own reader of ArrayRecord files. They
alternate; each is warm when it is measured.

    python -m benchmarks.records
"""

from __future__ import annotations

import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator

import grain

from gristmill import loader
from gristmill.dataset import Writer

DOCUMENTS, DOCUMENT_BYTES, SHARDS = 40_000, 2_400, 4
TAKEN, ROUNDS = 16_384, 5


def write_documents(folder: str, *, documents: int = DOCUMENTS) -> loader.Dataset:
    """Writes a dataset of texts, and opens it."""
    chance = random.Random(1)
    known = [chance.randbytes(3).hex() for _ in range(2_000)]
    words = DOCUMENT_BYTES // 7
    with Writer(folder, records_per_shard=documents // SHARDS) as writer:
        for _ in range(documents):
            writer.write(" ".join(chance.choices(known, k=words)).encode())
    return loader.open(folder)


def readers(dataset: loader.Dataset) -> dict[str, Callable[[], Iterator[bytes]]]:
    """Returns the functions that begin to read, by name."""
    files = [dataset.shard(number).path for number in range(dataset.num_shards)]

    def records(rows: int) -> Iterator[bytes]:
        batches = loader.global_batches(dataset, batch_size=rows, seed=1)
        return iter(batches.records(host=(0, 1)))

    def shuffled(source: object) -> grain.MapDataset:
        return grain.MapDataset.source(source).shuffle(1).repeat()

    theirs = grain.sources.ArrayRecordDataSource
    few = grain.ReadOptions(num_threads=2, prefetch_buffer_size=16)
    return {
        "records, 8 rows a step": lambda: records(8),
        "records, 64 rows a step": lambda: records(64),
        "records, 256 rows a step": lambda: records(256),
        "Grain, 2 threads": lambda: iter(shuffled(theirs(files)).to_iter_dataset(few)),
        "Grain, 16 threads (default)": lambda: iter(
            shuffled(theirs(files)).to_iter_dataset()
        ),
    }


def cpu_microseconds(iterator: Iterator[bytes], *, most: int = TAKEN) -> float:
    """Returns the cost of a record in this process, all threads together."""
    taken = sum(1 for _ in itertools.islice(iterator, most // 8))
    started = time.process_time()
    taken = sum(1 for _ in itertools.islice(iterator, most))
    return (time.process_time() - started) / taken * 1e6


def main() -> None:
    """Prints a table."""
    with tempfile.TemporaryDirectory() as folder:
        by_name = readers(write_documents(f"{folder}/documents"))
        found: dict[str, list[float]] = {name: [] for name in by_name}
        for _, (name, begin) in itertools.product(range(ROUNDS), by_name.items()):
            iterator = begin()
            found[name].append(cpu_microseconds(iterator))
            iterator.close()  # type: ignore[attr-defined]  # Iterators of Grain are.
    print("| records by | CPU us a record | range |\n| --- | --- | --- |")
    for name, each in found.items():
        middle = statistics.median(each)
        print(f"| {name} | {middle:.1f} | {min(each):.1f} to {max(each):.1f} |")


if __name__ == "__main__":
    main()
