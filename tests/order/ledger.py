"""A conversion of small files of any format, and faults to put into its steps."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from gristmill.dataset.arrayrecord.shard_writer import ShardWriter
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.formats.streams import RecordBatch
from gristmill.dataset.metadata.shard_files import ShardPlace
from gristmill.transforms.conversion import shard_records as converting
from gristmill.transforms.planning.shard_plan import ShardPlan, SourceRange
from gristmill.transforms.sources.formats import RecordOptions
from tests.order.input_files import WRITERS, rows_of
from tests.support import conversion

Fault = Callable[["Case"], contextlib.AbstractContextManager[Any]]
FILES = 3
SHARDS = 4


class Case:
    """A conversion of three small files, and whether its fault was reached."""

    def __init__(self, folder: pathlib.Path, format_name: str, seed: int):
        self.chance = random.Random(f"{format_name} {seed}")
        self.folder, self.format = folder, format_name
        self.happened = 0
        self.inputs = folder / "in"
        self.inputs.mkdir()
        for number in range(FILES):
            WRITERS[format_name](self.inputs / f"{number}", rows_of(number))

    def job(self, output: str) -> conversion.ConversionJob:
        return conversion.job_of(
            self.inputs,
            self.folder / output,
            plan=("num_shards", SHARDS),
            records=RecordOptions(input_format=self.format),
            # Another one than that of inputs that are shards: nothing is copied.
            writer=WriterOptions(compression="zstd:2"),
        )

    def once(self) -> bool:
        """Whether a fault is to happen now: at some place, and not again."""
        if self.happened or self.chance.random() < 0.3:
            return False
        self.happened += 1
        return True


# --- Faults among records, wherever a list of them passes.


def lose(records: list[Any], at: int) -> list[Any]:
    return records[:at] + records[at + 1 :]


def double(records: list[Any], at: int) -> list[Any]:
    return records[: at + 1] + records[at:]


def exchange(records: list[Any], at: int) -> list[Any]:
    last = len(records) - 1
    other = (at + 1) % len(records)
    changed = list(records)
    changed[at], changed[other] = records[other], records[at]
    return changed if last else []


def cut(records: list[Any], at: int) -> list[Any]:
    return records[:at]


LISTS = {"lose": lose, "double": double, "exchange": exchange, "cut": cut}


def _change(record: bytes, chance: random.Random) -> bytes:
    if not record:
        return b"x"
    at = chance.randrange(len(record))
    return (
        record[:at] + bytes([record[at] ^ 1 << chance.randrange(8)]) + record[at + 1 :]
    )


@contextlib.contextmanager
def in_source(case: Case, kind: str) -> Iterator[None]:
    """Faults in what a source gives, below all that counts."""
    real = converting.source_of

    def batches(reader: Any) -> Iterator[RecordBatch]:
        for batch in reader.batches():
            if batch.records and case.once():
                at = case.chance.randrange(len(batch.records))
                if kind == "change":
                    changed = list(batch.records)
                    changed[at] = _change(changed[at], case.chance)
                    batch = batch._replace(records=changed)
                else:
                    rows = LISTS[kind](list(zip(*batch[:3], strict=True)), at)
                    columns = zip(*rows, strict=True) if rows else ((), (), ())
                    places, records, crc32cs = map(list, columns)
                    batch = RecordBatch(places, records, crc32cs)
            yield batch

    class Reader:
        def __init__(self, reader: Any):
            self._reader = reader

        def __getattr__(self, name: str) -> Any:
            return getattr(self._reader, name)

        def batches(self) -> Iterator[RecordBatch]:
            return batches(self._reader)

    class Source:
        def __init__(self, source: Any):
            self._source = source

        def __getattr__(self, name: str) -> Any:
            return getattr(self._source, name)

        def read(self, *given: Any, **options: Any) -> Any:
            return Reader(self._source.read(*given, **options))

    # Records that a reader loses in memory: no file can have this fault.
    with mock.patch.object(converting, "source_of", lambda spec: Source(real(spec))):
        yield


@contextlib.contextmanager
def in_encoder(case: Case, kind: str) -> Iterator[None]:
    """Faults in what the encoder of a shard gets, behind what is counted."""
    real = ShardWriter.__init__

    def begin(self: Any, *given: Any, **options: Any) -> None:
        real(self, *given, **options)
        write = self._writer.write

        def faulty(records: Any) -> None:
            if records and case.once():
                at = case.chance.randrange(len(records))
                if kind == "change":
                    records = list(records)
                    records[at] = _change(records[at], case.chance)
                else:
                    records = LISTS[kind](list(records), at)
            write(records)

        self._writer.write = faulty

    # The same between what counts records and what encodes them.
    with mock.patch.object(ShardWriter, "__init__", begin):
        yield


# --- Faults in files.


def flip(path: pathlib.Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def truncate(path: pathlib.Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size))


def zero(path: pathlib.Path, chance: random.Random) -> None:
    size = path.stat().st_size
    begin = chance.randrange(size)
    data = path.read_bytes()
    changed = data[:begin] + bytes(min(200, size - begin)) + data[begin + 200 :]
    path.write_bytes(changed if changed != data else changed[:-1] + b"\1")


FILE_FAULTS = {"flip": flip, "truncate": truncate, "zero": zero}


@contextlib.contextmanager
def at_publishing(
    case: Case, fault: Callable[[str, dict[str, Any]], object]
) -> Iterator[None]:
    """Calls `fault` with the finished file, and what else a shard's place is given."""
    real = ShardPlace.publish

    def publish(self: Any, local: str, *given: Any, **options: Any) -> Any:
        if case.once():
            fault(local, options)
        return real(self, local, *given, **options)

    # Nothing real comes between a file's check and its place.
    with mock.patch.object(ShardPlace, "publish", publish):
        yield


def before_publishing(case: Case, kind: str) -> AbstractContextManager[None]:
    """Faults in the finished file, between its check and its place."""
    fault = FILE_FAULTS[kind]
    return at_publishing(case, lambda local, _: fault(pathlib.Path(local), case.chance))


@contextlib.contextmanager
def in_plan(case: Case, kind: str) -> Iterator[None]:
    """Faults in the ranges of which a shard is made."""
    real = ShardPlan.ranges

    def ranges(self: ShardPlan, shard: int) -> tuple[SourceRange, ...]:
        found = list(real(self, shard))
        if found and case.once():
            at = case.chance.randrange(len(found))
            if kind == "move":
                part = found[at]
                begin = max(0, part.begin_bytes - 150)
                moved = {"begin_bytes": begin}
                if not part.begin_bytes:
                    moved = {"end_bytes": part.end_bytes // 2}
                found[at] = dataclasses.replace(part, **moved)
            else:
                found = LISTS[kind](found, at)
        return tuple(found)

    # Inputs cannot give a plan that is wrong.
    with mock.patch.object(ShardPlan, "ranges", ranges):
        yield


FAULTS: dict[str, Fault] = {
    **{
        f"source: {kind}": functools.partial(in_source, kind=kind)
        for kind in (*LISTS, "change")
    },
    **{
        f"encoder: {kind}": functools.partial(in_encoder, kind=kind)
        for kind in (*LISTS, "change")
    },
    **{
        f"finished file: {kind}": functools.partial(before_publishing, kind=kind)
        for kind in FILE_FAULTS
    },
    **{
        f"plan: {kind}": functools.partial(in_plan, kind=kind)
        for kind in ("lose", "double", "move")
    },
}
