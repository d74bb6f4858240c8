"""A feed's answers to injected causes of waiting, one at a time.

    python -m benchmarks.waiting --markdown docs/train/waiting.md

Feeds, threads, workers, shards and the server of Cloud Storage are real; the trainer
sleeps or computes for a step. What is injected are delays: of the server's answers, of
reads, of decode, of a step, and other processes on the feed's processor. The table is
written between two marks in the document.

Verdicts are those for a host with 16 processors, so that they do not depend on how many
this machine has.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.contest import write_between
from gristmill import loader
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.data.dataset import reader_of
from tests.support.datasets import convert
from tests.support.gcs_process import GcsProcess
from tests.support.records import text_records

_MARKS = ("<!-- causes: begin -->", "<!-- causes: end -->")
_PROCESSORS = 16
_BATCH, _STEPS = 64, 25
_HOSTS = 4
_NONE: Mapping[int, Any] = {}

Stats = loader.FeedStats | Mapping[str, loader.FeedStats]


class Sleep:
    """Waits, as a call of another service does; Python's lock is free meanwhile."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    def __call__(self, records: Any = None) -> Any:
        """Returns its argument."""
        time.sleep(self.seconds)
        return records


class Compute(Sleep):
    """Computes in Python, which keeps its lock, for some processor time."""

    def __call__(self, records: Any = None) -> Any:
        """Returns its argument."""
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            sum(range(500))
        return records


class Hash(Sleep):
    """Computes in a library that gives Python's lock free, for some processor time."""

    _DATA = bytes(1 << 20)

    def __call__(self, records: Any = None) -> Any:
        """Returns its argument."""
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            hashlib.sha256(self._DATA)
        return records


class Checkpoints(Sleep):
    """A step of a trainer that takes ten times as long every tenth time."""

    def __init__(self, seconds: float):
        super().__init__(seconds)
        self.steps = 0

    def __call__(self, records: Any = None) -> Any:
        """Returns its argument."""
        self.steps += 1
        time.sleep(self.seconds * (10 if self.steps % 10 == 0 else 1))
        return records


class Place:
    """Datasets in a folder, and a bucket with one of them.

    Attributes:
        server: The server of the bucket `bucket`; None where none is needed.
    """

    def __init__(self, folder: pathlib.Path, server: GcsProcess | None = None):
        self.folder, self.server = folder, server
        files = [text_records(1000, seed=seed) for seed in range(4)]
        self.path = convert(folder / "small", files)
        self._buckets = 0

    @property
    def large(self) -> str:
        """A dataset of large records, which takes processor time to read."""
        folder = self.folder / "large"
        if not folder.exists():
            texts = text_records(20_000, seed=9)
            records = [b"".join(texts[i : i + 200]) for i in range(0, 20_000, 200)]
            return convert(folder, [records * 10], compression="brotli:5")
        return str(folder / "out")

    def in_bucket(self) -> str:
        """Stores the dataset in the bucket, and lets its server answer at once."""
        assert self.server is not None
        self.server.control(
            set={"latency_seconds": 0.0, "bytes_per_second": 0}, clear=True
        )
        self._buckets += 1
        bucket = f"gs://bucket/{self._buckets}"
        for path in sorted(pathlib.Path(self.path).rglob("*")):
            if path.is_file():
                name = path.relative_to(self.path).as_posix()
                storage_for(bucket).write(f"{bucket}/{name}", path.read_bytes())
        return bucket

    def open(self, path: str | None = None) -> loader.Dataset:
        """Opens a dataset, the small local one by default."""
        cache = self.folder / f"cache-{self._buckets}"
        return loader.open(path or self.path, cache_dir=str(cache))


class Injection(NamedTuple):
    """A cause, injected.

    Attributes:
        cause: What is to be named.
        name: What is done, for the table.
        run: Does it, and returns the measurements.
    """

    cause: str
    name: str
    run: Callable[[Place], Stats]


def fed(
    dataset: loader.Dataset,
    *,
    step: Callable[[], Any],
    decode: Any = None,
    workers: int = 0,
    prefetch: int = 4,
    host: int = 0,
    hosts: int = 1,
    steps: int = _STEPS,
    begin: Callable[[], Any] = lambda: None,
) -> loader.FeedStats:
    """Feeds a trainer for some steps, and returns the stats of these.

    Args:
        dataset: What it reads.
        step: What the trainer does with a batch.
        decode: As for a feed.
        workers: As for a feed.
        prefetch: As for a feed.
        host: Which host this is.
        hosts: Number of hosts.
        steps: How many are measured, after the first batches.
        begin: Called before these.
    """
    batches = loader.global_batches(dataset, batch_size=_BATCH * hosts, seed=1)
    feed = batches.feed(
        process_index=host,
        process_count=hosts,
        decode=decode,
        workers=workers,
        prefetch=prefetch,
    )
    with feed:
        for _ in range(2):
            next(feed)
        begin()
        before = feed.stats
        for _ in range(steps):
            step()
            next(feed)
        stats = feed.stats - before
    return dataclasses.replace(stats, processors=_PROCESSORS)


