"""No file is replaced or deleted that gristmill did not make, and no input."""

import functools
import itertools
import pathlib

import pytest

from gristmill.dataset import InputError, JobChangedError
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.commit.commit import roll_back
from gristmill.dataset.commit.ownership import check_holds_no_input
from gristmill.dataset.metadata.layout import shard_name
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.anywhere import index
from gristmill.pipelines.options.job_options import IndexOptions
from gristmill.transforms import ShardNames
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.make_shards import make_shard, shard_tasks
from tests.changes import changes
from tests.changes.changes import (
    NAME,
    A,
    Killed,
    assert_whole,
    records_of,
    remove,
    run,
    stop,
)
from tests.support.conversion import contents, job_of, read_output
from tests.support.editions import files_of
from tests.support.records import frames_of, text_records, write_array_records
from tests.support.told import told
from tests.support.watched import at_storage

RECORDS = text_records(60)
# As the stand-ins for other functions name shards: these may be beside the inputs.
BESIDE = ShardNames(kind="beam", prefix="x", suffix=".arrayrecord")
SHARD = f"{NAME}-train.array_record-00000-of-00001"


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


# Inputs.


@pytest.mark.parametrize(
    "name",
    [
        "dataset.json",
        "data-train.array_record-00007-of-00009",
        "index/data-train.array_record-00000-of-00001.index",
        "index/data-train.job.json",
        "errors/data-train.array_record-00000-of-00001.jsonl",
        "tmp-data-train/mine",
    ],
)
@pytest.mark.parametrize("link", ["none", "there", "here"])
def test_an_input_is_not_replaced(tmp_path, out, a, name, link):
    place = given = out / name
    place.parent.mkdir(exist_ok=True)
    if link == "there":
        place.symlink_to(a)
    else:
        place.write_bytes(frames_of(RECORDS))
    if link == "here":
        given = tmp_path / "link"
        given.symlink_to(place)
    before = contents(out)
    with told(InputError, "an input would be replaced"):
        begin_job(job_of(str(given), out, names=BESIDE), overwrite=True)
    assert contents(out) == before
    assert place.is_symlink() == (link == "there")


# An output, inputs, and whether it is their directory or one above it; HERE is the
# current folder, and `link` is one to `raw`.
OUTPUTS = """\
raw  ./raw/  link          | raw/x  HERE/raw/x  link/x       | the directory
raw  link  HERE/raw  .     | raw/in/x                        | a parent directory
.                          | x                               | the directory
/                          | HERE/x                          | a parent directory
out                        | x  output/x  /out/x             |
gs://b/raw  gs://b/raw/    | gs://b/raw/x                    | the directory
gs://b/raw  gs://b         | gs://b/raw/in/x                 | a parent directory
gs://b/raw                 | gs://b/x  gs://b/raw2/x  /raw/x |
"""


