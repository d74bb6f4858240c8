"""Copies of shards: the bytes of a shard that was written anew, of the same records."""

from __future__ import annotations

import builtins
import pathlib
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.dataset.arrayrecord.shard_writer import (
    ShardWriter,
    StoredShard,
    WrittenShard,
)
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.errors import (
    CorruptShardError,
    DataLossError,
    StorageError,
    TransposedChunkError,
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

_TEXTS = text_records(600)


def options_of(group_size: int, compression: str = "zstd:3") -> WriterOptions:
    return WriterOptions(group_size=group_size, compression=compression)


def written(
    path: pathlib.Path, records: Sequence[bytes], options: WriterOptions
) -> WrittenShard:
    with ShardWriter(str(path), options=options) as writer:
        writer.write(records, checksums(records).tolist())
        return writer.finish()


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
                written(path, records, options)
            first = data.draw(st.integers(0, len(records)))
            stop = data.draw(st.integers(first, len(records)))
            taken = data.draw(
                st.lists(st.booleans(), min_size=stop - first, max_size=stop - first)
            )
            parts.append((stored(path, records), first, taken))
            chosen = records[first:stop]
            kept += [r for r, is_in in zip(chosen, taken, strict=True) if is_in]
        got = copied(folder / "copy", parts, options)
        written(folder / "anew", kept, options)
        assert read_array_records(folder / "copy") == kept
        assert got.digest.records == len(kept)
        if not official:
            assert (folder / "copy").read_bytes() == (folder / "anew").read_bytes()

    def test_do_not_encode_whole_chunks(self, tmp_path):
        """Those would be smaller by the options of the copy."""
        records = [b"%d" % n * 200 for n in range(600)]
        written(tmp_path / "source", records, options_of(4, "uncompressed"))
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
        made = written(source, _TEXTS[:40], options_of(4))
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
        made = written(source, _TEXTS[:40], options_of(4, "uncompressed"))
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
        written(source, other, options_of(4))
        written(tmp_path / "others", other[::-1], options_of(4))
        with ShardWriter(str(copy), options=options_of(4)) as copier:
            copier.copy(stored(source, other), 0, np.ones(40, np.bool_))

            def exchange():
                copy.write_bytes((tmp_path / "others").read_bytes())

            with monkeypatch.context() as patched:
                meanwhile(patched, builtins, "open", exchange)
                with pytest.raises(DataLossError, match="finished shard does not hold"):
                    copier.finish()

    def test_transposed_chunks_are_refused(self, tmp_path):
        options = "group_size:2,transpose:true"
        write_array_records(tmp_path / "source", _TEXTS[:8], options=options)
        shard = stored(tmp_path / "source", _TEXTS[:8])
        with pytest.raises(TransposedChunkError):
            copied(tmp_path / "copy", [(shard, 0, [True] * 8)], options_of(2))


def test_a_full_disk_is_told(tmp_path):
    written(tmp_path / "source", _TEXTS, options_of(1))
    shard = stored(tmp_path / "source", _TEXTS)
    with pytest.raises(StorageError, match="No space left"):
        copied(pathlib.Path("/dev/full"), [(shard, 0, [True] * 600)], options_of(1))