def _latency(place: Place) -> Stats:
    dataset = place.open(place.in_bucket())
    assert place.server is not None
    late = {"latency_seconds": 0.15}
    return fed(dataset, step=Sleep(0.01), begin=lambda: place.server.control(set=late))


def _bandwidth(place: Place) -> Stats:
    dataset = place.open(place.in_bucket())
    assert place.server is not None
    slow = {"bytes_per_second": 1500}
    place.server.control(set={"latency_seconds": 0.0})
    return fed(
        dataset,
        step=Sleep(0.01),
        workers=1,
        begin=lambda: place.server.control(set=slow),
    )


def _throttled(place: Place) -> Stats:
    dataset = place.open(place.in_bucket())
    server = place.server
    assert server is not None
    faults = [
        {"kind": "429", "operation": "media", "skip": 20, "times": 3}
        for _ in range(200)
    ]
    return fed(dataset, step=Sleep(0.01), begin=lambda: server.control(fail=faults))


def slow_disk(place: Place) -> Stats:
    """A disk whose reads take 60 ms."""
    dataset = place.open()
    _slow_reads(dataset, 0.06)
    return fed(dataset, step=Sleep(0.005), prefetch=2)


def _slow_reads(dataset: loader.Dataset, seconds: float) -> None:
    reader = reader_of(dataset)
    read = reader.read

    def slowly(records: Any, **options: Any) -> list[bytes]:
        time.sleep(seconds)
        return read(records, **options)

    reader.read = slowly  # type: ignore[method-assign]


def slow_decode(place: Place) -> Stats:
    """A decode that waits 120 ms, for steps of 5 ms."""
    return fed(place.open(), step=Sleep(0.005), decode=Sleep(0.12))


def _large_reads(place: Place) -> Stats:
    dataset = place.open(place.large)
    batches = loader.global_batches(dataset, batch_size=_BATCH, seed=1)
    began = time.thread_time()
    for step in range(4):
        batches.read(step)
    seconds = (time.thread_time() - began) / 4
    return fed(dataset, step=Sleep(seconds * 0.6), workers=1)


def one_thread(place: Place) -> Stats:
    """One thread whose decode waits 60 ms, for steps of 35 ms."""
    return fed(place.open(), step=Sleep(0.035), decode=Sleep(0.06), prefetch=1)


def slow_step(place: Place) -> Stats:
    """A step that takes 60 ms."""
    return fed(place.open(), step=Sleep(0.06))


