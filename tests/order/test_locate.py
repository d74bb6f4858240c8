"""Where rows come from: every answer is followed to the bytes of the source."""

import gzip
import itertools
import pathlib
import shutil
import zlib

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset import Writer
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.formats.tfrecord_frames import encode_frame
from tests.support.conversion import convert, job_of, skipped_in, varied_records
from tests.support.records import frames_of, write_array_records

PLANS = [
    ("num_shards", 1),
    ("num_shards", 7),
    ("shard_bytes", 20_000),
    ("match_shards", None),
]


def batches_of(output: pathlib.Path, **options) -> loader.GlobalBatches:
    dataset = loader.open(str(output))
    options = {"epochs": 1, "drop_remainder": False, "seed": 5, **options}
    return loader.global_batches(dataset, batch_size=16, **options)


def locations(batches: loader.GlobalBatches):
    """Yields location and record of every row."""
    for step in range(batches.steps):
        for row, record in enumerate(batches.read(step)):
            yield batches.locate(step, row), record


def inflated(location: loader.Location) -> bytes:
    data = pathlib.Path(location.source_path).read_bytes()
    inflate = {"gzip": gzip.decompress, "zlib": zlib.decompress, "none": bytes}
    return inflate[location.source_compression](data)


def check(batches: loader.GlobalBatches) -> list[loader.Location]:
    """Follows every row to its frame; returns the locations."""
    found = []
    for location, record in locations(batches):
        frame = encode_frame(record)
        begin = location.source_offset_bytes
        assert begin is not None, location.source_note
        assert inflated(location)[begin : begin + len(frame)] == frame
        found.append(location)
    places = {(place.source_path, place.source_offset_bytes) for place in found}
    assert len(places) == len(found)
    return found


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> pathlib.Path:
    """Five files; one compressed by gzip, one by zlib, one with a single record."""
    folder = tmp_path_factory.mktemp("in")
    for number, count in enumerate((40, 60, 1, 30, 25)):
        data = frames_of(varied_records(count, seed=number))
        compress = {1: gzip.compress, 3: zlib.compress}.get(number, bytes)
        (folder / f"{number}.tfrecord").write_bytes(compress(data))
    return folder


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize(("group_size", "plan"), list(itertools.product([1, 5], PLANS)))
def test_every_row_is_found_in_its_source(inputs, tmp_path, plan, group_size):
    writer = WriterOptions(group_size=group_size, compression="zstd:3")
    convert(job_of(inputs, tmp_path / "out", plan=plan, writer=writer))
    batches = batches_of(tmp_path / "out")
    found = check(batches)
    assert {place.source_compression for place in found} == {"none", "gzip", "zlib"}
    dataset = batches.datasets[0]
    for place in found[:20]:
        shard = dataset.find([place.record])[0][0]
        info = dataset.shard(int(shard))
        assert info.path == place.shard
        assert info.first_record + place.record_in_shard == place.record
        assert place.offset_bytes == dataset.stored.offset_bytes(place.record)


@pytest.fixture
def damaged(tmp_path) -> pathlib.Path:
    """A conversion that left regions out: damaged frames, lost bytes, a cut end."""
    (tmp_path / "in").mkdir()
    for number in range(3):
        records = varied_records(60, seed=number + 10, most_bytes=400)
        data = bytearray(frames_of(records))
        sizes = np.cumsum([len(record) + 16 for record in records])
        data[sizes[4] + 3] ^= 1  # a length
        data[sizes[20] - 1] ^= 1  # a record's checksum
        data[sizes[21] - 1] ^= 1  # and that of the next
        del data[sizes[40] + 5 : sizes[40] + 25]
        if number == 2:
            del data[-7:]
        # A name with what Python takes for the end of a line.
        path = tmp_path / "in" / f"{number}\u2028"
        path.write_bytes(zlib.compress(data) if number == 1 else data)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 7])
def test_rows_behind_damage_are_found_by_the_list_of_errors(damaged, shards):
    out, plan = damaged / "out", ("num_shards", shards)
    convert(job_of(damaged / "in", out, plan=plan, on_corrupt="skip"))
    assert len(skipped_in(out)) >= 8
    found = check(batches_of(out))
    assert len(found) > 3 * 50


def twice_or_never(record: bytes) -> list[bytes]:
    return [b"1" + record, b"2" + record] if len(record) % 2 else []


