"""Commands that change a dataset, in this process, which may be killed anywhere.

Records are not compressed: where one is, a search of the bytes finds it.
"""

import contextlib
import functools
import os
import threading

import numpy as np
import pytest
from urllib3.connectionpool import HTTPConnectionPool

from gristmill import loader
from gristmill.dataset import (
    ColumnWriter,
    RecordsDigest,
    Writer,
    WriterOptions,
    commit_parts,
    open_manifest,
)
from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.local.pool import run_job
from gristmill.transforms import RecordOptions
from gristmill.transforms.checking.verification import VerifyJob
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.make_shards import make_shards, shard_tasks
from gristmill.transforms.removal.cut_shard import cut_shard
from gristmill.transforms.removal.removal_job import begin_removal, commit_removal
from gristmill.transforms.writing.write_group import (
    assign_record,
    encode_task,
    write_group,
)
from gristmill.transforms.writing.write_split import (
    WriteJob,
    begin_write,
    commit_write,
    pack_count,
)
from tests.commands import conftest as commands
from tests.support.conversion import job_of
from tests.support.records import checksums, frames_of

NAME = "d"
A, B, C = ([b"<%c %d>" % (name, n) for n in range(6)] for name in b"abc")
PLAIN = WriterOptions(compression="uncompressed")
_STEPS = ("link", "mkdir", "rename", "replace", "rmdir", "unlink")
_CHANGES = {"POST", "PUT", "PATCH", "DELETE"}


class Killed(BaseException):
    """Ends a command in the middle, as a crash does."""


def stop():
    """Ends a command where it stands."""
    raise Killed


class Kill:
    """A kill at one of the changes that a command makes.

    Args:
        at: The number of the change, from 1; 0 for none.
        after: Whether the change is made.

    Attributes:
        steps: How many changes there were.
    """

    def __init__(self, at=0, *, after=False):
        self._at, self._after = at, after
        self.steps = 0
        self._lock = threading.Lock()

    @property
    def dead(self):
        """Whether it has come to that: nothing is changed any more."""
        return 0 < self._at <= self.steps

    def change(self, call):
        """Makes a change, or the end."""
        with self._lock:
            dead = self.dead
            self.steps += not dead
            last = self.dead and not dead
        if dead or (last and not self._after):
            raise Killed
        try:
            return call()
        finally:
            if last:
                raise Killed


@contextlib.contextmanager
def killed(output, at, *, after=False):
    """Kills what runs in the block at one of its changes of a dataset.

    Nothing is changed from then on, not even what `finally` would tidy. A change is one
    of a name on a disk, or a request to a bucket.
    """
    kill = Kill(at, after=after)

    def on_disk(true, path, *rest, **options):
        call = functools.partial(true, path, *rest, **options)
        own = options.get("dir_fd") is not None or str(path).startswith(output)
        return kill.change(call) if own else call()

    def sent(true, pool, method, *rest, **options):
        call = functools.partial(true, pool, method, *rest, **options)
        return kill.change(call) if method in _CHANGES else call()

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
        if "://" in output:
            true = HTTPConnectionPool.urlopen
            patch.setattr(
                HTTPConnectionPool, "urlopen", lambda *a, **o: sent(true, *a, **o)
            )
        else:
            for name in _STEPS:
                step = functools.partial(on_disk, getattr(os, name))
                patch.setattr(os, name, step)
        yield kill


def write_inputs(folder, name, records):
    """Writes records as a file to convert; returns its path."""
    place = folder / name
    place.mkdir()
    (place / "in.tfrecord").write_bytes(frames_of(records))
    return str(place / "in.tfrecord")


def begun_conversion(
    output,
    inputs,
    *,
    shards=2,
    overwrite=False,
    keep=False,
    appends=False,
    writer=PLAIN,
    select="",
    split="train",
    pack=None,
):
    """Does what `convert`, `append` and `pack` do; returns what commits it.

    Args:
        output: The dataset.
        inputs: A file of records, patterns, or a dataset.
        shards: The number of shards.
        overwrite: Whether it replaces what is there.
        keep: Whether that is kept.
        appends: Whether the records come after those that are there.
        writer: How they are encoded.
        select: A condition on the columns of a dataset, which is the inputs.
        split: The split.
        pack: How the documents become rows.
    """
    job = job_of(
        inputs,
        output,
        name=NAME,
        plan=("num_shards", shards),
        writer=writer,
        appends=appends,
        records=RecordOptions(select=select),
        split=split,
        pack=pack,
    )
    taken = begin_job(job, overwrite=overwrite)
    if taken.committed is not None:
        return lambda: None
    tasks = shard_tasks(taken.prepared)
    results = [made for task in tasks for made in make_shards(task)]
    return functools.partial(commit_shards, [job], results, keep_replaced=keep)


