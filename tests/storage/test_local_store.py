"""Files on a disk: faults, locks, users at once, and what is no regular file."""

import concurrent.futures
import contextlib
import dataclasses
import errno
import fcntl
import functools
import os
import pathlib
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import types

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset import (
    CorruptShardError,
    GristmillError,
    StorageChangedError,
    StorageError,
    open_manifest,
    read_manifest,
)
from gristmill.dataset.base.array_spool import ArraySpool
from gristmill.dataset.metadata import layout
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
from gristmill.dataset.storage.paths import near_paths
from gristmill.pipelines.anywhere import index, verify
from gristmill.pipelines.convert import convert as run
from gristmill.pipelines.options.job_options import IndexOptions
from gristmill.pipelines.text.unfinished import read_unfinished
from tests.support.conversion import convert, job_of
from tests.support.open_files import files_of_at_most, open_files
from tests.support.records import frames_of, text_records
from tests.support.told import told
from tests.support.watched import failing, watched

DATA = bytes(range(251)) * 40
STORAGE = LocalStorage()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a"


def file_error(number):
    return OSError(number, os.strerror(number))


# Finding and reading.


def test_what_vanishes_meanwhile(tmp_path, monkeypatch):
    """It hides nothing else in a listing; of a pattern, it is an error."""
    (tmp_path / "b").touch()
    vanishing = tmp_path / "a"

    def vanish(path, **options):
        if str(path) == str(vanishing):
            vanishing.unlink(missing_ok=True)

    watched(monkeypatch, os, "stat", vanish)
    vanishing.touch()
    assert [info.path for info in STORAGE.list(str(tmp_path))] == [f"{tmp_path}/b"]
    for pattern in ("*", "**/*"):
        vanishing.touch()
        with pytest.raises(StorageError, match=f"(?s)does not exist.*{vanishing}"):
            STORAGE.match(f"{tmp_path}/{pattern}")


def test_what_cannot_be_listed_read_or_written():
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o777)
        if os.geteuid() == 0:  # No permission applies to root.
            os.seteuid(65_534)
            stack.callback(os.seteuid, 0)
        (folder / "a").write_bytes(b"a")
        with told(StorageError, "a part of it is a file"):
            STORAGE.list(str(folder / "a"))
        (folder / "circle").symlink_to("circle")
        for name, message in (("n" * 300, "255 bytes"), ("circle", "lead in a circle")):
            with pytest.raises(StorageError, match=message):
                STORAGE.stat(str(folder / name))
        (folder / "a").chmod(0)
        for method in (STORAGE.open, STORAGE.read):
            with told(StorageError, "Is a directory"):
                method(str(folder))
            with told(StorageError, "check the permissions"):
                method(str(folder / "a"))
        (folder / "inner").mkdir(0o555)
        for name in ("inner/a", "inner/new/a"):
            with pytest.raises(StorageError, match=rf"(?s){folder}.*the permissions"):
                STORAGE.write(str(folder / name), b"x")


def test_names_that_are_near_are_sought_among_some(tmp_path, monkeypatch):
    def names():
        for number in range(100_000):
            yield types.SimpleNamespace(name=f"part-{number:05}.jsonl")
        raise AssertionError("all names were read")

    monkeypatch.setattr(os, "scandir", lambda _: contextlib.nullcontext(names()))
    near = near_paths(str(tmp_path / "part-00007.json"))
    assert str(tmp_path / "part-00007.jsonl") in near


def test_an_open_file_stays_what_it_was_when_it_was_opened(path):
    path.write_bytes(DATA)
    file = OpenFile(str(path))
    STORAGE.write(str(path), b"another")
    assert OpenFile(str(path)).stamp != file.stamp
    child = os.fork()  # It reads on beside this process.
    same = all(file[i : i + 9] == DATA[i : i + 9] for i in range(5000))
    if not child:
        os._exit(not same)
    assert same
    assert os.waitpid(child, 0)[1] == 0


def test_an_open_file_that_was_truncated_or_lies_on_a_broken_disk(path):
    path.write_bytes(DATA)
    file = OpenFile(str(path))
    os.truncate(path, 100)
    assert file[50:100] == DATA[50:100]
    with told(
        CorruptShardError,
        expected=f"{len(DATA):,} bytes, as when it was opened",
        where=str(path),
        got="100 bytes",
    ):
        file[90:110]
    # Memory that is not there, as the first page of a process never is: EIO.
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        os.dup2(memory.fileno(), file.descriptor)
    with told(
        StorageError,
        match=r"(?s)the disk cannot.*dmesg",
        where=str(path),
        got=os.strerror(errno.EIO),
    ):
        file[50:60]


