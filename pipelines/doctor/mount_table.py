"""The mounts of this machine, as listed by the kernel, without access to the mounts."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

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
