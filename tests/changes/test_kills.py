"""Each command that changes a dataset, killed at any of its changes and run again."""

import contextlib
import itertools
import pathlib
from typing import NamedTuple

import pytest

from gristmill import loader
from gristmill.dataset import (
    JobChangedError,
    NotADatasetError,
    ReplacedError,
    encode_example,
)
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.commit.commit import roll_back
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.anywhere import index
from gristmill.pipelines.local.pool import run_job
from gristmill.pipelines.options.job_options import IndexOptions
from gristmill.transforms import PackOptions
from gristmill.transforms.columns.duplicates import DuplicatesJob
from tests.changes.changes import (
    NAME,
    A,
    B,
    append,
    attach,
    begun_group,
    convert,
    files_with,
    found_by_verify,
    killed,
    remove,
    write,
    write_inputs,
)
from tests.support.editions import files_of
from tests.support.records import frames_of, write_array_records

LEFT = [*A[:2], *A[3:], *B[:2], *B[3:]]
VALUES = [f"value {n}" for n in range(12)]
FILE = "x.array_record"
SELECT = "text in ('value 1', 'value 2')"


def empty(output, inputs):
    place = f"{output}/{FILE}"  # Of another program, until it is indexed.
    storage_for(place).write(place, pathlib.Path(inputs[FILE]).read_bytes())


def two(output, inputs):
    convert(output, inputs["a"])
    append(output, inputs["b"])


def packed(output, inputs, length=4, **options):
    documents = pathlib.Path(inputs["a"]).with_name("documents")
    if not documents.exists():
        made = [encode_example({"ids": [*range(ids)]}) for ids in (9, 0, 2, 17, 3)]
        documents.write_bytes(frames_of(made))
    rows = PackOptions(length=length, column="ids")
    convert(output, str(documents), pack=rows, **options)


def replaced(output, inputs):
    convert(output, inputs["a"])
    convert(output, inputs["b"], overwrite=True, keep=True)


def indexed(output, inputs):
    given = {"name": NAME, "split": "train", "overwrite": True}
    index(IndexOptions(files=(f"{output}/{FILE}",), **given), workers=1)


def unique(output, inputs):
    run_job(DuplicatesJob(output, "record"), workers=1)
    clean(output)  # Where it was killed after its commit, it leaves what it compared.


class Command(NamedTuple):
    """What is there first, what is run, the records then, and if it is done once."""

    before: object
    run: object
    records: list
    once: bool = True


COMMANDS = {
    "convert": Command(empty, lambda out, given: convert(out, given["a"]), A),
    "writer": Command(empty, lambda out, given: write(out, A, resume=True), A),
    "parts": Command(empty, lambda out, given: write(out, A, parts=2, resume=True), A),
    "group": Command(empty, lambda out, given: begun_group(out, A)(), A),
    "index": Command(empty, indexed, B, once=False),
    "append": Command(
        lambda out, given: convert(out, given["a"]),
        lambda out, given: append(out, given["b"]),
        A + B,
    ),
    "overwrite": Command(
        two, lambda out, given: convert(out, given["b"], overwrite=True), B, once=False
    ),
    "remove": Command(two, lambda out, given: remove(out, [2, 8], 2), LEFT),
    "erase": Command(two, lambda out, given: remove(out, [2, 8], 2, erase=True), LEFT),
    "attach": Command(two, lambda out, given: attach(out, VALUES), A + B),
    "unique": Command(lambda out, given: convert(out, given["twice"]), unique, A + A),
    "select": Command(
        empty, lambda out, given: convert(out, given["dataset"], select=SELECT), A[1:3]
    ),
    # Other tests say what the rows are.
    "pack": Command(empty, packed, []),
    "pack over": Command(
        two, lambda out, given: packed(out, given, overwrite=True), [], once=False
    ),
    "pack again": Command(
        packed, lambda out, given: packed(out, given, 8, overwrite=True), [], once=False
    ),
    "unpack": Command(
        packed,
        lambda out, given: convert(out, given["b"], overwrite=True),
        B,
        once=False,
    ),
    "roll back": Command(two, lambda out, given: roll_back(out, "train", 1), A),
    "clean": Command(replaced, lambda out, given: clean(out), B),
}


@pytest.fixture
def given(tmp_path, inputs):
    """What commands take."""
    write_array_records(tmp_path / FILE, B)
    source = str(tmp_path / "source")
    convert(source, inputs["a"])
    attach(source, VALUES[:6])
    twice = write_inputs(tmp_path, "twice", A + A)
    return inputs | {FILE: str(tmp_path / FILE), "dataset": source, "twice": twice}


def opened(output):
    with contextlib.suppress(NotADatasetError):
        return loader.open(output, "train", verify="never", cache_dir="")
    return None


def records_of(dataset):
    return None if dataset is None else sorted(dataset)


def put(output, files):
    """Makes a directory what it was."""
    storage = storage_for(output)
    for path in files_of(output):
        storage.delete(f"{output}/{path}")
    for path, data in files.items():
        storage.write(f"{output}/{path}", data)


@pytest.mark.slow
@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", COMMANDS)
def test_the_old_or_the_new_is_there_and_the_same_command_ends_it(
    output, given, name, stride
):
    before, run, records, once = COMMANDS[name]
    before(output, given)
    old, files = records_of(opened(output)), files_of(output)
    run(output, given)
    made = files_of(output)
    new = records_of(opened(output))
    assert not records or new == sorted(records)
    for at in itertools.count(stride // 2 + 1, stride):
        put(output, files)
        held = opened(output)
        with killed(output, at, after=at % 2 == 0) as kill:
            run(output, given)
        assert records_of(opened(output)) in (old, new)
        assert old is None or not found_by_verify(output)[0]
        with contextlib.suppress(ReplacedError):  # Who reads since then is told.
            assert records_of(held) == old
        run(output, given)
        assert records_of(opened(output)) == new
        assert found_by_verify(output) == ([], [])
        # What replaces a state makes another write of the next one.
        assert files_of(output) == made or not once
        if not kill.dead:
            break
    assert at > stride or kill.steps < stride


# After which of them, killed, a record is erased: where it is again, or its value.
KILLED = {
    "attach": COMMANDS["attach"].run,
    "overwrite": lambda out, given: convert(out, given["a"], overwrite=True),
    "kept": lambda out, given: convert(out, given["a"], overwrite=True, keep=True),
    "append": lambda out, given: append(out, given["twice"]),
    "unique": unique,
    "remove": lambda out, given: remove(out, [3, 8]),
    "erase": lambda out, given: remove(out, [3, 8], erase=True),
}


def erase(output, record):
    """Erases a record wherever it is; returns whether that was refused at first."""
    numbers = [n for n, found in enumerate(opened(output)) if found == record]
    try:
        remove(output, numbers, erase=True)
    except JobChangedError:
        remove(output, numbers, erase=True, give_up=True)
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", KILLED)
def test_no_file_holds_what_is_erased_afterwards(output, given, name, stride):
    two(output, given)
    if name != "attach":
        attach(output, VALUES)
    files, refused = files_of(output), set()
    for at in itertools.count(stride // 2 + 1, stride):
        put(output, files)
        with killed(output, at, after=at % 2 == 0) as kill:
            KILLED[name](output, given)
        refused.add(erase(output, A[2]))
        assert files_with(output, [A[2], VALUES[2].encode()]) == []
        assert found_by_verify(output) == ([], [])
        assert A[2] not in records_of(opened(output))
        if not kill.dead:
            break
    assert refused == {False, True}
