"""Rows of tokens followed to their documents' sources, and back, by every token."""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import random
import shutil

import pytest

from gristmill import loader
from gristmill.dataset.base.errors import InputError, InvalidDatasetError
from gristmill.dataset.packed.row_format import RowFormat, decode_rows
from gristmill.loader.provenance import stored_sources
from gristmill.loader.provenance.trace import FoundDocument, SourcePlace
from tests.order.packed_datasets import (
    MAPPED,
    STRIDE,
    documents,
    enlarge,
    mapped_places,
    number_of,
    packing,
    record,
    tokens_of,
    write_frames,
)
from tests.servers.buckets import upload
from tests.servers.gcs_server import GcsServer
from tests.support.conversion import convert, job_of

LENGTH = 32
Places = dict[int, tuple[str, int]]


@dataclasses.dataclass
class Oracle:
    """What rows hold, by the tokens themselves."""

    batches: loader.GlobalBatches
    places: Places

    def row(self, step: int, row: int) -> list[tuple[int, int, int, int]]:
        """Returns (document, begin, end, first token) of each piece of a row."""
        (data,) = self.batches.read(step, slice(row, row + 1))
        return pieces_of(data)

    def check_row(self, step: int, row: int) -> loader.Location:
        """Compares where a row comes from; returns it."""
        location = self.batches.locate(step, row)
        wanted = self.row(step, row)
        assert len(location.pieces) == len(wanted) > 0
        for piece, (document, begin, end, first) in zip(
            location.pieces, wanted, strict=True
        ):
            assert (piece.begin_token, piece.end_token) == (begin, end)
            assert piece.first_token == first
            assert place_of(piece) == self.places[document]
        return location

    def seen(self, steps: int) -> dict[int, set[tuple[int, int, int, int, int]]]:
        """Returns (step, row, begin, end, first) of each document, by reading all."""
        found = collections.defaultdict(set)
        for step in range(steps):
            for row, data in enumerate(self.batches.read(step)):
                for document, begin, end, first in pieces_of(data):
                    found[document].add((step, row, begin, end, first))
        return found


def pieces_of(data: bytes) -> list[tuple[int, int, int, int]]:
    batch = decode_rows(RowFormat(LENGTH, 4), [data])
    found, at = [], 0
    for length, first in zip(
        batch.lengths.tolist(), batch.firsts.tolist(), strict=True
    ):
        document, token = divmod(int(batch.tokens[at]), STRIDE)
        assert token == first
        found.append((document, at, at + length, first))
        at += length
    return found


def place_of(place: SourcePlace) -> tuple[str | None, int | None]:
    number = place.source_record
    return place.source_path, place.source_offset_bytes if number is None else number


def sightings(found: list[FoundDocument]) -> set[tuple[int, int, int, int, int]]:
    return {
        (seen.step, seen.row, piece.begin_token, piece.end_token, piece.first_token)
        for document in found
        for piece in document.pieces
        for seen in piece.sightings
    }


def make(
    folder: pathlib.Path, files: int, count: int, *, first: int = 0, **options: object
) -> Places:
    """Makes a packed dataset `out` in a folder; returns the places of documents."""
    places: Places = {}
    everything = []
    for number in range(files):
        start = first + number * count
        records = documents(count, seed=start, first=start)
        places |= write_frames(folder / "in" / f"{number}.tfrecord", records)
        everything += records
    pack = packing(LENGTH)
    convert(job_of(folder / "in", folder / "out", pack=pack, **options))
    if "map" in options:
        places = mapped_places(places)
    return filled(places, everything)


