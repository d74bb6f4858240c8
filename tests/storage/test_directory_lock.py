"""The lock of a directory: who waits, for how long, and what ends it."""

from __future__ import annotations

import errno
import fcntl
import os
import pathlib
import subprocess
import sys
import threading

import pytest

from gristmill.dataset.base.errors import StorageError
from gristmill.dataset.storage.directory_lock import (
    delete_tree,
    in_use,
    is_in_use,
    locked,
    unless_in_use,
)
from gristmill.dataset.storage.local import LocalStorage
from tests.support.watched import failing, watched

HOLDER = """
import sys
from gristmill.dataset.storage import directory_lock
with getattr(directory_lock, sys.argv[2])(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.read()
"""


def holder(directory: pathlib.Path, lock: str = "locked") -> subprocess.Popen[bytes]:
    """Starts a process that holds a lock until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory), lock],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"locked\n"
    return process


def test_threads_wait_for_each_other(tmp_path):
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(200):
            with locked(str(tmp_path)):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 800
    assert max(most) == 1


def test_another_process_is_waited_for_and_named(tmp_path):
    with holder(tmp_path) as process:
        with (
            pytest.raises(StorageError, match="keeps the directory locked") as caught,
            locked(str(tmp_path), wait_seconds=0.1),
        ):
            pass
        message = str(caught.value)
        assert str(tmp_path) in message
        assert "lslocks" in message
        # Readers, and the same work in another directory, wait for nobody.
        (tmp_path / "a").write_bytes(b"a")
        assert LocalStorage().read(str(tmp_path / "a")) == b"a"
        LocalStorage().write(str(tmp_path / "other" / "b"), b"b", replaces="")
        process.communicate(timeout=60)
    with locked(str(tmp_path)):
        pass


def test_a_killed_process_leaves_no_lock_and_no_file(tmp_path):
    with holder(tmp_path) as process:
        process.kill()
        process.wait(60)
        with locked(str(tmp_path)):
            assert os.listdir(tmp_path) == []
        process.communicate()
    assert os.listdir(tmp_path) == []


def test_a_process_that_was_forked_meanwhile_does_not_keep_the_lock(tmp_path):
    with locked(str(tmp_path)):
        (inherited,) = (
            int(number)
            for number in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{number}")
            and os.path.samefile(f"/proc/self/fd/{number}", tmp_path)
        )
        child = subprocess.Popen(
            ["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[inherited]
        )
    with child:
        with locked(str(tmp_path), wait_seconds=30):
            assert child.poll() is None
        child.communicate(timeout=60)


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    no_locks = OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    failing(monkeypatch, fcntl, "flock", no_locks)
    path = str(tmp_path / "a")
    LocalStorage().write(path, b"one", replaces="")
    assert LocalStorage().read(path) == b"one"


def test_a_disk_that_fails_is_no_file_system_without_locks(tmp_path, monkeypatch):
    broken = OSError(errno.EIO, os.strerror(errno.EIO))
    failing(monkeypatch, fcntl, "flock", broken)
    with pytest.raises(StorageError, match="Input/output error"):
        LocalStorage().write(str(tmp_path / "a"), b"one", replaces="")


def test_a_directory_in_use_is_not_deleted(tmp_path):
    storage, folder = LocalStorage(), tmp_path / "tmp"
    assert not is_in_use(str(folder))
    with holder(folder, "in_use") as process:
        (folder / "half").write_bytes(b"half")
        # Others may use it, too.
        with storage.temporary(str(folder)) as local:
            pathlib.Path(local).write_bytes(b"mine")
        assert is_in_use(str(folder))
        delete_tree(str(folder))
        assert os.listdir(folder) == ["half"]
        process.kill()
        process.communicate()
    assert not is_in_use(str(folder))
    delete_tree(str(folder))
    assert not folder.exists()


def test_a_directory_that_is_deleted_before_it_is_locked_is_made_again(
    tmp_path, monkeypatch
):
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


def test_users_and_those_who_delete_at_once(tmp_path):
    storage, folder = LocalStorage(), str(tmp_path / "tmp")
    done = threading.Event()

    def delete() -> None:
        while not done.is_set():
            delete_tree(folder)

    deleting = threading.Thread(target=delete)
    deleting.start()
    try:
        for _ in range(300):
            with storage.temporary(folder) as local:
                pathlib.Path(local).write_bytes(b"x")
                assert pathlib.Path(local).read_bytes() == b"x"
    finally:
        done.set()
        deleting.join()
