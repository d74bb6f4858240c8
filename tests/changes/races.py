"""Races of commands on one dataset: killed at any step, and read all the time."""

import collections
import contextlib
import itertools
import json
import random
import re
import threading
import time
from typing import NamedTuple

from gristmill import loader
from gristmill.dataset import NotADatasetError, ReplacedError, open_manifest
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.anywhere import verify
from tests.changes import race_commands
from tests.changes.changes import NAME
from tests.changes.race_commands import RECORDS, records_of
from tests.faults.kills import Killer
from tests.support.records import frames_of, write_array_records

KILLED = -9
SOURCES = 6
# The kinds of commands, by how often they come.
_KINDS = {
    "convert": 2,
    "overwrite": 4,
    "append": 4,
    "remove": 3,
    "writer": 4,
    "write": 3,
    "attach": 3,
    "index": 2,
    "rollback": 3,
    "clean": 2,
    "unfinished": 2,
}
_REPLACE = {"overwrite", "writer", "write", "index", "rollback"}
_OPTIONS = ("overwrite", "keep_replaced", "erase")
_CONVERT = (
    f"convert {{folder}}/{{tag}} {{output}} --name={NAME} --num-shards=2 --workers=1"
)
# The lines of commands; others are Python's.
_LINES = {
    "convert": _CONVERT,
    "overwrite": f"{_CONVERT} --overwrite",
    "append": "append {output} {folder}/{tag} --num-shards=2 --workers=1",
    "attach": "attach {output} --map=tests.changes.race_commands:text_of --overwrite",
    "index": f"index {{files}} --name={NAME} --split=train --workers=1 --overwrite "
    "--keep-replaced",
    "rollback": "rollback {output} {edition}",
    "clean": "clean {output}",
    "unfinished": "clean {output} --unfinished",
}
# Beside the dataset, of no command: `index` takes them.
FILES = ("x0", "x1")


class Ran(NamedTuple):
    """A command that has ended: when it ran, how it ended, and what it said."""

    kind: str
    tag: str
    begin: float
    end: float
    status: int
    error: str


