"""WriteArrayRecords: all records, once, in bytes that depend on them alone."""

import itertools
import logging
import os
import random
from contextlib import closing
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.transforms.window import FixedWindows, TimestampedValue

from gristmill.dataset import (
    DataLossError,
    InputError,
    RecordsDigest,
    StorageError,
    WriterOptions,
    open_manifest,
    read_table,
)
from gristmill.dataset.arrayrecord.file_writer import with_versions
from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_index import map_index
from gristmill.transforms import WriteArrayRecords
from gristmill.transforms.writing.write_group import (
    RecordSpool,
    assign_record,
    encode_task,
    write_group,
)
from gristmill.transforms.writing.write_split import (
    WriteJob,
    begin_write,
    commit_write,
    content_hash,
    pack_count,
)
from tests.support.conversion import assert_whole, contents, read_output
from tests.support.memory import limited_memory
from tests.support.pipelines import (
    BUNDLE_BASED,
    BUNDLES_TWICE,
    IN_MEMORY,
    counters,
    distributions,
    ended,
    run,
)
from tests.support.records import checksums, read_array_records, text_records
from tests.support.told import told

RECORDS = [*text_records(700), b"", b"", bytes(range(256)), bytes(100_000)]


def write(output, records=RECORDS, *, argv=IN_MEMORY, **options):
    transform = WriteArrayRecords(output, **options)
    (result,) = run(beam.Create(records), transform, argv=argv)
    return result


def shard_contents(output):
    """Reads the shards of a split one by one, with the official reader."""
    table = read_table(output, open_manifest(output).splits["train"])
    return [read_array_records(output / path) for path in table.paths]


@pytest.fixture
def out(tmp_path):
    return tmp_path / "data"


# What it leaves.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "argv"),
    [
        ({"num_shards": 4}, IN_MEMORY),
        ({"shard_bytes": 90_000}, BUNDLES_TWICE),
        ({"num_shards": 4}, BUNDLE_BASED),
        ({"shard_bytes": 90_000}, BUNDLE_BASED),
    ],
)
def test_same_bytes_from_every_runner(tmp_path, out, argv, options):
    records = RECORDS.copy()
    expected = write(out, records, **options)
    random.Random(1).shuffle(records)
    transform = WriteArrayRecords(tmp_path / "b", name="data", **options)
    # Windows are ignored.
    stamp = beam.Map(lambda record: TimestampedValue(record, len(record)))
    windows = (beam.Create(records), stamp, beam.WindowInto(FixedWindows(10)))
    (result,) = run(*windows, transform, argv=argv)
    assert result == expected._replace(output=str(tmp_path / "b"))
    assert contents(tmp_path / "b") == contents(out)
    assert sorted(read_output(out)) == sorted(RECORDS)
    assert result.records == len(RECORDS)
    assert result.raw_bytes == sum(map(len, RECORDS))
    assert_whole(out)


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        [-(1 << 63), -300, -1, 0, 7, 65_536, (1 << 63) - 1],
        ["", "a", "aa", "b", "\uffff", "\U00010000"],
        [b"", b"\0", b"a", b"a\0", b"b"],
        [None],
    ],
    ids=["int", "text", "bytes", "none"],
)
def test_keys_decide_shard_and_order(out, keys):
    """Records of one key come in the order of their hashes."""
    keyed = keys != [None]
    keys = {b"%04d" % i: keys[i % len(keys)] for i in range(700)}
    elements = [(key, record) if keyed else record for record, key in keys.items()]
    random.Random(2).shuffle(elements)
    write(out, elements, keyed=keyed, num_shards=4)
    shards = shard_contents(out)
    assert sorted(itertools.chain(*shards)) == sorted(keys)
    for records in shards:
        by_hash = sorted(records, key=content_hash)
        assert records == (sorted(by_hash, key=keys.get) if keyed else by_hash)
    of_keys = [{keys[record] for record in records} for records in shards]
    if keyed:
        assert sum(map(len, of_keys)) == len(set(keys.values()))
    else:  # The hash spreads the records evenly enough.
        assert all(120 < len(records) < 240 for records in shards)


