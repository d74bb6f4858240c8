"""The content of a plan: plain values, as text and as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from gristmill.pipelines.advice.cost import PRICES_DATE, PRICES_REGION
from gristmill.pipelines.advice.encoded_sizes import Estimate
from gristmill.pipelines.text.formatting import plural, size_text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to encode the records.

    Attributes:
        compression: Value for `--compression`.
        group_size: Records in a chunk.
        file_bytes: Shards and indexes.
        index_bytes: The indexes alone.
        encode_seconds: CPU seconds to encode all records, on this machine.
        chosen: Whether the command uses it.
    """

    compression: str
    group_size: int
    file_bytes: Estimate
    index_bytes: float
    encode_seconds: float
    chosen: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Epoch:
    """The reads of an epoch from a bucket.

    Attributes:
        shuffle: `global` or `block`.
        requests: Reads of all hosts.
        read_bytes: Bytes that they return.
        dollars: Cost of the reads.
        chosen: Whether this shuffle is recommended.
    """

    shuffle: str
    requests: float
    read_bytes: float
    dollars: float
    chosen: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The result, duration and cost of a conversion, and its command.

    Attributes:
        inputs: Files, bytes as stored, format and splits of the inputs.
        sample: The sample: ranges of files, records, bytes, and whether that is all.
        records: Number of records to write.
        raw_bytes: Their lengths, added.
        lengths: Lengths of the records of the sample: mean, median, 99th percentile and
            maximum.
        candidates: Ways to encode.
        file_bytes: Shards and indexes, with the options of the command.
        shards: Number of shards.
        index_bytes: All indexes: the part that each training host keeps.
        hosts: Hosts of the training.
        batch_size: Rows of the global batch.
        epochs: Reads of an epoch, with each shuffle.
        first_requests: Reads before and beside the first epoch.
        first_dollars: Cost of these, with the listings.
        storage_dollars: Cost of keeping the dataset in a bucket for a month.
        workers: Processes of the conversion on this machine.
        cpu_seconds: CPU seconds of all of them, on this machine.
        cpu_seconds_per_worker: That divided by them.
        minutes: Minutes on this machine.
        dataflow: Minutes, dollars, machines and requests of the conversion on Dataflow.
        reasons: Why the command has the options that it has.
        notes: Notes about the numbers.
        command: The command, to copy.
    """

    inputs: dict[str, Any]
    sample: dict[str, Any]
    records: Estimate
    raw_bytes: Estimate
    lengths: dict[str, float]
    candidates: tuple[Candidate, ...]
    file_bytes: Estimate
    shards: int
    index_bytes: float
    hosts: int
    batch_size: int
    epochs: tuple[Epoch, ...]
    first_requests: float
    first_dollars: float
    storage_dollars: float
    workers: int
    cpu_seconds: float
    cpu_seconds_per_worker: float
    minutes: float
    dataflow: dict[str, float]
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    command: str

    def json(self) -> str:
        """Returns the plan as JSON. An unknown error is null."""
        return json.dumps(_plain(dataclasses.asdict(self)), ensure_ascii=False)

    def text(self) -> str:
        """Returns the plan for people."""
        return "\n\n".join(
            [
                _columns(self._about()),
                _columns(self._encodings()),
                _columns(self._orders()),
                _columns(self._conversions()),
                "why\n" + "\n".join(f"  {reason}" for reason in self.reasons),
                *(["note\n" + "\n".join(f"  {note}" for note in self.notes)]),
                f"command\n  {self.command}",
            ]
        )

    def _about(self) -> list[list[str]]:
        given, sample = self.inputs, self.sample
        sizes = {name: size_text(size) for name, size in self.lengths.items()}
        splits = ""
        if len(given["splits"]) > 1:
            splits = f", splits {', '.join(given['splits'])}"
        read = f"{sample['share']:.2%} of the input"
        if sample["whole"]:
            read = "all there is"
        return [
            [
                "input",
                f"{plural(given['files'], 'file')}, {size_text(given['bytes'])} of "
                f"{given['format']}{splits}",
            ],
            [
                "sample",
                f"{plural(sample['records'], 'record')} of "
                f"{plural(sample['ranges'], 'range')}, {read}",
            ],
            [
                "records",
                f"{_number(self.records)}, {sizes['mean']} on average; half up to "
                f"{sizes['median']}, 99 of 100 up to {sizes['p99']}, largest seen "
                f"{sizes['most']}",
            ],
            [
                "output",
                f"{_size(self.file_bytes)}: {plural(self.shards, 'shard')} and "
                f"{'its index' if self.shards == 1 else 'their indexes'}; "
                f"${self.storage_dollars:,.2f} a month in a bucket",
            ],
            ["index", f"{size_text(self.index_bytes)} on each host"],
        ]

    def _encodings(self) -> list[list[str]]:
        head = "compression", "group size", "output", "of input", "CPU to encode", ""
        rows = [[*head]]
        for one in self.candidates:
            share = one.file_bytes.value / max(1, self.inputs["bytes"])
            rows.append(
                [
                    one.compression,
                    str(one.group_size),
                    _size(one.file_bytes),
                    f"{share:.1%}",
                    _seconds(one.encode_seconds),
                    "chosen" if one.chosen else "",
                ]
            )
        return rows

    def _orders(self) -> list[list[str]]:
        rows = [["shuffle", "requests an epoch", "dollars", "read", ""]]
        for one in self.epochs:
            rows.append(
                [
                    one.shuffle,
                    f"{one.requests:,.0f}",
                    f"${one.dollars:,.2f}",
                    size_text(one.read_bytes),
                    "advised" if one.chosen else "",
                ]
            )
        first = [f"{self.first_requests:,.0f}", f"${self.first_dollars:,.2f}"]
        rows.append(["indexes, once", *first, size_text(self.index_bytes * self.hosts)])
        return rows

    def _conversions(self) -> list[list[str]]:
        cloud = self.dataflow
        return [
            ["conversion", "CPU", "time", "dollars"],
            [
                f"here, {plural(self.workers, 'worker')}",
                f"{_seconds(self.cpu_seconds_per_worker)} each",
                _seconds(60 * self.minutes),
                "",
            ],
            [
                f"Dataflow, {cloud['machines']:.0f} machines of "
                f"{cloud['vcpus']:.0f} vCPUs",
                f"{cloud['vcpu_hours']:,.1f} vCPU hours",
                _seconds(60 * cloud["minutes"]),
                f"${cloud['dollars']:,.2f}",
            ],
        ]


def assumptions(*, busy: float, start_minutes: float) -> tuple[str, ...]:
    """Returns the assumptions of the numbers of a plan."""
    return (
        "time here: as many cores are free as there are workers, and storage keeps up",
        f"Dataflow: a vCPU is as fast as a core here and {busy:.0%} busy with the "
        f"work, machines start in {start_minutes:.0f} minutes; nothing was measured "
        "there",
        f"dollars: prices of {PRICES_REGION}, {PRICES_DATE}, all in one region; "
        "requests are those of a dataset in a bucket, a local one makes none",
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _columns(rows: list[list[str]]) -> str:
    """Returns rows with columns of one width each."""
    count = max(map(len, rows))
    filled = [row + [""] * (count - len(row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*filled, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in filled
    )


def _error(estimate: Estimate) -> str:
    if not estimate.error:
        return ""
    if not math.isfinite(estimate.error):
        return " (error unknown)"
    return f" ±{estimate.relative_error:.1%}"


def _size(estimate: Estimate) -> str:
    return size_text(estimate.value) + _error(estimate)


def _number(estimate: Estimate) -> str:
    return f"{estimate.value:,.0f}{_error(estimate)}"


def _seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:,.1f} h"
