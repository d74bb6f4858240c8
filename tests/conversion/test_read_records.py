"""The readers on Beam: records of inputs of any format, each once, and their places."""

import collections
import functools
import gzip
import itertools
import json
import os
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import registry
from apache_beam.transforms.fully_qualified_named_transform import (
    FullyQualifiedNamedTransform,
)
from apache_beam.transforms.window import FixedWindows, TimestampedValue
from apache_beam.typehints.decorators import TypeCheckError
from apache_beam.utils.timestamp import Timestamp

from gristmill.dataset import DataLossError, InputError
from gristmill.dataset.storage.local import LocalStorage
from gristmill.transforms import (
    ReadAllRecords,
    ReadRecords,
    ReadTFRecords,
    RecordOptions,
    SourceRecord,
)
from gristmill.transforms.beam.read_ranges import (
    FileRange,
    FileWalk,
    Listing,
    by_file,
    cut_walks,
    list_parts,
    read_range,
    walk_part,
)
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.source import first_records
from tests.conversion.format_files import listed, put, put_in
from tests.order.input_files import WRITERS, rows_of
from tests.servers.buckets import overlapping
from tests.support.conversion import dataset_of, varied_records
from tests.support.pipelines import (
    BUNDLE_BASED,
    BUNDLES_TWICE,
    IN_MEMORY,
    WORKER_PROCESSES,
    run,
)
from tests.support.records import (
    AWKWARD_RECORDS,
    flip,
    frames_of,
    text_records,
    write_array_records,
    write_tfrecords,
)
from tests.support.told import told
from tests.support.watched import watched


def offsets_of(records):
    return [*itertools.accumulate((16 + len(r) for r in records), initial=0)][:-1]


@pytest.mark.parametrize("name", WRITERS)
def test_records_and_their_places(tmp_path, name):
    WRITERS[name](tmp_path / "in", rows_of(1, 300))
    asked = RecordOptions(input_format=name)
    files = listed(tmp_path / "in", input_format=name)
    expected = [(one.place, one.record) for one in first_records(files)]
    assert len(expected) == 300
    options = {"records": asked, "with_source": True, "range_bytes": 2000}
    # The name of a file is any bytes.
    path = (tmp_path / "in").rename(tmp_path / "in\udcff")
    found = run(ReadRecords(tmp_path / "in*", **options))
    assert {one.file for one in found} == {str(path)}
    assert sorted((one.place, one.record) for one in found) == expected


@pytest.mark.parametrize("read", [ReadRecords, ReadTFRecords])
@pytest.mark.parametrize(
    "argv",
    [
        BUNDLES_TWICE,
        *(
            pytest.param(argv, marks=pytest.mark.slow)
            for argv in (IN_MEMORY, BUNDLE_BASED, WORKER_PROCESSES)
        ),
    ],
)
def test_files_of_all_kinds_in_several_parts(tmp_path, argv, read):
    inner = frames_of([b"inner %d" % i for i in range(60)])
    files = {
        "a": (text_records(150), ""),
        "b": ([*AWKWARD_RECORDS], "GZIP"),
        "c": (text_records(150, seed=1), "ZLIB"),
        "d": ([*AWKWARD_RECORDS], ""),
        # Nearly every byte is part of a frame within a record.
        "e": ([inner[cut:] for cut in range(20)], ""),
    }
    for name, (records, compression) in files.items():
        write_tfrecords(tmp_path / name, records, compression=compression)
    # A part has 16 ranges.
    found = run(
        read(f"{tmp_path}/[a-e]", range_bytes=1000, with_source=True), argv=argv
    )
    assert all(type(one) is SourceRecord for one in found)
    assert sorted(found) == [
        SourceRecord(str(tmp_path / name), offset, record)
        for name, (records, _) in files.items()
        for offset, record in zip(offsets_of(records), records, strict=True)
    ]


@pytest.mark.slow
def test_datasets_and_directories_have_splits(tmp_path):
    every = {split: varied_records(90, seed=len(split)) for split in ("train", "test")}
    splits = [{"name": name, "shardLengths": ["90"]} for name in every]
    info = json.dumps({"name": "d", "splits": splits})
    made = put(tmp_path / "tfds", {"dataset_info.json": info, "features.json": "{}"})
    for split, records in every.items():
        dataset = dataset_of(tmp_path, records, split=split)
        write_tfrecords(made / f"d-{split}.tfrecord-00000-of-00001", records)
    for folder in (dataset, made):
        found = run(ReadRecords(folder, range_bytes=10_000))
        assert sorted(found) == sorted(every["train"] + every["test"])
        assert sorted(run(ReadRecords(folder, split="test"))) == sorted(every["test"])
        with told(InputError, "no such split"):
            run(ReadRecords(folder, split="validation"))
    with told(InputError, "files have no splits"):
        run(ReadRecords(f"{dataset}/*.array_record*", split="train"))