def hosts(
    place: Place,
    *,
    datasets: Mapping[int, loader.Dataset] = _NONE,
    decodes: Mapping[int, Any] = _NONE,
    prefetches: Mapping[int, int] = _NONE,
    decode: Any = None,
    step_seconds: float = 0.03,
) -> Stats:
    """Feeds the hosts of a run, which all wait for each other in every step.

    Args:
        place: Where the dataset is.
        datasets: Those of some hosts, where others read the local one.
        decodes: Those of some hosts, where others have `decode`.
        prefetches: Those of some hosts, where others have 4.
        decode: As for a feed.
        step_seconds: How long a step takes.
    """
    together = threading.Barrier(_HOSTS)
    found: dict[str, loader.FeedStats] = {}

    def step() -> None:
        time.sleep(step_seconds)
        together.wait(60)

    def run(host: int) -> None:
        found[f"host-{host}"] = fed(
            datasets.get(host) or place.open(),
            step=step,
            decode=decodes.get(host, decode),
            prefetch=prefetches.get(host, 4),
            host=host,
            hosts=_HOSTS,
            begin=lambda: together.wait(60),
        )

    threads = [threading.Thread(target=run, args=(host,)) for host in range(_HOSTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def slow_host(place: Place) -> Stats:
    """Four hosts, on one of which decode waits 300 ms, in 4 threads."""
    return hosts(place, decodes={2: Sleep(0.3)})


def _host_with_slow_disk(place: Place) -> Stats:
    slow = place.open()
    _slow_reads(slow, 0.3)
    return hosts(place, datasets={1: slow})


def _taken_processor(place: Place) -> Stats:
    """A host with one processor, on which three other processes compute."""
    with _others(3):
        command = [sys.executable, "-m", "benchmarks.waiting", "--pinned", place.path]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    fields = json.loads(done.stdout)
    fields["cache"] = loader.CacheCounts()
    return loader.FeedStats(**fields)


@contextlib.contextmanager
def _others(count: int) -> Iterator[None]:
    code = f"import os; os.sched_setaffinity(0, {{{_one_processor()}}})\nwhile 1: pass"
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def _one_processor() -> int:
    return max(os.sched_getaffinity(0))


def _pinned(path: str) -> None:
    os.sched_setaffinity(0, {_one_processor()})
    stats = fed(loader.open(path), step=Sleep(0.01), decode=Compute(0.02), prefetch=1)
    fields = dataclasses.asdict(dataclasses.replace(stats, processors=1))
    print(json.dumps(fields))


INJECTIONS = (
    Injection("storage", "a bucket that answers after 150 ms", _latency),
    Injection("storage", "a bucket with little bandwidth; a worker", _bandwidth),
    Injection("storage", "a bucket that refuses requests with 429", _throttled),
    Injection("storage", "a disk whose reads take 60 ms", slow_disk),
    Injection("decode", "decode waits 120 ms, for steps of 5 ms", slow_decode),
    Injection(
        "decode",
        "the same in two workers",
        lambda place: fed(
            place.open(), step=Sleep(0.005), decode=Sleep(0.12), workers=2
        ),
    ),
    Injection(
        "decode",
        "decode computes 60 ms in Python, for steps of 2 ms",
        lambda place: fed(place.open(), step=Sleep(0.002), decode=Compute(0.06)),
    ),
    Injection(
        "decode",
        "decode computes 60 ms in a library; a worker",
        lambda place: fed(
            place.open(), step=Sleep(0.002), decode=Hash(0.06), workers=1
        ),
    ),
    Injection(
        "workers",
        "one worker, decode waits 60 ms, for steps of 35 ms",
        lambda place: fed(
            place.open(), step=Sleep(0.035), decode=Sleep(0.06), workers=1
        ),
    ),
    Injection(
        "workers",
        "threads, decode computes 40 ms in Python, for steps of 25 ms",
        lambda place: fed(place.open(), step=Sleep(0.025), decode=Compute(0.04)),
    ),
    Injection("workers", "one thread, decode waits 60 ms", one_thread),
    Injection("workers", "one worker, which decompresses large records", _large_reads),
    Injection("trainer", "a step takes 60 ms", slow_step),
    Injection(
        "trainer",
        "a step computes 40 ms in Python; threads",
        lambda place: fed(place.open(), step=Compute(0.04)),
    ),
    Injection(
        "trainer",
        "every tenth step takes 200 ms, the others 20 ms",
        lambda place: fed(place.open(), step=Checkpoints(0.02)),
    ),
    Injection(
        "trainer",
        "two workers, decode waits 30 ms, for steps of 40 ms",
        lambda place: fed(
            place.open(), step=Sleep(0.04), decode=Sleep(0.03), workers=2
        ),
    ),
    Injection("host", "one of 4 hosts has a slow disk", _host_with_slow_disk),
    Injection("host", "decode waits 300 ms on one of 4 hosts", slow_host),
    Injection(
        "host",
        "one of 4 hosts has one thread, the others 4",
        lambda place: hosts(
            place, prefetches={3: 1}, decode=Sleep(0.06), step_seconds=0.03
        ),
    ),
    Injection("host", "others compute on the host's processor", _taken_processor),
)
QUICK = (slow_disk, slow_decode, one_thread, slow_step, slow_host)


def _table(found: Sequence[tuple[Injection, loader.Waiting]]) -> str:
    right = sum(one.cause == waiting.cause for one, waiting in found)
    lines = [
        f"{right} of {len(found)} were named rightly.",
        "",
        "| injected | cause | named | waiting | share of the cause |",
        "| --- | --- | --- | --- | --- |",
    ]
    for one, waiting in found:
        named = f"`{waiting.cause}`"
        if waiting.cause != one.cause:
            named = f"**{named}**"
        lines.append(
            f"| {one.name} | `{one.cause}` | {named} | {waiting.waiting_share:.0%} | "
            f"{waiting.share:.0%} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", type=pathlib.Path, help="document of the table")
    parser.add_argument("--only", default="", help="part of the names to run")
    parser.add_argument("--pinned", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.pinned:
        _pinned(args.pinned)
        return
    found = []
    with tempfile.TemporaryDirectory() as folder, GcsProcess("bucket") as server:
        os.environ["STORAGE_EMULATOR_HOST"] = server.url
        place = Place(pathlib.Path(folder), server)
        for injection in INJECTIONS:
            if args.only not in f"{injection.cause}: {injection.name}":
                continue
            waiting = loader.waits_for(injection.run(place))
            mark = "ok" if waiting.cause == injection.cause else "WRONG"
            print(f"{mark:6}{injection.cause:9}{injection.name}\n      {waiting}")
            found.append((injection, waiting))
    print(_table(found))
    if args.markdown is not None:
        write_between(args.markdown, _MARKS, _table(found))


if __name__ == "__main__":
    main()
