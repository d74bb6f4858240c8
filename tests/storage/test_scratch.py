"""Directories for shards on their way to a bucket, and what killed processes leave."""

from __future__ import annotations

import fcntl
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from gristmill.dataset.storage.directory_lock import scratch_directory
from tests.support.watched import failing

HOLDER = """
import pathlib, sys
from gristmill.dataset.storage.directory_lock import scratch_directory
with scratch_directory() as directory:
    pathlib.Path(directory, "shard").write_bytes(b"half")
    print(directory, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(
    tmp_path: pathlib.Path, temporary_in: Callable[[object], None]
) -> pathlib.Path:
    """The `TMPDIR` of this process and of those that it starts."""
    temporary_in(tmp_path)
    return tmp_path


def holder() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_it_is_deleted_in_the_end(folder):
    with scratch_directory() as one, scratch_directory() as other:
        pathlib.Path(one, "shard").write_bytes(b"x")
        assert sorted(os.listdir(folder)) == sorted(map(os.path.basename, (one, other)))
    assert os.listdir(folder) == []


def test_what_a_killed_process_left_is_deleted_and_nothing_else(folder):
    others = [folder / "gristmill-0", folder / "gristmill-demo-x"]
    for path in others:
        path.mkdir()
    (folder / "gristmill-scratch-link").symlink_to(others[0])
    (others[0] / "mine").write_bytes(b"mine")
    with holder() as killed, holder() as alive:
        assert killed.stdout is not None
        assert alive.stdout is not None
        left, used = (p.stdout.readline().strip() for p in (killed, alive))
        assert os.path.exists(f"{left}/shard")
        killed.send_signal(signal.SIGKILL)
        killed.wait(60)
        assert os.path.exists(f"{left}/shard")
        with scratch_directory():
            assert not os.path.exists(left)
            assert os.path.exists(f"{used}/shard")
        alive.communicate()
    assert sorted(os.listdir(folder)) == [
        *("gristmill-0", "gristmill-demo-x", "gristmill-scratch-link")
    ]
    assert (others[0] / "mine").read_bytes() == b"mine"


def test_where_directories_cannot_be_locked_nothing_is_deleted(folder, monkeypatch):
    left = folder / "gristmill-scratch-left"
    left.mkdir()

    failing(monkeypatch, fcntl, "flock", OSError(38, os.strerror(38)))
    with scratch_directory() as directory:
        assert os.path.isdir(directory)
    assert os.listdir(folder) == [left.name]
