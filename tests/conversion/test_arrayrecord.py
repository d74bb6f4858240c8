"""ArrayRecord files as inputs: every record once and in order, damage to its place."""

from __future__ import annotations

import itertools
import pathlib
import pickle
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import (
    CorruptInputError,
    CorruptShardError,
    InputError,
    StorageChangedError,
    StorageError,
)
from gristmill.dataset.metadata import layout
from gristmill.transforms.beam.read_ranges import FileRange
from gristmill.transforms.conversion.make_shards import convert_shard
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.shards import open_shard as open_shard_module
from gristmill.transforms.sources.shards.source_split import list_shards
from gristmill.transforms.sources.source import source_of
from tests.servers.buckets import upload
from tests.servers.gcs_server import GcsServer
from tests.support.conversion import (
    convert,
    dataset_of,
    job_of,
    prepared_of,
    read_output,
    shards_of,
    skipped_in,
    varied_records,
)
from tests.support.records import (
    AWKWARD_RECORDS,
    footer_of,
    read_array_records,
    text_records,
    write_array_records,
)

RECORDS = [*varied_records(400, seed=1), *AWKWARD_RECORDS]
# Chunks of one record, of many, of so many that a file is one.
OPTIONS = ("group_size:1,zstd:3", "group_size:9,snappy", "group_size:1000,brotli:5")
OFFICIAL = "group_size:30"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Files of all encodings; their records are `RECORDS` in the files' order."""
    folder = tmp_path_factory.mktemp("shards")
    for number, options in enumerate((*OPTIONS, OFFICIAL)):
        part = RECORDS[number::4] if number < 3 else RECORDS[3::4]
        write_array_records(folder / f"{number}.array_record", part, options=options)
    return folder


@given(data=st.data())
def test_any_cuts_give_every_record_once(files: pathlib.Path, data: Any) -> None:
    inputs = find_inputs([f"{files}/*"])
    number = data.draw(st.integers(0, len(inputs) - 1))
    file = inputs[number]
    records = read_array_records(file.path)
    source = source_of(inputs.spec)
    drawn = st.lists(st.integers(0, file.size_bytes), max_size=5)
    edges = [0, *sorted(data.draw(drawn)), file.size_bytes]
    found, spans = [], []
    for begin, end in itertools.pairwise(edges):
        cut = SourceRange(file_index=0, begin_bytes=begin, end_bytes=end, cut=True)
        reader = source.read(file, cut)
        for batch in reader.batches():
            places = range(len(found), len(found) + len(batch.records))
            assert [*batch.places] == [*places]
            found += batch.records
        spans.append(reader.span)
    assert found == records
    assert [span.start_bytes for span in spans] == [
        0,
        *(span.stop_bytes for span in spans[:-1]),
    ]
    assert spans[-1].whole
    assert spans[-1].stop_bytes == len(records)


def damage(path: pathlib.Path, *chunks: int) -> list[tuple[int, int]]:
    """Flips a byte in the data of chunks; returns where these are."""
    data = bytearray(path.read_bytes())
    offsets = footer_of(bytes(data)).chunk_offsets.tolist()
    for chunk in chunks:
        data[(offsets[chunk] + offsets[chunk + 1]) // 2] ^= 4
    path.write_bytes(data)
    return [(offsets[chunk], offsets[chunk + 1]) for chunk in chunks]


def test_damage_is_named_or_left_out_by_chunk(tmp_path: pathlib.Path) -> None:
    records = [random.Random(n).randbytes(500) for n in range(1200)]
    path = tmp_path / "in" / "a.array_record"
    path.parent.mkdir()
    write_array_records(path, records, options="group_size:10,zstd:3")
    (first, _), (_, second), (third, end) = damage(path, 30, 31, 77)
    with pytest.raises(CorruptShardError, match=r"a\.array_record, chunk 30"):
        convert(job_of(path.parent, tmp_path / "fails", plan=("num_shards", 3)))
    options = {"plan": ("num_shards", 3), "on_corrupt": "skip"}
    with pytest.raises(CorruptInputError, match="`max_corrupt`"):
        convert(job_of(path.parent, tmp_path / "few", max_corrupt=1, **options))
    result = convert(job_of(path.parent, tmp_path / "out", **options))
    assert read_output(tmp_path / "out") == [
        *records[:300],
        *records[320:770],
        *records[780:],
    ]
    # Neighbours are one region.
    regions = skipped_in(tmp_path / "out")
    assert [
        (region["begin_bytes"], region["end_bytes"], region["reason"])
        for region in regions
    ] == [(first, second, "chunk"), (third, end, "chunk")]
    assert result.manifest.splits["train"].skipped_regions == 2


def test_a_record_that_is_not_the_one_of_the_index(tmp_path: pathlib.Path) -> None:
    records = [bytes([n]) * 500 for n in range(200)]
    dataset = dataset_of(tmp_path, records, compression="uncompressed", group_size=5)
    path = dataset / shards_of(dataset)[1]
    data = bytearray(path.read_bytes())
    at = data.index(bytes([90]) * 400)
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptShardError, match=r"record \d+\n.*as in the shard's ind"):
        convert(job_of(str(dataset), tmp_path / "no"))
    convert(job_of(str(dataset), tmp_path / "out2", on_corrupt="skip"))
    found = read_output(tmp_path / "out2")
    lost = [record for record in records if record not in found]
    assert bytes([90]) * 500 in lost
    assert [*found, *lost] == [r for r in records if r not in lost] + lost
    assert len(lost) == 5  # Those of its chunk.


