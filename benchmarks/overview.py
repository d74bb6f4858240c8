"""What the pages of docs/performance say of all comparisons, from the runs of each.

`benchmarks.reports` writes the list of reports into index.md, the table of peers to
peers.md, and a short one into README.md, between the marks `<!-- peers: begin -->` and
`<!-- peers: end -->`.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.plots import show
from benchmarks.rounds import Run, Spread, by_round, ratios

REPORT_MARKS = ("<!-- reports: begin -->", "<!-- reports: end -->")
PEER_MARKS = ("<!-- peers: begin -->", "<!-- peers: end -->")

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
        "`batches.feed` beside `StreamingDataset(shuffle=True)`; uncompressed",
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
_IN_SHORT = (
    ("beam", "tfds", "converter", "mds_write"),
    ("megatron", "datatrove"),
    ("guide", "bucket", "tf_data", "mds_read", "packing", "maxtext_records", "maxtext"),
)

# Bounds, which are no peers.
_BOUNDS = {
    "bare": Comparison(
        "a bare loop", (), "", "convert_binary", "gristmill_1", "bare", "input_bytes",
        _main,
    ),
}  # fmt: skip

# The report, its title, and its text, with the keys of comparisons.
_REPORTS = (
    (
        "convert",
        "Conversion",
        "TFRecords to shards, whole processes beside peers and bare loops: {beam} the "
        "MB per CPU second of `array_record.beam`",
    ),
    (
        "convert_binary",
        "Conversion of binary records",
        "records of 100 KB: {bare} the MB per CPU second of a bare loop that checks "
        "nothing",
    ),
    (
        "formats",
        "Other formats",
        "JSON lines and Parquet beside plain loops and Google's "
        "`arrayrecord-converter`: {converter} its MB per CPU second, with rows parsed",
    ),
    (
        "gcs_convert",
        "Conversion from and to a bucket",
        "beside a conversion between local disks, and the requests that it makes",
    ),
    (
        "pack",
        "Packing",
        "text to rows of tokens, memory and padding: {datatrove} the MB per CPU second "
        "of datatrove, {megatron} that of Megatron-LM",
    ),
    (
        "load",
        "Reading in random order",
        "local shards beside `array_record`, Grain and `tf.data`: {reader} the records "
        "per CPU second of `ArrayRecordReader`",
    ),
    (
        "gcs",
        "Reading from a bucket",
        "records over HTTP, requests and dollars: {bucket} the records per CPU second "
        "of Grain",
    ),
    (
        "feed_packed",
        "Feeding packed rows",
        "beside bare rows and packing on the fly: {packing} the tokens per CPU second "
        "of Grain",
    ),
    (
        "streaming",
        "MosaicML Streaming",
        "shards written, and read in random order: {mds_read} the records per CPU "
        "second",
    ),
    (
        "maxtext",
        "MaxText's input",
        "up to the arrays that MaxText trains on: {maxtext} the tokens per CPU second "
        "of its own pipeline with packed rows, {maxtext_records} with records",
    ),
    (
        "decode",
        "Decoding",
        "batches of `tf.train.Example` beside `tf.io.parse_example`, by the kind of "
        "features",
    ),
    (
        "encode",
        "Encoding",
        "`tf.train.Example` messages beside TensorFlow's own class, by the kind of "
        "features",
    ),
    (
        "plan",
        "How good a plan is",
        "what `gristmill plan` predicted beside the conversions that followed: sizes "
        "within {plan:.1%}",
    ),
    (
        "scale",
        "From a thousand to four million shards",
        "planning, commits and opening as shards grow: {scale:.0f} s of CPU time for "
        "a conversion of four million, beside the work on its records",
    ),
    (
        "view",
        "How fast `gristmill view` answers",
        "a page about a dataset of a million shards: {view:.2f} s to the first answer",
    ),
)


class Overview:
    """The comparisons whose runs are in a folder.

    Args:
        folder: Has the results and the reports.
    """

    def __init__(self, folder: pathlib.Path):
        self._folder = folder
        self._found: dict[str, Results] = {}

    def _results(self, report: str) -> Results | None:
        path = self._folder / f"{report}.json"
        if report not in self._found and path.exists():
            self._found[report] = json.loads(path.read_text(encoding="utf-8"))
        return self._found.get(report)

    def _environment(self, report: str) -> Mapping[str, Any]:
        results = self._results(report) or {}
        if "parts" in results:
            return dict(results["parts"]["fast"]["environment"])
        return dict(results.get("environment", {}))

    def _date_of(self, report: str) -> str:
        if date := self._environment(report).get("date"):
            return str(date)
        text = (self._folder / f"{report}.md").read_text(encoding="utf-8")
        said = re.search(r"[Mm]easured on (\d{4}-\d{2}-\d{2})", text)
        if said is None:
            raise ValueError(f"{report}.md does not say on which day it was measured")
        return said[1]

    def _figures(self, report: str) -> dict[str, float]:
        """Returns the figures of reports without a peer."""
        results = self._results(report) or {}
        if report == "scale":
            return {"scale": results["size"][-1]["total_seconds"]}
        if report == "view":
            first = [run["first_seconds"] for run in results["runs"]]
            return {"view": Spread.of(first).median}
        if report != "plan":
            return {}
        off = []
        for runs in results["runs"].values():
            made = Spread.of([run["made"]["file_bytes"] for run in runs]).median
            said = [run["plan"]["file_bytes"]["value"] for run in runs]
            off += [abs(one / made - 1) for one in said]
        return {"plan": max(off)}

    def times(self, key: str, seconds: str = "cpu_seconds") -> str:
        """Returns how many times the speed of a peer, or that it is not measured."""
        comparison = (PEERS | _BOUNDS)[key]
        results = self._results(comparison.report)
        if results is None:
            return "not measured yet"
        return " ".join(show(comparison.times(results, seconds))).strip()

    def reports(self) -> str:
        """Returns the list of reports, with a figure of each and the day."""
        lines = []
        for report, title, text in _REPORTS:
            if (self._folder / f"{report}.md").exists():
                keys = re.findall(r"\{(\w+)\}", text)
                figures: dict[str, Any] = {key: self.times(key) for key in keys}
                said = text.format(**figures, **self._figures(report))
                day = self._date_of(report)
                lines.append(f"- [{title}]({report}.md): {said}. Measured on {day}.")
        return "\n".join(lines)

    def peers(self) -> str:
        """Returns the table of peers, for a page beside the reports."""
        header = "peer|version|compared|speed by CPU time|by wall time|measured"
        lines = [
            f"| {' | '.join(header.split('|'))} |",
            "| --- | --- | --- | ---: | ---: | --- |",
        ]
        for key, one in PEERS.items():
            known = self._environment(one.report)
            versions = known.get("packages", {})
            named = [f"{name} {versions.get(name)}" for name in one.packages]
            version = ", ".join(named) if {*one.packages} <= {*versions} else "?"
            day = "not yet"
            if known:
                day = f"[{known['date']}]({one.report}.md)"
            shown = [self.times(key, unit) for unit in ("cpu_seconds", "wall_seconds")]
            cells = [one.peer, version, one.compared, *shown, day]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)

    def peers_in_short(self, folder: str) -> str:
        """Returns the table of the README: one row a comparison that was measured.

        Args:
            folder: Of the reports, seen from the page, with a slash.
        """
        lines = [
            "| peer | compared | by CPU time | by wall time | measured |",
            "| --- | --- | ---: | ---: | --- |",
        ]
        for key in itertools.chain.from_iterable(_IN_SHORT):
            one = PEERS[key]
            results = self._results(one.report)
            if results is not None:
                both = (
                    show(one.times(results, unit))[0]
                    for unit in ("cpu_seconds", "wall_seconds")
                )
                day = f"[{self._date_of(one.report)}]({folder}{one.report}.md)"
                lines.append(f"| {' | '.join([one.peer, one.compared, *both, day])} |")
        return "\n".join(lines)

    def peer_page(self) -> str:
        """Returns peers.md."""
        cpus = {
            f"{known['cpu_count']} processors ({known['cpu']})"
            for one in PEERS.values()
            if (known := self._environment(one.report))
        }
        return _PEER_PAGE.format(
            table=self.peers(), machines=" and ".join(sorted(cpus))
        )


_PEER_PAGE = """\
# Peers

The speed of gristmill divided by that of each peer: the median of the rounds, and the
range (lowest..highest). Above 1 gristmill is faster. Both ran in turns on the same
machine and the same data, and ratios are computed round by round. All on
{machines}.

{table}

- "By CPU time" compares the work for a second of processor time of all processes and
  threads; "by wall time", the work for a second.
- Conversions are whole processes, start-up included. Readers and feeds are measured
  once they are warm.
- gristmill compares the checksum of every record, when it writes and when it reads.
  What each peer checks, and where it does less or more, is in the report.
- Megatron-LM and datatrove use Hugging Face's tokenizers. With these,
  `gristmill pack` is compared with a bare pool of tokenizers in [pack.md](pack.md).
- "?" is a version that the benchmark did not record. "Not measured yet": there is a
  benchmark, but no run of it on a quiet machine.
- Megatron-LM and datatrove were given a tenth of gristmill's text, as they take longer.
  Compared is the text for a second.

[benchmarks/README.md](../../benchmarks/README.md) says how each is run.
`python -m benchmarks.reports` writes this page from the runs that are kept beside the
reports.
"""
