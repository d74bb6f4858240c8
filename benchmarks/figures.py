"""The comparisons in the figures of the reports, taken from the stored runs."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks import plots
from benchmarks.plots import Panel, compare
from benchmarks.rounds import Run, by_round

Results = Mapping[str, Any]
_Names = Mapping[str, tuple[str, str]]

_CONVERT = {
    "gristmill_2": ("ours", "2 workers"),
    "gristmill_1": ("ours", "1 worker"),
    "array_record_beam": ("peer", "array_record.beam"),
    "tfds": ("peer", "tfds convert_format"),
    "bare": ("floor", "bare loop"),
    "bare_pool": ("floor", "2 bare loops"),
}
_FORMATS = {
    "tfrecord": ("ours", "TFRecord"),
    "jsonl": ("ours", "JSON lines"),
    "parquet": ("ours", "Parquet"),
    "google_text": ("peer", "arrayrecord-converter"),
    "jsonl_loop": ("floor", "bare loop, JSON lines"),
    "parquet_loop": ("floor", "bare loop, Parquet"),
}
_LOAD = {
    "gristmill_read": ("ours", "dataset.read"),
    "plain_read": ("ours", "the same, plain files"),
    "feed_0": ("ours", "batches.feed"),
    "guide_gristmill_0": ("ours", "guide, gristmill's source"),
    "official_read": ("peer", "ArrayRecordReader.read"),
    "grain_getitems": ("peer", "Grain's source, batches"),
    "grain_getitem": ("peer", "Grain's source, singly"),
    "guide_grain_0": ("peer", "Grain's guide"),
    "tf_data": ("peer", "tf.data, partly shuffled"),
    "decompression": ("floor", "decompression alone"),
}
_DATASETS = {
    "text_g1": "Text of 2.2 KB, one record a chunk",
    "text_g16": "Text of 2.2 KB, 16 records a chunk",
    "binary_g1": "Binary of 100 KB, one record a chunk",
    "binary_g16": "Binary of 100 KB, 16 records a chunk",
}
_PACK = {
    "pack": ("ours", "gristmill pack"),
    "pack_fast": ("ours", "gristmill pack --fast"),
    "datatrove": ("peer", "datatrove"),
    "megatron": ("peer", "Megatron-LM"),
    "bare": ("floor", "tokenizer alone"),
    "bare_fast": ("floor", "gigatoken alone"),
}
_FEED = {
    "packed": ("ours", "packed rows"),
    "packed_gcs_block": ("ours", "from a bucket, block"),
    "packed_gcs_global": ("ours", "from a bucket, global"),
    "grain": ("peer", "Grain, packing on the fly"),
    "bare": ("floor", "bare rows of tokens"),
}
_GCS = {
    "gristmill_global": ("ours", "global shuffle"),
    "gristmill_block": ("ours", "block shuffle"),
    "grain_16": ("peer", "Grain, 16 threads"),
    "grain_64": ("peer", "Grain, 64 threads"),
    "gristmill_client": ("floor", "gristmill's client"),
    "gcsfs": ("floor", "gcsfs"),
    "google_cloud_storage": ("floor", "google-cloud-storage"),
    "tensorstore": ("floor", "TensorStore"),
    "obstore": ("floor", "obstore"),
}
_STREAMING_WRITE = {
    "writer": ("ours", "Writer, zstd:3"),
    "writer_16": ("ours", "the same, 16 records a chunk"),
    "writer_plain": ("ours", "Writer, uncompressed"),
    "mds_zstd": ("peer", "MDSWriter, zstd:3"),
    "mds": ("peer", "MDSWriter, uncompressed"),
}
_STREAMING_READ = {
    "feed": ("ours", "batches.feed, zstd:3"),
    "feed_plain": ("ours", "the same, uncompressed"),
    "mds_read": ("peer", "StreamingDataset, 1 CPU"),
    "mds_read_all": ("peer", "the same, all CPUs"),
    "mds_getitem": ("peer", "StreamingDataset[i]"),
}
_MAXTEXT = {
    "": {
        "own": ("peer", "MaxText's own"),
        "records": ("ours", "records"),
        "packed": ("ours", "packed rows"),
        "plain": ("ours", "packed, uncompressed"),
    },
    ", one worker process (MaxText's default)": {
        "own_worker": ("peer", "MaxText's own"),
        "records_worker": ("ours", "records"),
        "packed_worker": ("ours", "packed rows"),
        "plain_worker": ("ours", "packed, uncompressed"),
    },
    ", Llama 2's tokenizer": {
        "own_llama": ("peer", "MaxText's own"),
        "records_llama": ("ours", "records"),
    },
}


def _values(
    runs: Sequence[Run], names: _Names, value: Callable[[Run], float]
) -> dict[str, dict[int, float]]:
    return {key: by_round(runs, key, value) for key in names}


def _speeds(amount: str, scale: float = 1) -> tuple[Callable[[Run], float], ...]:
    """Returns how much a run did in a second of CPU time, and in a second."""

    def per(seconds: str) -> Callable[[Run], float]:
        return lambda run: float(run[amount] * scale / run[seconds])

    return per("cpu_seconds"), per("wall_seconds")


def _both(
    runs: Sequence[Run], names: _Names, reference: str, amount: str, unit: str
) -> Iterator[Panel]:
    """Yields panels of an amount in millions, by CPU time and by wall time."""
    for value, title, per in zip(
        _speeds(amount, 1e-6),
        ("Throughput per CPU second", "Throughput, wall time"),
        ("per CPU second", "per second"),
        strict=True,
    ):
        values = _values(runs, names, value)
        yield from compare(
            title, values, names, reference=reference, unit=f"{unit} {per}"
        )


def _convert(results: Results) -> Iterator[Panel]:
    runs = [run for run in results["runs"] if run["kind"] == "main"]
    binary = results["settings"].get("binary")
    reference = "bare" if binary else "array_record_beam"
    yield from _both(runs, _CONVERT, reference, "input_bytes", "MB")


def _formats(results: Results) -> Iterator[Panel]:
    runs = [run for run in results["runs"] if run["round"]]
    yield from _both(runs, _FORMATS, "google_text", "bytes", "MB")


def _load(results: Results, *, wall: bool = False) -> Iterator[Panel]:
    for dataset, title in _DATASETS.items():
        runs = [run for run in results["runs"] if run["dataset"] == dataset]
        values = _values(runs, _LOAD, _speeds("records")[wall])
        unit = f"records per {'second' if wall else 'CPU second'}"
        yield from compare(title, values, _LOAD, reference="official_read", unit=unit)


def _pack(results: Results) -> Iterator[Panel]:
    for part, title, reference in (
        ("fast", "Text per CPU second, gigatoken", "megatron"),
        ("huggingface", "Text per CPU second, Hugging Face's tokenizers", "bare"),
    ):
        runs = results["parts"].get(part, {"runs": []})["runs"]
        values = _values(runs, _PACK, _speeds("text_bytes", 1e-6)[0])
        yield from compare(
            title, values, _PACK, reference=reference, unit="MB per CPU second"
        )


def _feed_packed(results: Results) -> Iterator[Panel]:
    yield from _both(results["runs"], _FEED, "grain", "tokens", "M tokens")


def _gcs(results: Results) -> Iterator[Panel]:
    about = ("record_bytes", "latency_ms", "connect_ms", "group_size")
    for size_bytes in (2_000, 100_000):
        runs = [
            {**run, "contestant": run["reader"]}
            for run in results["runs"]
            if [run[name] for name in about] == [size_bytes, 20, 0, 1]
            and "error" not in run
        ]
        values = _values(runs, _GCS, _speeds("records")[1])
        title = f"Records of {size_bytes / 1000:g} KB, 20 ms of latency"
        yield from compare(
            title, values, _GCS, reference="grain_64", unit="records per second"
        )


def _streaming(results: Results) -> Iterator[Panel]:
    for title, names, reference, amount, unit in (
        ("Writing, per CPU second", _STREAMING_WRITE, "mds_zstd", "bytes", "MB"),
        (
            *("Reading in random order, per CPU second", _STREAMING_READ),
            *("mds_read", "records", "records"),
        ),
    ):
        scale = 1e-6 if amount == "bytes" else 1
        values = _values(results["runs"], names, _speeds(amount, scale)[0])
        unit = f"{unit} per CPU second"
        yield from compare(title, values, names, reference=reference, unit=unit)


def _maxtext(results: Results) -> Iterator[Panel]:
    for title, names in _MAXTEXT.items():
        values = _values(results["runs"], names, _speeds("tokens", 1e-6)[0])
        yield from compare(
            f"Tokens per CPU second{title}",
            values,
            names,
            reference=next(iter(names)),
            unit="M tokens per CPU second",
        )


FIGURES: dict[str, tuple[str, str, Callable[[Results], Iterator[Panel]]]] = {
    "convert": ("convert", "Conversion of TFRecords: text of 2.2 KB", _convert),
    "convert_binary": ("convert_binary", "Conversion: records of 100 KB", _convert),
    "feed_packed": ("feed_packed", "Feeding packed rows of tokens", _feed_packed),
    "formats": ("formats", "Conversion of other formats", _formats),
    "gcs": ("gcs", "Reading from a bucket in random order", _gcs),
    "load": ("load", "Reading in random order: CPU time", _load),
    "load_wall": (
        "load",
        "Reading in random order: wall time",
        lambda results: _load(results, wall=True),
    ),
    "maxtext": ("maxtext", "MaxText's input", _maxtext),
    "pack": ("pack", "Packing text to rows of tokens", _pack),
    "streaming": ("streaming", "MosaicML Streaming", _streaming),
}


def draw(name: str, results: Results) -> plots.Canvas | None:
    """Draws a figure; None where nothing can be compared."""
    _, title, panels_of = FIGURES[name]
    panels = [*panels_of(results)]
    return plots.draw(title, panels) if panels else None


def images(name: str, results: Results) -> list[str]:
    """Returns the lines that show the figures of a report in its page."""
    return [
        f"![{title}]({key}.svg)"
        for key, (report, title, _) in FIGURES.items()
        if report == name and draw(key, results)
    ]


def write(name: str, results: Results, folder: pathlib.Path) -> None:
    """Writes the figures of a report to a folder."""
    for file, text in files(name, results):
        (folder / file).write_text(text, encoding="utf-8")


def files(name: str, results: Results) -> Iterator[tuple[str, str]]:
    """Yields the names and the contents of the figures of a report."""
    for key, (report, title, _) in FIGURES.items():
        if report == name and (canvas := draw(key, results)):
            yield f"{key}.svg", canvas.svg(title)
