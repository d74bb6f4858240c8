"""Shards: what the writer's options are, and that no bad file passes for a good one."""

from __future__ import annotations

import builtins
import dataclasses
import pathlib
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.dataset.arrayrecord.file_writer import with_versions
from gristmill.dataset.arrayrecord.shard_writer import (
    ShardWriter,
    StoredShard,
    WrittenShard,
    read_shard,
)
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import (
    CorruptShardError,
    DataLossError,
    JobChangedError,
    StorageError,
)
from tests.storage.chunks import (
    array_record_file,
    chunk,
    footer_entry,
    footer_metadata,
)
from tests.support.records import (
    AWKWARD_RECORDS,
    checksums,
    footer_of,
    official_options,
    read_array_records,
    text_records,
    write_array_records,
)
from tests.support.watched import meanwhile


def write(
    path: pathlib.Path,
    records: Sequence[bytes],
    options: WriterOptions,
) -> WrittenShard:
    with ShardWriter(str(path), options=options) as writer:
        writer.write(records, checksums(records).tolist())
        return writer.finish()


class TestWriting:
    @pytest.mark.parametrize("group_size", [1, 3, 16])
    @pytest.mark.parametrize(
        "records",
        [[], [b""], list(AWKWARD_RECORDS), text_records(500)],
        ids=["none", "empty", "awkward", "text"],
    )
    def test_what_is_finished_is_what_was_written(
        self, tmp_path, group_size: int, records: list[bytes]
    ):
        path = tmp_path / "shard"
        options = WriterOptions(group_size=group_size)
        written = write(path, records, options)
        data = path.read_bytes()
        crcs = checksums(records)
        assert written.crc32cs.tolist() == crcs.tolist()
        assert written.digest == RecordsDigest.of(
            crcs, np.array([len(record) for record in records], np.int64)
        )
        assert written.file_bytes == len(data)
        assert written.file_crc32c == google_crc32c.value(data)
        assert written.footer.records == len(records)
        assert np.array_equal(
            written.footer.chunk_offsets, footer_of(data).chunk_offsets
        )
        assert read_array_records(path) == records


def finish_spoilt(
    path: pathlib.Path,
    spoil: Callable[[bytes], bytes | None],
    records: Sequence[bytes] = (b"abc",) * 40,
) -> None:
    """Writes a shard, whose file is spoilt, or deleted, before it is checked."""

    def spoil_file() -> None:
        data = spoil(path.read_bytes())
        if data is None:
            path.unlink()
        else:
            path.write_bytes(data)

    writer = ShardWriter(str(path), options=WriterOptions(compression="uncompressed"))
    writer.write(records, checksums(records).tolist())
    with pytest.MonkeyPatch.context() as patched:
        meanwhile(patched, builtins, "open", spoil_file)  # To read it.
        writer.finish()


@pytest.mark.slow
def test_every_flipped_byte_of_a_finished_shard_is_found(tmp_path: pathlib.Path):
    path = tmp_path / "shard"
    records = [b"abc"] * 6
    good = write(path, records, WriterOptions(compression="uncompressed"))
    begin, end = good.footer.chunk_offsets[[0, -1]].tolist()
    # Not looked at: the two hashes of a chunk, which are the official reader's, and
    # the size of an only record, which is that of the chunk.
    unseen = {
        int(offset) + at
        for offset in good.footer.chunk_offsets
        for at in (*range(8), *range(16, 24), 42)
    }
    for position in range(begin, end):
        if position in unseen:
            continue

        def flip(data: bytes, position: int = position) -> bytes:
            damaged = bytearray(data)
            damaged[position] ^= 0x40
            return bytes(damaged)

        with pytest.raises((StorageError, DataLossError)):
            finish_spoilt(path, flip, records)
    for cut in (0, 100, 65_536):
        with pytest.raises(StorageError, match=r"(?s)cannot be read.*free space"):
            finish_spoilt(path, lambda data, cut=cut: data[:cut])


