"""Commands in any order that crash or meet faults: a dataset is what one has made."""

from __future__ import annotations

import os
import pathlib
import random
import sys

import pytest

from gristmill.dataset.base.errors import GristmillError
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.metadata.manifest import read_manifest
from gristmill.loader import open as open_dataset
from gristmill.pipelines.anywhere import verify
from gristmill.pipelines.convert import convert
from gristmill.transforms.jobs.conversion_job import ConversionJob
from tests.servers.gcs_server import GcsServer
from tests.support.conversion import job_of
from tests.support.records import frames_of, text_records
from tests.support.watched import at_storage, watched

# The last two have shards of the same sizes; the first has damage.
RECORDS = [text_records(count, seed=count) for count in (7, 30, 50)]
RECORDS += [[], [record[::-1] for record in RECORDS[2]]]
FAULTS = ("503", "lost", "reset", "412", "500", "cut", "429", "403")
OPERATIONS = ("insert", "copy", "delete", "stat", "media", "list", "")

Contents = dict[str, tuple[list[bytes], int]]  # Records and number of shards.


class CrashError(BaseException):
    """Ends a command between two steps, as `kill -9` does."""


class Steps:
    """Counts what a storage changes, and crashes at one of these steps."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.left, self.after = 0, False
        for name in ("write", "publish", "delete"):
            for after, step in ((False, self._begin), (True, self._end)):
                at_storage(patch, name, "", step, after=after, times=sys.maxsize)
        watched(patch, os, "link", lambda *_, **__: self._begin())

    def _begin(self) -> None:
        self.left -= 1
        if not self.left and not self.after:
            raise CrashError

    def _end(self) -> None:
        if not self.left and self.after:
            raise CrashError


def command_of(
    chance: random.Random, folder: pathlib.Path, output: str
) -> tuple[list[ConversionJob], bool, Contents]:
    """Returns a conversion of some splits, and what it makes."""
    jobs, made = [], Contents()
    for split in chance.sample(["train", "test"], chance.choice((1, 1, 2))):
        number = chance.randrange(len(RECORDS))
        shards = chance.choice((1, 2, 3, 5)) if RECORDS[number] else 1
        plan = ("num_shards", shards)
        options = {"split": split, "plan": plan, "on_corrupt": "skip"}
        jobs.append(job_of(folder / f"in-{number}", output, **options))
        made[split] = RECORDS[number], shards
    return jobs, chance.random() < 0.75, made


def what_is_there(output: str) -> Contents:
    manifest, found = read_manifest(output), Contents()
    for name, split in manifest.splits.items() if manifest else ():
        dataset = open_dataset(output, name, cache_dir="")
        found[name] = dataset.read(range(len(dataset))), split.shards
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "rounds"),
    [
        *(("local", 20), ("gs", 8)),
        pytest.param("local", 1000, marks=pytest.mark.soak),
        pytest.param("gs", 300, marks=pytest.mark.soak),  # Some wait for retries.
    ],
)
def test_a_dataset_is_what_a_command_has_made(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, place: str, rounds: int
) -> None:
    chance = random.Random(f"0 {rounds}")
    for number, records in enumerate(RECORDS):
        junk = b"" if number else b"junk"
        (tmp_path / f"in-{number}").write_bytes(junk + frames_of(records))
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        output = "gs://bucket/out" if place == "gs" else str(tmp_path / "out")
        steps, before = Steps(monkeypatch), Contents()
        command = command_of(chance, tmp_path, output)
        for _ in range(rounds):
            if chance.random() < 0.75:  # Otherwise the same once more.
                command = command_of(chance, tmp_path, output)
            if place == "gs" and chance.random() < 0.5:
                operation = chance.choice(OPERATIONS)
                skip = chance.randrange(30 if operation else 90)
                server.fail(chance.choice(FAULTS), operation, skip=skip)
            else:
                steps.left = chance.randrange(60) if chance.random() < 0.8 else 0
            steps.after = chance.random() < 0.5
            jobs, overwrites, made = command
            try:
                convert(jobs, overwrite=overwrites)
                done = True
            except (CrashError, GristmillError):
                done = False
            steps.left = 0
            server.faults.clear()
            now = what_is_there(output)
            for split in {*before, *now}:
                assert now.get(split) in (before.get(split), made.get(split))
                assert split in now or split not in before
            if done:
                assert made.items() <= now.items()
                assert verify(output, workers=1).findings == ()
            before = now
        clean(output, unfinished=True)
        found = verify(output, workers=1)
        assert (found.findings, found.leftovers) == ((), ())
        assert what_is_there(output) == before
