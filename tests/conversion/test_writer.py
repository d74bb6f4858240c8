"""A Python loop writes a dataset, alone or in parts, and goes on after a stop."""

import concurrent.futures
import contextlib
import dataclasses
import json
import multiprocessing
import os
import pathlib
import signal
import threading

import pytest

from gristmill import loader
from gristmill.dataset import (
    DataLossError,
    FormatVersionError,
    GristmillError,
    InputError,
    InvalidDatasetError,
    JobChangedError,
    StorageChangedError,
    Writer,
    WriterOptions,
    commit_parts,
    open_manifest,
    read_manifest,
    read_table,
)
from gristmill.dataset.arrayrecord.shard_writer import ShardWriter
from gristmill.dataset.base.columns import load_arrays, save_arrays
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.commit.editions import with_write
from gristmill.dataset.commit.write import Write
from gristmill.dataset.metadata import layout
from gristmill.dataset.writer import writer as writer_module
from gristmill.pipelines.anywhere import verify
from tests.support.conversion import contents, convert, job_of
from tests.support.records import AWKWARD_RECORDS, frames_of, text_records

RECORDS = [*text_records(90), *AWKWARD_RECORDS]
PARTS = [text_records(count, seed=count) for count in (25, 0, 40, 7)]
JOINED = [record for part in PARTS for record in part]


class StoppedError(Exception):
    pass


def write(output, records=RECORDS, *, stop=None, position=None, **options):
    """Writes records from `position` on, and fails before the one at `stop`."""
    options = {"records_per_shard": 30, **options}
    with contextlib.suppress(StoppedError), Writer(output, **options) as writer:
        begin = writer.position_records
        assert position in (None, begin)
        for record in records[begin:stop]:
            writer.write(record)
        if stop is not None:
            raise StoppedError


def write_parts(output, *parts, **options):
    for part in parts or range(len(PARTS)):
        given = {"part": part, "parts": len(PARTS), "records_per_shard": 10}
        write(output, PARTS[part], **given | options)


def records_of(output, split="train"):
    dataset = loader.open(output, split)
    return dataset.read(range(len(dataset)))


def shards_of(output):
    return sorted(output.glob("data-train.array_record-*"))


def assert_whole(output, records):
    assert records_of(output) == records
    found = verify(str(output), workers=1)
    assert (found.findings, found.leftovers) == ((), ())


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


# What it leaves.


def test_the_shards_are_those_of_a_conversion(tmp_path, data):
    for number, at in enumerate(range(0, len(RECORDS), 30)):
        (tmp_path / f"in-{number}").write_bytes(frames_of(RECORDS[at : at + 30]))
    plan = ("match_shards", None)
    convert(job_of(tmp_path / "in-*", tmp_path / "converted", plan=plan))
    write(data)
    ours, theirs = (
        [path.read_bytes() for path in shards_of(folder)]
        for folder in (data, tmp_path / "converted")
    )
    assert len(ours) == 4
    assert ours == theirs
    assert_whole(data, RECORDS)


@pytest.mark.parametrize(
    ("records", "counts"),
    [([], [0]), ([bytes(10)] * 25 + [bytes(100)] + [b"x"] * 3, [10, 10, 5, 1, 3])],
)
def test_shards_are_bounded_by_their_bytes(data, records, counts):
    write(data, records, records_per_shard=None, shard_bytes=100)
    table = read_table(data, open_manifest(data).splits["train"])
    assert table.records.tolist() == counts
    assert_whole(data, records)


