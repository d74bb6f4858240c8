"""Ranges of local files that are there, that shrink, and that cannot be read."""

from __future__ import annotations

import errno
import os
import pathlib
import socket
from collections.abc import Callable

import pytest

from gristmill import loader
from gristmill.dataset.base.errors import (
    CorruptShardError,
    GristmillError,
    StorageError,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import open_manifest, read_manifest
from gristmill.dataset.storage.local import LocalStorage
from gristmill.dataset.storage.open_file import OpenFile, open_regular
from gristmill.pipelines.convert import convert as run
from gristmill.pipelines.index import index
from gristmill.pipelines.options.job_options import IndexOptions
from gristmill.pipelines.text.unfinished import read_unfinished
from gristmill.pipelines.verify import verify
from tests.storage.unreadable import fail_reads
from tests.support.conversion import convert, job_of
from tests.support.records import frames_of, text_records
from tests.support.watched import watched

DATA = bytes(range(251)) * 40


@pytest.fixture
def file(tmp_path: pathlib.Path) -> OpenFile:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return OpenFile(str(path))


def test_a_file_that_is_deleted_or_replaced_stays_readable(file) -> None:
    pathlib.Path(f"{file.path}.new").write_bytes(b"another")
    os.replace(f"{file.path}.new", file.path)
    assert file[5:9] == DATA[5:9]
    assert OpenFile(file.path).stamp != file.stamp


def test_a_file_that_was_truncated_is_named_with_both_sizes(file) -> None:
    os.truncate(file.path, 100)
    assert file[50:100] == DATA[50:100]
    with pytest.raises(CorruptShardError) as raised:
        file[90:110]
    assert raised.value.where == file.path
    assert raised.value.expected == f"{len(DATA):,} bytes, as when it was opened"
    assert raised.value.got == "100 bytes"


def test_a_disk_that_cannot_read_is_an_error_that_names_the_file(file) -> None:
    other = OpenFile(file.path)
    fail_reads(file)
    with pytest.raises(StorageError, match="the disk cannot read a file") as raised:
        file[50:60]
    assert raised.value.where == file.path
    assert raised.value.got == os.strerror(errno.EIO)
    assert "dmesg" in str(raised.value)
    assert other[50:60] == DATA[50:60]


def test_a_forked_process_reads_on_beside_this_one(file) -> None:
    child = os.fork()
    if not child:
        os._exit(not all(file[i : i + 9] == DATA[i : i + 9] for i in range(5000)))
    assert all(file[i : i + 9] == DATA[i : i + 9] for i in range(5000))
    assert os.waitpid(child, 0)[1] == 0


RECORDS = text_records(40)
SHARD = layout.shard_name("data", "train", 0, 1)
KINDS = ["a FIFO", "a socket", "a character device"]


def put(kind: str, path: pathlib.Path) -> None:
    """Puts something else, or a link to it, in place of a regular file."""
    path.unlink(missing_ok=True)
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a socket":
        directory = os.open(path.parent, os.O_RDONLY)
        try:  # Its path may be too long for an address.
            with socket.socket(socket.AF_UNIX) as there:
                there.bind(f"/proc/self/fd/{directory}/{path.name}")
        finally:
            os.close(directory)
    elif kind == "a link to a FIFO":
        os.mkfifo(f"{path}.fifo")
        path.symlink_to(f"{path}.fifo")
    else:
        path.symlink_to("/dev/zero")


@pytest.fixture
def storage() -> LocalStorage:
    return LocalStorage()


@pytest.mark.parametrize("kind", [*KINDS, "a link to a FIFO"])
@pytest.mark.parametrize("method", ["open", "read", "load", "stat", "match", "write"])
def test_every_operation(storage, tmp_path, kind: str, method: str):
    path = tmp_path / "a"
    put(kind, path)
    arguments = (b"new",) if method == "write" else ()
    with pytest.raises(StorageError, match="not a regular file") as caught:
        getattr(storage, method)(str(path), *arguments)
    assert caught.value.where == str(path)
    assert caught.value.got == kind.removeprefix("a link to ")
    assert [name for name in os.listdir(tmp_path) if "tmp" in name] == []


def test_in_a_pattern(storage, tmp_path):
    (tmp_path / "a").write_bytes(b"a")
    put("a FIFO", tmp_path / "b")
    with pytest.raises(StorageError, match="not a regular file"):
        storage.match(str(tmp_path / "*"))
    assert [info.path for info in storage.match(str(tmp_path / "a*"))] == [
        str(tmp_path / "a")
    ]
    assert [info.path for info in storage.list(str(tmp_path))] == [str(tmp_path / "a")]


def test_a_file_that_a_file_server_has_lent(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(b"one")

    def lent(name: str, flags: int, *mode: int) -> None:
        if flags & os.O_NONBLOCK:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))

    watched(monkeypatch, os, "open", lent)
    with open_regular(str(path)) as file:
        assert file.read() == b"one"


