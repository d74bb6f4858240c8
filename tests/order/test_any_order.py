"""Commands in any order that crash or meet faults: a dataset is what one has made."""

from __future__ import annotations

import os
import pathlib
import random
import sys
from typing import NamedTuple

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

Content = tuple[list[bytes], int]  # Records and number of shards.


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


class Command(NamedTuple):
    """A conversion of some splits."""

    jobs: list[ConversionJob]
    made: dict[str, Content]
    overwrite: bool


def command_of(chance: random.Random, folder: pathlib.Path, output: str) -> Command:
    jobs, made = [], {}
    for split in chance.sample(["train", "test"], chance.choice((1, 1, 2))):
        number = chance.randrange(len(RECORDS))
        shards = chance.choice((1, 2, 3, 5)) if RECORDS[number] else 1
        plan = ("num_shards", shards)
        options = {"split": split, "plan": plan, "on_corrupt": "skip"}
        jobs.append(job_of(folder / f"in-{number}", output, **options))
        made[split] = RECORDS[number], shards
    return Command(jobs, made, chance.random() < 0.75)


def what_is_there(output: str) -> dict[str, Content]:
    manifest = read_manifest(output)
    if manifest is None:
        return {}
    found: dict[str, Content] = {}
    for name, split in manifest.splits.items():
        dataset = open_dataset(output, name, cache_dir="")
        found[name] = dataset.read(range(len(dataset))), split.shards
    return found


def run(command: Command) -> bool:
    """Returns whether a command said that it was done."""
    try:
        convert(command.jobs, overwrite=command.overwrite)
    except (CrashError, GristmillError):
        return False
    return True


def check(
    output: str,
    command: Command,
    before: dict[str, Content],
    *,
    done: bool,
    refused: bool,
) -> dict[str, Content]:
    """Checks what a command has left, and returns it.

    Args:
        output: The dataset.
        command: The command.
        before: What was there.
        done: Whether the command said that it was done.
        refused: Whether a request was refused: then it may have deleted less, and the
            next one does.
    """
    now = what_is_there(output)
    for split in {*before, *now}:
        assert now.get(split) in (before.get(split), command.made.get(split)), split
        assert now.get(split) is not None or before.get(split) is None
    if done:
        assert command.made.items() <= now.items()
        assert verify(output, workers=1).findings == ()
        # What is left is work that is not finished.
        garbage: list[str] = []
        clean(output, delete=False, seen=lambda path, _: garbage.append(path))
        shards = tuple(f"data-{split}.array_record-" for split in command.made)
        left = [path for path in garbage if path.startswith(shards)]
        assert refused or not (command.overwrite and left)
    return now


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0], ids="seed{}".format)
@pytest.mark.parametrize(
    ("place", "rounds"),
    [
        *(("local", 20), ("gs", 8)),
        pytest.param("local", 1000, marks=pytest.mark.soak),
        pytest.param("gs", 300, marks=pytest.mark.soak),  # Some wait for retries.
    ],
)
def test_a_dataset_is_what_a_command_has_made(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    rounds: int,
    seed: int,
) -> None:
    chance = random.Random(f"{seed} {rounds}")
    for number, records in enumerate(RECORDS):
        junk = b"" if number else b"junk"
        (tmp_path / f"in-{number}").write_bytes(junk + frames_of(records))
    output = str(tmp_path / "out")
    with GcsServer("bucket") as server:
        if place == "gs":
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
            output = "gs://bucket/out"
        steps = Steps(monkeypatch)
        before: dict[str, Content] = {}
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
            done = run(command)
            steps.left = 0
            refused = any(not fault.times for fault in server.faults)
            server.faults.clear()
            before = check(output, command, before, done=done, refused=refused)
        clean(output, unfinished=True)
        found = verify(output, workers=1)
        assert (found.findings, found.leftovers) == ((), ())
        assert what_is_there(output) == before