def test_the_bytes_of_a_shard_are_bounded(tmp_path, out):
    records, most = RECORDS[:700], 20_000
    result = write(out, records, shard_bytes=most)
    sizes = [sum(map(len, records)) for records in shard_contents(out)]
    assert max(sizes) <= most + max(map(len, records))
    assert sum(sizes) / most <= result.shards == len(sizes) < 2 * sum(sizes) / most
    # No hash divides equal records, yet no shard gets more than its share.
    same = [b"same" * 25] * 1000
    write(tmp_path / "same", same, num_shards=2, shard_bytes=10_000)
    found = shard_contents(tmp_path / "same")
    assert sorted(map(len, found)) == [0, *[100] * 10]
    options = {"num_shards": 1, "shard_bytes": most}
    assert write(tmp_path / "large", [bytes(9 * most)], **options).shards == 1


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"num_shards": 2}, {}])
def test_no_records(out, options):
    result = write(out, [], **options)
    assert (result.shards, result.records) == (options.get("num_shards", 1), 0)
    assert_whole(out)


@pytest.mark.slow
def test_writer_options_name_and_split(out):
    writer = WriterOptions(group_size=8, compression="snappy")
    write(out, writer=writer, name="c4", split="test", num_shards=1)
    write(out, [b"a"], name="c4", split="more", num_shards=1)
    split = open_manifest(out).splits["test"]
    assert split.writer_options == with_versions(writer).described
    path = layout.index_path("c4-test.array_record-00000-of-00001")
    assert map_index(str(out / path)).group_size == 8
    assert sorted(read_output(out, "test")) == sorted(RECORDS)
    assert_whole(out)
    with told(Exception, "dataset of another name"):
        write(out, [b"d"], name="other", split="last", num_shards=1)


# What it refuses.


def test_unbounded_input(out):
    endless = beam.Pipeline() | beam.Create([b"a"])
    endless.is_bounded = False
    with told(InputError, "without end"):
        endless | WriteArrayRecords(out)


@pytest.mark.parametrize(
    ("element", "keyed", "said"),
    [
        *(("text", False, "as a record.*map"), ((1, b"a"), False, "as a record")),
        *((b"a", True, "as a record.*map"), (7, True, "as a record.*map")),
        *(((key, b"a"), True, "key cannot decide") for key in (1.5, None, (1,))),
    ],
)
def test_elements_that_are_no_records(out, element, keyed, said):
    # Where Beam knows no type.
    untyped = beam.Map(lambda element: element).with_output_types(Any)
    transform = WriteArrayRecords(out, keyed=keyed, num_shards=1)
    with pytest.raises(Exception, match=f"(?s){said}"):
        run(beam.Create([element]), untyped, transform)
    assert not (out / "dataset.json").exists()


@pytest.mark.slow
def test_other_records_without_overwrite(out):
    first = write(out, num_shards=3)
    kept = contents(out)
    for overwrite in (False, True):
        again = write(out, RECORDS[::-1], num_shards=3, overwrite=overwrite)
        assert again == first._replace(committed_before=True)
    with pytest.raises(Exception, match=r"(?s)704 records.*there are 703"):
        write(out, RECORDS[:-1], num_shards=3)
    with told(Exception, "num_shards was 3, is 2"):
        write(out, num_shards=2)
    assert contents(out) == kept
    assert write(out, RECORDS[:-1], num_shards=2, overwrite=True).records == 703
    assert sorted(read_output(out)) == sorted(RECORDS[:-1])
    assert len(list(out.glob("*.array_record*"))) == 2
    assert_whole(out)


# What workers do, one call after the other.


def plan_of(output, records, groups, shard_bytes=None, **writer):
    job = WriteJob(
        output=str(output),
        name="data",
        split="train",
        num_shards=groups,
        shard_bytes=shard_bytes,
        keyed=False,
        writer=WriterOptions(**writer),
    )
    counts = b""
    for record in records:
        digest = RecordsDigest.of(checksums([record]), np.array([len(record)]))
        counts += pack_count(assign_record(record, groups)[0], digest.pack())
    return begin_write(job, counts, groups=groups)


