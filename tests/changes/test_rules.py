"""The twelve rules of the commit, each by what happens with it."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import threading

import pytest

from gristmill import loader
from gristmill.dataset import (
    InputError,
    JobChangedError,
    NotADatasetError,
    StorageChangedError,
    Writer,
    read_manifest,
)
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.commit.commit import roll_back
from gristmill.dataset.metadata.layout import JOB
from gristmill.dataset.metadata.manifest import read_versioned_manifest, states_of
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.conversion.make_shards import make_shards, shard_tasks
from tests.changes.changes import (
    NAME,
    PLAIN,
    A,
    B,
    C,
    Killed,
    append,
    assert_whole,
    attach,
    begun_conversion,
    begun_group,
    begun_removal,
    convert,
    files_with,
    found_by_verify,
    records_of,
    remove,
    split_of,
    stop,
    write_inputs,
)
from tests.support.conversion import job_of
from tests.support.distributions import ROOT
from tests.support.editions import files_of
from tests.support.told import told
from tests.support.watched import at_storage

TOLD = (InputError, JobChangedError, StorageChangedError)


def shards_in(output):
    return {path for path in files_of(output) if path.startswith(f"{NAME}-")}


def ids_in(output):
    """Returns the ids of the writes that are described."""
    return {
        json.loads(data)["fingerprint"]
        for path, data in files_of(output).items()
        if JOB.parse(path)
    }


def begun(output, inputs, **options):
    """Begins a conversion that ends before its commit."""
    with pytest.raises(Killed):
        convert(output, inputs, meanwhile=stop, **options)


class TestRule1:
    """The id of a write hashes what decides its bytes."""

    def test_the_same_job_finds_its_shards(self, output, a):
        def shards():
            """Returns shards and indexes, with their versions."""
            found = storage_for(output).scan(output, deep=True)
            return {i.path: i.version for i in found if ".array_record-" in i.path}

        begun(output, a)
        os.utime(a, (1, 1))  # The bytes of the input are the same.
        before = shards()
        convert(output, a)
        assert len(before) == 4
        assert shards() == before
        assert records_of(output) == A

    def test_other_jobs_have_no_file_in_common(self, output, a, b, c):
        def begins_anew(inputs, **options):
            shards, ids = shards_in(output), ids_in(output)
            begun(output, inputs, overwrite=True, **options)
            (own,) = ids_in(output) - ids
            new = shards_in(output) - shards
            assert len(new) == options.get("shards", 2)
            assert all(f"-{own}-" in path for path in new)

        convert(output, a)
        begins_anew(a)
        begins_anew(b)
        begins_anew(b, shards=3)
        begins_anew(b, writer=dataclasses.replace(PLAIN, group_size=7))
        append(output, c)  # What it replaces is another state then.
        begins_anew(b)

    def test_what_another_job_has_left_is_named(self, there, a, b):
        begun(there, a, shards=3, overwrite=True)
        job = job_of(b, there, name=NAME, plan=("num_shards", 2), writer=PLAIN)
        (note,) = begin_job(job, overwrite=True).notes
        assert "is not finished" in note
        assert "the plan was 3 shards, is 2 shards" in note
        assert f"gone: {a}" in note
        assert "gristmill clean --unfinished" in note


class TestRule2:
    """An id is done only if the split has it: else the next one is."""

    def test_what_was_rolled_back(self, there, b):
        append(there, b)
        roll_back(there, "train", 1)
        append(there, b)
        split = assert_whole(there, [*A, *B])
        assert split.numbers == (1, 3)
        assert len({part.source["job"] for part in split.known.values()}) == 3
        assert records_of(there, 2) == [*A, *B]

    def test_what_was_replaced(self, output, a, b):
        for inputs, records in ((a, A), (b, B), (a, A), (b, B)):
            convert(output, inputs, overwrite=True)
            assert_whole(output, records)

    def test_what_was_given_up(self, output, a):
        begun(output, a)
        (first,) = ids_in(output)
        clean(output, unfinished=True)
        convert(output, a)
        (second,) = ids_in(output)
        assert first != second
        assert records_of(output) == A


def writer_of(output):
    return Writer(output, name=NAME, records_per_shard=1)


class TestRule3:
    """What a loop or a group writes is of one id, whoever writes it."""

    def test_a_writer_that_begins_anew_takes_nothing_of_the_one_before(self, output):
        with contextlib.suppress(Killed), writer_of(output) as writer:
            for record in A:
                writer.write(record)
            raise Killed
        assert files_with(output, A)
        with writer_of(output) as writer:
            for record in B[:2]:
                writer.write(record)
        assert_whole(output, B[:2])

    def test_a_writer_that_was_taken_over_publishes_nothing(self, output):
        old = writer_of(output)
        old.__enter__()
        old.write(A[0])

        def go_on():  # Its shards are published in a thread.
            old.write(A[1])
            old.__exit__(None, None, None)

        with writer_of(output) as new:
            with told(JobChangedError, "has taken over"):
                go_on()
            new.write(B[0])
        assert_whole(output, B[:1])


class TestRule4:
    """A file is published if none is there, or one of the same bytes."""

    placed = f"{NAME}-train.array_record-00001-of-00002"

    def test_the_same_bytes_are_success(self, output, a, monkeypatch):
        """They come between the look at what is there and the publishing."""
        placed = f"{output}/{self.placed}"
        others = []

        def make():
            begun(output, a)
            others.append(storage_for(output).stat(placed))

        at_storage(monkeypatch, "temporary", "tmp-", make, skip=1)
        convert(output, a)
        assert others == [storage_for(output).stat(placed)]
        assert records_of(output) == A

    def test_other_bytes_stay(self, output, a, monkeypatch):
        storage, placed = storage_for(output), f"{output}/{self.placed}"
        place = functools.partial(storage.write, placed, b"of somebody else")
        at_storage(monkeypatch, "temporary", "tmp-", place, skip=1)
        with pytest.raises(StorageChangedError):
            convert(output, a)
        assert storage.read(placed) == b"of somebody else"
        assert read_manifest(output) is None


PLAIN_NAMES = {f"{NAME}-train.array_record-0000{n}-of-00002" for n in range(2)}
TFDS_INFO = {
    "name": NAME,
    "fileFormat": "array_record",
    "splits": [{"name": "train", "shardLengths": ["3", "3"]}],
}


class TestRule5:
    """TFDS's plain names are taken once, by who creates the first description."""

    def test_the_first_write_has_them_and_no_other(self, there, b):
        assert shards_in(there) == PLAIN_NAMES
        append(there, b)
        mark = split_of(there).parts[1].write
        assert len(mark) == 16
        assert all(f"-{mark}-" in path for path in shards_in(there) - PLAIN_NAMES)

    def test_of_two_that_are_first_one_has_them(self, output, a, b, monkeypatch):
        """The other takes them between the look and the description."""
        other = functools.partial(begun, output, b)
        at_storage(monkeypatch, "write", f"{NAME}-train.job.json", other)
        convert(output, a)
        mark = split_of(output).write
        assert mark
        assert records_of(output) == A
        # Those of the other one were not touched.
        assert {path for path in shards_in(output) if mark not in path} == PLAIN_NAMES
        clean(output, unfinished=True)
        assert found_by_verify(output) == ([], [])
        assert files_with(output, B) == []

    @pytest.mark.parametrize("how", ["append", "remove"])
    def test_what_tfds_cannot_read_any_more_is_withdrawn(self, there, b, how):
        storage = storage_for(there)
        place = f"{there}/dataset_info.json"
        storage.write(place, json.dumps(TFDS_INFO).encode())
        attach(there, [record.decode() for record in A])
        assert storage.stat(place) is not None
        if how == "append":
            append(there, b)
        else:
            remove(there, [1])
        assert storage.stat(place) is None