class TestFailing:
    @pytest.mark.parametrize("name", ["missing/shard", "."])
    def test_a_path_that_cannot_be_written(self, tmp_path: pathlib.Path, name: str):
        with pytest.raises(StorageError, match="cannot write shard") as caught:
            ShardWriter(str(tmp_path / name), options=WriterOptions())
        assert "check free space and permissions" in str(caught.value)

    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("limit_bytes", [0, 1000, 65_536, 100_000, 400_000])
    def test_no_space_left_is_never_silent(
        self, tmp_path: pathlib.Path, limit_bytes: int
    ):
        # A limit on the size of files acts as a full disk does.
        script = textwrap.dedent(
            """
            import random, resource, sys
            import google_crc32c
            from gristmill.dataset.base.errors import StorageError
            from gristmill.dataset.arrayrecord.shard_writer import ShardWriter
            from gristmill.dataset.arrayrecord.writer_options import WriterOptions

            path, limit = sys.argv[1], int(sys.argv[2])
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            chance = random.Random(0)
            try:
                options = WriterOptions()
                writer = ShardWriter(path, options=options)
                for _ in range(100):
                    record = chance.randbytes(5000)
                    writer.write([record], [google_crc32c.value(record)])
                writer.finish()
            except StorageError as error:
                print(error)
                sys.exit(3)
            """
        )
        done = subprocess.run(
            [
                *(sys.executable, "-c", script, tmp_path / "s", str(limit_bytes)),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 3, done.stderr
        assert "cannot write shard" in done.stdout
        assert "free space" in done.stdout

    def test_a_wrong_checksum_is_not_believed(self, tmp_path: pathlib.Path):
        writer = ShardWriter(str(tmp_path / "shard"), options=WriterOptions())
        writer.write([b"abc", b"def"], [google_crc32c.value(b"abc"), 7])
        with pytest.raises(DataLossError, match="record 1"):
            writer.finish()


def test_other_versions_than_the_jobs_are_refused(
    tmp_path: pathlib.Path,
):
    here = with_versions(WriterOptions(compression="zstd:4"))
    writer = ShardWriter(str(tmp_path / "a"), options=here)
    writer.abandon()
    assert "gristmill:1,zstd-" in here.versions
    planned = dataclasses.replace(here, versions="gristmill:1,zstd-1.4.0")
    with pytest.raises(JobChangedError, match="other bytes") as caught:
        ShardWriter(str(tmp_path / "b"), options=planned)
    assert not (tmp_path / "b").exists()
    for versions in (here.versions, planned.versions):
        assert versions in str(caught.value)


@pytest.mark.parametrize(
    "entries",
    [[(2, 3), (2, 1)], [(2, 4), (1, 1)], [(3, 3), (1, 1)], [(1, 3), (1, 3)]],
)
def test_a_footer_that_lists_other_chunks(tmp_path: pathlib.Path, entries):
    """Each entry is the records and bytes that the footer claims of a chunk."""
    chunks = [chunk([b"a", b"bb"]), chunk([b"c"])]
    offsets = [64, 64 + len(chunks[0])]
    footer = [
        footer_metadata(2, sum(count for count, _ in entries)),
        *(
            footer_entry(offset, decoded, count)
            for offset, (count, decoded) in zip(offsets, entries, strict=True)
        ),
    ]
    path = tmp_path / "lying"
    path.write_bytes(array_record_file(chunks, footer))
    with open(path, "rb", buffering=0) as file, pytest.raises(CorruptShardError):
        read_shard(file, path=str(path))


# Copies: the bytes of a shard that was written anew, of the same records.

_TEXTS = text_records(600)


def options_of(group_size: int, compression: str = "zstd:3") -> WriterOptions:
    return WriterOptions(group_size=group_size, compression=compression)


def stored(path: pathlib.Path, records: Sequence[bytes]) -> StoredShard:
    def opened(begin: int, end: int):
        file = path.open("rb")
        file.seek(begin)
        return file

    return StoredShard(
        path=str(path),
        footer=footer_of(path.read_bytes(), path=str(path)),
        crc32cs=checksums(records),
        open=opened,
    )


def copied(
    path: pathlib.Path,
    parts: Sequence[tuple[StoredShard, int, Sequence[bool]]],
    options: WriterOptions,
) -> WrittenShard:
    with ShardWriter(str(path), options=options) as copier:
        for shard, first, taken in parts:
            copier.copy(shard, first, np.array(taken, np.bool_))
        return copier.finish()


class TestCopies:
    @given(
        shards=st.lists(
            st.lists(
                st.one_of(st.binary(max_size=30), st.sampled_from(AWKWARD_RECORDS)),
                max_size=12,
            ),
            min_size=1,
            max_size=3,
        ),
        group_size=st.sampled_from([1, 2, 5]),
        official=st.booleans(),
        data=st.data(),
    )
    @settings(max_examples=30)
    def test_of_any_records_of_any_shards(
        self, tmp_path_factory, shards, group_size, official, data
    ):
        folder = tmp_path_factory.mktemp("copies")
        options = options_of(group_size, "zstd:1")
        parts, kept = [], []
        for number, records in enumerate(shards):
            path = folder / f"source{number}"
            if official:
                write_array_records(path, records, options=official_options(options))
            else:
                write(path, records, options)
            first = data.draw(st.integers(0, len(records)))
            stop = data.draw(st.integers(first, len(records)))
            taken = data.draw(
                st.lists(st.booleans(), min_size=stop - first, max_size=stop - first)
            )
            parts.append((stored(path, records), first, taken))
            chosen = records[first:stop]
            kept += [r for r, is_in in zip(chosen, taken, strict=True) if is_in]
        got = copied(folder / "copy", parts, options)
        write(folder / "anew", kept, options)
        assert read_array_records(folder / "copy") == kept
        assert got.digest.records == len(kept)
        if not official:
            assert (folder / "copy").read_bytes() == (folder / "anew").read_bytes()

    def test_do_not_encode_whole_chunks(self, tmp_path):
        """Those would be smaller by the options of the copy."""
        records = [b"%d" % n * 200 for n in range(600)]
        write(tmp_path / "source", records, options_of(4, "uncompressed"))
        taken = np.ones(600, np.bool_)
        taken[[100, 101, 205, 206]] = False  # From 204 on, chunks are whole again.
        shard = stored(tmp_path / "source", records)
        made = copied(tmp_path / "copy", [(shard, 0, taken)], options_of(4))
        # Behind the signature and the options of the file.
        small = np.diff(made.footer.chunk_offsets)[2:] < 1000
        assert small.sum() == np.ceil(taken[102:208].sum() / 4)


class TestDamage:
    @pytest.mark.slow
    def test_of_any_byte_is_found(self, tmp_path):
        """The block headers' own hashes are not needed to read what lies between."""
        source = tmp_path / "source"
        made = write(source, _TEXTS[:40], options_of(4))
        good, shard = source.read_bytes(), stored(source, _TEXTS[:40])
        begin, end = made.footer.chunk_offsets[[0, -1]].tolist()
        taken = [number != 9 for number in range(40)]
        for at in range(begin, end, 61):
            source.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
            with pytest.raises(CorruptShardError):
                copied(tmp_path / "copy", [(shard, 0, taken)], options_of(4))

    @pytest.mark.slow
    @pytest.mark.parametrize("keeps", [range(40), range(1, 40)], ids=["all", "cut"])
    def test_of_the_finished_file_is_found(self, tmp_path, keeps, monkeypatch):
        source, copy = tmp_path / "source", tmp_path / "copy"
        made = write(source, _TEXTS[:40], options_of(4, "uncompressed"))
        taken = [number in keeps for number in range(40)]
        begin, end = made.footer.chunk_offsets[[0, -1]].tolist()
        for at in range(begin, end - 500, 211):
            with ShardWriter(
                str(copy), options=options_of(4, "uncompressed")
            ) as copier:
                copier.copy(stored(source, _TEXTS[:40]), 0, np.array(taken))

                def damage(at=at):
                    data = bytearray(copy.read_bytes())
                    data[at] ^= 1
                    copy.write_bytes(data)

                with monkeypatch.context() as patched:
                    meanwhile(patched, builtins, "open", damage)  # To read it.
                    with pytest.raises((DataLossError, StorageError)):
                        copier.finish()

    def test_other_chunks_of_the_same_lengths_are_found(self, tmp_path, monkeypatch):
        source, copy = tmp_path / "source", tmp_path / "copy"
        other = [bytes([n]) * 100 for n in range(40)]
        write(source, other, options_of(4))
        write(tmp_path / "others", other[::-1], options_of(4))
        with ShardWriter(str(copy), options=options_of(4)) as copier:
            copier.copy(stored(source, other), 0, np.ones(40, np.bool_))

            def exchange():
                copy.write_bytes((tmp_path / "others").read_bytes())

            with monkeypatch.context() as patched:
                meanwhile(patched, builtins, "open", exchange)
                with pytest.raises(DataLossError, match="finished shard does not hold"):
                    copier.finish()
