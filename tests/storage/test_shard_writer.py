"""Shards: written, copied and read back, so that no bad file passes for a good one."""

import builtins
import dataclasses
import random

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.dataset import (
    CorruptShardError,
    DataLossError,
    JobChangedError,
    StorageError,
    WriterOptions,
)
from gristmill.dataset.arrayrecord.file_writer import with_versions
from gristmill.dataset.arrayrecord.shard_writer import (
    ShardWriter,
    StoredShard,
    read_shard,
)
from tests.storage.chunks import array_record_file, chunk, footer_entry, footer_metadata
from tests.support.open_files import files_of_at_most
from tests.support.records import (
    AWKWARD_RECORDS,
    checksums,
    footer_of,
    official_options,
    read_array_records,
    text_records,
    write_array_records,
)
from tests.support.told import told
from tests.support.watched import meanwhile

TEXTS = text_records(40)
UNCOMPRESSED = WriterOptions(group_size=4, compression="uncompressed")
LOST = (DataLossError, StorageError)


def make(path, given, options, spoil=None):
    """Writes or copies a shard, whose file may be spoilt before it is read back."""
    with (
        ShardWriter(str(path), options=options) as writer,
        pytest.MonkeyPatch.context() as patched,
    ):
        if given and isinstance(given[0], tuple):
            for shard, first, taken in given:
                writer.copy(shard, first, np.array(taken, np.bool_))
        else:
            writer.write(given, checksums(given).tolist())
        if spoil is not None:
            change = lambda: path.write_bytes(spoil(path.read_bytes()))  # noqa: E731
            meanwhile(patched, builtins, "open", change)  # To read it.
        return writer.finish()


def flip(position):
    return lambda data: (
        data[:position] + bytes([data[position] ^ 0x40]) + data[position + 1 :]
    )


def stored(path, records):
    def opened(begin, end):
        file = path.open("rb")
        file.seek(begin)
        return file

    footer = footer_of(path.read_bytes(), path=str(path))
    crc32cs = checksums(records)
    return StoredShard(path=str(path), footer=footer, crc32cs=crc32cs, open=opened)


@pytest.mark.slow
def test_every_flipped_byte_of_a_finished_shard_is_found(tmp_path):
    path, records = tmp_path / "shard", [b"abc"] * 6
    options = WriterOptions(compression="uncompressed")
    begin, *offsets, end = make(path, records, options).footer.chunk_offsets.tolist()
    # Not looked at: the two hashes of a chunk, which are the official reader's, and
    # the size of an only record, which is that of the chunk.
    unseen = {
        offset + at
        for offset in (begin, *offsets, end)
        for at in (*range(8), *range(16, 24), 42)
    }
    for position in {*range(begin, end)} - unseen:
        with pytest.raises(LOST):
            make(path, records, options, flip(position))
    for cut in (0, 100, 65_536):
        with pytest.raises(StorageError, match=r"(?s)cannot be read.*free space"):
            make(path, records, options, lambda data, cut=cut: data[:cut])
    writer = ShardWriter(str(path), options=options)
    writer.write([b"abc", b"def"], [google_crc32c.value(b"abc"), 7])
    with pytest.raises(DataLossError, match="record 1"):
        writer.finish()


@pytest.mark.parametrize("limit_bytes", [0, 1000, 65_536, 100_000, 400_000])
def test_no_space_left_is_never_silent(tmp_path, limit_bytes):
    records = [random.Random(n).randbytes(5000) for n in range(100)]
    with (
        files_of_at_most(limit_bytes),  # It acts as a full disk does.
        pytest.raises(StorageError, match=r"(?s)cannot write shard.*free space"),
    ):
        make(tmp_path / "shard", records, WriterOptions())


@pytest.mark.parametrize("name", ["missing/shard", "."])
def test_a_path_that_cannot_be_written(tmp_path, name):
    with pytest.raises(StorageError, match=r"(?s)cannot write shard.*permissions"):
        ShardWriter(str(tmp_path / name), options=WriterOptions())


