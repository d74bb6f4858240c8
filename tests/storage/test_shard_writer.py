"""Shards: what the writer's options are, and that no bad file passes for a good one."""

from __future__ import annotations

import builtins
import dataclasses
import pathlib
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence

import google_crc32c
import numpy as np
import pytest

from gristmill.dataset.arrayrecord.file_writer import with_versions
from gristmill.dataset.arrayrecord.shard_writer import (
    ShardWriter,
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
from tests.support.chunks import (
    array_record_file,
    chunk,
    footer_entry,
    footer_metadata,
)
from tests.support.records import (
    AWKWARD_RECORDS,
    checksums,
    footer_of,
    read_array_records,
    text_records,
)
from tests.support.watched import meanwhile


def write(
    path: pathlib.Path,
    records: list[bytes],
    *,
    options: WriterOptions | None = None,
) -> WrittenShard:
    writer = ShardWriter(str(path), options=options or WriterOptions())
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
        written = write(path, records, options=options)
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

    def test_a_finished_file_without_its_end_is_an_error(self, tmp_path):
        for cut in (0, 100, 65_536):

            def shorten(data: bytes, cut: int = cut) -> bytes:
                return data[:cut]

            with pytest.raises(StorageError, match="cannot be read") as caught:
                finish_spoilt(tmp_path / "shard", shorten)
            assert "free space" in str(caught.value)


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
    good = write(path, records, options=WriterOptions(compression="uncompressed"))
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


class TestReading:
    def read(self, path: pathlib.Path) -> WrittenShard:
        with open(path, "rb", buffering=0) as file:
            return read_shard(file, path=str(path))

    def test_damage_is_placed(self, tmp_path: pathlib.Path):
        path = tmp_path / "shard"
        records = [random.Random(i).randbytes(1000) for i in range(20)]
        written = write(path, records)
        data = bytearray(path.read_bytes())
        offset = int(written.footer.chunk_offsets[13])
        data[offset + 24] = ord("p")
        path.write_bytes(data)
        with pytest.raises(CorruptShardError, match=r"shard, chunk 13\n"):
            self.read(path)

    @pytest.mark.parametrize(
        ("entries", "says"),
        [
            ([(2, 3), (2, 1)], "1 bytes of records"),
            ([(2, 4), (1, 1)], "1 records"),
            ([(3, 3), (1, 1)], ""),
            ([(1, 3), (1, 3)], "3 records"),
        ],
    )
    def test_a_footer_that_lists_other_chunks(
        self, tmp_path: pathlib.Path, entries, says: str
    ):
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
        with pytest.raises(CorruptShardError):
            self.read(path)