@pytest.mark.parametrize("kind", ["files", "dataset"])
def test_a_file_without_footer(tmp_path: pathlib.Path, kind: str) -> None:
    records = varied_records(300, seed=4)
    dataset = dataset_of(tmp_path, records)
    path = dataset / shards_of(dataset)[1]
    data = bytearray(path.read_bytes())
    whole = read_array_records(path)
    data[-65_536:] = bytes(65_536)
    path.write_bytes(data)
    inputs = str(dataset) if kind == "dataset" else f"{dataset}/*.array_record*"
    with pytest.raises(CorruptShardError, match="footer"):
        convert(job_of(inputs, tmp_path / "no", plan=("num_shards", 5)))
    convert(
        job_of(
            inputs,
            tmp_path / "out2",
            plan=("num_shards", 5),
            on_corrupt="skip",
        )
    )
    found = read_output(tmp_path / "out2")
    if kind == "dataset":  # Its index knows where the chunks are.
        assert found == records
    else:
        first = records.index(whole[0])
        assert found == [*records[:first], *records[first + len(whole) :]]
        lost = [
            (region["begin_bytes"], region["end_bytes"])
            for region in skipped_in(tmp_path / "out2")
        ]
        assert (lost[0][0], lost[-1][1]) == (0, len(data))
        assert all(one[1] == two[0] for one, two in itertools.pairwise(lost))


def test_a_dataset_whose_shard_was_cut(tmp_path: pathlib.Path) -> None:
    records = varied_records(600, seed=4)
    dataset = dataset_of(tmp_path, records, group_size=4)
    path = dataset / shards_of(dataset)[1]
    whole = read_array_records(path)
    path.write_bytes(path.read_bytes()[:70_000])
    with pytest.raises(InputError, match=r"wrong size.*\n.*00001-of"):
        convert(job_of(str(dataset), tmp_path / "no"))
    job = job_of(str(dataset), tmp_path / "out2", on_corrupt="skip")
    convert(job)
    found = read_output(job.output)
    first = records.index(whole[0])
    kept = len(found) - (len(records) - len(whole))
    assert 0 < kept < len(whole)
    assert found == [*records[: first + kept], *records[first + len(whole) :]]
    assert len(skipped_in(job.output)) == 1


def test_a_shard_that_is_replaced_meanwhile(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "in" / "a.array_record"
    path.parent.mkdir()
    write_array_records(path, [b"old"] * 10)
    prepared = prepared_of(job_of(path.parent, tmp_path / "out"))
    write_array_records(path, [b"new"] * 10)
    with pytest.raises(StorageChangedError, match=r"a\.array_record"):
        convert_shard(prepared, 0)


def test_shards_that_have_changed_places(tmp_path: pathlib.Path) -> None:
    """Their records have the same digest together, in another order."""
    dataset = dataset_of(tmp_path, varied_records(90, seed=1))
    first, second, _ = shards_of(dataset)
    for path in (first, layout.index_path(first)):
        other = dataset / path.replace("-00000-of", "-00001-of")
        (dataset / path).rename(tmp_path / "aside")
        other.rename(dataset / path)
        (tmp_path / "aside").rename(other)
    assert (dataset / first).stat().st_size == (dataset / second).stat().st_size
    with pytest.raises(CorruptShardError, match="that of another shard"):
        convert(job_of(str(dataset), tmp_path / "no"))


def test_an_index_that_is_gone(tmp_path: pathlib.Path) -> None:
    records = varied_records(30, seed=1)
    dataset = dataset_of(tmp_path, records)
    (dataset / layout.index_path(shards_of(dataset)[0])).unlink()
    with pytest.raises(StorageError, match="give them by a pattern"):
        convert(job_of(str(dataset), tmp_path / "no"))
    convert(job_of(f"{dataset}/*.array_record*", tmp_path / "out2"))
    assert read_output(tmp_path / "out2") == records


@pytest.mark.parametrize("kind", ["files", "dataset"])
def test_what_is_damaged_in_transit_is_read_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    dataset = dataset_of(tmp_path, RECORDS)
    inputs = "gs://bucket/d" + ("" if kind == "dataset" else "/*.array_record*")
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        upload(server, dataset, "d")
        prepared = prepared_of(job_of(inputs, tmp_path / "new"))
        file = prepared.files[0]
        whole = SourceRange(file_index=0, begin_bytes=0, end_bytes=file.size_bytes)
        for skip in range(5):
            open_shard_module.kept_shard.cache_clear()
            server.faults.clear()
            server.fail("flip", "media", name="-00000-of-", skip=skip)
            reader = source_of(prepared.files.spec).read(file, whole)
            assert reader.open_ahead() > 0
            found = [record for batch in reader.batches() for record in batch.records]
            assert found == RECORDS[: len(found)]
            assert reader.span.whole


SHARD_RECORDS = [*text_records(1500), *AWKWARD_RECORDS]


def ranges_of(path: pathlib.Path, range_bytes: int) -> list[FileRange]:
    """Returns the ranges of a file, or of the first shard of a dataset."""
    file = next(iter(list_shards([str(path)], None)))
    cuts = source_of(file.spec).cut(file, range_bytes=range_bytes)
    return [FileRange(file, begin, end) for begin, end in cuts]


def test_range_bytes_decides_the_number_of_ranges(tmp_path: pathlib.Path) -> None:
    dataset = dataset_of(tmp_path, [b"x" * 5000] * 300, compression="uncompressed")
    for range_bytes, count in ((100_000, 6), (1 << 20, 1), (1, 100)):
        ranges = ranges_of(dataset, range_bytes)
        assert len(ranges) == count
        found = [
            (number, record)
            for one in ranges
            for batch in one.batches()
            for number, record in zip(batch.places, batch.records, strict=True)
        ]
        assert found == [(number, b"x" * 5000) for number in range(100)]
        assert len(pickle.dumps(ranges[0])) < 1000