def convert(output, inputs, *, meanwhile=lambda: None, **options):
    """Does all of it; `meanwhile` is called when nothing is committed yet."""
    commit = begun_conversion(output, inputs, **options)
    meanwhile()
    commit()


append = functools.partial(convert, appends=True)


def begun_removal(output, numbers, edition=None, **options):
    """Does what `remove` does; returns what commits it."""
    begun = begin_removal(output, sorted(numbers), edition=edition, **options)
    cuts = Gathered.of([begun])
    for task in begun.tasks():
        cut_shard(task).gather(cuts)
    return functools.partial(commit_removal, cuts)


def remove(output, numbers, edition=None, *, meanwhile=lambda: None, **options):
    """Does all of it, as `convert` does."""
    commit = begun_removal(output, numbers, edition, **options)
    meanwhile()
    commit()


def write(output, records, *, parts=0, **options):
    """Writes a split with a `Writer`, or with one for each part, which continue."""
    resume = options.get("resume", False)
    size = -(-len(records) // max(1, parts))
    for part in range(max(1, parts)):
        own = records[part * size :][:size]
        with Writer(
            output,
            name=NAME,
            part=part if parts else None,
            parts=parts or None,
            records_per_shard=2,
            writer=PLAIN,
            **options,
        ) as writer:
            for record in own[writer.position_records if resume else 0 :]:
                writer.write(record)
    if parts:
        kept = {
            name: options.get(name, False) for name in ("overwrite", "keep_replaced")
        }
        commit_parts(output, name=NAME, **kept)


def begun_group(output, records, *, overwrite=False, keep=False):
    """Begins what `WriteArrayRecords` does; returns what ends it."""
    job = WriteJob(
        output=output,
        name=NAME,
        split="train",
        num_shards=1,
        shard_bytes=None,
        keyed=False,
        writer=PLAIN,
    )
    elements = [assign_record(record, 1)[1] for record in records]
    sizes = np.array([*map(len, records)])
    counts = pack_count(0, RecordsDigest.of(checksums(records), sizes).pack())
    plan = begin_write(job, counts, groups=1, overwrite=overwrite)
    tasks = dict(plan.tasks())

    def end():
        made = [
            write_group(job, group, [*elements, encode_task(task)])
            for group, task in tasks.items()
        ]
        commit_write(Gathered.of(made), keep_replaced=keep)

    return end


def attach(output, values, *, source="", resume=True):
    """Attaches a column `text`, in place of one of this name."""
    with ColumnWriter(
        output, {"text": "text"}, source=source, resume=resume, overwrite=True
    ) as writer:
        rest = values[writer.position_records :]
        if rest:
            writer.write({"text": np.array(rest, object)})


def run(line, *words, code=0):
    """Runs a command, and returns what it says, with one space for all white space."""
    return " ".join(commands.run(line, *words, code=code).output.split())


def split_of(output):
    """Returns the split that there is."""
    return open_manifest(output).splits["train"]


def records_of(output, edition=None, split="train"):
    """Returns the records of a split, as it is or as it was."""
    dataset = loader.open(output, split, edition=edition, verify="never", cache_dir="")
    return dataset.read(range(len(dataset)))


def found_by_verify(output):
    """Returns what `verify` finds: damage, and what was left over."""
    found = run_job(VerifyJob(output), workers=1)
    return list(map(str, found.findings)), list(found.leftovers)


def assert_whole(output, records):
    """The dataset has these records, and nothing is beside it; returns its split."""
    assert found_by_verify(output) == ([], [])
    assert records_of(output) == [*records]
    return split_of(output)


def files_with(output, words):
    """Returns the files of a dataset that hold one of some words."""
    storage = storage_for(output)
    return [
        info.path
        for info in sorted(storage.scan(output, deep=True))
        if any(word in storage.read(info.path) for word in words)
    ]
