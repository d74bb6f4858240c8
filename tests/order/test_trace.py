"""Rows followed to the bytes of their sources, and documents to their rows.

The text of a record says its number, and every token of a packed row its document, so
what is stored of sources is compared with the records themselves.
"""

import collections
import dataclasses
import functools
import gzip
import pathlib
import re
import shutil
import zlib

import numpy as np
import pyarrow.parquet as pq
import pytest

from gristmill import loader
from gristmill.dataset import InputError, InvalidDatasetError, Writer
from gristmill.dataset.packed.row_format import RowFormat, decode_rows
from gristmill.pipelines.text.places import located
from gristmill.transforms import RecordOptions
from tests.order.input_files import WRITERS
from tests.order.packed_datasets import (
    MAPPED,
    STRIDE,
    documents,
    number_of,
    packing,
    tokens_of,
)
from tests.servers.buckets import upload
from tests.servers.gcs_server import GcsServer
from tests.support.conversion import convert, job_of, skipped_in
from tests.support.records import frames_of, write_array_records
from tests.support.told import told

LENGTH = 32
TEXTS = documents(160, seed=1)
SHARDS = {"plan": ("num_shards", 3)}


def frames(folder, texts=TEXTS):
    """Three files of one name: plain, by gzip, by zlib."""
    size = -(-len(texts) // 3)
    for number, compress in enumerate((bytes, gzip.compress, zlib.compress)):
        (folder / f"{number}").mkdir(parents=True)
        data = frames_of(texts[number * size :][:size])
        (folder / f"{number}" / "x.tfrecord").write_bytes(compress(data))
    return f"{folder}/*/x.tfrecord"


def damaged(folder):
    """Frames of which some are damaged, and bytes between them lost."""
    frames(folder)
    for number in range(3):
        path = folder / f"{number}" / "x.tfrecord"
        data = bytearray(inflated(path))
        sizes = np.cumsum([len(text) + 16 for text in TEXTS[number * 54 :][:54]])
        data[sizes[4] + 3] ^= 1  # A length.
        data[sizes[20] - 1] ^= 1  # A record's checksum,
        data[sizes[21] - 1] ^= 1  # and that of the next.
        del data[sizes[40] + 5 : sizes[40] + 25]
        # A name with what Python takes for the end of a line.
        path = path.rename(path.with_name("x\u2028.tfrecord"))
        path.write_bytes(zlib.compress(data) if number == 2 else data[:-7])
    return f"{folder}/*/x*"


def table(folder, format_name):
    """Rows of which a column is the text."""
    rows = [{"key": f"{n}", "text": text.decode()} for n, text in enumerate(TEXTS)]
    WRITERS[format_name](folder / "in", rows)
    return str(folder / "in")


def written(folder):
    """Shards whose sources nobody knows are sources themselves."""
    with Writer(folder / "written", shard_bytes=3_000) as writer:
        for text in TEXTS:
            writer.write(text)
    convert(job_of(str(folder / "written"), folder / "again", plan=("num_shards", 2)))
    return str(folder / "again")


def of_datasets(folder):
    """A dataset of a dataset, which is gone."""
    convert(job_of(frames(folder), folder / "first", **SHARDS))
    convert(job_of(str(folder / "first"), folder / "second", plan=("num_shards", 2)))
    shutil.rmtree(folder / "first")
    return str(folder / "second")


def inflated(path):
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        return gzip.decompress(data)
    return zlib.decompress(data) if data[:1] == b"\x78" else data


# By format: how a record begins whose text begins with this number. Keys of tables are
# the same numbers.
BEGINNINGS = {
    "tfrecord": rb".{12}(\d+) ",
    "jsonl": rb'\{"key": "(\d+)", "text": "\1 ',
    "csv": rb"(\d+),\1 ",
    "tsv": rb"(\d+)\t\1 ",
    "webdataset": rb"(?=(\d+)\.key\0).{1536}\1 ",
}


def number_at(place):
    """Returns the number of the record at a place, read without gristmill if easy."""
    path, at = pathlib.Path(place.source_path), place.source_offset_bytes
    if place.source_format == "parquet":
        text = pq.read_table(path)["text"][place.source_record].as_py()
        return number_of(text.encode())
    if place.source_format == "arrayrecord":
        return number_of(loader.open([path])[place.source_record or 0])
    data = inflated(path)
    assert (place.source_compression == "none") == (data == path.read_bytes())
    found = re.compile(BEGINNINGS[place.source_format], re.DOTALL).match(data, at)
    number = int(found[1])
    assert place.source_format != "webdataset" or place.source_sample == f"{number}"
    return number


def key_of(place):
    number = place.source_record
    return place.source_path, place.source_offset_bytes if number is None else number


def tokens_of_piece(piece):
    return piece.begin_token, piece.end_token, piece.first_token


def source_of(document):
    """Returns the number of the record of which `--map` has made a document."""
    return document if document < 100_000 else (document - 100_000) // 10


def pieces_in(row, rows):
    """Returns (document, begin, end, first token) of each piece, by the tokens."""
    if rows == "records":
        return [(number_of(row),)]
    batch, found, at = decode_rows(RowFormat(LENGTH, 4, rows), [row]), [], 0
    for length, first in zip(batch.lengths, batch.firsts, strict=True):
        document, token = divmod(int(batch.tokens[at]), STRIDE)
        assert token == first
        found.append((document, at, at + int(length), token))
        at += int(length)
    return found


def check(batches, steps, *, rows="packed"):
    """Follows each row to its source, and some documents back to all their rows."""
    # Step, row, begin, end and first token of each piece, by its place.
    seen, sources, found = collections.defaultdict(set), {}, set()
    for step in range(steps):
        for row, data in enumerate(batches.read(step)):
            location = batches.locate(step, row)
            which = batches.schedule.batch(step).datasets[row]
            assert batches.datasets[which][location.record] == data
            shard = loader.open([location.shard])
            assert shard[location.record_in_shard] == data
            offset = shard.stored.offset_bytes(location.record_in_shard)
            assert location.offset_bytes == offset
            pieces, wanted = location.pieces or [location], pieces_in(data, rows)
            for piece, (document, *tokens) in zip(pieces, wanted, strict=True):
                key = key_of(piece)
                if key not in sources:
                    sources[key] = number_at(piece)
                assert sources[key] == source_of(document)
                assert not tokens or [*tokens_of_piece(piece)] == tokens
                seen[key].add((step, row, *tokens))
                found.add(document)
    if rows != "records":
        for key in sorted(seen, key=str)[::7]:
            shown = {
                (one.step, one.row, *tokens_of_piece(piece))
                for document in batches.find_document(*key, stop_epoch=99)
                for piece in document.pieces
                for one in piece.sightings
            }
            assert {one for one in shown if one[0] < steps} == seen[key]
    return found


def in_order(output, **options):
    options = {"batch_size": 4, "shuffle": "none", "epochs": 1} | options
    return loader.global_batches(loader.open(output), drop_remainder=False, **options)


def of_table(name, **options):
    records = RecordOptions(input_format=name, record="column:text")
    return functools.partial(table, format_name=name), {"records": records, **options}


CASES = {
    "frames": (frames, {}),
    "frames-mapped": (frames, {"map": MAPPED}),
    "damaged": (damaged, {"on_corrupt": "skip"}),
    "datasets-mapped": (of_datasets, {"map": MAPPED}),
    "written": (written, {}),
    **{name: of_table(name) for name in ("jsonl", "csv", "tsv", "webdataset")},
    "parquet-mapped": of_table("parquet", map=MAPPED),
}


@pytest.mark.slow
@pytest.mark.parametrize("rows", ["records", "packed", "concat", "example"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.one_in(2)
def test_there_is_the_record_or_the_text_of_the_tokens(tmp_path, case, rows):
    make, options = CASES[case]
    (tmp_path / "in").mkdir()
    pack = packing(method="concat" if rows == "concat" else "best-fit")
    rows = "packed" if rows == "concat" else rows
    if rows != "records":
        options = options | {"pack": dataclasses.replace(pack, rows=rows)}
    convert(job_of(make(tmp_path / "in"), tmp_path / "out", **SHARDS, **options))
    batches = in_order(tmp_path / "out")
    found = check(batches, batches.steps, rows=rows)
    assert len(found) > (60 if case == "damaged" else 90)
    assert ("on_corrupt" in options) == (len(skipped_in(tmp_path / "out")) >= 8)


@pytest.mark.slow
def test_a_mixture_of_editions_and_joined_datasets(tmp_path):
    def packed(name, *firsts, method="best-fit", **options):
        """Packs documents from these numbers on, each an edition."""
        options |= {"pack": packing(method=method)}
        for first in firsts:
            texts = documents(200, seed=first, first=first)
            source, appends = frames(tmp_path / f"{first}", texts), first > firsts[0]
            job = job_of(source, tmp_path / name, **SHARDS, appends=appends, **options)
            convert(job)
        return tmp_path / name

    joined = [packed("c", 10_000), packed("d", 20_000)]
    opened = {
        "a": loader.open(packed("a", 0, map=MAPPED)),
        "b": loader.open(packed("b", 1_000, 2_000, method="concat")),
        "c": loader.open(joined),
    }
    weights = {"a": 5, "b": 2, "c": 1}
    batches = loader.global_batches(opened, batch_size=8, seed=3, weights=weights)
    batches = batches.then(weights={"a": 1, "b": 1, "c": 1}, step=12)
    assert len(check(batches, 40)) > 400


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    pack = packing()
    convert(job_of(frames(folder / "in"), folder / "out", pack=pack, map=MAPPED))
    return folder


def test_a_token_has_its_piece_and_padding_none(packed):
    batches = in_order(packed / "out")
    places = [divmod(number, 4) for number in range(len(batches.datasets[0]))]
    rows = {place: batches.locate(*place).pieces for place in places}
    place = next(place for place in places if rows[place][-1].end_token < LENGTH)
    assert batches.locate(*place, LENGTH - 1).pieces == ()
    for piece in rows[place]:
        for token in (piece.begin_token, piece.end_token - 1):
            assert batches.locate(*place, token).pieces == (piece,)
    with pytest.raises(InputError, match=r"token is out of range(.|\n)*0 to 31"):
        batches.locate(*place, LENGTH)


def test_what_is_no_document_names_the_nearest(packed):
    batches = in_order(packed / "out")
    starts = np.cumsum([0, *(len(text) + 16 for text in TEXTS[:40])]).tolist()
    kept = [
        start
        for text, start in zip(TEXTS, starts, strict=False)
        if number_of(text) % 3 and len(tokens_of(text))
    ]
    path = f"{packed}/in/0/x.tfrecord"
    for place, nearest in (
        (kept[5] + 1, f"{kept[5]:,} and {kept[6]:,}"),
        (kept[6] - 1, f"{kept[5]:,} and {kept[6]:,}"),
        (0, f"{kept[0]:,}"),  # The function dropped it.
    ):
        with told(
            InputError,
            "no document begins there",
            expected=f"the nearest begin at {nearest}",
        ):
            batches.find_document(path, place)
    with told(InputError, "no document begins there"):
        batches.find_document(path, 10**9)
    files = ", ".join(f"{packed}/in/{number}/x.tfrecord" for number in range(3))
    with told(InputError, "no rows were made of such a file", expected=files):
        batches.find_document("/elsewhere/x.tfrecord", 0)
    with told(InputError, "a single dataset has no name"):
        batches.find_document(path, kept[0], "other")


def test_a_document_is_found_in_the_named_dataset_of_a_mixture(packed):
    opened = dict.fromkeys(("a", "b"), loader.open(packed / "out"))
    batches = loader.global_batches(opened, batch_size=4, epochs=1)
    key = key_of(batches.locate(0, 0).pieces[0])
    found = batches.find_document(*key, stop_epoch=1)
    assert [one.dataset for one in found] == ["a", "b"]
    assert found[0].pieces != found[1].pieces
    assert found == [
        one for name in "ab" for one in batches.find_document(*key, name, stop_epoch=1)
    ]


def test_a_row_of_parquet_has_its_row_group(tmp_path):
    make, options = of_table("parquet")
    convert(job_of(make(tmp_path), tmp_path / "out", **options))
    batches = in_order(tmp_path / "out")
    for number in (0, 14, 15, 159):
        shown = located(batches.locate(*divmod(number, 4)), batches.datasets)
        group = shown["source_row_group"], shown["source_row_in_group"]
        assert group == divmod(number, 15)


def test_what_was_made_of_a_record_is_numbered(tmp_path):
    convert(job_of(frames(tmp_path / "in"), tmp_path / "out", map=MAPPED))
    batches = in_order(tmp_path / "out")
    notes = [batches.locate(*divmod(n, 4)).source_note for n in range(6)]
    assert notes == [None] * 3 + [f"{n} of 3 that were made of it" for n in (1, 2, 3)]


def test_other_files_know_no_source(tmp_path):
    path = tmp_path / "plain.array_record"
    write_array_records(path, TEXTS[:20])
    place = loader.global_batches(loader.open(path), batch_size=4).locate(2, 1)
    assert place.source_path is place.source_offset_bytes is None
    assert "not stored" in str(place.source_note)


@pytest.mark.parametrize("damage", ["gone", "another", "cut"])
@pytest.mark.parametrize("kind", ["segments", "inputs.npz"])
def test_what_is_stored_of_sources_is_not_used_if_it_is_not_the_one(
    tmp_path, kind, damage
):
    pack = packing() if kind == "segments" else None
    for name, source in (("a", frames(tmp_path / "in-a")), ("b", written(tmp_path))):
        convert(job_of(source, tmp_path / name, pack=pack))
    found, other = (
        next((tmp_path / name / "index").glob(f"*.{kind}")) for name in ("a", "b")
    )
    found.write_bytes(found.read_bytes()[:-1])
    if damage == "gone":
        found.unlink()
    elif damage == "another":
        shutil.copy(other, found)
    batches = in_order(tmp_path / "a")
    if kind == "segments":
        with told(InvalidDatasetError, "segment index", str(found)):
            batches.locate(0, 0)
        return
    place = batches.locate(0, 0)
    assert place.source_path is None
    assert "list of source files" in str(place.source_note)


def test_a_bucket_is_asked_little(packed, tmp_path, monkeypatch):
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        upload(server, packed / "out", "out")
        dataset = loader.open("gs://bucket/out", cache_dir=tmp_path)
        batches = loader.global_batches(dataset, batch_size=16, seed=9)
        server.log.clear()
        piece = batches.locate(1, 3).pieces[0]
        assert len(server.log) == 5
        server.log.clear()
        found = batches.find_document(*key_of(piece), stop_epoch=1)
        assert len(server.log) <= len(found)  # A row for each.
