"""A model of a dataset: commands in any order, killed anywhere, against lists."""

import contextlib
import itertools
import os
import pathlib
import tempfile
from typing import NamedTuple

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gristmill import loader
from gristmill.dataset import DataLossError, GristmillError, NotADatasetError
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.commit.commit import roll_back
from gristmill.dataset.metadata.manifest import states_of
from gristmill.dataset.storage.lookup import storage_for
from tests.changes import changes
from tests.changes.changes import NAME, files_with, found_by_verify, killed
from tests.servers.gcs_server import GcsServer

SOAK_EXAMPLES = int(os.environ.get("GRISTMILL_TEST_HISTORIES", "1000"))
INPUTS = {
    name: tuple(b"<%s %d>" % (name.encode(), number) for number in range(count))
    for name, count in {"a": 5, "b": 4, "c": 3, "w": 5, "v": 5, "g": 3}.items()
}
# Files in the dataset's directory that no command has made, with names like its own.
FOREIGN = (
    "notes.txt",
    ".profile",
    "tmp-other/x",
    f"{NAME}-train.array_record.bak",
    f"{NAME}-test.array_record-00000-of-00002",
    "index/notes.txt",
    "columns/notes.txt",
    "errors/notes.txt",
    ".mine.tmp",
    "index/.notes",
    "index/.result-of-mine",
)


class Part(NamedTuple):
    """An edition: its number, its records, what made them, and if all are there."""

    number: int
    records: tuple
    made: tuple
    whole: bool = True


class Model(NamedTuple):
    """What a dataset is: the parts of its split, of all its states, and values.

    Attributes:
        parts: The split as it is, () for none.
        last: The highest number that was given.
        states: The parts of each state that can be read, by its number.
        values: Of the column of an edition.
    """

    parts: tuple = ()
    last: int = 0
    states: dict = {}  # noqa: RUF012
    values: dict = {}  # noqa: RUF012

    @property
    def records(self):
        return tuple(record for part in self.parts for record in part.records)

    @property
    def number(self):
        return max((part.number for part in self.parts), default=0)

    def with_parts(self, *parts, keep=True):
        last = max([self.last, *(part.number for part in parts)])
        new = Model(parts, last, values=self.values)
        return new._replace(states={**(self.states if keep else {}), new.number: parts})

    def made(self, name, how, *, adds=False):
        part = Part(self.last + 1, INPUTS[name], (name, how))
        return self.with_parts(*(self.parts if adds else ()), part)

    def without(self, numbers, *, erase):
        parts, values, last, first = [], dict(self.values), self.last, 0
        for part in self.parts:
            left = [n for n in range(len(part.records)) if first + n not in numbers]
            first += len(part.records)
            if len(left) < len(part.records):
                last += 1
                if part.number in values:
                    had = values[part.number]
                    values[last] = tuple(had[n] for n in left)
                records = tuple(part.records[n] for n in left)
                part = Part(last, records, part.made, whole=False)
            parts.append(part)
        new = self._replace(values=values).with_parts(*parts, keep=not erase)
        # States before all that changed have none of the records.
        older = [p for p, old in zip(parts, self.parts, strict=True) if p == old]
        kept = {
            number: state
            for number, state in self.states.items()
            if state == (*older[: len(state)],) == self.parts[: len(state)]
        }
        return new._replace(states={**kept, **new.states})