def test_other_versions_than_the_jobs_are_refused(tmp_path):
    here = with_versions(WriterOptions(compression="zstd:4"))
    ShardWriter(str(tmp_path / "a"), options=here).abandon()
    planned = dataclasses.replace(here, versions="gristmill:1,zstd-1.4.0")
    with told(JobChangedError, "other bytes", here.versions, planned.versions):
        ShardWriter(str(tmp_path / "b"), options=planned)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    "claims", [[(2, 3), (2, 1)], [(2, 4), (1, 1)], [(3, 3), (1, 1)], [(1, 3), (1, 3)]]
)
def test_a_footer_that_lists_other_chunks(tmp_path, claims):
    """The footer claims so many records and bytes of each chunk."""
    chunks, path = [chunk([b"a", b"bb"]), chunk([b"c"])], tmp_path / "lying"
    footer, offset = [footer_metadata(2, sum(count for count, _ in claims))], 64
    for data, (count, decoded) in zip(chunks, claims, strict=True):
        footer.append(footer_entry(offset, decoded, count))
        offset += len(data)
    path.write_bytes(array_record_file(chunks, footer))
    with open(path, "rb", buffering=0) as file, pytest.raises(CorruptShardError):
        read_shard(file, path=str(path))


# Copies: the bytes of a shard that was written anew, of the same records.


@given(
    shards=st.lists(
        st.lists(
            st.binary(max_size=30) | st.sampled_from(AWKWARD_RECORDS), max_size=12
        ),
        min_size=1,
        max_size=3,
    ),
    group_size=st.sampled_from([1, 2, 5]),
    official=st.booleans(),
    data=st.data(),
)
@settings(max_examples=30)
def test_copies_of_any_records_of_any_shards(
    tmp_path_factory, shards, group_size, official, data
):
    folder = tmp_path_factory.mktemp("copies")
    options = WriterOptions(group_size=group_size, compression="zstd:1")
    parts, kept = [], []
    for number, records in enumerate(shards):
        path = folder / f"source{number}"
        if official:
            write_array_records(path, records, options=official_options(options))
        else:
            make(path, records, options)
        first = data.draw(st.integers(0, len(records)))
        taken = data.draw(st.lists(st.booleans(), max_size=len(records) - first))
        parts.append((stored(path, records), first, taken))
        kept += [r for r, is_in in zip(records[first:], taken, strict=False) if is_in]
    got = make(folder / "copy", parts, options)
    make(folder / "anew", kept, options)
    assert read_array_records(folder / "copy") == kept
    assert got.digest.records == len(kept)
    if not official:
        assert (folder / "copy").read_bytes() == (folder / "anew").read_bytes()


def test_copies_do_not_encode_whole_chunks(tmp_path):
    """Those would be smaller by the options of the copy."""
    records = [b"%d" % n * 200 for n in range(600)]
    make(tmp_path / "source", records, UNCOMPRESSED)
    taken = np.ones(600, np.bool_)
    taken[[100, 101, 205, 206]] = False  # From 204 on, chunks are whole again.
    parts = [(stored(tmp_path / "source", records), 0, taken)]
    made = make(tmp_path / "copy", parts, WriterOptions(group_size=4))
    # Behind the signature and the options of the file.
    small = np.diff(made.footer.chunk_offsets)[2:] < 1000
    assert small.sum() == np.ceil(taken[102:208].sum() / 4)


@pytest.mark.slow
@pytest.mark.parametrize("missing", [(), (0,), (9,)], ids=["all", "cut", "hole"])
def test_damage_of_a_source_or_of_the_copy_is_found(tmp_path, missing):
    """The block headers' own hashes are not needed to read what lies between."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    made = make(source, TEXTS, UNCOMPRESSED)
    good, shard = source.read_bytes(), stored(source, TEXTS)
    begin, end = made.footer.chunk_offsets[[0, -1]].tolist()
    parts = [(shard, 0, [number not in missing for number in range(40)])]
    for at in range(begin, end - 500, 211):
        with pytest.raises(LOST):
            make(copy, parts, UNCOMPRESSED, flip(at))
        source.write_bytes(flip(at)(good))
        with pytest.raises(CorruptShardError):
            make(copy, parts, UNCOMPRESSED)
        source.write_bytes(good)


def test_other_chunks_of_the_same_lengths_are_found(tmp_path):
    records = [bytes([n]) * 100 for n in range(40)]
    for name, each in (("source", records), ("others", records[::-1])):
        make(tmp_path / name, each, UNCOMPRESSED)
    other = (tmp_path / "others").read_bytes()
    parts = [(stored(tmp_path / "source", records), 0, [True] * 40)]
    with pytest.raises(DataLossError, match="finished shard does not hold"):
        make(tmp_path / "copy", parts, UNCOMPRESSED, lambda data: other)