def test_what_a_function_made_has_the_place_of_its_record(inputs, tmp_path):
    function = "tests.order.test_locate:twice_or_never"
    convert(job_of(inputs, tmp_path / "out", plan=("num_shards", 3), map=function))
    for place, record in locations(batches_of(tmp_path / "out")):
        begin, which = place.source_offset_bytes, record[:1].decode()
        assert inflated(place)[begin:].startswith(encode_frame(record[1:]))
        assert place.source_note == f"{which} of 2 that were made of it"


def test_sources_are_known_through_other_datasets(inputs, tmp_path):
    convert(job_of(inputs, tmp_path / "a", plan=("num_shards", 3)))
    function = "tests.order.test_locate:longer"
    convert(job_of(str(tmp_path / "a"), tmp_path / "b", plan=("num_shards", 2)))
    convert(job_of(str(tmp_path / "b"), tmp_path / "c", map=function))
    for gone in "ab":
        shutil.rmtree(tmp_path / gone)
    for place, record in locations(batches_of(tmp_path / "c")):
        frame = encode_frame(record.removesuffix(b"longer"))
        assert inflated(place)[place.source_offset_bytes :].startswith(frame)


def longer(record: bytes) -> bytes:
    return record + b"longer"


def test_shards_whose_sources_nobody_knows_are_sources_themselves(tmp_path):
    with Writer(tmp_path / "a", shard_bytes=10_000) as writer:
        for record in varied_records(40, seed=1):
            writer.write(record)
    convert(job_of(str(tmp_path / "a"), tmp_path / "b", plan=("num_shards", 2)))
    convert(job_of(str(tmp_path / "b"), tmp_path / "c", plan=("num_shards", 1)))
    for place, record in locations(batches_of(tmp_path / "c")):
        assert place.source_path.startswith(str(tmp_path / "a"))
        found = loader.open([place.source_path])[place.source_record]
        assert found == record


def test_other_datasets_know_no_source(tmp_path):
    path = tmp_path / "plain.array_record"
    write_array_records(path, varied_records(20, seed=0))
    place = loader.global_batches(loader.open(str(path)), batch_size=4).locate(2, 1)
    assert place.shard == str(path)
    assert place.offset_bytes >= 64
    assert place.source_path is place.source_offset_bytes is None
    assert "not stored" in place.source_note


@pytest.mark.parametrize("damage", ["gone", "cut", "another", "names"])
def test_a_list_of_inputs_that_is_not_the_one_is_not_used(inputs, tmp_path, damage):
    convert(job_of(inputs, tmp_path / "out"))
    (listed,) = (tmp_path / "out" / "index").glob("*.inputs.npz")
    if damage == "gone":
        listed.unlink()
    elif damage == "cut":
        listed.write_bytes(listed.read_bytes()[:-30])
    elif damage == "another":
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "x").write_bytes(frames_of([b"x"]))
        convert(job_of(tmp_path / "b", tmp_path / "other"))
        (other,) = (tmp_path / "other" / "index").glob("*.inputs.npz")
        shutil.copy(other, listed)
    else:
        arrays = dict(np.load(listed))
        arrays["path_ends"] = arrays["path_ends"] + 5
        with listed.open("wb") as file:
            np.savez(file, **arrays)
    place = batches_of(tmp_path / "out").locate(0, 0)
    assert place.source_path is None
    assert "list of source files" in place.source_note


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_feed_names_the_record_that_does_not_decode(tmp_path, workers):
    (tmp_path / "in").mkdir()
    records = [bytes(8)] * 30
    records[13] = bytes(7)
    for number in range(2):
        data = frames_of(records[number * 20 :][:20])
        (tmp_path / "in" / str(number)).write_bytes(data)
    convert(job_of(tmp_path / "in", tmp_path / "out", plan=("match_shards", None)))
    batches = batches_of(tmp_path / "out", shuffle="none")
    decode = loader.TokenDecoder(length=2)
    rows = {"host": (1, 2)}
    with (
        batches.feed(decode=decode, workers=workers, **rows) as feed,
        pytest.raises(
            loader.DecodeError,
            match=r"out, record 13 \(record 13 of .*00000-of-00002\), "
            r"row 13 of step 0\n  expected: 8 bytes(.|\n)*got:      7 bytes",
        ) as caught,
    ):
        next(feed)
    assert caught.value.row == 5