class TestRule6:
    """`dataset.json` is replaced only in the version that was read."""

    def test_a_commit_between_reading_and_writing_is_not_lost(
        self, there, b, c, monkeypatch
    ):
        for other in (
            functools.partial(append, there, c),
            functools.partial(convert, there, c, split="test"),
        ):
            at_storage(monkeypatch, "write", "dataset.json", other)
        append(there, b)
        assert records_of(there) == [*A, *C, *B]
        assert records_of(there, split="test") == C

    def test_on_a_disk_nobody_comes_between_the_look_and_the_rename(
        self, tmp_path, a, b, c, monkeypatch
    ):
        output, true = str(tmp_path / "out"), os.replace
        convert(output, a)
        others = []

        def replace(source, target, **options):
            if not others and target.endswith("/dataset.json"):
                others.append(threading.Thread(target=append, args=(output, c)))
                others[0].start()
                others[0].join(1.0)  # It waits for the lock.
                assert others[0].is_alive()
            true(source, target, **options)

        monkeypatch.setattr(os, "replace", replace)
        append(output, b)
        others[0].join()
        assert records_of(output) == [*A, *B, *C]


# What may come between the beginning and the commit of a command.
OTHERS = {
    "append": lambda output, inputs: append(output, inputs["c"]),
    "append the same": lambda output, inputs: append(output, inputs["b"], shards=3),
    "overwrite": lambda output, inputs: convert(
        output, inputs["c"], overwrite=True, keep=True
    ),
    "remove": lambda output, inputs: remove(output, [0]),
    "roll back": lambda output, inputs: roll_back(output, "train", 1),
    "attach": lambda output, inputs: attach(
        output, [f"{n}" for n in range(len(records_of(output)))]
    ),
    "clean": lambda output, inputs: clean(output),
    "give up": lambda output, inputs: clean(output, unfinished=True),
}