@pytest.mark.parametrize("method", ["read", "load"])
def test_a_file_that_is_larger_than_memory(storage, tmp_path, method: str):
    path = tmp_path / "a"
    path.touch()
    os.truncate(path, 1 << 42)  # It takes no space.
    with pytest.raises(StorageError, match="larger than any that describes data"):
        getattr(storage, method)(str(path))
    # A part can be read: no more memory is taken than there is data.
    assert storage.read(str(path), (1 << 42) - 3, 1 << 62) == bytes(3)


@pytest.fixture
def source(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "in"
    path.write_bytes(frames_of(RECORDS))
    return path


@pytest.fixture
def dataset(tmp_path: pathlib.Path, source: pathlib.Path) -> pathlib.Path:
    convert(job_of(source, tmp_path / "data"))
    return tmp_path / "data"


def read_all(path: str) -> None:
    dataset = loader.open(path)
    dataset.read(range(len(dataset)))


# What is done with a dataset, and whether it fails whichever file is no file.
ACTIONS: dict[str, Callable[[str, str], object]] = {
    "load": lambda path, source: read_all(path),
    "load the shard": lambda path, source: read_all(f"{path}/{SHARD}"),
    "verify": lambda path, source: verify(path, workers=1),
    "quick": lambda path, source: verify(path, quick=True),
    "inspect": lambda path, source: open_manifest(path),
    "head": lambda path, source: loader.open(path)[:3],
    "unfinished": lambda path, source: read_unfinished(path, read_manifest(path)),
    "convert": lambda path, source: run([job_of(source, path)]),
    "overwrite": lambda path, source: run([job_of(source, path)], overwrite=True),
    "add": lambda path, source: run([job_of(source, path, split="test")]),
    "index": lambda path, source: index(
        IndexOptions(files=(f"{path}/{SHARD}",), split="more")
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["a FIFO", "a character device"])
@pytest.mark.parametrize(
    "place",
    [
        *("dataset.json", SHARD, f"index/{SHARD}.index", "index/data-train.shards.npz"),
        *("index/data-train.job.json", "index/data-train.inputs.npz"),
        *(
            "features.json",
            "dataset_info.json",
            "errors",
            "index",
            "tmp-data-train",
        ),
    ],
)
def test_in_place_of_every_file_of_a_dataset(dataset, source, kind: str, place: str):
    path = dataset / place
    if path.is_dir():
        path.rename(dataset / "away")
    put(kind, path)
    failed = set()
    for name, action in ACTIONS.items():
        try:
            found = action(str(dataset), str(source))
        except GristmillError:
            failed.add(name)
        else:
            if getattr(found, "findings", None):
                failed.add(name)
    if place == "dataset.json":
        assert failed >= {
            "load",
            "verify",
            "quick",
            "inspect",
            "head",
            "convert",
            "add",
        }
    elif place in (SHARD, "index/data-train.shards.npz", f"index/{SHARD}.index"):
        assert failed >= {"load", "verify", "quick"}
    elif place.startswith("index/"):
        assert "convert" in failed