def test_splits_are_joined_by_a_list_and_not_by_a_pattern(tmp_path, caplog):
    put(tmp_path, {n: frames_of([n.encode()]) for n in ("train-0", "test-0")})
    with told(Exception, "several splits"):
        run(ReadTFRecords(f"{tmp_path}/*"))
    found = run(ReadTFRecords((f"{tmp_path}/train*", f"{tmp_path}/test*")))
    assert sorted(found) == [b"test-0", b"train-0"]
    assert "splits are joined: test (1 file), train (1 file)" in caplog.text


def test_empty_files(tmp_path):
    put(tmp_path, {"a": frames_of([b"one"]), "b": b""})
    assert run(ReadRecords(f"{tmp_path}/*", allow_empty_files=True)) == [b"one"]


@pytest.mark.parametrize("make", [ReadRecords, ReadTFRecords])
def test_requests_for_each_file_are_few(tmp_path, monkeypatch, make):
    put(tmp_path, {f"{number}": frames_of([b"one"]) for number in range(30)})
    made = collections.Counter()
    for name in ("list", "load", "match", "open", "read", "scan", "stat"):
        seen = functools.partial(lambda name, *_, **__: made.update([name]), name)
        watched(monkeypatch, LocalStorage, name, seen)
    assert len(run(make(f"{tmp_path}/*"))) == 30
    assert made.pop("stat") <= 2 * 30 + 4
    # One listing; a look at the first bytes of each file, and its records.
    assert made == {"match": 1, "read": 30, "open": 30}


@pytest.mark.slow
def test_another_language_names_it(tmp_path):
    """What Java's `PythonExternalTransform` sends is expanded, and runs."""
    path = put_in(tmp_path, frames_of([b"one", b"two"]))
    kind = FullyQualifiedNamedTransform
    asked = kind("gristmill.transforms.ReadRecords", (str(path),), {})
    _, payload = asked.to_runner_api_parameter(None)
    with kind.with_filter("gristmill.transforms.*"):
        read = kind.from_runner_api_parameter(None, payload, None)
        assert sorted(run(read)) == [b"one", b"two"]


def test_records_with_sources_are_keys(tmp_path):
    """Of a shuffle, that is, which takes keys with deterministic coders alone."""
    records = text_records(20)
    path = tmp_path / os.fsdecode(b"in\xff")
    write_tfrecords(path, records)
    read = ReadTFRecords(f"{tmp_path}/*", with_source=True)
    found = run(read, beam.Distinct(), beam.Reshuffle())
    assert sorted(found, key=lambda one: one.place) == [
        SourceRecord(str(path), place, record)
        for place, record in zip(offsets_of(records), records, strict=True)
    ]
    coder, last = registry.get_coder(SourceRecord), SourceRecord("", (1 << 63) - 1, b"")
    assert coder.decode(coder.encode(last)) == last


FILES = {name: text_records(20, seed=seed) for seed, name in enumerate("abc")}


class TestElementsThatNameTheInputs:
    @pytest.fixture
    def inputs(self, tmp_path):
        """A TFRecord file, a compressed one, and an ArrayRecord file."""
        a, b = (frames_of(FILES[name]) for name in "ab")
        put(tmp_path, {"a": a, "b": gzip.compress(b)})
        write_array_records(tmp_path / "c", FILES["c"])
        return tmp_path

    def test_patterns_and_paths_and_sources(self, inputs):
        named = beam.Create([f"{inputs}/[ab]", *(inputs / name for name in "acc")])
        read = ReadAllRecords(range_bytes=100, with_source=True)  # Parts of 1,600 B.
        assert sorted(run(named, read)) == sorted(
            SourceRecord(str(inputs / name), place, record)
            for name in "aabcc"
            for place, record in zip(
                [*range(20)] if name == "c" else offsets_of(FILES[name]),
                FILES[name],
                strict=True,
            )
        )
        (inputs / "d.jsonl").write_text('{"text": "d"}\n')
        lines = ReadAllRecords(records=RecordOptions(record="line"))
        assert run(beam.Create([str(inputs / "d.jsonl")]), lines) == [b'{"text": "d"}']
        frames = ReadAllRecords(records=RecordOptions(input_format="tfrecord"))
        found = run(beam.Create([f"{inputs}/[ab]"]), frames)
        assert sorted(found) == sorted(FILES["a"] + FILES["b"])

    def test_records_are_in_the_window_of_their_pattern(self, inputs):
        stamped = [
            TimestampedValue(str(inputs / name), n / 2 + 0.25)
            for n, name in enumerate("aab")
        ]
        counted = run(
            beam.Create(stamped),
            beam.Map(lambda value: value).with_output_types(str),
            beam.WindowInto(FixedWindows(1)),
            ReadAllRecords(range_bytes=100),
            beam.Map(lambda record, at=beam.DoFn.TimestampParam: (float(at), record)),
            beam.WindowInto(beam.window.GlobalWindows()),
        )
        for n, name in enumerate("aab"):  # The first two are in the same window.
            here = [record for at, record in counted if at == n / 2 + 0.25]
            assert sorted(here) == sorted(FILES[name])

    @pytest.mark.parametrize("name", ["arrayrecord", "auto", "tfrecord"])
    def test_one_that_matches_nothing(self, tmp_path, name):
        read = ReadAllRecords(records=RecordOptions(input_format=name))
        with told(Exception, "matches"):
            run(beam.Create([f"{tmp_path}/none*"]), read)

    def test_others_are_refused_at_once(self):
        pipeline = beam.Pipeline()
        with told(TypeCheckError, "at ReadAll"):
            pipeline | "Numbers" >> beam.Create([1]) | ReadAllRecords()
        with told(InputError, "needs a PCollection of"):
            pipeline | "NoPatterns" >> ReadAllRecords()