def test_a_file_that_is_larger_than_memory(path):
    path.touch()
    os.truncate(path, 1 << 42)  # It takes no space.
    for method in (STORAGE.read, STORAGE.load):
        with told(StorageError, "larger than any that describes data"):
            method(str(path))
    # A part can be read: no more memory is taken than there is data.
    assert STORAGE.read(str(path), (1 << 42) - 3, 1 << 62) == bytes(3)


def test_a_file_that_a_file_server_has_lent(path, monkeypatch):
    path.write_bytes(b"one")

    def lent(name, flags, *mode):
        if flags & os.O_NONBLOCK:
            raise file_error(errno.EWOULDBLOCK)

    watched(monkeypatch, os, "open", lent)
    with open_regular(str(path)) as file:
        assert file.read() == b"one"


# What is no regular file.


def put(kind, path):
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
def test_what_is_no_regular_file_is_refused(path, kind):
    put(kind, path)
    for call in (
        *(STORAGE.open, STORAGE.read, STORAGE.load, STORAGE.stat, STORAGE.match),
        functools.partial(STORAGE.write, data=b"new"),
    ):
        with told(
            StorageError,
            "not a regular file",
            where=str(path),
            got=kind.removeprefix("a link to "),
        ):
            call(str(path))
    assert [name for name in os.listdir(path.parent) if "tmp" in name] == []
    with told(StorageError, "not a regular file"):
        STORAGE.match(f"{path.parent}/*")
    (path.parent / "b").touch()
    (listed,) = STORAGE.list(str(path.parent))
    assert listed.path == f"{path.parent}/b"


SHARD = layout.shard_name("data", "train", 0, 1)


def found_in(verified):
    if verified.findings:
        raise CorruptShardError("verify has findings")