def attach_with(output, meanwhile):
    values = [f"new {n}" for n in range(len(records_of(output)))]
    with pytest.MonkeyPatch.context() as patch:
        at_storage(patch, "write", ".columns.npz", meanwhile)
        attach(output, values, source="new")


# Commands, and with which of those they can stand.
COMMANDS = {
    "append": lambda output, inputs, other: append(
        output, inputs["b"], meanwhile=other
    ),
    "overwrite": lambda output, inputs, other: convert(
        output, inputs["b"], overwrite=True, keep=True, meanwhile=other
    ),
    "remove": lambda output, inputs, other: remove(output, [1], meanwhile=other),
    "attach": lambda output, inputs, other: attach_with(output, other),
}


def standing():
    """Returns what each command stands on, as the page about the format says."""
    page = (ROOT / "docs/reference/format.md").read_text("utf-8")
    table = page.split("### Commands at once")[1].split("\n\n")[2]
    head, _, *rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in table.splitlines()
    ]
    assert ({*head[1:]}, {row[0] for row in rows}) == ({*COMMANDS}, {*OTHERS})
    return {
        command: {row[0] for row in rows if row[number].startswith("stands")}
        for number, command in enumerate(head[1:], 1)
    }


STAND = standing()


class TestRule7:
    """On a lost race, what can stand does; the rest is told."""

    @pytest.mark.parametrize("other", OTHERS)
    @pytest.mark.parametrize("command", COMMANDS)
    def test_commands_by_commands(self, output, inputs, command, other):
        convert(output, inputs["a"])
        append(output, write_inputs(pathlib.Path(inputs["a"]).parent, "d", [b"<d>"]))
        state = []

        def meanwhile():
            OTHERS[other](output, inputs)
            state.append(files_of(output))

        run = functools.partial(COMMANDS[command], output, inputs, meanwhile)
        if other in STAND[command]:
            run()
            found = records_of(output)
            assert (
                found
                == {
                    "append": [*A, b"<d>", *C * (other == "append"), *B],
                    "overwrite": B,
                    "remove": [A[0], *A[2:], b"<d>"],
                    "attach": [*A, b"<d>"],
                }[command]
            )
            assert found_by_verify(output) == ([], [])
        else:
            with pytest.raises(TOLD):
                run()
            assert state[0]["dataset.json"] == files_of(output)["dataset.json"]
            assert found_by_verify(output)[0] == []
        clean(output, unfinished=True)
        assert found_by_verify(output) == ([], [])


class TestRule8:
    """States stay until `clean`, unless they are replaced without being kept."""

    def test_going_back_is_another_commit(self, there, b, c):
        append(there, b)
        convert(there, c, overwrite=True, keep=True)
        for number, records in ((1, A), (2, [*A, *B]), (3, C), (1, A)):
            roll_back(there, "train", number)
            assert records_of(there) == records
        assert [records_of(there, n) for n in (1, 2, 3)] == [A, [*A, *B], C]
        clean(there)
        assert records_of(there) == A
        assert not files_with(there, [*B, *C])

    def test_what_is_not_kept_goes_with_the_commit(self, there, b, c):
        convert(there, b, overwrite=True, keep=True)
        convert(there, c, overwrite=True)
        assert sorted(states_of(split_of(there))) == [1, 3]
        assert not files_with(there, B)
        assert records_of(there, 1) == A


class TestRule9:
    """`clean` gives up in `dataset.json` before it deletes."""

    def test_a_job_that_was_given_up_fails_at_its_commit(self, there, b):
        with told(JobChangedError, "given up"):
            append(there, b, meanwhile=functools.partial(give_up_only, there))
        assert files_with(there, B)
        assert records_of(there) == A
        append(there, b)
        assert records_of(there) == [*A, *B]
        clean(there)
        assert found_by_verify(there) == ([], [])

    def test_states_are_taken_out_before_their_files_go(self, there, b, monkeypatch):
        convert(there, b, overwrite=True, keep=True)
        seen = []

        def look():
            seen.append(split_of(there).replaced)

        at_storage(monkeypatch, "delete", "array_record", look)
        clean(there)
        assert seen == [()]

    def test_what_is_committed_while_it_cleans_stays(self, there, b, monkeypatch):
        commit = begun_conversion(there, b, appends=True)
        at_storage(monkeypatch, "write", "dataset.json", commit)
        clean(there, unfinished=True)
        assert records_of(there) == [*A, *B]