def groups_of(plan, records):
    groups = [[] for _ in plan.parts]
    for record in records:
        groups[assign_record(record, len(groups))[0]].append(record)
    return groups


def write_one(plan, group, records, *, tasks=1):
    """Writes a group, which is read once, with the task in the middle."""
    task = encode_task(dict(plan.tasks())[group])
    elements = (assign_record(record, 1)[1] for record in records)
    head = itertools.islice(elements, 3)
    elements = itertools.chain(head, [task] * tasks, elements)
    return write_group(plan.write.job, group, elements)


@pytest.mark.slow
def test_finished_shards_are_kept_after_a_crash(out, caplog):
    plan = plan_of(out, RECORDS, 4)
    groups = groups_of(plan, RECORDS)
    for group in (0, 2):
        write_one(plan, group, groups[group])
    before = {path: path.stat() for path in out.glob("*.array_record-*")}
    assert len(before) == 2
    caplog.set_level(logging.INFO, "gristmill")
    result = ended(beam.Create(RECORDS), WriteArrayRecords(out, num_shards=4))
    assert {path: path.stat() for path in before} == before
    assert_whole(out)
    left = groups[1] + groups[3]
    assert counters(result) == {
        **{"planned-shards": 4, "made-shards": 2, "resumed-shards": 2},
        **{"records": len(left), "raw-bytes": sum(map(len, left))},
    }
    assert {each.count for each in distributions(result).values()} == {2}
    planned, committed, *_ = caplog.messages
    assert "split train: 704 records become 4 shards" in planned
    assert "committed; split train: 704 records in 4 shards" in committed


def test_records_that_change_when_repeated_are_noticed(out):
    plan = plan_of(out, RECORDS, 2)
    group, other = groups_of(plan, RECORDS)
    for records in (group[:-1], [*group[:-1], group[-1] + b"!"]):
        with pytest.raises(DataLossError, match=r"(?s)counted before.*Reshuffle"):
            write_one(plan, 0, records)
    with told(DataLossError, "without its task"):
        write_one(plan, 0, group, tasks=0)
    made = Gathered.of([write_one(plan, 1, other)])
    with pytest.raises(DataLossError, match=r"(?s)not all records.*00000-of-00002"):
        commit_write(made)
    # Nor is a shard without records left out.
    plan = plan_of(out, [], 2)
    with told(DataLossError, "expected: 2 shards"):
        commit_write(Gathered.of([write_one(plan, 1, [])]))
    assert not (out / "dataset.json").exists()
    assert not list(out.rglob("*.tmp"))


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_what_the_disk_loses_is_noticed(tmp_path, damage):
    with closing(RecordSpool(str(tmp_path))) as spool:
        for _ in range(100):
            spool.add(bytes(100_000), bytes(16))
        list(spool.batches(np.arange(1)))  # All is in the file now.
        (file,) = (
            int(entry.name)
            for entry in os.scandir("/proc/self/fd")
            if os.readlink(entry.path).startswith(f"{tmp_path}/")
        )
        if damage == "cut":
            os.truncate(file, 5_000_000)
            lost = pytest.raises(StorageError, match="lost its end")
        else:
            os.pwrite(file, b"!", 7_654_321)
            lost = pytest.raises(DataLossError, match="changed on the way")
        with lost:
            list(spool.batches(spool.order()))


@pytest.mark.alone
@pytest.mark.slow
def test_memory_does_not_grow_with_the_shard(tmp_path, out):
    """240 MB go through a process that may take 120 MB more than it has."""

    def records():
        chance = np.random.default_rng(0)
        return (chance.bytes(80_000) for _ in range(3000))

    options = {"shard_bytes": 150_000_000, "compression": "uncompressed"}
    plan = plan_of(out, records(), 1, **options)
    write_one(plan_of(tmp_path / "warm", [b""], 1), 0, [b""])  # Imports.
    with limited_memory(120 << 20):
        result = write_one(plan, 0, records())
    assert len(result.reports) == 2
    assert commit_write(Gathered.of([result])).records == 3000
