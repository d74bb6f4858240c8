"""Files on a disk: faults, locks, users at once, and what is no regular file."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import fcntl
import os
import pathlib
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.base.array_spool import ArraySpool
from gristmill.dataset.base.errors import (
    CorruptShardError,
    GristmillError,
    StorageChangedError,
    StorageError,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import open_manifest, read_manifest
from gristmill.dataset.storage.directory_lock import (
    delete_tree,
    delete_unfinished,
    in_use,
    is_in_use,
    locked,
    scratch_directory,
    unless_in_use,
)
from gristmill.dataset.storage.local import LocalStorage, OpenFile, open_regular
from gristmill.dataset.storage.lookup import version_of
from gristmill.pipelines.anywhere import index, verify
from gristmill.pipelines.convert import convert as run
from gristmill.pipelines.options.job_options import IndexOptions
from gristmill.pipelines.text.split_editions import read_unfinished
from tests.support.conversion import convert, job_of
from tests.support.open_files import files_of_at_most, open_files
from tests.support.records import frames_of, text_records
from tests.support.watched import failing, watched

DATA = bytes(range(251)) * 40
STORAGE = LocalStorage()


def file_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@contextlib.contextmanager
def without_privileges() -> Iterator[pathlib.Path]:
    """Acts as a user to whom permissions apply, which root is not.

    Yields a directory that every user may enter and write to.
    """
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        if user == 0:
            os.seteuid(65_534)
        try:
            yield pathlib.Path(name)
        finally:
            os.seteuid(user)


@contextlib.contextmanager
def again_and_again(call: Callable[[], object]) -> Iterator[None]:
    """Calls a function in another thread until the block ends."""
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            call()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        result = pool.submit(work)
        try:
            yield
        finally:
            ended.set()
        result.result(60)


# Finding and reading.


def test_what_vanishes_meanwhile(tmp_path: pathlib.Path, monkeypatch) -> None:
    """It hides nothing else in a listing; of a pattern, it is an error."""
    for name in ("a", "b"):
        (tmp_path / name).touch()

    def vanish(path: object, **options: object) -> None:
        if str(path).endswith("a"):
            pathlib.Path(str(path)).unlink(missing_ok=True)

    watched(monkeypatch, os, "stat", vanish)
    assert [info.path for info in STORAGE.list(str(tmp_path))] == [f"{tmp_path}/b"]
    for pattern in ("*", "**/*"):
        (tmp_path / "a").touch()
        with pytest.raises(StorageError, match=f"(?s)does not exist.*{tmp_path}/a"):
            STORAGE.match(f"{tmp_path}/{pattern}")


def test_what_cannot_be_listed_read_or_written() -> None:
    with without_privileges() as folder:
        (folder / "a").write_bytes(b"a")
        with pytest.raises(StorageError, match="a part of it is a file"):
            STORAGE.list(str(folder / "a"))
        (folder / "a").chmod(0)
        for method in (STORAGE.open, STORAGE.read):
            with pytest.raises(StorageError, match="Is a directory"):
                method(str(folder))
            with pytest.raises(StorageError, match="check the permissions"):
                method(str(folder / "a"))
        (folder / "inner").mkdir(0o555)
        for name in ("inner/a", "inner/new/a"):
            with pytest.raises(StorageError, match=rf"(?s){folder}.*the permissions"):
                STORAGE.write(str(folder / name), b"x")


@pytest.fixture
def file(tmp_path: pathlib.Path) -> OpenFile:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return OpenFile(str(path))


def test_a_file_that_is_deleted_or_replaced_stays_readable(file: OpenFile) -> None:
    pathlib.Path(f"{file.path}.new").write_bytes(b"another")
    os.replace(f"{file.path}.new", file.path)
    assert file[5:9] == DATA[5:9]
    assert OpenFile(file.path).stamp != file.stamp


def test_a_file_that_was_truncated_is_named_with_both_sizes(file: OpenFile) -> None:
    os.truncate(file.path, 100)
    assert file[50:100] == DATA[50:100]
    with pytest.raises(CorruptShardError) as raised:
        file[90:110]
    assert raised.value.where == file.path
    assert raised.value.expected == f"{len(DATA):,} bytes, as when it was opened"
    assert raised.value.got == "100 bytes"


def test_a_disk_that_cannot_read_is_an_error_that_names_the_file(
    file: OpenFile,
) -> None:
    # Memory that is not there, as the first page of a process never is: EIO.
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        os.dup2(memory.fileno(), file.descriptor)
    with pytest.raises(StorageError, match=r"(?s)the disk cannot.*dmesg") as raised:
        file[50:60]
    assert raised.value.where == file.path
    assert raised.value.got == os.strerror(errno.EIO)


def test_a_forked_process_reads_on_beside_this_one(file: OpenFile) -> None:
    child = os.fork()
    if not child:
        os._exit(not all(file[i : i + 9] == DATA[i : i + 9] for i in range(5000)))
    assert all(file[i : i + 9] == DATA[i : i + 9] for i in range(5000))
    assert os.waitpid(child, 0)[1] == 0


def test_a_file_that_is_larger_than_memory(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a"
    path.touch()
    os.truncate(path, 1 << 42)  # It takes no space.
    for method in (STORAGE.read, STORAGE.load):
        with pytest.raises(StorageError, match="larger than any that describes data"):
            method(str(path))
    # A part can be read: no more memory is taken than there is data.
    assert STORAGE.read(str(path), (1 << 42) - 3, 1 << 62) == bytes(3)


def test_a_file_that_a_file_server_has_lent(tmp_path, monkeypatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one")

    def lent(name: str, flags: int, *mode: int) -> None:
        if flags & os.O_NONBLOCK:
            raise file_error(errno.EWOULDBLOCK)

    watched(monkeypatch, os, "open", lent)
    with open_regular(str(path)) as file:
        assert file.read() == b"one"


# What is no regular file.


def put(kind: str, path: pathlib.Path) -> None:
    """Puts something else, or a link to it, in place of a regular file."""
    path.unlink(missing_ok=True)
    if kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a socket":
        directory = os.open(path.parent, os.O_RDONLY)
        # Its path may be too long for an address.
        with socket.socket(socket.AF_UNIX) as there:
            there.bind(f"/proc/self/fd/{directory}/{path.name}")
        os.close(directory)
    elif kind == "a link to a FIFO":
        os.mkfifo(f"{path}.fifo")
        path.symlink_to(f"{path}.fifo")
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    "kind", ["a FIFO", "a socket", "a character device", "a link to a FIFO"]
)
def test_what_is_no_regular_file_is_refused(tmp_path: pathlib.Path, kind: str) -> None:
    path = str(tmp_path / "a")
    put(kind, tmp_path / "a")
    for method in ("open", "read", "load", "stat", "match", "write"):
        arguments = (b"new",) if method == "write" else ()
        with pytest.raises(StorageError, match="not a regular file") as caught:
            getattr(STORAGE, method)(path, *arguments)
        assert caught.value.where == path
        assert caught.value.got == kind.removeprefix("a link to ")
    assert [name for name in os.listdir(tmp_path) if "tmp" in name] == []
    with pytest.raises(StorageError, match="not a regular file"):
        STORAGE.match(str(tmp_path / "*"))
    (tmp_path / "b").touch()
    listed = [info.path for info in STORAGE.list(str(tmp_path))]
    assert listed == [str(tmp_path / "b")]


SHARD = layout.shard_name("data", "train", 0, 1)


def read_all(path: str) -> None:
    dataset = loader.open(path)
    dataset.read(range(len(dataset)))


ACTIONS: dict[str, Callable[[str, str], object]] = {
    "load": lambda path, source: read_all(path),
    "load the shard": lambda path, source: read_all(f"{path}/{SHARD}"),
    "verify": lambda path, source: verify(path, workers=1),
    "quick": lambda path, source: verify(path, quick=True),
    "inspect": lambda path, source: open_manifest(path),
    "unfinished": lambda path, source: read_unfinished(path, read_manifest(path)),
    "convert": lambda path, source: run([job_of(source, path)]),
    "overwrite": lambda path, source: run([job_of(source, path)], overwrite=True),
    "add": lambda path, source: run([job_of(source, path, split="test")]),
    "index": lambda path, source: index(
        IndexOptions(files=(f"{path}/{SHARD}",), split="more")
    ),
}
READING = {"load", "verify", "quick"}
# What fails at least.
PLACES = {
    "dataset.json": {*READING, "inspect", "convert", "add"},
    SHARD: READING,
    f"index/{SHARD}.index": READING,
    "index/data-train.shards.npz": READING,
    "index/data-train.job.json": {"convert"},
    "index/data-train.inputs.npz": {"convert"},
    **{name: set() for name in ("features.json", "errors", "index", "tmp-data-train")},
}


@pytest.mark.one_in(3)
@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["a FIFO", "a character device"])
@pytest.mark.parametrize("place", PLACES)
def test_in_place_of_every_file_of_a_dataset(tmp_path, kind: str, place: str) -> None:
    """Every action ends, with an error of ours or without."""
    source, dataset = tmp_path / "in", tmp_path / "data"
    source.write_bytes(frames_of(text_records(40)))
    convert(job_of(source, dataset))
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
            failed |= {name} if getattr(found, "findings", None) else set()
    assert failed >= PLACES[place]


# Writing.


def test_others_may_read_what_is_written(tmp_path: pathlib.Path) -> None:
    old = os.umask(0o022)
    STORAGE.write(str(tmp_path / "a"), b"one")
    os.umask(old)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o644


def test_readers_see_the_old_or_the_new_file(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "a")
    contents = [bytes([i]) * 200_000 for i in range(2)]
    STORAGE.write(path, contents[0])
    seen: list[bytes] = []
    with again_and_again(lambda: seen.append(STORAGE.read(path))):
        for i in range(100):
            STORAGE.write(path, contents[i % 2])
    assert seen
    assert all(data in contents for data in seen)


def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    tmp_path, monkeypatch
) -> None:
    path = tmp_path / "a"
    STORAGE.write(str(path), b"old")
    # A limit on the size of files acts as a full disk does.
    with files_of_at_most(1000), pytest.raises(StorageError, match=str(path)):
        STORAGE.write(str(path), bytes(100_000))
    failing(monkeypatch, os, "fsync", file_error(errno.ENOSPC))
    with pytest.raises(StorageError, match=rf"(?s){path}.*free some space"):
        STORAGE.write(str(path), b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_what_killed_writers_left_is_deleted_and_nothing_else(tmp_path) -> None:
    left = [".0123456789abcdef.tmp", ".ffffffffffffffff.tmp"]
    others = ["a", ".hidden", ".tmp", ".0123456789abcdeg.tmp", "x.tmp"]
    for name in (*left, *others):
        (tmp_path / name).write_bytes(b"x")
    delete_unfinished(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == sorted(others)
    delete_unfinished(str(tmp_path / "missing"))


@pytest.mark.parametrize("moment", ["fsync", "link", "replace"])
def test_who_tidies_up_meanwhile_deletes_nothing(tmp_path, monkeypatch, moment) -> None:
    seen = []

    def tidy(*args: object) -> None:
        delete_unfinished(str(tmp_path))
        seen.append([name for name in os.listdir(tmp_path) if name != "a"])

    path = tmp_path / "a"
    if moment != "link":
        path.write_bytes(b"old")
    watched(monkeypatch, os, moment, tidy)
    STORAGE.write(str(path), b"new", replaces=version_of(str(path)))
    assert [len(left) for left in seen[:1]] == [1]
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.slow
def test_writers_and_those_who_tidy_up_at_once(tmp_path: pathlib.Path) -> None:
    with again_and_again(lambda: delete_unfinished(str(tmp_path))):
        for number in range(300):
            STORAGE.write(str(tmp_path / "a"), b"%d" % number)
            assert (tmp_path / "a").read_bytes() == b"%d" % number
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("links", [True, False])
def test_of_many_that_create_a_file_at_once_one_does(
    tmp_path, monkeypatch, links
) -> None:
    if not links:
        failing(monkeypatch, os, "link", file_error(errno.EPERM))
    writers = 8 if links else 1
    barrier = threading.Barrier(writers)

    def write(number: int) -> bool:
        barrier.wait(30)
        try:
            STORAGE.write(path, b"%d" % number, replaces="")
        except StorageChangedError:
            return False
        return True

    with concurrent.futures.ThreadPoolExecutor(writers) as pool:
        for attempt in range(20):
            path = str(tmp_path / f"file{attempt}")
            outcomes = [*pool.map(write, range(writers))]
            assert sum(outcomes) == 1
            assert STORAGE.read(path) == b"%d" % outcomes.index(True)
    assert len(os.listdir(tmp_path)) == 20  # Nothing temporary is left.


# Locks, and directories in use.

HOLDER = """
import os, sys
from gristmill.dataset.storage import directory_lock
from gristmill.dataset.storage.local import LocalStorage
def stay(*given):
    print(*given, flush=True)
    sys.stdin.read()
