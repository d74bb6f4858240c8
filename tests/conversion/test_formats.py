"""What holds for inputs of every format: each record once, and no damage in silence."""

import dataclasses
import functools
import itertools
import os
import signal
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.dataset import (
    DataLossError,
    GristmillError,
    InputError,
    StorageChangedError,
    UserFunctionError,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_files import ShardPlace
from gristmill.transforms import RecordOptions
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.make_shards import (
    convert_shard,
    make_shard,
    make_shards,
    shard_tasks,
)
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.source import (
    KeptPass,
    ReadRequest,
    first_records,
    source_of,
)
from tests.conversion.format_files import (
    COMPRESS,
    COMPRESSED,
    NAMES,
    Read,
    begin_of,
    check_meets,
    damaged,
    file_of,
    listed,
    put,
    put_in,
    read_cut,
    records_of,
    rows_of,
    write_in_place,
)
from tests.faults.kills import Killer
from tests.order.input_files import WRITERS
from tests.support.conversion import (
    contents,
    convert,
    job_of,
    prepared_of,
    read_output,
    skipped_in,
)
from tests.support.told import told

BAD = (23, 4)  # Rows that are damaged, the last one first.


@functools.cache
def damaged_file(name, seed):
    """Returns a file with damage, its other records, and the damage."""
    data, rows = file_of(name, seed), rows_of(name, seed)
    bad = BAD[:1] if name == "webdataset" else BAD
    found = []
    for row in bad:
        found.insert(0, damaged(name, data, rows, row))
        data = found[0].data
    lost = {number for one in found for number in one.lost}
    records = records_of(name, rows)
    return data, [r for n, r in enumerate(records) if n not in lost], found


@functools.cache
def alone(folder, name, seed, kind, way):
    """Writes a file, and returns its path and what is read of it without a cut."""
    path = folder / f"{name}.{seed}.{kind}.{way}"
    data, kept, bad = damaged_file(name, seed)
    if way != "damaged":
        data, kept, bad = file_of(name, seed), records_of(name, rows_of(name, seed)), []
    data = COMPRESS[kind](data)
    path.write_bytes(data[: len(data) * 3 // 4] if way == "cut short" else data)
    read = read_cut(listed(path, input_format=name), keep=True)
    if way == "cut short":
        assert read.records == kept[: len(read.records)]
        (region,) = read.skipped
        assert region["compressed"]
        assert region["end_bytes"] == path.stat().st_size
    else:
        assert read.records == kept
        assert read.regions == [one.region for one in bad]
    return path, read


@st.composite
def some_files(draw):
    """Draws a format, and for some files a seed, how they are stored, and damaged."""
    name = draw(st.sampled_from(NAMES))
    kinds = [*COMPRESS] if name in COMPRESSED else ["none"]
    ways = st.sampled_from(["", "damaged", "cut short"])
    file = st.tuples(st.integers(0, 2), st.sampled_from(kinds), ways)
    files = file.filter(lambda file: file[1:] != ("none", "cut short"))
    return name, draw(st.lists(files, min_size=1, max_size=3, unique=True))


# In thousandths of all bytes, or where a row of the first file begins.
CUTS = st.lists(st.integers(-38, 997), max_size=6)


@pytest.mark.slow
@settings(max_examples=600)
@given(some_files(), CUTS, st.booleans(), st.randoms())
def test_any_cuts_give_the_same(folder, drawn, cuts, one_pass, chance):
    name, chosen = drawn
    every = sorted(alone(folder, name, *each) for each in chosen)
    files = listed(*(path for path, _ in every), input_format=name)
    total, begins = int(files.sizes.sum()), every[0][1].places or [0]
    places = [
        total * cut // 1000 if cut > 0 else begins[cut % len(begins)] for cut in cuts
    ]
    places = [place for place in places if 0 < place < total]
    with closing(KeptPass()) as kept:
        read = read_cut(files, places, keep=True, kept=kept if one_pass else None)
    assert read.records == [r for _, one in every for r in one.records]
    assert read.skipped == [line for _, one in every for line in one.skipped]

    # The spans of all meet, and any that is another would not.
    check_meets(read.spans, files)
    at = chance.choice([n for n, span in enumerate(read.spans) if span.records])
    span, step = read.spans[at], chance.choice((-1, 1))
    later = {one.file_index for one in read.spans[at + 1 :]}
    changes = [
        {"start_bytes": span.start_bytes + step},
        {"start_bytes": None, "stop_bytes": None},
        {"stop_bytes": span.stop_bytes + step}
        if files.sized[span.file_index] or span.file_index in later
        else {"whole": False},
    ]
    wrong = dataclasses.replace(span, **chance.choice(changes))
    with told(DataLossError, where=files.paths[span.file_index]):
        check_meets([*read.spans[:at], wrong, *read.spans[at + 1 :]], files)


PLANS = [("num_shards", 7), ("match_shards", None)]


@pytest.mark.parametrize("whole", [False, True], ids=["cut", "whole files"])
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan[0])
@pytest.mark.parametrize("name", NAMES)
def test_damage_is_named_or_left_out_and_listed(tmp_path, name, plan, whole):
    first, last = (records_of(name, rows_of(name, seed)) for seed in (0, 2))
    data, kept, bad = damaged_file(name, 1)
    files = {"0": file_of(name, 0), "1": data, "2": file_of(name, 2)}
    path = put(tmp_path / "in", files) / "1"
    records = RecordOptions(input_format=name, whole_files=whole)
    options = {"plan": plan, "records": records}
    with pytest.raises(GristmillError) as caught:
        convert(job_of(tmp_path / "in", tmp_path / "fails", **options))
    assert f"{path}, {bad[0].place}" in str(caught.value)
    assert caught.value.got
    assert "--on-corrupt skip" in caught.value.cure
    job = job_of(tmp_path / "in", tmp_path / "out", on_corrupt="skip", **options)
    split = convert(job).manifest.splits["train"]
    assert read_output(tmp_path / "out") == [*first, *kept, *last]
    assert split.skipped_regions == len(bad)
    lines = skipped_in(tmp_path / "out")
    assert Read([], lines, [], []).regions == [one.region for one in bad]
    for line, one in zip(lines, bad, strict=True):
        assert line["file"] == str(path)
        assert line["detail"]
        if one.place.startswith("line"):
            assert one.place.startswith(f"line {line['line']:,},")


@pytest.mark.parametrize("name", NAMES)
def test_damage_at_a_cut_belongs_to_the_range_before(tmp_path, name):
    data, kept, bad = damaged_file(name, 1)
    files = listed(put_in(tmp_path, data), input_format=name)
    begin, end = bad[0].region
    for cut in (begin, (begin + end) // 2, end):
        read = read_cut(files, [cut], keep=True)
        assert read.records == kept
        check_meets(read.spans, files)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_file_is_accepted_beside_others(tmp_path, name):
    put(tmp_path, {"a": b"", "b": file_of(name, 1)})
    options = RecordOptions(input_format=name)
    with pytest.raises(InputError, match=f"(?s)empty.*{tmp_path}/a"):
        find_inputs([f"{tmp_path}/*"], options=options)
    files = find_inputs([f"{tmp_path}/*"], options=options, allow_empty_files=True)
    assert [one.record for one in first_records(files)] == records_of(
        name, rows_of(name, 1)
    )


def picky(record):
    if b"1-17" in record:
        raise ValueError("not this one")
    return record


@pytest.mark.parametrize("name", NAMES)
def test_the_error_of_a_function_names_the_record(tmp_path, name):
    path = put_in(tmp_path, data := file_of(name, 1))
    nouns = {"parquet": "row", "arrayrecord": "record"}
    place = f"{nouns[name]} 17" if name in nouns else ""
    place = place or f"byte offset {begin_of(name, data, '1-17'):,}"
    options = {"records": RecordOptions(input_format=name), "map": f"{__name__}:picky"}
    job = job_of(path, tmp_path / "out", **options)
    with pytest.raises(UserFunctionError, match=f"{path}, {place}"):
        convert(job)


# Files that are written while they are read.


def as_another(path, data):
    path.unlink()
    path.write_bytes(data)


CHANGES = [write_in_place, as_another, lambda path, _: path.unlink()]


@pytest.mark.parametrize("change", CHANGES, ids=["in place", "another", "deleted"])
@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_written_meanwhile(tmp_path, name, change):
    path = put_in(tmp_path, data := file_of(name, 1))
    os.utime(path, ns=(0, 0))
    files = listed(path, input_format=name)
    whole = SourceRange(file_index=0, begin_bytes=0, end_bytes=len(data))
    batches = source_of(files.spec).read(ReadRequest(files[0], whole)).batches()
    next(batches)
    change(path, data[:-9] + data[-9:][::-1])
    with told(StorageChangedError, str(path)):
        list(batches)


@pytest.mark.parametrize("name", ["tfrecord", "arrayrecord", "parquet"])
def test_what_is_damaged_on_its_way_is_read_once_more(server, name):
    server.objects.put("in", name, file_of(name, 1))  # Footers are cached by name.
    files, skip = listed(f"gs://in/{name}", input_format=name), 0
    while True:
        server.faults.clear()
        server.fail("flip", "media", skip=skip)
        read = read_cut(files, [files[0].size_bytes // 2], keep=True)
        assert read.records == records_of(name, rows_of(name, 1))
        assert not read.skipped
        if any(fault.times for fault in server.faults):
            break
        skip += 1
    assert skip


@pytest.mark.parametrize("name", ["tfrecord", "arrayrecord", "parquet", "json"])
def test_an_object_that_is_replaced_meanwhile_is_no_damage(server, name):
    server.objects.put("in", "a", file_of(name, 1))
    files = listed("gs://in/a", input_format=name)
    server.objects.put("in", "a", file_of(name, 1))
    with pytest.raises(StorageChangedError):
        read_cut(files, keep=True)


# Shards that are made in one pass over a file that is read from its start.

ROWS = 900


def large_file(path, name, kind):
    rows = rows_of(name, 1, ROWS)
    if name == "parquet":
        options = {"row_group_size": 800, "data_page_size": 1024}
        pq.write_table(pa.Table.from_pylist(rows), path, **options)
    else:
        WRITERS[name](path, rows)
        path.write_bytes(COMPRESS[kind](path.read_bytes()))


@pytest.fixture(params=["tfrecord-gzip", "jsonl-zstd", "csv-none", "parquet-none"])
def large(request, tmp_path, server):
    """A job of a file, in a bucket, of which few passes make eight shards."""
    name, kind = request.param.split("-")
    large_file(tmp_path / "large", name, kind)
    server.objects.put("in", "a", (tmp_path / "large").read_bytes())
    records = RecordOptions(input_format=name)
    return job_of("gs://in/a", tmp_path / "out", shards=8, records=records)


def test_one_pass_makes_many_shards(large, server, tmp_path):
    prepared = prepared_of(large)
    tasks = [*shard_tasks(prepared)]
    assert len(tasks) == len(prepared.plan.pass_begins) <= 3
    server.sent_bytes = 0
    made = [shard for task in tasks for shard in make_shards(task)]
    if large.records.input_format != "parquet":
        assert server.sent_bytes == (tmp_path / "large").stat().st_size
    # Two are lost: the others stay, and only these are made again.
    for result in made[1], made[4]:
        (tmp_path / "out" / layout.index_path(result.report.path)).unlink()
    again = [shard for task in tasks for shard in make_shards(task)]
    assert sum(not shard.resumed for shard in again) == 2
    convert(large)
    each = dataclasses.replace(large, output=str(tmp_path / "each"))
    first = next(iter(shard_tasks(prepared_of(each))))
    commit_shards([each], [make_shard(first._replace(shard=s)) for s in range(8)])
    assert contents(tmp_path / "out") == contents(tmp_path / "each")
    name = large.records.input_format
    assert read_output(tmp_path / "out") == records_of(name, rows_of(name, 1, ROWS))


def test_a_worker_and_its_replacement_at_once(large, tmp_path):
    task = next(iter(shard_tasks(prepared_of(large))))
    stalled, replacement = make_shards(task), make_shards(task)
    first = [next(stalled)]
    second = [next(replacement) for _ in range(3)]
    # It goes on with shards that the other has made meanwhile, and overtakes it.
    first += itertools.islice(stalled, 4)
    second += replacement
    first += stalled
    one, other = ([r._replace(resumed=False) for r in made] for made in (first, second))
    assert one == other
    # Each looks before the other has published.
    prepared = prepared_of(large)
    places = [ShardPlace.at(large.output, prepared.shard_path(0)) for _ in range(2)]
    reports = [convert_shard(prepared, 0, place=place) for place in places]
    assert reports[0] == reports[1]
    convert(large)
    name = large.records.input_format
    assert read_output(large.output) == records_of(name, rows_of(name, 1, ROWS))


# Commands that are killed.

# By itself: each command would import all that this file does.
KEEP = """
def keep_most(record):
    return None if b"-17" in record else record + b"!"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["tfrecord", "jsonl", "csv", "parquet", "webdataset", "arrayrecord"]
)
def test_a_killed_command_goes_on(tmp_path, name):
    (tmp_path / "keeping.py").write_text(KEEP)
    WRITERS[name](path := tmp_path / "in", rows := rows_of(name, 1, 600))
    data = path.read_bytes()
    bad = (571,) if name == "webdataset" else (571, 290, 3)
    for row in bad:
        data = damaged(name, data, rows, row).data
    path.write_bytes(COMPRESS["gzip" if name == "tfrecord" else "none"](data))
    options = "--name data --num-shards 9 --workers 1 --on-corrupt skip --map "
    options += f"keeping:keep_most --input-format {name}"
    with Killer(tmp_path) as killer:

        def run(output, **kill):
            command = ["convert", str(path), str(output), *options.split()]
            return killer.run(command, cwd=tmp_path, **kill)

        ended = run(whole := tmp_path / "undisturbed")
        assert ended.status == 0, ended.error
        finished_shards = set()
        for kill_at in (9, 24, 41):
            output = tmp_path / str(kill_at)
            ended = run(output, kill_at=kill_at)
            assert ended.status == -signal.SIGKILL, ended.error
            before = finished(output)
            finished_shards.add(len(before))
            # Again, and killed in one of the shards that are missing.
            run(output, kill_at=13, after=True)
            ended = run(output)
            assert ended.status == 0, ended.error
            assert before.items() <= finished(output).items()
            assert contents(output) == contents(whole)
    assert len(finished_shards) > 1
    assert len(skipped_in(whole)) == len(bad)
    assert len(read_output(whole)) > 500


def finished(output):
    """Returns the identity of each shard that has its index."""
    names = {path.stem for path in output.glob("index/*.index")}
    states = {name: (output / name).stat() for name in names}
    return {name: (state.st_ino, state.st_mtime_ns) for name, state in states.items()}
