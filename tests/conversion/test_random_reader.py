import os
import random

import numpy as np
import pytest

from gristmill.dataset.base.errors import StorageError
from gristmill.dataset.formats.random_reader import RandomReader
from tests.support.gcs_server import GcsServer

MIB = 1 << 20


@pytest.fixture(scope="module")
def data():
    return np.random.default_rng(1).bytes((9 << 20) + 12345)


@pytest.fixture
def server(monkeypatch, data):
    with GcsServer("in") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.objects.put("in", "a", data)
        yield server


@pytest.fixture(params=["local", "gs"])
def path(request, tmp_path, data):
    if request.param == "gs":
        request.getfixturevalue("server")
        return "gs://in/a"
    (tmp_path / "a").write_bytes(data)
    return str(tmp_path / "a")


def test_any_reads_give_the_bytes_of_the_file(path, data):
    chosen = random.Random(2)
    with RandomReader(path, len(data), None) as reader:
        reader.set_streams(30)
        assert reader.readable()
        assert reader.seekable()
        for _ in range(60):
            begin = chosen.randrange(len(data) + 10)
            size = chosen.choice([0, 1, 1000, 300_000, 3 * MIB])
            assert reader.seek(begin) == begin
            assert reader.read(size) == data[begin : begin + size]
            assert reader.tell() == min(begin + size, max(begin, len(data)))
        assert reader.seek(-4, os.SEEK_END) == len(data) - 4
        assert reader.seek(-1, os.SEEK_CUR) == len(data) - 5
        assert reader.read() == data[-5:]
        assert reader.read() == b""


def test_streams_are_read_ahead_and_kept(server, data):
    with RandomReader("gs://in/a", len(data), None) as reader:
        reader.set_streams(16)
        for begin in range(0, 4 * MIB, 256 << 10):
            for stream in (0, 4 * MIB):
                reader.seek(stream + begin)
                assert reader.read(1000) == data[stream + begin :][:1000]
    sizes = [range_ for operation, _, range_ in server.log if operation == "media"]
    assert len(sizes) == len(set(sizes))  # Nothing is asked for twice.
    assert len(sizes) <= 12  # Of 1 MiB each; two more are under way.


def test_a_file_that_ends_too_early_is_an_error(server, data):
    with RandomReader("gs://in/a", len(data) + 5, None) as reader:
        reader.seek(len(data) - 5)
        with pytest.raises(StorageError, match="ends before"):
            reader.read()
