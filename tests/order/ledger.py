"""A conversion of small files of any format, and faults to put into its steps."""

import dataclasses
import functools
import os
import pathlib
import random
from unittest import mock

import numpy as np

from gristmill.dataset import WriterOptions, open_manifest
from gristmill.dataset.arrayrecord.shard_writer import ShardWriter
from gristmill.dataset.formats.streams import RecordBatch
from gristmill.dataset.metadata.shard_files import ShardPlace
from gristmill.transforms import PackOptions, RecordOptions
from gristmill.transforms.conversion import shard_records as converting
from gristmill.transforms.planning.shard_plan import ShardPlan
from gristmill.transforms.tokens import row_packer
from gristmill.transforms.tokens.best_fit import Packing
from gristmill.transforms.tokens.row_packer import RowPacker
from tests.order.input_files import WRITERS, rows_of
from tests.support import conversion

FILES = 3
SHARDS = 4


def letters(texts):
    """A tokenizer: every letter is a token."""
    return [list(text.encode()) for text in texts]


letters.vocabulary_size = 256
letters.special_ids = {}
PACK = PackOptions(length=64, column="", tokenizer=f"{__name__}:letters")


class Case:
    """A conversion of three small files, and whether its fault was reached."""

    def __init__(self, folder, format_name, seed, **options):
        self.chance = random.Random(f"{format_name} {seed}")
        self.folder, self.format, self.options = folder, format_name, options
        self.happened = 0
        self.inputs = folder / "in"
        self.inputs.mkdir()
        for number in range(FILES):
            WRITERS[format_name](self.inputs / f"{number}", rows_of(number))

    def job(self, output):
        return conversion.job_of(
            self.inputs,
            self.folder / output,
            plan=("num_shards", SHARDS),
            records=RecordOptions(input_format=self.format),
            # Another one than that of inputs that are shards: nothing is copied.
            writer=WriterOptions(compression="zstd:2"),
            **self.options,
        )

    def read(self, output):
        """Returns the records of a dataset, or what its packed rows hold."""
        packed = open_manifest(str(output)).splits["train"].packed
        if packed is None:
            return conversion.read_output(output)
        # Other shards can have other rows, of the same documents.
        return [packed["documents"], packed["tokens"]]

    def once(self):
        """Whether a fault is to happen now: at some place, and not again."""
        if self.happened or self.chance.random() < 0.3:
            return False
        self.happened += 1
        return True


# --- Faults among records, wherever a list of them passes.


def exchange(records, at):
    found, other = list(records), (at + 1) % len(records)
    found[at], found[other] = records[other], records[at]
    return found if len(records) > 1 else []


def change(records, at):
    data = bytearray(records[at])
    if data:
        data[at % len(data)] ^= 1 << at % 8
    return [*records[:at], bytes(data) or b"x", *records[at + 1 :]]


LISTS = {
    "lose": lambda records, at: records[:at] + records[at + 1 :],
    "double": lambda records, at: records[: at + 1] + records[at:],
    "exchange": exchange,
    "cut": lambda records, at: records[:at],
}
RECORDS = LISTS | {"change": change}


class Altered:
    """An object of which an attribute is another."""

    def __init__(self, real, name, other):
        self._real = real
        setattr(self, name, other)

    def __getattr__(self, name):
        return getattr(self._real, name)


def in_source(case, kind):
    """Faults in what a source gives, below all that counts."""
    real = converting.source_of

    def batches(reader):
        for batch in reader.batches():
            if batch.records and case.once():
                at = case.chance.randrange(len(batch.records))
                if kind == "change":
                    batch = batch._replace(records=change(batch.records, at))
                else:
                    rows = LISTS[kind](list(zip(*batch[:3], strict=True)), at)
                    batch = RecordBatch(*([row[n] for row in rows] for n in range(3)))
            yield batch

    def source_of(spec):
        source = real(spec)

        def read(*given, **options):
            reader = source.read(*given, **options)
            return Altered(reader, "batches", lambda: batches(reader))

        return Altered(source, "read", read)

    # Records that a reader loses in memory: no file can have this fault.
    return mock.patch.object(converting, "source_of", source_of)


def in_encoder(case, kind):
    """Faults in what the encoder of a shard gets, behind what is counted."""
    real = ShardWriter.__init__

    def begin(self, *given, **options):
        real(self, *given, **options)
        write = self._writer.write

        def faulty(records):
            if records and case.once():
                at = case.chance.randrange(len(records))
                records = RECORDS[kind](list(records), at)
            write(records)

        self._writer.write = faulty

    # The same between what counts records and what encodes them.
    return mock.patch.object(ShardWriter, "__init__", begin)