def filled(places: Places, records: list[bytes]) -> Places:
    """Returns the places of documents that have a token."""
    empty = {number_of(data) for data in records if not len(tokens_of(data))}
    return {number: at for number, at in places.items() if number not in empty}


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """A mixture: mapped documents; two editions; two datasets that are joined."""
    folder = tmp_path_factory.mktemp("mixture")
    places = make(folder / "a", 3, 400, plan=("num_shards", 4), map=MAPPED)
    for number in (1, 2):
        start = 10_000 * number
        records = documents(300, seed=start, first=start)
        inputs = folder / "b" / f"in-{number}"
        places |= filled(write_frames(inputs / "x.tfrecord", records), records)
        pack = packing(LENGTH, "concat")
        options = {"plan": ("num_shards", 2), "appends": number > 1, "pack": pack}
        convert(job_of(inputs, folder / "b" / "out", **options))
    for number in (3, 4):
        start = 10_000 * number
        places |= make(folder / f"c{number}", 1, 200, first=start)
    datasets = {
        "a": loader.open(folder / "a" / "out"),
        "b": loader.open(folder / "b" / "out"),
        "c": loader.open([folder / "c3" / "out", folder / "c4" / "out"]),
    }
    weights = {"a": 5, "b": 2, "c": 1}
    batches = loader.global_batches(datasets, batch_size=8, seed=3, weights=weights)
    return Oracle(batches.then(weights={"a": 1, "b": 1, "c": 1}, step=40), places)


