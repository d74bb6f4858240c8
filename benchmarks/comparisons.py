"""The runs of each report that compare gristmill with a peer, or with a bound."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.rounds import Run, Spread, by_round, ratios

Results = Mapping[str, Any]


def _main(results: Results) -> list[Run]:
    return [run for run in results["runs"] if run["kind"] == "main"]


def _text(group_size: int) -> Callable[[Results], Sequence[Run]]:
    name = f"text_g{group_size}"
    return lambda results: [run for run in results["runs"] if run["dataset"] == name]


def _timed(results: Results) -> list[Run]:
    return [run for run in results["runs"] if run["round"]]


def _bucket(results: Results) -> list[Run]:
    about = {"record_bytes": 2000, "latency_ms": 20, "connect_ms": 0, "group_size": 1}
    return [
        {**run, "contestant": run["reader"]}
        for run in results["runs"]
        if about.items() <= run.items() and "error" not in run
    ]


def _part(name: str) -> Callable[[Results], Sequence[Run]]:
    return lambda results: results["parts"][name]["runs"]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A peer, and how it is compared.

    Attributes:
        peer: Its name.
        packages: Whose versions are told.
        compared: What both do.
        report: The report that has the runs.
        ours: The contestant of gristmill.
        theirs: That of the peer.
        amount: What a run has done, by name.
        runs: Those of the results that are compared.
    """

    peer: str
    packages: tuple[str, ...]
    compared: str
    report: str
    ours: str
    theirs: str
    amount: str
    runs: Callable[[Results], Sequence[Run]]

    def times(self, results: Results, seconds: str) -> Spread:
        """Returns how many times the peer's speed, by CPU or wall seconds."""

        def speed(run: Run) -> float:
            return float(run[self.amount] / run[seconds])

        runs = self.runs(results)
        both = (by_round(runs, key, speed) for key in (self.ours, self.theirs))
        return Spread.of(ratios(*both))


_GRAIN, _BEAM = "Grain's `ArrayRecordDataSource`", "`array_record.beam`"
PEERS = {
    "beam": Comparison(
        _BEAM, ("array-record", "apache-beam"), "TFRecords to shards; 2 workers",
        "convert", "gristmill_2", "array_record_beam", "input_bytes", _main,
    ),
    "tfds": Comparison(
        "`tfds convert_format`", ("tensorflow-datasets",), "the same",
        "convert", "gristmill_2", "tfds", "input_bytes", _main,
    ),
    "converter": Comparison(
        "Google's `arrayrecord-converter`", ("arrayrecord-converter",),
        "JSON lines to shards; the template keeps the lines as they are",
        "formats", "jsonl", "google_text", "bytes", _timed,
    ),
    "source": Comparison(
        _GRAIN, ("grain",), "`dataset.read` beside `source[i]`; text, random order",
        "load", "gristmill_read", "grain_getitem", "records", _text(1),
    ),
    "guide": Comparison(
        _GRAIN, ("grain",), "`batches.feed` beside the pipeline of Grain's guide",
        "load", "feed_0", "guide_grain_0", "records", _text(1),
    ),
    "bucket": Comparison(
        _GRAIN, ("grain",),
        "a global shuffle of 2 KB records in a bucket, 20 ms; Grain with 64 threads",
        "gcs", "gristmill_global", "grain_64", "records", _bucket,
    ),
    "reader": Comparison(
        "`ArrayRecordReader`", ("array-record",),
        "`dataset.read` beside `read(indices)`; text, random order",
        "load", "gristmill_read", "official_read", "records", _text(1),
    ),
    "reader_16": Comparison(
        "`ArrayRecordReader`", ("array-record",),
        "the same with 16 records a chunk, which it decodes in 2 threads",
        "load", "gristmill_read", "official_read", "records", _text(16),
    ),
    "tf_data": Comparison(
        "`tf.data`", ("tensorflow",),
        "`batches.feed` beside TFRecords through a shuffle buffer, no global shuffle",
        "load", "feed_0", "tf_data", "records", _text(1),
    ),
    "mds_write": Comparison(
        "MosaicML Streaming", ("mosaicml-streaming",),
        "records to shards with `zstd:3`, `Writer` beside `MDSWriter`; 1 process",
        "streaming", "writer", "mds_zstd", "bytes", _timed,
    ),
    "mds_read": Comparison(
        "MosaicML Streaming", ("mosaicml-streaming",),
        "`batches.feed` beside `StreamingDataset` on 1 processor; uncompressed",
        "streaming", "feed_plain", "mds_read", "records", _timed,
    ),
    "megatron": Comparison(
        "Megatron-LM's `preprocess_data.py`", ("Megatron-LM",),
        "text to tokens, 2 workers; `gristmill pack --fast` packs rows, too",
        "pack", "pack_fast", "megatron", "text_bytes", _part("fast"),
    ),
    "datatrove": Comparison(
        "datatrove's `DocumentTokenizer`", ("datatrove",), "the same",
        "pack", "pack_fast", "datatrove", "text_bytes", _part("fast"),
    ),
    "duplicates": Comparison(
        "datatrove's `ExactDedupSignature` and `ExactFindDedups`", ("datatrove",),
        "exact duplicates by text, 1 worker; `gristmill unique` of a dataset",
        "unique", "text", "datatrove", "text_bytes", _timed,
    ),
    "packing": Comparison(
        "Grain, packing on the fly", ("grain",),
        "packed rows beside tokenising and first-fit packing in the trainer",
        "feed_packed", "packed", "grain", "tokens", _timed,
    ),
    "maxtext_records": Comparison(
        "MaxText's own Grain pipeline", ("maxtext",),
        "the same work on records by gristmill; 1 worker, the default",
        "maxtext", "records_worker", "own_worker", "tokens", _timed,
    ),
    "maxtext": Comparison(
        "MaxText's own Grain pipeline", ("maxtext",),
        "rows that `gristmill pack` made before; 1 worker, the default",
        "maxtext", "packed_worker", "own_worker", "tokens", _timed,
    ),
}  # fmt: skip

# Those of the README, by what is made: datasets, tokens, batches.
IN_SHORT = ("beam", "megatron", "guide", "mds_read", "maxtext_records")

# Bounds, which are no peers.
BOUNDS = {
    "bare": Comparison(
        "a bare loop", (), "", "convert_binary", "gristmill_1", "bare", "input_bytes",
        _main,
    ),
}  # fmt: skip