def test_damage_names_file_and_offset(tmp_path):
    records = text_records(30)
    offset, path = offsets_of(records)[20], tmp_path / "damaged"
    path.write_bytes(frames_of(records))
    flip(path, offset)
    message = rf"(?s)corrupt length field.*damaged, byte offset {offset:,}"
    with pytest.raises(Exception, match=message):
        run(ReadTFRecords(path, range_bytes=64))


# What workers do: they walk through parts of files, and read ranges.


def part_of(path, part_bytes=0):
    records = RecordOptions(input_format="tfrecord")
    (part,) = list_parts((path,), Listing(None, records, False, part_bytes))
    return part


def test_a_file_that_changes_meanwhile(tmp_path):
    path = tmp_path / "changing"
    path.write_bytes(frames_of(text_records(30)))
    part = part_of(str(path), 16_000)
    pieces = list(cut_walks(list(walk_part(part, 1000)), 1000))
    path.write_bytes(frames_of(text_records(31)))
    with pytest.raises(Exception, match=r"(?s)changing.*run"):
        list(read_range(pieces[1], with_source=False))


def test_a_range_that_ends_elsewhere(tmp_path):
    """As one would whose cut is within a record."""
    put_in(tmp_path, frames_of(text_records(30)))
    part = part_of(f"{tmp_path}/in")
    first, *_ = cut_walks(list(walk_part(part, 1000)), 1000)
    assert list(read_range(first, with_source=False))
    for end in (first.end_bytes - 1, first.end_bytes + 1):
        with told(DataLossError, "not read to its end"):
            list(read_range(first._replace(end_bytes=end), with_source=False))


def test_elements_are_small(tmp_path):
    """Some 210 bytes beside the path, and 10 more for each of 16 ranges of a part."""
    path, far = str(tmp_path / "file"), 1 << 39
    file = InputFile(path, 1 << 40, "1700000000123456789", "gzip", 1700000000123456789)
    walk = FileWalk(file, far, (tuple(range(far, 1 << 40, 1 << 35)),))
    key, value = by_file(walk, Timestamp(5))
    coder, elements = registry.get_coder(Any), (FileRange(file, far, -1), key, value)
    for element, most in zip(elements, (210, 60, 380), strict=True):
        assert len(coder.encode(element)) <= most + len(path)


@pytest.fixture
def large(server, blocks_of):
    records = text_records(1000)
    server.objects.put("bucket", "large", frames_of(records))
    blocks_of(4096)
    return records


@pytest.mark.slow
def test_objects_are_read_by_requests_that_overlap(server, large):
    """In both passes over a file: of its headers, and of its records."""
    part = part_of("gs://bucket/large")
    # The frames of another part are searched for first.
    for begin in (0, part.end_bytes // 2):
        part = part._replace(begin_bytes=begin)
        walks = overlapping(server, lambda p=part: list(walk_part(p, 50_000)))
        assert len(walks[0].chains[0]) >= 3
    (piece,) = cut_walks([walks[0]._replace(begin_bytes=0)], 1 << 20)
    assert overlapping(server, lambda: list(read_range(piece, False))) == large


def test_objects_by_range_are_read_in_bounded_memory(server, large):
    """What was requested and has not become records is a few blocks at most."""
    part = part_of("gs://bucket/large")
    (piece,) = cut_walks([*walk_part(part, 1 << 20)], 1 << 20)
    server.log.clear()
    for one in itertools.islice(read_range(piece, with_source=True), 0, None, 100):
        assert 4096 * len(server.log) <= one.place + 6 * 4096
    assert len(server.log) == -(-part.end_bytes // 4096)