class History(RuleBasedStateMachine):
    """Commands on one dataset."""

    remote = False

    def __init__(self):
        super().__init__()
        self._stack = contextlib.ExitStack()
        folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        self.folder = pathlib.Path(folder)
        self.output = f"{folder}/out"
        if self.remote:
            server = self._stack.enter_context(GcsServer("bucket"))
            patch = self._stack.enter_context(pytest.MonkeyPatch.context())
            patch.setenv("STORAGE_EMULATOR_HOST", server.url)
            self.output = "gs://bucket/out"
        self.inputs = {
            name: changes.write_inputs(self.folder, name, INPUTS[name])
            for name in "abc"
        }
        self.before = self.outside()
        self.model = Model()
        self.begun = False  # Whether there may be unfinished work.
        self.foreign = False

    def teardown(self):
        self._stack.close()

    def outside(self):
        paths = [pathlib.Path(path) for path in self.inputs.values()]
        return {str(path): path.read_bytes() for path in paths}

    # What there is.

    def look(self):
        """Returns what can be read of the model's fields."""
        try:
            split = changes.split_of(self.output)
        except NotADatasetError:
            return Model(last=self.model.last)
        states = {}
        for number, state in states_of(split).items():
            records = iter(self.read(None if number == split.edition else number))
            states[number] = tuple(
                (part.edition, (*itertools.islice(records, part.records),))
                for part in state.parts
            )
            assert not [*records]
        return Model(
            parts=states[split.edition], last=split.last_edition, states=states
        )

    def opened(self, edition=None):
        return loader.open(
            self.output, "train", edition=edition, verify="never", cache_dir=""
        )

    def read(self, edition):
        dataset = self.opened(edition)
        return dataset.read(range(len(dataset)))

    def matches(self, seen, model):
        """Returns whether a dataset is like a model."""

        def plain(parts):
            return tuple((part.number, part.records) for part in parts)

        states = {number: plain(parts) for number, parts in model.states.items()}
        return (
            seen.parts == plain(model.parts)
            and (seen.last == model.last or not model.parts)
            and seen.states.items() <= states.items()
        )

    # What happens.

    def do(
        self, command, *outcomes, kill, may_refuse=False, repeated=lambda model: None
    ):
        """Runs a command, which may be killed and run again.

        Args:
            command: The command.
            outcomes: What it may make of the dataset; none where it has to refuse.
            kill: At which change it is killed, whether after it, and whether it is run
                again then.
            may_refuse: Whether it may be refused all the same.
            repeated: What it makes once more of what it has made.

        Returns:
            Whether it has succeeded.
        """
        at, after, again = kill
        before = self.model
        with killed(self.output, at, after=after) as found:
            refused = self.refuses(command)
        if found.dead:
            self.now(before, *outcomes)
            self.begun = True
            if not again:
                self.check()
                return False
            refused = self.refuses(command)
            more = repeated(self.model) if self.model is not before else None
            outcomes = (*outcomes, *filter(None, (more,)))
        if refused:
            assert not outcomes or may_refuse, refused
            self.now(self.model)
        else:
            assert outcomes, "it was to be refused"
            self.now(*outcomes)
        self.check()
        return not refused

    def refuses(self, command):
        try:
            command()
        except DataLossError:
            raise
        except GristmillError as error:
            return error
        return None

    def now(self, *models):
        """Finds out which of some models the dataset is like."""
        seen = self.look()
        for model in models:
            if model is None or not self.matches(seen, model):
                continue
            values = self.values_of(model)
            if values is None or values == self.column():
                self.model = model
                return
        raise AssertionError(f"{seen}\nis none of\n" + "\n".join(map(str, models)))

    def check(self):
        assert self.outside() == self.before
        storage = storage_for(self.output)
        for path in FOREIGN if self.foreign else ():
            assert storage.read(f"{self.output}/{path}") == path.encode()
        if not self.model.parts:
            return
        findings, leftovers = found_by_verify(self.output)
        assert not findings
        assert self.begun or not leftovers
        values = self.values_of(self.model)
        assert values is None or values == self.column()

    def values_of(self, model):
        """Returns the column of a model, None if not all of its parts have values."""
        values = [model.values.get(part.number, ()) for part in model.parts]
        found = [value for one in values for value in one]
        return found if found and len(found) == len(model.records) else None

    def column(self):
        dataset = self.opened()
        return [*dataset.column("text")[:]] if "text" in dataset.columns else None

    # Commands.

    kills = st.one_of(
        st.just((0, False, False)),
        st.tuples(st.integers(1, 50), st.booleans(), st.booleans()),
    )

    @rule()
    def put_foreign_files(self):
        if not self.foreign:
            self.foreign = True
            for path in FOREIGN:
                place = f"{self.output}/{path}"
                storage_for(place).write(place, path.encode())

    @rule(name=st.sampled_from("ab"), shards=st.sampled_from([1, 2]), kill=kills)
    def convert(self, name, shards, kill):
        model = self.model
        made = [part for part in model.parts if part.made == (name, shards)]
        outcomes = [model.made(name, shards)]
        if model.parts:
            outcomes = [model] if any(part.whole for part in made) else []
        self.do(
            lambda: changes.convert(self.output, self.inputs[name], shards=shards),
            *outcomes,
            kill=kill,
        )

    @rule(
        name=st.sampled_from("ab"),
        shards=st.sampled_from([1, 2]),
        keep=st.booleans(),
        kill=kills,
    )
    def overwrite(self, name, shards, keep, kill):
        def made(model):
            return model.made(name, shards)

        same = [(part.made, part.whole) for part in self.model.parts]
        own = [self.model] if same == [((name, shards), True)] else []
        self.do(
            lambda: changes.convert(
                self.output, self.inputs[name], shards=shards, overwrite=True, keep=keep
            ),
            made(self.model),
            *own,
            kill=kill,
            repeated=made,
        )

    @precondition(lambda self: self.model.parts)
    @rule(name=st.sampled_from("abc"), shards=st.sampled_from([1, 2]), kill=kills)
    def append(self, name, shards, kill):
        model = self.model
        there = [part for part in model.parts if part.made[0] == name]
        outcomes = [model.made(name, shards, adds=True)]
        if there:
            same = any(part.whole and part.made == (name, shards) for part in there)
            outcomes = [model] if same else []
        self.do(
            lambda: changes.append(self.output, self.inputs[name], shards=shards),
            *outcomes,
            kill=kill,
        )

    @precondition(lambda self: self.model.records)
    @rule(
        places=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=3),
        erase=st.booleans(),
        give_up=st.booleans(),
        kill=kills,
    )
    def remove(self, places, erase, give_up, kill):
        model, records = self.model, self.model.records
        numbers = frozenset(int(place * len(records)) for place in places)
        ended = self.do(
            lambda: changes.remove(
                *(self.output, numbers, model.number),
                erase=erase,
                give_up=erase and give_up,
            ),
            model.without(numbers, erase=erase),
            kill=kill,
            may_refuse=erase and not give_up and self.begun,
        )
        if ended and erase:
            assert not files_with(self.output, {records[n] for n in numbers})

    @precondition(lambda self: self.model.parts)
    @rule(place=st.floats(0, 1, exclude_max=True), kill=kills)
    def roll_back(self, place, kill):
        model = self.model
        numbers = sorted(states_of(changes.split_of(self.output)))
        number = numbers[int(place * len(numbers))]
        outcome = model.with_parts(*model.states[number])
        self.do(lambda: roll_back(self.output, "train", number), outcome, kill=kill)

    @precondition(lambda self: self.model.parts or self.begun)
    @rule(unfinished=st.booleans(), kill=kills)
    def clean(self, unfinished, kill):
        ended = self.do(
            lambda: clean(self.output, unfinished=unfinished),
            self.model,
            kill=kill,
            may_refuse=not self.model.parts,
        )
        if ended:
            if self.model.parts:
                assert not changes.split_of(self.output).replaced
            if unfinished:
                self.begun = False
                self.check()

    @precondition(lambda self: self.model.records)
    @rule(salt=st.sampled_from("xy"), resume=st.booleans(), kill=kills)
    def attach(self, salt, resume, kill):
        model = self.model
        column = [f"{salt} {record.decode()}" for record in model.records]
        left = iter(column)
        values = {
            part.number: (*itertools.islice(left, len(part.records)),)
            for part in model.parts
        }
        self.do(
            lambda: changes.attach(self.output, column, source=salt, resume=resume),
            model._replace(values={**model.values, **values}),
            kill=kill,
        )

    @rule(
        parts=st.sampled_from([0, 2]),
        resume=st.booleans(),
        overwrite=st.booleans(),
        keep=st.booleans(),
        kill=kills,
    )
    def write(self, parts, resume, overwrite, keep, kill):
        name, model = "v" if parts else "w", self.model

        def made(model):
            return model.made(name, parts)

        there = [(part.made, part.whole) for part in model.parts]
        outcomes = [made(model)]
        if there and not overwrite:
            outcomes = [model] if resume and there[0] == ((name, parts), True) else []
        self.do(
            lambda: changes.write(
                *(self.output, INPUTS[name]),
                parts=parts,
                resume=resume,
                overwrite=overwrite,
                keep_replaced=keep,
            ),
            *outcomes,
            kill=kill,
            # Without `resume` what is committed, or finished, is in the way.
            may_refuse=self.begun or not (resume or overwrite),
            repeated=made,
        )

    @rule(overwrite=st.booleans(), keep=st.booleans(), kill=kills)
    def write_group(self, overwrite, keep, kill):
        model = self.model
        own = [part.made for part in model.parts] == [("g", 0)] and model.parts[0].whole
        outcomes = [model.made("g", 0)] if overwrite or not model.parts else []
        self.do(
            lambda: changes.begun_group(
                self.output, INPUTS["g"], overwrite=overwrite, keep=keep
            )(),
            *([model] if own else outcomes),
            kill=kill,
        )


class RemoteHistory(History):
    """The same in a bucket."""

    remote = True


def run(machine, examples, steps):
    settings = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=steps,
        suppress_health_check=[*hypothesis.HealthCheck],
        deadline=None,
        derandomize=True,
    )
    run_state_machine_as_test(machine, settings=settings)


def test_any_history():
    run(History, 8, 10)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [History, RemoteHistory])
def test_more_histories(machine):
    run(machine, 10 if machine.remote else 30, 15)


@pytest.mark.soak
@pytest.mark.parametrize("machine", [History, RemoteHistory])
def test_many_histories(machine):
    run(machine, SOAK_EXAMPLES, 25)
