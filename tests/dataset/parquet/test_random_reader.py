import os
import random

import pytest

from gristmill.dataset.errors import StorageChangedError, StorageError
from gristmill.dataset.parquet.random_reader import RandomReader
from tests.support.gcs_server import GcsServer

DATA = random.Random(1).randbytes((9 << 20) + 12345)
MIB = 1 << 20


@pytest.fixture
def server(monkeypatch):
    with GcsServer("in") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.objects.put("in", "a", DATA)
        yield server


@pytest.fixture(params=["local", "gs"])
def path(request, tmp_path):
    if request.param == "gs":
        request.getfixturevalue("server")
        return "gs://in/a"
    (tmp_path / "a").write_bytes(DATA)
    return str(tmp_path / "a")


def test_any_reads_give_the_bytes_of_the_file(path):
    chosen = random.Random(2)
    with RandomReader(path, len(DATA), None) as reader:
        reader.set_streams(30)
        assert reader.readable()
        assert reader.seekable()
        for _ in range(60):
            begin = chosen.randrange(len(DATA) + 10)
            size = chosen.choice([0, 1, 1000, 300_000, 3 * MIB])
            assert reader.seek(begin) == begin
            assert reader.read(size) == DATA[begin : begin + size]
            assert reader.tell() == min(begin + size, max(begin, len(DATA)))
        assert reader.seek(-4, os.SEEK_END) == len(DATA) - 4
        assert reader.seek(-1, os.SEEK_CUR) == len(DATA) - 5
        assert reader.read() == DATA[-5:]
        assert reader.read() == b""


def test_streams_are_read_ahead_and_kept(server):
    with RandomReader("gs://in/a", len(DATA), None) as reader:
        reader.set_streams(16)
        for begin in range(0, 4 * MIB, 256 << 10):
            for stream in (0, 4 * MIB):
                reader.seek(stream + begin)
                assert reader.read(1000) == DATA[stream + begin :][:1000]
    sizes = [range_ for operation, _, range_ in server.log if operation == "media"]
    assert len(sizes) == len(set(sizes))  # Nothing is asked for twice.
    assert len(sizes) <= 12  # Of 1 MiB each; two more are under way.


def test_one_version_is_read(server):
    generation = str(server.objects.put("in", "b", DATA[:MIB]))
    with RandomReader("gs://in/b", MIB, generation) as reader:
        assert reader.read(10) == DATA[:10]
    server.objects.put("in", "b", DATA[:MIB])
    changed = RandomReader("gs://in/b", MIB, generation)
    with pytest.raises(StorageChangedError):
        changed.read(10)


def test_what_was_read_can_be_forgotten(server):
    with RandomReader("gs://in/a", len(DATA), None) as reader:
        reader.read(10)
        reader.seek(0)
        reader.read(10)
        assert server.requests["media"] == 1
        reader.forget()
        reader.seek(0)
        assert reader.read(10) == DATA[:10]
        assert server.requests["media"] == 2


def test_a_file_that_ends_too_early_is_an_error(server):
    with RandomReader("gs://in/a", len(DATA) + 5, None) as reader:
        reader.seek(len(DATA) - 5)
        with pytest.raises(StorageError, match="ends before"):
            reader.read()