class Race:
    """Commands of several processes on one dataset.

    Args:
        folder: For inputs and logs.
        output: The dataset.
        seed: Decides which commands there are, and where they are killed.
        unfinished: Whether `clean --unfinished` is among them.
    """

    def __init__(self, folder, output, seed, *, unfinished=True):
        self.folder, self.output = folder, output
        self.ran: list[Ran] = []
        self.read = 0
        self.met: list[str] = []
        self._log = folder / "removed.jsonl"
        self._log.touch()
        self._chance = random.Random(seed)
        self._kinds = [*_KINDS][: None if unfinished else -1]
        self._lock = threading.Lock()
        for source in range(SOURCES):
            inputs = folder / f"s{source}"
            inputs.mkdir()
            (inputs / "in.tfrecord").write_bytes(frames_of(records_of(inputs.name)))
        for name in FILES:
            file = folder / f"{name}.array_record"
            write_array_records(file, records_of(name))
            place = f"{output}/{file.name}"
            storage_for(output).write(place, file.read_bytes(), replaces="")

    def run(self, commands, *, processes=3):
        """Runs commands, some of which are killed, and reads meanwhile."""
        done = threading.Event()
        left = iter(range(commands))

        def work(number):
            place = self.folder / f"process-{number}"
            place.mkdir(exist_ok=True)
            with Killer(place) as killer:
                for count in left:
                    self._one(killer, count)

        def look():
            while not done.is_set():
                self._look()

        threads = [threading.Thread(target=work, args=(n,)) for n in range(processes)]
        reader = threading.Thread(target=look)
        for thread in (*threads, reader):
            thread.start()
        for thread in threads:
            thread.join()
        done.set()
        reader.join()

    def _one(self, killer, count):
        with self._lock:
            chance, kinds = self._chance, self._kinds
            (kind,) = chance.choices(kinds, [_KINDS[k] for k in kinds])
            kill_at = chance.choice((0, chance.randrange(1, 50)))
            options = [name for name in _OPTIONS if chance.random() < 0.6]
            tag, edition = f"s{chance.randrange(SOURCES)}", 1
            files = chance.sample(FILES, chance.randrange(1, 3))
        line = _LINES.get(kind, "{file} {kind} {output} {log} {tag} {options}")
        if kind == "index":
            # What is not kept could never be replaced by anything but an index.
            tag = files[0]
        elif kind == "rollback":
            with contextlib.suppress(NotADatasetError):
                known = open_manifest(self.output).splits["train"].known
                edition = chance.choice([*known])
        elif kind not in _LINES:
            tag = f"{kind[:2]}{count}"
        if kind == "overwrite" and "keep_replaced" in options:
            line += " --keep-replaced"
        given = {
            "files": " ".join(f"{self.output}/{file}.array_record" for file in files),
            "file": race_commands.__file__,
            "kind": kind,
            "output": self.output,
            "folder": self.folder,
            "log": self._log,
            "tag": tag,
            "edition": edition,
            "options": " ".join(options),
        }
        begin = time.monotonic()
        ended = killer.run(line.format(**given).split(), kill_at=kill_at)
        end = time.monotonic()
        self.ran.append(Ran(kind, tag, begin, end, ended.status, ended.error))

    def _look(self):
        try:
            dataset = loader.open(self.output, "train", verify="never", cache_dir="")
        except NotADatasetError as error:
            if self.read:
                self.met.append(f"open: {error}")
            time.sleep(0.02)
            return
        except Exception as error:
            self.met.append(f"open: {type(error).__name__} {error}")
            return
        try:
            records = dataset.read(range(len(dataset)))
            texts = [*dataset.column("text")[:]] if "text" in dataset.columns else None
        except ReplacedError:
            return  # It is told in the middle of it.
        except Exception as error:
            self.met.append(f"read: {type(error).__name__} {error}")
            return
        self.read += 1
        self.met += [f"read: {wrong}" for wrong in self.wrong_with(records)]
        if texts is not None and texts != [record.decode() for record in records]:
            self.met.append("read: a column of other records")

    def wrong_with(self, records):
        """Says what no command can have made of a split."""
        lines = self._log.read_text().splitlines()
        removed = {(source, number) for source, number in map(json.loads, lines)}
        parts = [record.decode().split() for record in records]
        seen = set()
        for tag, group in itertools.groupby(parts, key=lambda part: part[0]):
            numbers = [int(part[1]) for part in group]
            if tag in seen or len({*numbers}) != len(numbers):
                yield f"{tag} is there twice"
            seen.add(tag)
            if lost := {(tag, n) for n in {*range(RECORDS)} - {*numbers}} - removed:
                yield f"lost: {sorted(lost)}"

    def check(self):
        """Checks what was met, and what there is in the end."""
        assert not self.met, collections.Counter(self.met).most_common(5)
        strange = [
            f"{ran.kind} {ran.tag} {ran.status}\n{ran.error[-1500:]}"
            for ran in self.ran
            if ran.status not in (0, KILLED) and not _is_told(ran.error)
        ]
        assert not strange, "\n".join(strange)
        clean(self.output, unfinished=True)
        found = verify(self.output, workers=1)
        assert (found.findings, found.leftovers) == ((), ())
        dataset = loader.open(self.output, "train", verify="never", cache_dir="")
        records = dataset.read(range(len(dataset)))
        assert [*self.wrong_with(records)] == []
        there = {record.decode().split()[0] for record in records}
        for ran in self.ran:
            later = [
                one
                for one in self.ran
                if one is not ran and one.kind in _REPLACE and one.end > ran.begin
            ]
            made = ran.kind in ("append", "overwrite", "writer", "write", "index")
            if made and ran.status == 0 and not later:
                assert ran.tag in there, (ran, there)


# How a command says that another one has the output, or that there is nothing to do.
_TOLD = re.compile(
    "|".join(
        (
            "holds this split already|with the name of a shard is there already",
            "no committed dataset|not a committed dataset",
            "has taken over|was given up|as long as work on the split is unfinished",
            "another command has finished",
            "changed the split while this one ran|file changed while this command ran",
            "inputs are in the dataset already|records were removed from the split",
            "another job has written a file",
            "is not the newest one|there is no such edition|no such split",
            "no state of the split is known",
            "a split that was there is gone|the split is gone",
            "has been written already, and not committed|a finished part again",
            "was replaced while",
            "the split holds files that gristmill did not write",
        )
    )
)


def _is_told(error):
    return "Traceback" not in error and _TOLD.search(error) is not None