def check_queries(mixture: Oracle, *, queries: int, steps: int) -> None:
    """Compares random rows and documents with what reading all of them says."""
    chance = random.Random(queries)
    seen = mixture.seen(steps)
    by_place = collections.defaultdict(set)
    for document, place in mixture.places.items():
        by_place[place].add(document)
    known = sorted(by_place)
    for _ in range(queries // 2):
        step, row = chance.randrange(steps), chance.randrange(8)
        location = mixture.check_row(step, row)
        piece = chance.choice(location.pieces)
        token = chance.randrange(piece.begin_token, piece.end_token)
        assert mixture.batches.locate(step, row, token).pieces == (piece,)
    for _ in range(queries // 2):
        place = chance.choice(known)
        found = mixture.batches.find_document(*place, stop_epoch=100)
        wanted = {one for number in by_place[place] for one in seen[number]}
        assert {one for one in sightings(found) if one[0] < steps} == wanted
        assert len(found) == len(by_place[place])
        assert {one.dataset for one in found} <= set(mixture.batches.names)


@pytest.mark.slow
def test_random_rows_and_documents(mixture: Oracle) -> None:
    check_queries(mixture, queries=300, steps=90)


def one_of(
    folder: pathlib.Path, **order: object
) -> tuple[loader.Dataset, loader.GlobalBatches]:
    dataset = loader.open(folder / "out")
    options = {"batch_size": 4, "shuffle": "none", "epochs": 1} | order
    return dataset, loader.global_batches(dataset, drop_remainder=False, **options)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, Places]:
    folder = tmp_path_factory.mktemp("plain")
    return folder, make(folder, 2, 120, plan=("num_shards", 3), map=MAPPED)


def test_padding_is_of_no_document(plain) -> None:
    dataset, batches = one_of(plain[0])
    at = next(
        divmod(number, 4)
        for number in range(len(dataset))
        if batches.locate(*divmod(number, 4)).pieces[-1].end_token < LENGTH
    )
    assert batches.locate(*at, LENGTH - 1).pieces == ()
    with pytest.raises(InputError, match=r"token is out of range(.|\n)*0 to 31"):
        batches.locate(*at, LENGTH)


def test_what_is_no_document_names_the_nearest(plain) -> None:
    folder, places = plain
    _, batches = one_of(folder)
    kept = sorted(
        at for path, at in set(places.values()) if path.endswith("0.tfrecord")
    )
    path = str(folder / "in" / "0.tfrecord")
    for at in (kept[20] + 1, kept[21] - 1):
        with pytest.raises(InputError, match="no document begins there") as caught:
            batches.find_document(path, at)
        assert caught.value.expected == (
            f"the nearest begin at {kept[20]:,} and {kept[21]:,}"
        )
    with pytest.raises(InputError, match="no document begins there"):
        batches.find_document(path, 10**9)
    with pytest.raises(InputError, match=f"nearest begin at {kept[0]:,}\n"):
        batches.find_document(path, 0)  # The function dropped it.
    with pytest.raises(InputError, match="no rows were made of such a file") as caught:
        batches.find_document("/elsewhere/0.tfrecord", 0)
    assert caught.value.expected == path
    with pytest.raises(InputError, match="a single dataset has no name"):
        batches.find_document(path, kept[0], "other")


def test_a_document_without_tokens_is_in_no_row(tmp_path: pathlib.Path) -> None:
    records = [record(0, 3), record(1, 0), record(2, 3)]
    places = write_frames(tmp_path / "in" / "x", records)
    convert(job_of(tmp_path / "in", tmp_path / "out", pack=packing(LENGTH)))
    _, batches = one_of(tmp_path)
    with pytest.raises(InputError, match="no document begins there"):
        batches.find_document(*places[1])
    (found,) = batches.find_document(*places[2])
    assert len(found.pieces) == 1


@pytest.mark.parametrize("damage", ["gone", "another", "cut"])
def test_a_segment_index_that_is_not_the_one(
    plain, tmp_path: pathlib.Path, damage: str
) -> None:
    shutil.copytree(plain[0] / "out", tmp_path / "out")
    first, other, _ = sorted((tmp_path / "out" / "index").glob("*.segments"))
    if damage == "gone":
        first.unlink()
    elif damage == "another":
        shutil.copy(other, first)
    else:
        first.write_bytes(first.read_bytes()[:-1])
    dataset, batches = one_of(tmp_path)
    with pytest.raises(InvalidDatasetError, match="segment index") as caught:
        batches.locate(0, 0)
    assert str(first) in str(caught.value.where)
    assert damage == "gone" or "crc32c" in str(caught.value.expected)
    later = int(dataset.shard(1).first_record)
    assert batches.locate(*divmod(later, 4)).pieces


@pytest.mark.slow
def test_original_places_are_known_through_other_datasets(
    tmp_path: pathlib.Path,
) -> None:
    places: Places = {}
    for number in range(2):
        records = documents(90, seed=number, first=number * 90)
        places |= write_frames(tmp_path / "in" / f"{number}.tfrecord", records)
    convert(job_of(tmp_path / "in", tmp_path / "between", plan=("num_shards", 3)))
    packed = {"map": MAPPED, "pack": packing(LENGTH)}
    convert(job_of(str(tmp_path / "between"), tmp_path / "out", **packed))
    shutil.rmtree(tmp_path / "between")
    original = mapped_places(places)
    dataset, batches = one_of(tmp_path)
    oracle = Oracle(batches, original)
    for number in range(len(dataset)):
        oracle.check_row(*divmod(number, 4))
    seen = oracle.seen(batches.steps)
    for document in random.Random(1).sample(sorted(seen), 20):
        found = sightings(batches.find_document(*original[document]))
        assert found >= seen[document]
    with pytest.raises(InputError, match="no document begins there"):
        batches.find_document(original[1][0], original[1][1] + 1)


@pytest.mark.slow
def test_few_requests_of_a_billion_rows(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of 50,000 input files is one more, once."""
    make(tmp_path, 1, 400)
    path = str(tmp_path / "in" / "0.tfrecord")
    at, rows = 31_415, 20_000
    enlarge(tmp_path / "out", shards=50_000, at=at, rows=rows)
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        upload(server, tmp_path / "out", "out")
        dataset = loader.open("gs://bucket/out", cache_dir=tmp_path / "cache")
        assert len(dataset) > 999_980_000
        batches = loader.global_batches(dataset, batch_size=1024, seed=9)
        number = dataset.shard(at).first_record + 7
        (seen,) = batches.find(number, stop_epoch=1)
        server.log.clear()
        location = batches.locate(seen.step, seen.row)
        assert len(server.log) == 5
        assert len([1 for _, name, _ in server.log if "inputs" not in name]) == 4
        assert location.record == number
        for piece in location.pieces:
            assert piece.source_path == path
            stored_sources.segments_at.cache_clear()
            server.log.clear()
            place = piece.source_offset_bytes
            (document,) = batches.find_document(path, place, stop_epoch=1)
            assert len(server.log) == 2
            assert seen in [s for part in document.pieces for s in part.sightings]