ACTIONS = {
    "load": lambda path, job: loader.open(path)[:],
    "load the shard": lambda path, job: loader.open(f"{path}/{SHARD}")[:],
    "verify": lambda path, job: found_in(verify(path, workers=1)),
    "quick": lambda path, job: found_in(verify(path, quick=True)),
    "inspect": lambda path, job: open_manifest(path),
    "unfinished": lambda path, job: read_unfinished(path, read_manifest(path)),
    "convert": lambda path, job: run([job]),
    "overwrite": lambda path, job: run([job], overwrite=True),
    "add": lambda path, job: run([dataclasses.replace(job, split="test")]),
    "index": lambda path, job: index(
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
def test_in_place_of_every_file_of_a_dataset(tmp_path, kind, place):
    """Every action ends, with an error of ours or without."""
    (tmp_path / "in").write_bytes(frames_of(text_records(40)))
    job = job_of(tmp_path / "in", tmp_path / "data")
    convert(job)
    path = tmp_path / "data" / place
    if path.is_dir():
        path.rename(tmp_path / "away")
    put(kind, path)
    failed = set()
    for name, action in ACTIONS.items():
        try:
            action(job.output, job)
        except GristmillError:
            failed.add(name)
    assert failed >= PLACES[place]


# Writing.


def test_a_full_disk_leaves_the_old_file_and_nothing_else(path, monkeypatch):
    STORAGE.write(str(path), b"old")
    # A limit on the size of files acts as a full disk does.
    with files_of_at_most(1000), pytest.raises(StorageError, match=str(path)):
        STORAGE.write(str(path), bytes(100_000))
    failing(monkeypatch, os, "fsync", file_error(errno.ENOSPC))
    with pytest.raises(StorageError, match=rf"(?s){path}.*free some space"):
        STORAGE.write(str(path), b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == ["a"]


@pytest.mark.parametrize("moment", ["fsync", "link", "replace"])
def test_nobody_reads_or_deletes_what_is_half_there(path, monkeypatch, moment):
    """Neither those who read meanwhile, nor those who tidy up."""
    old = None if moment == "link" else b"old"
    if old:
        path.write_bytes(old)
    seen = []

    def look(*args):
        delete_unfinished(str(path.parent))
        found = path.read_bytes() if path.exists() else None
        seen.append((found, len(os.listdir(path.parent)) - path.exists()))

    watched(monkeypatch, os, moment, look)
    STORAGE.write(str(path), b"new", replaces=version_of(str(path)))
    assert seen[0] == (old, 1)
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == ["a"]


def test_a_new_version_is_later_whatever_the_clock_says(path):
    old = os.umask(0o022)
    STORAGE.write(str(path), b"one")
    os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    os.utime(path, ns=(0, 1 << 62))
    STORAGE.write(str(path), b"two", replaces=version_of(str(path)))
    assert int(version_of(str(path))) > 1 << 62


@pytest.mark.parametrize("links", [True, False])
def test_of_many_that_create_a_file_at_once_one_does(tmp_path, monkeypatch, links):
    if not links:
        failing(monkeypatch, os, "link", file_error(errno.EPERM))
    writers = 8 if links else 1
    barrier = threading.Barrier(writers)

    def write(number):
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
def holder(what, *given):
    """Starts a process that holds a lock or a file until it is killed."""
    command = [sys.executable, "-c", HOLDER, what, *map(str, given)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        process.said = process.stdout.readline().strip()
        yield process
        process.kill()


def test_what_killed_writers_left_is_deleted_and_nothing_else(tmp_path, path):
    others = {"b", ".hidden", ".tmp", ".0123456789abcdeg.tmp", "x.tmp"}
    for name in (".0123456789abcdef.tmp", *others):
        (tmp_path / name).write_bytes(b"x")
    with holder("write", path):
        delete_unfinished(str(tmp_path))
        assert len(os.listdir(tmp_path)) == len(others) + 1
    delete_unfinished(str(tmp_path))
    assert {*os.listdir(tmp_path)} == others
    delete_unfinished(str(tmp_path / "missing"))


def test_threads_wait_for_each_other(tmp_path):
    inside = []

    def work(number):
        with locked(str(tmp_path)):
            inside.append(1)
            most = len(inside)
            inside.pop()
        return most

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert set(pool.map(work, range(800))) == {1}


def test_another_process_is_waited_for_and_named(tmp_path):
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


def test_a_process_that_was_forked_meanwhile_does_not_keep_the_lock(tmp_path):
    with locked(str(tmp_path)):
        (inherited,) = (int(n) for n, to in open_files() if to == str(tmp_path))
        pipes = {"stdin": subprocess.PIPE, "pass_fds": [inherited]}
        child = subprocess.Popen(["cat"], **pipes)
    with child:
        with locked(str(tmp_path), wait_seconds=30):
            assert child.poll() is None
        child.communicate(timeout=60)


def test_a_file_system_without_locks_and_one_that_fails(path, monkeypatch):
    with monkeypatch.context() as patched:
        failing(patched, fcntl, "flock", file_error(errno.ENOSYS))
        STORAGE.write(str(path), b"one", replaces="")
    assert path.read_bytes() == b"one"
    failing(monkeypatch, fcntl, "flock", file_error(errno.EIO))
    with told(StorageError, "Input/output error"):
        STORAGE.write(str(path), b"two", replaces="")


def test_a_directory_in_use_is_not_deleted(tmp_path, monkeypatch):
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
    delete_tree(str(folder))
    assert not folder.exists()
    deleted = []

    def delete(descriptor, operation):
        if operation & fcntl.LOCK_SH and not deleted:
            deleted.append(folder.rmdir())

    # One that is deleted before it is locked is made again.
    watched(monkeypatch, fcntl, "flock", delete)
    with in_use(str(folder)), unless_in_use(str(folder)) as free:
        assert deleted
        assert not free


# Directories for shards on their way to a bucket, and the spool of their tokens.


@pytest.mark.parametrize("locks", [True, False])
def test_scratch_of_killed_processes_is_deleted_and_nothing_else(
    tmp_path, temporary_in, monkeypatch, locks
):
    temporary_in(tmp_path)
    for name in ("gristmill-0", "gristmill-demo-x"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").touch()
    (tmp_path / "gristmill-scratch-link").symlink_to(tmp_path / "gristmill-0")
    with holder("scratch_directory") as alive:
        with holder("scratch_directory") as killed:
            for one in (killed, alive):
                pathlib.Path(one.said, "shard").touch()
        if not locks:  # Who uses it cannot be known.
            failing(monkeypatch, fcntl, "flock", file_error(errno.ENOSYS))
        with scratch_directory() as made:
            assert os.path.isdir(made)
            assert os.path.exists(f"{killed.said}/shard") == (not locks)
            assert os.path.exists(f"{alive.said}/shard")
        alive.communicate()
    assert len([*tmp_path.glob("*")]) == 3 + (not locks)
    assert len([*tmp_path.glob("*/mine")]) >= 2


@pytest.mark.parametrize("values", [13_000, 1_000_000])
def test_a_spool_on_a_full_disk(tmp_path, values):
    """Values that are still buffered fail when they are read."""

    def add_and_read():
        spool.append(np.arange(values))
        spool.read(0, values)

    with (
        contextlib.closing(ArraySpool(str(tmp_path), "<i8")) as spool,
        files_of_at_most(100_000),
        pytest.raises(StorageError, match=rf"(?s){tmp_path}.*too large.*free some"),
    ):
        add_and_read()


def test_a_spool_that_lost_its_end(tmp_path):
    with contextlib.closing(ArraySpool(str(tmp_path), "<i8")) as spool:
        spool.append(np.arange(9))
        assert spool.read(7, 9).tolist() == [7, 8]
        (own,) = (n for n, to in open_files() if to.startswith(str(tmp_path)))
        os.truncate(int(own), 60)
        with pytest.raises(StorageError, match=r"(?s)lost its end.*72 b.*got: +60"):
            spool.read(7, 9)