# --- Faults in files.


def flip(path, chance):
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def truncate(path, chance):
    os.truncate(path, chance.randrange(path.stat().st_size))


FILE_FAULTS = {"flip": flip, "truncate": truncate}


def at_publishing(case, fault):
    """Calls `fault` with the finished file, and what else a shard's place is given."""
    real = ShardPlace.publish

    def publish(self, local, *given, **options):
        if case.once():
            fault(local, options)
        return real(self, local, *given, **options)

    # Nothing real comes between a file's check and its place.
    return mock.patch.object(ShardPlace, "publish", publish)


def before_publishing(case, kind):
    """Faults in the finished file, between its check and its place."""
    fault = FILE_FAULTS[kind]
    return at_publishing(case, lambda local, _: fault(pathlib.Path(local), case.chance))


def in_plan(case, kind):
    """Faults in the ranges of which a shard is made."""
    real = ShardPlan.ranges

    def ranges(self, shard):
        found = list(real(self, shard))
        if found and case.once():
            at = case.chance.randrange(len(found))
            if kind != "move":
                return tuple(LISTS[kind](found, at))
            part = found[at]
            moved = {"begin_bytes": max(0, part.begin_bytes - 150)}
            if not part.begin_bytes:
                moved = {"end_bytes": part.end_bytes // 2}
            found[at] = dataclasses.replace(part, **moved)
        return tuple(found)

    # Inputs cannot give a plan that is wrong.
    return mock.patch.object(ShardPlan, "ranges", ranges)


# --- Faults that only packing can have.


def in_documents(case, kind):
    """Loses or doubles a document behind the tokenizer."""
    real = RowPacker.add

    def add(self, documents, places):
        if len(places) > 1 and case.once():
            kept = LISTS[kind]([*range(len(places))], len(places) - 1)
            parts = np.split(documents.ids, documents.lengths.cumsum()[:-1])
            ids = np.concatenate([parts[number] for number in kept])
            documents = documents._replace(lengths=documents.lengths[kept], ids=ids)
            places = [places[number] for number in kept]
        real(self, documents, places)

    # Documents that are lost in memory.
    return mock.patch.object(RowPacker, "add", add)


def in_plan_of_rows(case, kind):
    """Faults in the plan of which pieces share rows."""
    real = row_packer.plan_rows

    def plan_rows(lengths, **options):
        plan = real(lengths, **options)
        if len(plan.row_ends) < 2 or not case.once():
            return plan
        if kind == "lose":
            last = plan.row_ends[-2]
            return Packing(plan.row_ends[:-1], *(each[:last] for each in plan[1:]))
        changed = Packing(*(column.copy() for column in plan))
        if kind == "other document":
            at = case.chance.randrange(len(changed.documents))
            changed.documents[at] += 1
            changed.documents[at] %= changed.documents.max()
        else:
            longest = changed.lengths.argmax()
            changed.lengths[longest] -= 1
            changed.firsts[longest] += kind == "later"
        return changed

    # Documents cannot give a plan that is wrong.
    return mock.patch.object(row_packer, "plan_rows", plan_rows)


def in_segments(case, kind):
    """Faults in the segment index, between its making and its place."""

    def fault(_, given):
        segments = given["segments"]
        at = case.chance.randrange(len(segments))
        bad = bytes([segments[at] ^ 1 << case.chance.randrange(8)])
        end = bad + segments[at + 1 :] if kind == "flip" else b""
        given["segments"] = segments[:at] + end

    return at_publishing(case, fault)


def faults_of(*places):
    """Returns faults by name, of (place, fault, kinds)."""
    return {
        f"{place}: {kind}": functools.partial(fault, kind=kind)
        for place, fault, kinds in places
        for kind in kinds
    }


FAULTS = faults_of(
    ("source", in_source, RECORDS),
    ("encoder", in_encoder, RECORDS),
    ("finished file", before_publishing, FILE_FAULTS),
    ("plan", in_plan, ("lose", "double", "move")),
)
OF_PACKING = FAULTS | faults_of(
    ("documents", in_documents, ("lose", "double")),
    ("plan of rows", in_plan_of_rows, ("other document", "shorter", "later", "lose")),
    ("segment index", in_segments, ("flip", "cut")),
)
