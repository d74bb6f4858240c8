"""A check of room on disks: for temporary files, the host's cache, an output."""

from __future__ import annotations

import os
import shlex
import stat
import tempfile
from collections.abc import Iterator

from gristmill.dataset.base.errors import GristmillError
from gristmill.pipelines.doctor.dataset_place import DatasetPlace, mount_of
from gristmill.pipelines.doctor.finding import Finding, error, ok, warning
from gristmill.pipelines.local.pool import default_workers
from gristmill.pipelines.text.formatting import size_text

# A shard in progress takes about as much as its input: 256 MiB by default.
_SHARD_BYTES = 256 << 20
_LEAST_BYTES = 64 << 20
_CACHE_BYTES = _OUTPUT_BYTES = 1 << 30
_LEAST_FILES = 1000
_IN_MEMORY = {"ramfs", "tmpfs"}


def look_at_disks(place: DatasetPlace | None) -> Iterator[Finding]:
    """Yields the faults of each place, or its room."""
    yield from _temporary()
    yield from _cache()
    if place is None or place.remote:
        return
    try:
        committed = place.manifest() is not None
    except TimeoutError:
        return  # The check of mounts reports it; asking again would take forever.
    except GristmillError:
        committed = False  # The check of jobs reports it.
    # An existing dataset can be read, however full its disk.
    yield from _room(
        "dataset" if committed else "output",
        place.path,
        needed=0 if committed else _OUTPUT_BYTES,
        cure="convert into another place",
    )


def _temporary() -> Iterator[Finding]:
    wanted = os.environ.get("TMPDIR")
    try:
        root = tempfile.gettempdir()
    except FileNotFoundError as e:
        yield error(
            f"no directory for temporary files: {e.strerror or e}",
            why="conversions to buckets make their shards there",
            cure="export TMPDIR=/a/directory/with/room",
        )
        return
    if wanted and os.path.abspath(wanted) != os.path.abspath(root):
        yield warning(
            f"TMPDIR is {wanted}, which cannot be written: {root} is used",
            why="shards in progress go to a disk that was not meant for them",
            cure=f"mkdir -p {shlex.quote(wanted)}, or export another TMPDIR",
        )
    needed = default_workers() * _SHARD_BYTES
    yield from _room(
        "temporary files",
        root,
        needed=needed,
        cure="export TMPDIR=/a/larger/disk, or give --shard-size or --workers less",
    )
    mount = mount_of(root)
    if mount is not None and mount.kind in _IN_MEMORY:
        yield warning(
            f"temporary files are in memory: {root} is a {mount.kind}",
            why=f"conversions to buckets make their shards there, up to "
            f"{size_text(needed)} at once",
            cure="export TMPDIR=/a/directory/on/a/disk",
        )


def _cache() -> Iterator[Finding]:
    root = os.environ.get("GRISTMILL_CACHE_DIR")
    if not root:
        root = os.path.join(tempfile.gettempdir(), f"gristmill-{os.getuid()}")
        try:
            found = os.stat(root, follow_symlinks=False)
        except OSError:
            found = None
        if found is not None and (
            found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode)
        ):
            yield error(
                f"the cache directory {root} is not a directory of this user",
                why="indexes of datasets in buckets are kept there",
                cure='export GRISTMILL_CACHE_DIR="$HOME/.cache/gristmill"',
            )
            return
    yield from _room(
        "cache",
        root,
        needed=_CACHE_BYTES,
        cure="export GRISTMILL_CACHE_DIR=/a/larger/disk",
    )


def _room(what: str, path: str, *, needed: int, cure: str) -> Iterator[Finding]:
    """Yields whether there is room at a path, or at its parent if it does not exist."""
    there = os.path.abspath(path)
    while not os.path.exists(there):
        there = os.path.dirname(there)
    about = os.statvfs(there)
    free = about.f_bavail * about.f_frsize
    seen = f"{what}: {size_text(free)} free at {path}"
    if not needed:
        yield ok(seen)
    elif not os.access(there, os.W_OK | os.X_OK) or about.f_flag & os.ST_RDONLY:
        yield error(
            f"{what}: this user cannot write to {there}",
            why="files are to be made there",
            cure=cure,
        )
    elif free < needed:
        yield (error if free < _LEAST_BYTES else warning)(
            f"{seen}; {size_text(needed)} are usual",
            why="what does not fit ends with an error",
            cure=f"free some space, or: {cure}",
        )
    elif about.f_files and about.f_favail < _LEAST_FILES:
        yield warning(
            f"{what}: only {about.f_favail:,} more files fit at {path} (inodes)",
            why="a shard takes two files, and a file in progress one",
            cure=f"delete some files, or: {cure}",
        )
    else:
        yield ok(seen)