what, *given = sys.argv[1:]
if what == "write":
    os.fsync = stay
    LocalStorage().write(given[0], b"half")
with getattr(directory_lock, what)(*given) as directory:
    stay(directory)
"""


@contextlib.contextmanager
def holder(what: str, *given: object) -> Iterator[subprocess.Popen[str]]:
    """Starts a process that holds a lock or a file until it is killed."""
    command = [sys.executable, "-c", HOLDER, what, *map(str, given)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        process.said = process.stdout.readline().strip()
        yield process
        process.kill()


def test_a_killed_writer_keeps_nothing(tmp_path: pathlib.Path) -> None:
    with holder("write", tmp_path / "a"):
        delete_unfinished(str(tmp_path))
        assert len(os.listdir(tmp_path)) == 1
    delete_unfinished(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_threads_wait_for_each_other(tmp_path: pathlib.Path) -> None:
    inside: list[int] = []

    def work(number: int) -> int:
        with locked(str(tmp_path)):
            inside.append(1)
            most = len(inside)
            inside.pop()
        return most

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert set(pool.map(work, range(800))) == {1}


def test_another_process_is_waited_for_and_named(tmp_path: pathlib.Path) -> None:
    message = rf"(?s)keeps the directory locked.*{tmp_path}.*lslocks"
    with holder("locked", tmp_path):
        with (
            pytest.raises(StorageError, match=message),
            locked(str(tmp_path), wait_seconds=0.1),
        ):
            pass
        # Readers, and the same work in another directory, wait for nobody.
        (tmp_path / "a").write_bytes(b"a")
        assert STORAGE.read(str(tmp_path / "a")) == b"a"
        STORAGE.write(str(tmp_path / "other" / "b"), b"b", replaces="")
    # It was killed, and leaves no lock and no file.
    with locked(str(tmp_path)):
        assert sorted(os.listdir(tmp_path)) == ["a", "other"]


def test_a_process_that_was_forked_meanwhile_does_not_keep_the_lock(tmp_path) -> None:
    with locked(str(tmp_path)):
        (inherited,) = (int(n) for n, to in open_files() if to == str(tmp_path))
        pipes = {"stdin": subprocess.PIPE, "pass_fds": [inherited]}
        child = subprocess.Popen(["cat"], **pipes)
    with child:
        with locked(str(tmp_path), wait_seconds=30):
            assert child.poll() is None
        child.communicate(timeout=60)


def test_a_file_system_without_locks_and_one_that_fails(tmp_path, monkeypatch) -> None:
    path = str(tmp_path / "a")
    with monkeypatch.context() as patched:
        failing(patched, fcntl, "flock", file_error(errno.ENOSYS))
        STORAGE.write(path, b"one", replaces="")
    assert STORAGE.read(path) == b"one"
    failing(monkeypatch, fcntl, "flock", file_error(errno.EIO))
    with pytest.raises(StorageError, match="Input/output error"):
        STORAGE.write(path, b"two", replaces="")


def test_a_directory_in_use_is_not_deleted(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "tmp"
    assert not is_in_use(str(folder))
    with holder("in_use", folder):
        (folder / "half").write_bytes(b"half")
        # Others may use it, too; their files have other names.
        with STORAGE.temporary(str(folder)) as a, STORAGE.temporary(str(folder)) as b:
            assert a != b
            pathlib.Path(a).write_bytes(b"mine")
        assert is_in_use(str(folder))
        delete_tree(str(folder))
        assert os.listdir(folder) == ["half"]
    assert not is_in_use(str(folder))
    delete_tree(str(folder))
    assert not folder.exists()


def test_a_directory_that_is_deleted_before_it_is_locked_is_made_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tmp"
    deleted = []

    def delete(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_SH and not deleted:
            deleted.append(folder.rmdir())

    watched(monkeypatch, fcntl, "flock", delete)
    with in_use(str(folder)):
        assert deleted
        assert folder.is_dir()
        with unless_in_use(str(folder)) as free:
            assert not free


def test_users_and_those_who_delete_at_once(tmp_path: pathlib.Path) -> None:
    folder = str(tmp_path / "tmp")
    with again_and_again(lambda: delete_tree(folder)):
        for _ in range(300):
            with STORAGE.temporary(folder) as local:
                pathlib.Path(local).write_bytes(b"x")
                assert pathlib.Path(local).read_bytes() == b"x"


# Directories for shards on their way to a bucket.


def test_scratch_of_killed_processes_is_deleted_and_nothing_else(
    tmp_path: pathlib.Path, temporary_in
) -> None:
    temporary_in(tmp_path)
    others = [tmp_path / "gristmill-0", tmp_path / "gristmill-demo-x"]
    for path in others:
        path.mkdir()
    (tmp_path / "gristmill-scratch-link").symlink_to(others[0])
    (others[0] / "mine").write_bytes(b"mine")
    with holder("scratch_directory") as alive:
        with holder("scratch_directory") as killed:
            for one in (killed, alive):
                pathlib.Path(one.said, "shard").touch()
        assert os.path.exists(f"{killed.said}/shard")
        with scratch_directory():
            assert not os.path.exists(killed.said)
            assert os.path.exists(f"{alive.said}/shard")
        alive.communicate()
    assert len(os.listdir(tmp_path)) == 3
    assert (others[0] / "mine").read_bytes() == b"mine"


def test_where_directories_cannot_be_locked_no_scratch_is_deleted(
    tmp_path: pathlib.Path, temporary_in, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary_in(tmp_path)
    left = tmp_path / "gristmill-scratch-left"
    left.mkdir()
    failing(monkeypatch, fcntl, "flock", file_error(errno.ENOSYS))
    with scratch_directory() as directory:
        assert os.path.isdir(directory)
    assert os.listdir(tmp_path) == [left.name]


# The spool of tokens on their way into a shard.


def test_a_spool_that_lost_its_end(tmp_path: pathlib.Path) -> None:
    with contextlib.closing(ArraySpool(str(tmp_path), "<i8")) as spool:
        spool.append(np.arange(100))
        spool.read(0, 100)
        (number,) = (n for n, to in open_files() if to.startswith(f"{tmp_path}/"))
        os.truncate(int(number), 400)
        with pytest.raises(StorageError, match=rf"(?s){tmp_path}.*800.*400") as caught:
            spool.read(0, 100)
    assert "check the disk" in str(caught.value.cure)


@pytest.mark.parametrize("values", [13_000, 1_000_000])
def test_a_spool_on_a_full_disk(tmp_path: pathlib.Path, values: int) -> None:
    """Values that are still buffered fail when they are read."""

    def add_and_read() -> None:
        spool.append(np.arange(values))
        spool.read(0, values)

    with (
        contextlib.closing(ArraySpool(str(tmp_path), "<i8")) as spool,
        files_of_at_most(100_000),
        pytest.raises(StorageError, match=rf"(?s){tmp_path}.*too large.*free some"),
    ):
        add_and_read()
