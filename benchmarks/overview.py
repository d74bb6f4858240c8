"""The text about all comparisons in docs/performance, from the runs of each.

`benchmarks.reports` writes the list of reports into index.md, the table of peers to
peers.md, and a short one into README.md, between the marks `<!-- peers: begin -->` and
`<!-- peers: end -->`.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from benchmarks.comparisons import BOUNDS, IN_SHORT, PEERS, Results
from benchmarks.plots import show
from benchmarks.resume.report import is_exact

REPORT_MARKS = ("<!-- reports: begin -->", "<!-- reports: end -->")
PEER_MARKS = ("<!-- peers: begin -->", "<!-- peers: end -->")

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
        "unique",
        "Exact duplicates",
        "found by text, by normalised text and by record: {duplicates} the MB of text "
        "per CPU second of datatrove",
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
        "resume",
        "Resuming",
        "what loaders lose, repeat or give in another batch after a restart, on other "
        "hosts, and with other data: {resume}",
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
        "scale",
        "From a thousand to four million shards",
        "planning, commits and opening as shards grow: {scale:.0f} s of CPU time for "
        "a conversion of four million, beside the work on its records",
    ),
)


class Overview:
    """The comparisons whose runs are in a folder.

    Args:
        results: The folder of the runs.
        pages: The folder of the reports.
    """

    def __init__(self, results: pathlib.Path, pages: pathlib.Path):
        self._kept, self._pages = results, pages
        self._found: dict[str, Results] = {}

    def _results(self, report: str) -> Results | None:
        path = self._kept / f"{report}.json"
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
        text = (self._pages / f"{report}.md").read_text(encoding="utf-8")
        said = re.search(r"[Mm]easured on (\d{4}-\d{2}-\d{2})", text)
        if said is None:
            raise ValueError(f"{report}.md does not say on which day it was measured")
        return said[1]

    def _figures(self, report: str) -> dict[str, Any]:
        """Returns the figures of reports without a peer."""
        results = self._results(report) or {}
        if report == "resume":
            exact = sum(is_exact(each["cases"]) for each in results["loaders"].values())
            return {"resume": f"{exact} of {len(results['loaders'])} are exact in all"}
        if report == "scale":
            return {"scale": results["size"][-1]["total_seconds"]}
        return {}

    def times(self, key: str, seconds: str = "cpu_seconds") -> str:
        """Returns how many times the speed of a peer, or that it is not measured."""
        comparison = (PEERS | BOUNDS)[key]
        results = self._results(comparison.report)
        if results is None:
            return "not measured yet"
        return " ".join(show(comparison.times(results, seconds))).strip()

    def reports(self) -> str:
        """Returns the list of reports, with a figure of each and the day."""
        lines = []
        for report, title, text in _REPORTS:
            if (self._pages / f"{report}.md").exists():
                keys = re.findall(r"\{(\w+)\}", text)
                own = self._figures(report)
                figures = {key: self.times(key) for key in keys if key not in own}
                said = text.format(**figures, **own)
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
        for key in IN_SHORT:
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
- LitData 0.2.76, Megatron-Energon 7.4.1 and OLMo-core 3.0.0 were not measured.
  [Comparison with other tools](../migration/comparison.md) says what they do.
- Megatron-LM and datatrove were given a tenth of gristmill's text, as they take longer.
  Compared is the text for a second.

[benchmarks/README.md](../../benchmarks/README.md) says how each is run.
`python -m benchmarks.reports` writes this page from the runs that are kept beside the
reports.
"""