def give_up_only(output):
    """Gives up what is not finished, and is killed before it deletes a file."""
    with pytest.MonkeyPatch.context() as patch:
        at_storage(patch, "delete", "", stop, times=99)  # In all threads.
        with pytest.raises(Killed):
            clean(output, unfinished=True)


class TestRule10:
    """Without `dataset.json`, `clean --unfinished` creates it."""

    def test_it_has_no_split_and_the_id_given_up(self, output, a):
        begun(output, a)
        ids = ids_in(output)
        with pytest.raises(NotADatasetError):
            clean(output)
        clean(output, unfinished=True)
        assert read_manifest(output) is None
        manifest, _ = read_versioned_manifest(output)
        assert manifest is not None
        assert (manifest.splits, manifest.spent) == ({}, ids)
        assert {*files_of(output)} == {"dataset.json"}
        with told(NotADatasetError, "names no split"):
            loader.open(output, "train", verify="never", cache_dir="")

    def test_the_job_that_still_runs_fails(self, output, a):
        with told(JobChangedError, "given up"):
            convert(output, a, meanwhile=functools.partial(give_up_only, output))
        convert(output, a)
        assert records_of(output) == A

    def test_no_age_decides(self, tmp_path, a, b):
        output = str(tmp_path / "out")
        convert(output, a)
        begun(output, b, overwrite=True)
        before = files_of(output)
        for path in pathlib.Path(output).rglob("*"):
            os.utime(path, (1, 1))
        clean(output)
        assert files_of(output).keys() == before.keys()


class TestRule11:
    """Erasing waits for what is not finished, and then leaves no byte."""

    def test_it_is_refused_and_names_what_is_unfinished(self, there, a):
        begun(there, a, shards=3, overwrite=True)
        before = files_of(there)
        said = r"(?s)as long as work .* unfinished.*\.job\.json.*--give-up"
        with pytest.raises(JobChangedError, match=said):
            remove(there, [2], erase=True)
        assert files_of(there) == before

    def test_work_that_begins_before_the_commit(self, there, a):
        other = functools.partial(begun, there, a, shards=3, overwrite=True)
        with told(JobChangedError, "unfinished"):
            remove(there, [2], erase=True, meanwhile=other)
        assert records_of(there) == A

    def test_what_a_job_publishes_later_is_found_and_deleted(self, there, a):
        job = job_of(a, there, name=NAME, plan=("num_shards", 3), writer=PLAIN)
        tasks = [*shard_tasks(begin_job(job, overwrite=True).prepared)]
        before = files_of(there)
        assert [*make_shards(tasks[2])]
        late = files_of(there).items() - before.items()
        remove(there, [5], erase=True, give_up=True)
        assert files_with(there, [A[5]]) == []
        for path, data in late:
            storage_for(there).write(f"{there}/{path}", data)
        findings, leftovers = found_by_verify(there)
        assert findings == []
        assert {*leftovers} == {path for path, _ in late}
        clean(there)
        assert files_with(there, [A[5]]) == []
        assert found_by_verify(there) == ([], [])

    def test_values_that_a_column_writer_publishes_later(self, there, monkeypatch):
        erase = functools.partial(remove, there, [2], erase=True, give_up=True)
        at_storage(monkeypatch, "write", "/columns/", erase)
        with pytest.raises(JobChangedError):
            attach(there, [record.decode() for record in A])
        findings, leftovers = found_by_verify(there)
        assert findings == []
        assert any("columns/" in path for path in leftovers)
        assert files_with(there, [A[2]])
        clean(there)
        assert found_by_verify(there) == ([], [])
        assert files_with(there, [A[2]]) == []


BEGUN = {
    "convert": lambda output, inputs: begun_conversion(
        output, inputs["b"], overwrite=True, keep=True
    ),
    "append": lambda output, inputs: begun_conversion(
        output, inputs["b"], appends=True
    ),
    "remove": lambda output, inputs: begun_removal(output, [1, 3], 1),
    "group": lambda output, inputs: begun_group(output, B, overwrite=True),
}
RESULTS = {"convert": B, "append": [*A, *B], "remove": [A[0], A[2], *A[4:]], "group": B}


class TestRule12:
    """Each step may be repeated, or run twice at once, as on Beam."""

    @pytest.mark.parametrize("at_once", [False, True])
    @pytest.mark.parametrize("command", BEGUN)
    def test_every_step_runs_twice(self, output, inputs, command, at_once, monkeypatch):
        convert(output, inputs["a"])
        first, second = (BEGUN[command](output, inputs) for _ in range(2))
        if at_once:
            at_storage(monkeypatch, "write", "dataset.json", second)
        first()
        first()
        if not at_once:
            second()
        records = records_of(output)
        assert sorted(records) == sorted(RESULTS[command])
        assert assert_whole(output, records).edition == 2