@pytest.mark.parametrize("line", OUTPUTS.splitlines())
def test_an_output_is_not_above_its_inputs(monkeypatch, tmp_path, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw").mkdir()
    (tmp_path / "link").symlink_to("raw")
    outputs, inputs, said = line.replace("HERE", str(tmp_path)).split("|")
    for output, path in itertools.product(outputs.split(), inputs.split()):
        if not said.strip():
            check_holds_no_input(output, [path])
            continue
        with pytest.raises(InputError, match=f"output is{said} of its inputs"):
            check_holds_no_input(output, [path])


# Files that were indexed in place.


def indexed(folder, **options):
    write_array_records(pathlib.Path(folder, SHARD), RECORDS)
    index(IndexOptions(files=(f"{folder}/{SHARD}",), name=NAME, **options))


def test_indexed_shards_are_not_overwritten(out, a):
    indexed(out)
    before = contents(out)
    for replace in (
        functools.partial(changes.convert, str(out), a, overwrite=True),
        functools.partial(changes.begun_group, str(out), A, overwrite=True),
    ):
        with told(InputError, "did not write", SHARD):
            replace()
    assert contents(out) == before
    (out / SHARD).unlink()  # What the message says to do.
    changes.convert(str(out), a, overwrite=True)
    assert_whole(str(out), A)


def test_indexed_shards_of_another_split_stay(out, a):
    indexed(out, split="mine")
    before = contents(out)
    with told(InputError, "there already"):
        changes.convert(str(out), a, shards=1)
    assert contents(out) == before
    changes.convert(str(out), a, overwrite=True)
    clean(str(out), unfinished=True)
    assert (read_output(out), read_output(out, "mine")) == (A, RECORDS)
    after = contents(out)
    assert [name for name in before if before[name] != after[name]] == ["dataset.json"]


def test_indexed_files_stay_whatever_becomes_of_their_records(tmp_path, a):
    folder = tmp_path / NAME
    output, names = str(folder), [f"{number}.array_record" for number in range(3)]
    folder.mkdir()
    for number, name in enumerate(names):
        part = RECORDS[20 * number :][:20]
        write_array_records(folder / name, part, options="group_size:4,brotli:5")
    before = contents(folder)
    run(f"index {folder}")
    remove(output, [3, 40])
    left = [record for n, record in enumerate(RECORDS) if n not in (3, 40)]
    assert_whole(output, left)
    changes.append(output, a)
    split = assert_whole(output, left + A)
    # Shards that were cut from indexed ones go.
    remove(output, [0, 1], erase=True)
    assert_whole(output, left[2:] + A)
    after = contents(folder)
    assert before.items() <= after.items()
    assert not any(f"record-{split.parts[0].write}-00000" in path for path in after)
    changes.convert(output, a, split="other")
    with told(InputError, "did not write"):
        changes.convert(output, a, overwrite=True)
    clean(output, unfinished=True)
    assert before.items() <= contents(folder).items()


@pytest.mark.parametrize("there", [False, True])
def test_files_stay_after_an_index_that_was_killed_or_taken_back(
    tmp_path, monkeypatch, there
):
    output, file = str(tmp_path), tmp_path / "0.array_record"
    write_array_records(file, RECORDS)
    kept = {"overwrite": True, "keep_replaced": True}
    given = IndexOptions(files=(str(file),), name=NAME, split="train", **kept)
    if there:
        changes.write(output, A)

    at_storage(monkeypatch, "write", "dataset.json", stop)
    with pytest.raises(Killed):
        index(given, workers=1)
    if there:
        index(given, workers=1)
        remove(output, [3])
        roll_back(output, "train", 1)
    else:
        changes.write(output, A, overwrite=True)
    clean(output, unfinished=True)
    assert_whole(output, A)
    assert read_output(output) == A
    assert files_of(output)[file.name] == file.read_bytes()


# Names that another split, or another program, has taken.


class TestOneFileOfTwoSplits:
    @pytest.fixture
    def jobs(self, tmp_path, out):
        names, jobs = ShardNames(kind="inputs", suffix=".ar"), []
        for split in ("first", "second"):
            folder = tmp_path / split
            folder.mkdir()
            (folder / "a").write_bytes(frames_of([split.encode()] * 40))
            plan = ("match_shards", None)
            jobs.append(job_of(folder, out, split=split, names=names, plan=plan))
        return jobs

    @pytest.mark.parametrize("committed", [False, True])
    def test_runs_that_began_at_once(self, jobs, out, committed):
        first, second = (next(shard_tasks(begin_job(job).prepared)) for job in jobs)
        result = make_shard(first)
        if committed:
            commit_shards(jobs[:1], [result])
        before = contents(out)
        with told(JobChangedError, "another job has written", f"{out}/a.ar"):
            make_shard(second)
        assert contents(out) == before
        commit_shards(jobs[:1], [result])
        assert read_output(out, "first") == [b"first"] * 40

    def test_index(self, out):
        indexed(out)
        before = contents(out)
        with told(InputError, "belongs to another split"):
            indexed(out, split="mine")
        assert contents(out) == before
        indexed(out, split="train", overwrite=True)


@pytest.mark.parametrize("described", [False, True])
@pytest.mark.parametrize("how", ["convert", "group"])
def test_files_of_another_program_with_names_of_ours_stay(output, a, how, described):
    storage, mine = storage_for(output), f"{output}/{shard_name(NAME, 'train', 0, 1)}"
    storage.write(mine, b"not ours")
    if described:
        storage.write(f"{output}/dataset.json", b'{"rows": 60}')
    if how == "convert":
        changes.convert(output, a, shards=1, overwrite=True)
    else:
        changes.begun_group(output, A, overwrite=True)()
    clean(output, unfinished=True)
    assert storage.read(mine) == b"not ours"
    assert sorted(records_of(output)) == sorted(A)
    storage.delete(mine)
    assert changes.found_by_verify(output) == ([], [])
