"""The place of a dataset, which checks share, and the mount that it is in."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from typing import NamedTuple

from gristmill.dataset.base.daemon_call import daemon_call
from gristmill.dataset.base.errors import GristmillError
from gristmill.dataset.metadata.manifest import Manifest, read_manifest
from gristmill.dataset.storage.paths import path_text

_TABLE = "/proc/self/mountinfo"
_ESCAPED = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """A mount.

    Attributes:
        point: Its directory.
        kind: Type of the file system, such as `ext4`, `tmpfs` or `fuse.gcsfuse`.
        source: What is mounted; the bucket for gcsfuse.
        options: Options of the mount and of the file system, such as `ro`, `user_id=0`.
        device: Its number as MAJOR:MINOR.
    """

    point: str
    kind: str
    source: str
    options: frozenset[str]
    device: str


def parse_mounts(table: str) -> list[Mount]:
    """Returns the mounts of a `mountinfo` of the kernel, in its order.

    Source: proc_pid_mountinfo(5).
    """
    found = []
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        fields, system = before.split(" "), after.split(" ")
        if len(fields) < 6 or len(system) < 3:
            continue
        options = frozenset([*fields[5].split(","), *system[2].split(",")])
        point, source = _unescaped(fields[4]), _unescaped(system[1])
        found.append(Mount(point, system[0], source, options, fields[2]))
    return found


def mount_of(path: str) -> Mount | None:
    """Returns the mount of a path, None if the system has no such list.

    A path in a mount of FUSE is not touched: its server may be gone.
    """
    try:
        with open(_TABLE, encoding="utf-8", errors="surrogateescape") as file:
            mounts = parse_mounts(file.read())
    except OSError:
        return None
    found = _innermost(mounts, os.path.abspath(path))
    if found is not None and found.kind.startswith("fuse"):
        return found
    return _innermost(mounts, os.path.realpath(path))


def _innermost(mounts: list[Mount], path: str) -> Mount | None:
    found = None
    for mount in mounts:  # Later ones cover earlier ones.
        inside = mount.point == "/" or f"{path}/".startswith(f"{mount.point}/")
        if inside and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def _unescaped(text: str) -> str:
    """Returns a path whose blanks and backslashes are written as octal numbers."""
    data = text.encode("utf-8", "surrogateescape").decode("latin-1")
    data = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), data)
    return data.encode("latin-1").decode("utf-8", "surrogateescape")


_SECONDS, _MOUNT_SECONDS = 5.0, 3.0


class DatasetPlace:
    """A dataset's directory: local, or in a bucket.

    Attributes:
        path: The directory, without a slash at the end.
        remote: Whether it is in a bucket.
    """

    def __init__(self, dataset: str):
        text = path_text(dataset, "dataset")
        self.path = text.rstrip("/") or text
        self.remote = "://" in text
        self._manifest = daemon_call(
            self._read, thread_name="gristmill-doctor-manifest"
        )

    def manifest(self) -> Manifest | None:
        """Returns the content of `dataset.json`, None if there is none.

        Raises TimeoutError if the place does not answer, GristmillError if it cannot be
        read.
        """
        return self._manifest.result(_SECONDS)

    def _read(self) -> Manifest | None:
        mount = None if self.remote else mount_of(self.path)
        if mount is not None and mount.kind.startswith("fuse"):
            _wait_for_mount(self.path)
        return read_manifest(self.path)

    def known(self) -> Manifest | None:
        """Returns the same; None also if it cannot be read, which one check reports."""
        with contextlib.suppress(GristmillError, TimeoutError):
            return self.manifest()
        return None


def _wait_for_mount(path: str) -> None:
    """Raises TimeoutError if a mount of FUSE does not answer.

    A process that accesses a stuck mount cannot even be killed, so another process does
    it.
    """
    quiet = subprocess.DEVNULL
    code = "import os, sys; os.path.exists(sys.argv[1])"
    asking = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, path],
        stdin=quiet,
        stdout=quiet,
        stderr=quiet,
        start_new_session=True,
    )
    try:
        asking.wait(_MOUNT_SECONDS)
    except subprocess.TimeoutExpired as e:
        asking.kill()  # It ends as soon as the mount does.
        raise TimeoutError(path) from e