def test_a_record_is_traced_to_the_source_that_the_program_gives(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [b'{"n": %d}\n' % n for n in range(50)]
    pathlib.Path("a.jsonl").write_bytes(b"".join(lines))
    offsets = [sum(map(len, lines[:n])) for n in range(50)]
    sources = {"other.parquet": "parquet", "a.jsonl": "jsonl"}
    options = {"sources": sources, "records_per_shard": 7, "resume": True}
    for stop in (30, 50):
        with contextlib.suppress(StoppedError), Writer("data", **options) as writer:
            for n in range(writer.position_records, stop):
                place = ("a.jsonl", offsets[n]) if n else ("other.parquet", 3)
                writer.write(lines[n].strip(), source=place)
            if stop < 50:
                raise StoppedError

    def places(*records):
        batches = loader.global_batches(
            loader.open("data"), batch_size=1, shuffle="none"
        )
        for record in records:
            found = batches.locate(record, 0)
            place = found.source_offset_bytes, found.source_record
            yield found.source_path, *place

    jsonl = [("a.jsonl", offsets[n], None) for n in (1, 28, 49)]
    assert [*places(0, 1, 28, 49)] == [("other.parquet", None, 3), *jsonl]


# Where it goes on.


@pytest.fixture
def whole(tmp_path):
    """The files of a writer that nothing stopped."""
    write(tmp_path / "once" / "data")
    return contents(tmp_path / "once" / "data")


@pytest.mark.parametrize("stops", [[0], [30, 30], [29, 59, 61], [100, 40, 100]])
def test_restarts_do_not_change_a_byte(stops, data, whole):
    kept = 0
    for stop in stops:
        write(data, stop=stop, position=kept, resume=True)
        kept = max(kept, stop // 30 * 30)
    write(data, position=kept, resume=True)
    assert contents(data) == whole


@pytest.mark.parametrize("of", ["shard", "index"])
@pytest.mark.parametrize("how", ["short", "gone"])
def test_what_is_not_whole_is_written_again(data, whole, of, how):
    write(data, stop=100)
    path = shards_of(data)[1]
    if of == "index":
        path = data / layout.index_path(path.name)
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    # What follows is not kept: it may become another.
    write(data, stop=0, position=30, resume=True)
    assert len(shards_of(data)) == 1
    write(data, position=30, resume=True)
    assert contents(data) == whole


def test_what_is_committed_is_left(data):
    write(data)
    before = contents(data)
    with Writer(data, records_per_shard=30, resume=True) as writer:
        assert writer.position_records == len(RECORDS)
        with pytest.raises(InputError, match="the split is committed"):
            writer.write(b"more")
    assert contents(data) == before
    shards_of(data)[1].unlink()
    with pytest.raises(DataLossError, match="not there any more"):
        write(data, resume=True)
    write(data, overwrite=True)
    assert_whole(data, RECORDS)
    assert not before.keys() & contents(data).keys() - {"dataset.json"}


def test_another_version_of_a_codec_does_not_go_on(data):
    refused = pytest.raises(JobChangedError, match=r"other bytes(.|\n)*zstd-0\.1")
    versions = "gristmill:1,zstd-0.1"
    with refused:
        write(data, writer=WriterOptions(versions=versions))
    assert not data.exists()
    write(data, stop=70)
    (job,) = data.rglob("*.job.json")
    described = json.loads(job.read_text())
    described["parts"]["writer"]["versions"] = versions
    job.write_text(json.dumps(described))
    with refused:  # Before it takes a record.
        write(data, stop=0, resume=True)


# What it refuses.


def test_a_split_that_is_there(data):
    write(data)
    before = contents(data)
    for error, said, options in (
        (JobChangedError, "with the same options", {}),
        (JobChangedError, "was 30, is 40", {"records_per_shard": 40}),
        (JobChangedError, "holds this split", {"part": 0, "parts": 2}),
        (InputError, "another name", {"name": "other", "split": "test"}),
    ):
        with pytest.raises(error, match=said):
            write(data, **options)
    assert contents(data) == before


def test_a_split_whose_description_cannot_be_read(data):
    write(data, [b"old"], records_per_shard=1)
    (data / "dataset.json").write_text("{")
    with pytest.raises(InvalidDatasetError):
        write(data, [b"new"])
    new, anew = [b"new", b"more"], {"overwrite": True, "records_per_shard": 1}
    write(data, new, stop=1, **anew)
    write(data, new, position=1, resume=True, **anew)
    assert_whole(data, new)


def test_other_records_of_a_write_that_is_committed(data):
    """A commit may be repeated, such as by a runner; a loop may read others."""
    write(data)
    split = open_manifest(data).splits["train"]
    place = {"output": str(data), "name": "data", "split": "train"}
    own = Write(**place, id=split.source["job"], mark=split.write)
    assert with_write(split, split, own) == split
    other = dataclasses.replace(split, shards_digest="sha256:other")
    with pytest.raises(StorageChangedError, match="another command has changed"):
        with_write(split, other, own)


def test_a_record_that_gets_lost_inside(data, monkeypatch):
    class Losing(ShardWriter):
        def write(self, records, crc32cs):
            super().write(records[1:], crc32cs[1:])

    # Records that are lost in memory.
    monkeypatch.setattr(writer_module, "ShardWriter", Losing)
    with pytest.raises(DataLossError, match=r"100 records(.|\n)*95"):
        write(data)
    assert read_manifest(data) is None


@pytest.mark.parametrize("record", ["text", bytearray(b"x"), None, "large"])
def test_what_is_no_record(data, record):
    said = "encode_example"
    if record == "large":  # Pages that nobody looks at take no memory.
        record, said = bytes((1 << 31) + 1), "too large"
    with Writer(data) as writer:
        writer.write(b"before")
        with pytest.raises(InputError, match="record 1") as caught:
            writer.write(record)
        writer.write(b"after")
    assert said in str(caught.value)
    assert records_of(data) == [b"before", b"after"]


def test_writing_outside_of_with(data):
    writer = Writer(data)
    with pytest.raises(InputError, match="has not begun"):
        writer.write(b"early")
    assert not data.exists()
    with writer:
        writer.write(b"in time")
    for late in (lambda: writer.write(b"late"), writer.__enter__):
        with pytest.raises(InputError, match="has ended"):
            late()


def test_sources_that_it_does_not_know(data):
    for sources in (["a.jsonl"], {"a.jsonl": None}, {"": "jsonl"}, {}, "a.jsonl"):
        with pytest.raises(InputError, match="sources are not described"):
            Writer(data, sources=sources)
    with Writer(data, sources={"a.jsonl": "jsonl"}) as writer:
        writer.write(b"1", source=("a.jsonl", 0))
        for source in (None, ("b.jsonl", 1), ("a.jsonl", -1), ("a.jsonl", "1"), 1):
            with pytest.raises(InputError, match="not the source of a record"):
                writer.write(b"2", source=source)
    assert records_of(data) == [b"1"]
    told = pytest.raises(InputError, match="was given no sources")
    with Writer(data, split="test") as writer, told:
        writer.write(b"1", source=("a.jsonl", 0))


def test_a_part_of_another_version(data):
    write_parts(data, 0)
    (part,) = data.glob("index/*.part-*.npz")
    arrays = load_arrays(part.read_bytes(), where="part", version=1)
    part.write_bytes(save_arrays(2, arrays))
    with pytest.raises(FormatVersionError):
        write_parts(data, 0, resume=True)


def test_a_description_that_is_damaged(data):
    write(data, stop=70)
    (job,) = data.rglob("*.job.json")
    text = job.read_text()
    for damaged in (text.replace('"shard_bytes"', '"shards_bytes"'), text[:50]):
        job.write_text(damaged)
        for call in (commit_parts, write):
            with pytest.raises(InvalidDatasetError, match="cannot be read"):
                call(data)
    job.unlink()
    write(data, resume=True)
    assert records_of(data) == RECORDS


# Parts.


def test_they_follow_each_other_and_are_committed_once(data):
    with pytest.raises(InputError, match="no parts to commit"):
        commit_parts(data)
    write_parts(data, 2)
    with pytest.raises(DataLossError, match=r"3 of 4 parts(.|\n)*part 0, 1, 3"):
        commit_parts(data)
    assert read_manifest(data) is None
    write_parts(data, 3, 0, 1)
    manifest = commit_parts(data)
    assert manifest.splits["train"].shards == 3 + 4 + 1
    assert_whole(data, JOINED)
    before = contents(data)
    assert commit_parts(data) == manifest
    write_parts(data, 2, position=40, resume=True)
    assert contents(data) == before


def test_a_part_is_written_once(data):
    write_parts(data)
    with pytest.raises(JobChangedError, match="part 2 of 4 has been written"):
        write_parts(data, 2)
    options = {"part": 2, "parts": 4, "records_per_shard": 10}
    with Writer(data, resume=True, **options) as writer:
        assert writer.position_records == 40
        with pytest.raises(InputError, match="its part is finished"):
            writer.write(b"more")
    # One that still lives publishes a shard of its own.
    left = {path: path.read_bytes() for path in shards_of(data)}
    with Writer(data, overwrite=True, **options) as writer:
        assert writer.position_records == 0
        for path, written in left.items():
            path.write_bytes(written)
        writer.write(b"other")
    commit_parts(data)
    assert_whole(data, [*PARTS[0], b"other", *PARTS[3]])


def test_finished_parts_with_other_options_stay(data):
    other = {"records_per_shard": 20}
    write_parts(data, 0)
    before = contents(data)
    with pytest.raises(JobChangedError, match="records_per_shard was 10, is 20"):
        write_parts(data, 1, **other, resume=True)
    write_parts(data, 1, **other)  # They have files of their own.
    assert before.items() <= contents(data).items()
    with pytest.raises(JobChangedError, match=r"different options(.|\n)*unfinishe"):
        commit_parts(data)
    clean(str(data), unfinished=True)
    assert contents(data).keys() == {"dataset.json"}
    write_parts(data, **other)
    commit_parts(data)
    assert_whole(data, JOINED)


def test_a_split_that_is_there_is_replaced_on_request(data):
    write(data, [b"old"])
    write_parts(data, overwrite=True)
    # It keeps what is there, and is committed already.
    assert commit_parts(data).splits["train"].records == 1
    assert records_of(data) == [b"old"]
    commit_parts(data, overwrite=True)
    assert_whole(data, JOINED)
    with pytest.raises(InputError, match="no parts to commit"):
        commit_parts(data, overwrite=True)


@pytest.mark.slow
def test_all_begin_at_once_over_what_is_left(data):
    barrier = threading.Barrier(len(PARTS))

    def write_one(part):
        barrier.wait()
        write_parts(data, part, overwrite=True)

    for _ in range(2):
        write_parts(data, 0, 2, overwrite=True)
        with concurrent.futures.ThreadPoolExecutor(len(PARTS)) as pool:
            list(pool.map(write_one, range(len(PARTS))))
        commit_parts(data, overwrite=True)
        assert records_of(data) == JOINED


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ("data-train.array_record-*-00002-0*-0*", "is missing"),
        ("index/*-00002-0*-0*.index", "is missing"),
        ("data-train.array_record-*-00002-0*-0*", "shard has the wrong size"),
        ("index/*part-00002-of-00004.npz", "cannot be read"),
    ],
)
def test_what_is_lost_is_found_before_the_commit(data, lost, message):
    write_parts(data)
    path = sorted(data.glob(lost))[-1]
    if "missing" in message:
        path.unlink()
    else:
        path.write_bytes(b"other")
    with pytest.raises(GristmillError, match=message):
        commit_parts(data)
    assert read_manifest(data) is None
    if path.suffix == ".npz":  # How often the part was begun is not known.
        clean(str(data), unfinished=True)
    write_parts(data, overwrite=True)
    commit_parts(data)
    assert records_of(data) == JOINED


@pytest.mark.slow
def test_a_killed_process_goes_on(data):
    write_parts(data, 0, 1, 3)
    context = multiprocessing.get_context("spawn")
    for kill_at, code in ((25, -signal.SIGKILL), (None, 0)):
        with pytest.raises(DataLossError, match="part 2"):
            commit_parts(data)
        process = context.Process(target=write_part, args=(str(data), kill_at))
        process.start()
        process.join()
        assert process.exitcode == code
    assert commit_parts(data).splits["train"].shards == 3 + 4 + 1
    assert_whole(data, JOINED)


def write_part(output, kill_at):
    """Writes a part in a process of its own, which may kill itself in a shard."""
    options = {"part": 2, "parts": len(PARTS), "records_per_shard": 10}
    with Writer(output, resume=True, **options) as writer:
        assert kill_at or writer.position_records >= 10
        for number in range(writer.position_records, 40):
            if number == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            writer.write(PARTS[2][number])
