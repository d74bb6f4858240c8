"""WriteArrayRecords: all records, once, in bytes that depend on them alone."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import pathlib
import random
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.test_stream import TestStream as FakeStream
from apache_beam.transforms.window import FixedWindows, TimestampedValue

from gristmill.dataset.arrayrecord.file_writer import with_versions
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import DataLossError, InputError, JobChangedError
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import open_manifest, read_table
from gristmill.dataset.metadata.shard_index import map_index
from gristmill.transforms import WriteArrayRecords
from gristmill.transforms.checking.verification import plan_verify
from gristmill.transforms.checking.verify_shard import verify_shard
from gristmill.transforms.writing.write_group import (
    GroupResult,
    assign_record,
    encode_task,
    write_group,
)
from gristmill.transforms.writing.write_split import (
    WriteJob,
    WritePlan,
    WriteResult,
    begin_write,
    commit_write,
    content_hash,
    pack_count,
)
from tests.support.conversion import contents, convert, job_of, read_output
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
from tests.support.records import (
    checksums,
    frames_of,
    read_array_records,
    text_records,
)

RECORDS = [*text_records(700), b"", b"", bytes(range(256)), bytes(100_000)]


def write(
    output: pathlib.Path,
    records: list[Any] = RECORDS,
    *,
    argv: tuple[str, ...] = IN_MEMORY,
    **options: Any,
) -> WriteResult:
    transform = WriteArrayRecords(str(output), **options)
    (result,) = run(beam.Create(records), transform, argv=argv)
    assert isinstance(result, WriteResult)
    return result


def digest_of(records: list[bytes]) -> RecordsDigest:
    lengths = np.array([len(record) for record in records], np.int64)
    return RecordsDigest.of(checksums(records), lengths)


def job(output: pathlib.Path, **options: Any) -> WriteJob:
    defaults: dict[str, Any] = {
        "output": str(output),
        "name": "data",
        "split": "train",
        "num_shards": 1,
        "shard_bytes": None,
        "keyed": False,
        "writer": WriterOptions(),
    }
    return WriteJob(**defaults | options)


def count(records: list[bytes], group: int = 0) -> bytes:
    """Counts records as they are gathered for the plan."""
    return pack_count(group, digest_of(records).pack())


def plan_of(
    output: pathlib.Path,
    records: list[bytes],
    *,
    overwrite: bool = False,
    **options: Any,
) -> WritePlan:
    made = job(output, **options)
    groups = made.groups(sum(map(len, records)))
    counts = b"".join(count([r], assign_record(r, groups)[0]) for r in records)
    return begin_write(made, counts, groups=groups, overwrite=overwrite)


def groups_of(plan: WritePlan, records: list[bytes]) -> dict[int, list[bytes]]:
    groups: dict[int, list[bytes]] = {}
    for record in records:
        group, _ = assign_record(record, len(plan.parts))
        groups.setdefault(group, []).append(record)
    return groups


def write_one(plan: WritePlan, group: int, records: Iterable[bytes]) -> GroupResult:
    """Writes a group, which is read once, with the task in the middle."""
    task = encode_task(dict(plan.tasks())[group])
    elements = (assign_record(record, 1)[1] for record in records)
    elements = itertools.chain(itertools.islice(elements, 3), [task], elements)
    return write_group(plan.write.job, group, elements)


def rows_of(plan: WritePlan, records: list[bytes]) -> Gathered:
    """Writes all groups, and returns what is gathered of them."""
    groups = groups_of(plan, records)
    results = [write_one(plan, g, groups.get(g, [])) for g in range(len(plan.parts))]
    return Gathered.of(results)


def write_plainly(
    output: pathlib.Path, records: list[bytes] = RECORDS, **options: Any
) -> WriteResult:
    """Writes with the plain functions, as the transform would."""
    plan = plan_of(output, records, **options)
    return commit_write(rows_of(plan, records))


def shard_contents(output: pathlib.Path, split: str = "train") -> list[list[bytes]]:
    """Reads the shards of a split one by one, with the official reader."""
    table = read_table(str(output), open_manifest(str(output)).splits[split])
    return [read_array_records(output / path) for path in table.paths]


def assert_whole(output: pathlib.Path) -> None:
    assert plan_verify(str(output)).findings.first == ()
    for task in plan_verify(str(output)).tasks:
        assert verify_shard(task).findings == ()
    assert not list(output.glob("tmp*"))
    assert not list(output.glob("index/*.write.json"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "argv"),
    [
        ({"num_shards": 4}, IN_MEMORY),
        ({"shard_bytes": 90_000}, BUNDLES_TWICE),
        pytest.param({"num_shards": 4}, BUNDLE_BASED, marks=pytest.mark.slow),
        pytest.param({"shard_bytes": 90_000}, BUNDLE_BASED, marks=pytest.mark.slow),
        pytest.param({"num_shards": 4}, BUNDLES_TWICE, marks=pytest.mark.soak),
        pytest.param({"shard_bytes": 90_000}, IN_MEMORY, marks=pytest.mark.soak),
    ],
)
def test_same_bytes_from_every_runner(
    tmp_path: pathlib.Path, argv: tuple[str, ...], options: dict[str, Any]
) -> None:
    records = RECORDS.copy()
    expected = write(tmp_path / "a", records, name="data", **options)
    random.Random(1).shuffle(records)
    result = write(tmp_path / "b", records, argv=argv, name="data", **options)
    assert result == expected._replace(output=str(tmp_path / "b"))
    assert contents(tmp_path / "b") == contents(tmp_path / "a")
    assert sorted(read_output(tmp_path / "b")) == sorted(RECORDS)
    assert result.records == len(RECORDS)
    assert result.raw_bytes == sum(map(len, RECORDS))
    assert_whole(tmp_path / "b")


def test_order_and_placement_by_content(tmp_path: pathlib.Path) -> None:
    write_plainly(tmp_path / "out", num_shards=5)
    shards = shard_contents(tmp_path / "out")
    assert len(shards) == 5
    for number, records in enumerate(shards):
        assert records == sorted(records, key=content_hash)
        assert {assign_record(record, 5)[0] for record in records} <= {number}
    # The hash spreads the records evenly enough.
    assert all(90 < len(records) < 200 for records in shards)


@pytest.mark.slow
@pytest.mark.parametrize(
    "key_of",
    [
        lambda number: 35 - number,
        lambda number: f"{number:03d}",
        lambda number: b"%d" % number,
    ],
)
def test_keys_decide_shard_and_order(tmp_path: pathlib.Path, key_of: Any) -> None:
    pairs = [(key_of(i % 70), b"%04d" % i) for i in range(700)]
    random.Random(2).shuffle(pairs)
    write(tmp_path / "out", pairs, keyed=True, num_shards=4)
    keys = {record: key for key, record in pairs}
    shards = shard_contents(tmp_path / "out")
    assert sorted(itertools.chain(*shards)) == sorted(keys)
    assert min(map(len, shards)) > 0
    for number, records in enumerate(shards):
        found = [keys[record] for record in records]
        assert found == sorted(found)
        assert {assign_record((key, b""), 4, keyed=True)[0] for key in found} == {
            number
        }


def test_shard_bytes_bounds_every_shard(tmp_path: pathlib.Path) -> None:
    largest = max(map(len, RECORDS[:700]))
    result = write_plainly(tmp_path / "out", RECORDS[:700], shard_bytes=20_000)
    shards = shard_contents(tmp_path / "out")
    sizes = [sum(map(len, records)) for records in shards]
    assert max(sizes) <= 20_000 + largest
    total = sum(sizes)
    assert total / 20_000 <= result.shards == len(shards) < 2 * total / 20_000
    names = [info.name for info in sorted((tmp_path / "out").glob("*.array_record*"))]
    assert names == [
        f"data-train.array_record-{n:05d}-of-{len(shards):05d}"
        for n in range(len(shards))
    ]


def test_group_of_equal_records_is_cut(tmp_path: pathlib.Path) -> None:
    """No hash divides them, yet no shard gets more than its share."""
    same = [b"same" * 25] * 1000
    result = write_plainly(tmp_path / "out", same, num_shards=2, shard_bytes=10_000)
    shards = shard_contents(tmp_path / "out")
    assert sorted(map(len, shards)) == [0, *[100] * 10]
    assert result.records == 1000
    assert_whole(tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"num_shards": 2}, {}])
def test_no_records(tmp_path: pathlib.Path, options: dict[str, Any]) -> None:
    result = write(tmp_path / "out", [], **options)
    assert (result.shards, result.records) == (options.get("num_shards", 1), 0)
    assert read_output(tmp_path / "out") == []
    assert_whole(tmp_path / "out")


@pytest.mark.slow
def test_writer_options_name_and_split(tmp_path: pathlib.Path) -> None:
    writer = WriterOptions(group_size=8, compression="snappy")
    write(tmp_path / "out", writer=writer, name="c4", split="test", num_shards=1)
    manifest = open_manifest(str(tmp_path / "out"))
    assert manifest.name == "c4"
    split = manifest.splits["test"]
    assert split.writer_options == with_versions(writer).described
    path = "c4-test.array_record-00000-of-00001"
    index = map_index(str(tmp_path / "out" / layout.index_path(path)))
    assert index.group_size == 8
    plain = WriterOptions(group_size=8, compression="uncompressed")
    larger = write(tmp_path / "b", writer=plain, num_shards=1)
    assert larger.file_bytes > split.file_bytes


@pytest.mark.slow
def test_windows_are_ignored(tmp_path: pathlib.Path) -> None:
    stamp = beam.Map(lambda n: TimestampedValue(b"%d" % n, n))
    transforms = (beam.Create(range(100)), stamp, beam.WindowInto(FixedWindows(10)))
    out = WriteArrayRecords(str(tmp_path / "out"), num_shards=2)
    (result,) = run(*transforms, out)
    assert result.records == 100
    assert_whole(tmp_path / "out")


def test_unbounded_input_is_refused(tmp_path: pathlib.Path) -> None:
    pipeline = beam.Pipeline(options=PipelineOptions(["--streaming"]))
    endless = pipeline | FakeStream()
    endless.is_bounded = False
    with pytest.raises(InputError, match="without end"):
        endless | WriteArrayRecords(str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("element", "keyed"), [("text", False), ((1, b"a"), False), (b"a", True), (7, True)]
)
def test_elements_that_are_no_records(
    tmp_path: pathlib.Path, element: Any, keyed: bool
) -> None:
    # Where Beam knows no type.
    untyped = beam.Map(lambda element: element).with_output_types(Any)
    out = WriteArrayRecords(tmp_path / "out", keyed=keyed, num_shards=1)
    with pytest.raises(Exception, match=r"(?s)cannot be written as a record.*map"):
        run(beam.Create([element]), untyped, out)
    assert not (tmp_path / "out" / "dataset.json").exists()


def test_nothing_happens_before_the_pipeline_runs(tmp_path: pathlib.Path) -> None:
    pipeline = beam.Pipeline(options=PipelineOptions(list(IN_MEMORY)))
    _ = pipeline | beam.Create([b"a"]) | WriteArrayRecords(str(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        {"num_shards": 0},
        {"shard_bytes": 0},
        {"split": "a b"},
        {"name": "a b"},
    ],
)
def test_options_are_checked_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        WriteArrayRecords("out", **options)
    with pytest.raises(InputError, match="the path of the output is empty"):
        WriteArrayRecords("")


@pytest.mark.slow
def test_same_records_again_do_nothing(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "out"
    first = write(out, num_shards=3)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.array_record*")}
    for overwrite in (False, True):
        again = write(out, RECORDS[::-1], num_shards=3, overwrite=overwrite)
        assert again == first._replace(committed_before=True)
    assert not first.committed_before
    assert before == {p: p.stat().st_mtime_ns for p in out.rglob("*.array_record*")}


@pytest.mark.slow
def test_other_records_need_overwrite(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "out"
    write_plainly(out, num_shards=3)
    kept = contents(out)
    with pytest.raises(JobChangedError, match=r"(?s)704 records.*there are 703"):
        write_plainly(out, RECORDS[:-1], num_shards=3)
    with pytest.raises(JobChangedError, match="num_shards was 3, is 2"):
        write_plainly(out, num_shards=2)
    assert contents(out) == kept
    assert write_plainly(out, RECORDS[:-1], num_shards=2, overwrite=True).records == 703
    assert sorted(read_output(out)) == sorted(RECORDS[:-1])
    assert len(list(out.glob("*.array_record*"))) == 2
    assert_whole(out)


def test_second_split_of_a_dataset(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "out"
    write_plainly(out, [b"a", b"b"], num_shards=1)
    write_plainly(out, [b"c"], split="test", num_shards=1)
    assert sorted(read_output(out, "train")) == [b"a", b"b"]
    assert read_output(out, "test") == [b"c"]
    assert_whole(out)
    with pytest.raises(InputError, match="dataset of another name"):
        write_plainly(out, [b"d"], name="other", split="more", num_shards=1)


@pytest.mark.slow
def test_conversions_and_writes_respect_each_other(tmp_path: pathlib.Path) -> None:
    (tmp_path / "in").write_bytes(frames_of(RECORDS))
    out = tmp_path / "out"
    write_plainly(out, num_shards=2)
    with pytest.raises(JobChangedError):
        convert(job_of(str(tmp_path / "in"), out))
    convert(job_of(str(tmp_path / "in"), out), overwrite=True)
    assert_whole(out)
    with pytest.raises(JobChangedError):
        write_plainly(out, num_shards=2)
    write_plainly(out, num_shards=2, overwrite=True)
    assert_whole(out)
    (out / "dataset.json").unlink()
    write_plainly(out, split="test", num_shards=1)  # Another split: no matter.
    # What was there counts as work that is not finished.
    assert write_plainly(out, num_shards=2).records == 704
    clean(str(out), unfinished=True)
    assert_whole(out)


@pytest.mark.slow
def test_crash_leaves_no_dataset_and_finished_shards_are_kept(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gristmill")
    out = tmp_path / "out"
    plan = plan_of(out, RECORDS, num_shards=4)
    groups = groups_of(plan, RECORDS)
    write_one(plan, 0, groups[0])
    write_one(plan, 2, groups[2])
    assert not (out / "dataset.json").exists()
    before = {path: path.stat() for path in out.glob("*.array_record-*")}
    assert sorted(path.name for path in before) == [
        "data-train.array_record-00000-of-00004",
        "data-train.array_record-00002-of-00004",
    ]
    caplog.clear()
    transform = WriteArrayRecords(out, name="data", num_shards=4)
    result = ended(beam.Create(RECORDS), transform)
    for path, stat in before.items():
        assert path.stat() == stat
    assert_whole(out)
    assert counters(result) == {
        **{"planned-shards": 4, "made-shards": 2, "resumed-shards": 2},
        "records": len(groups[1] + groups[3]),
        "raw-bytes": sum(map(len, groups[1] + groups[3])),
    }
    assert {each.count for each in distributions(result).values()} == {2}
    (planned, committed) = caplog.messages
    assert f"split train: {len(RECORDS)} records become 4 shards" in planned
    assert f"committed; split train: {len(RECORDS)} records in 4 shards" in committed


def test_late_attempts_do_no_harm(tmp_path: pathlib.Path) -> None:
    """A straggler repeats the plan and a shard after the commit."""
    out = tmp_path / "out"
    plan = plan_of(out, RECORDS, num_shards=2)
    groups = groups_of(plan, RECORDS)
    rows = rows_of(plan, RECORDS)
    (path,) = (report.path for report in write_one(plan, 0, groups[0]).reports)
    rows.extend(rows_of(plan, RECORDS))
    commit_write(rows)
    kept = contents(out)
    counts = b"".join(count(groups[group], group) for group in (0, 1))
    for overwrite in (False, True):
        again = begin_write(plan.write.job, counts, groups=2, overwrite=overwrite)
        own = dataclasses.replace(plan.write.own, base=1)
        assert again.write == dataclasses.replace(plan.write, committed=True, own=own)
        result = write_one(again, 0, groups[0])
        assert result == GroupResult(again.write, ())
        (report,) = write_one(plan, 0, groups[0]).reports
        assert report.path == path
    assert commit_write(rows).records == len(RECORDS)
    assert contents(out) == kept


def test_records_that_change_when_repeated_are_noticed(tmp_path: pathlib.Path) -> None:
    plan = plan_of(tmp_path / "out", RECORDS, num_shards=2)
    groups = groups_of(plan, RECORDS)
    with pytest.raises(DataLossError, match=r"(?s)counted before.*Reshuffle"):
        write_one(plan, 0, groups[0][:-1])
    with pytest.raises(DataLossError, match="counted before"):
        write_one(plan, 0, [*groups[0][:-1], groups[0][-1] + b"!"])
    with pytest.raises(DataLossError, match="without its task"):
        write_group(plan.write.job, 0, iter(assign_record(r, 1)[1] for r in groups[0]))
    made = Gathered.of([write_one(plan, 1, groups[1])])
    with pytest.raises(DataLossError, match=r"(?s)not all records.*00000-of-00002"):
        commit_write(made)
    assert not (tmp_path / "out" / "dataset.json").exists()
    assert not list((tmp_path / "out").rglob("*.tmp"))


def random_records(count: int, size: int) -> Iterator[bytes]:
    chance = np.random.default_rng(0)
    for _ in range(count):
        yield chance.bytes(size)


@pytest.mark.alone
@pytest.mark.slow
def test_memory_does_not_grow_with_the_shard(tmp_path: pathlib.Path) -> None:
    """240 MB go through a process that may take 120 MB more than it has."""
    count, size = 3000, 80_000
    digest = RecordsDigest.total(
        digest_of([record]) for record in random_records(count, size)
    )
    writer = WriterOptions(compression="uncompressed")
    plan = begin_write(
        job(tmp_path / "out", shard_bytes=150_000_000, writer=writer),
        pack_count(0, digest.pack()),
        groups=1,
    )
    write_one(plan_of(tmp_path / "warm", [b""]), 0, [b""])  # Imports.
    with limited_memory(120 << 20):
        result = write_one(plan, 0, random_records(count, size))
    assert len(result.reports) == 2
    assert commit_write(Gathered.of([result])).records == count
