"""A check of room in `/dev/shm` for the batches that workers of a feed send."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import sys
import time
from collections.abc import Iterator

from gristmill.pipelines.doctor.dataset_place import DatasetPlace
from gristmill.pipelines.doctor.finding import Finding, error, ok, warning
from gristmill.pipelines.local.pool import default_workers
from gristmill.pipelines.text.formatting import plural, size_text

_DIRECTORY = "/dev/shm"
# A worker makes a batch while its last one waits for the reader.
_BATCHES_OF_A_WORKER = 2
_ROWS = 1024
_SHOWN = 3
# A batch waits only moments for its reader.
_UNTOUCHED_SECONDS = 60
_USUAL_BATCH_BYTES = 16 << 20
# The name that a feed gives to its blocks begins with the process that made it.
_BLOCK = re.compile(r"gristmill-(\d+)-[0-9a-f]{8}-.*")
_MAPPED = re.compile(rf"{_DIRECTORY}/(gristmill-\S+)")
_WHY = "a batch for which there is no room ends the feed with an error"


def look_at_shared_memory(place: DatasetPlace | None) -> Iterator[Finding]:
    """Yields whether batches have room, and the blocks that dead processes left.

    Nothing on systems other than Linux, which set no room aside for it.
    """
    if sys.platform != "linux":
        return
    try:
        about = os.statvfs(_DIRECTORY)
        usable = os.access(_DIRECTORY, os.W_OK | os.X_OK)
    except OSError:
        usable = False
    if not usable:
        yield error(
            f"{_DIRECTORY} is missing, or this user may not write there",
            why="feeds with workers send batches through it",
            cure=f"mount -t tmpfs -o mode=1777 tmpfs {_DIRECTORY}, or use workers=0",
        )
        return
    free = about.f_bavail * about.f_frsize
    total = about.f_blocks * about.f_frsize
    workers = default_workers()
    batch_bytes, what = _batch_bytes(place)
    needed = batch_bytes * workers * _BATCHES_OF_A_WORKER
    seen = f"{_DIRECTORY}: {size_text(free)} free of {size_text(total)}"
    if free < needed:
        yield warning(
            f"{seen}; {plural(workers, 'worker')} with {what} need {size_text(needed)}",
            why=_WHY,
            cure=f"mount -o remount,size={_rounded_gib(needed)}G {_DIRECTORY}; "
            f"docker run --shm-size={_rounded_gib(needed)}g; in Kubernetes an emptyDir "
            f"of medium Memory at {_DIRECTORY}; or fewer workers",
        )
    else:
        yield ok(f"{seen}; {plural(workers, 'worker')} need {size_text(needed)}")
    yield from _left_behind()


def _batch_bytes(place: DatasetPlace | None) -> tuple[int, str]:
    """Returns the size of a batch, and the assumptions."""
    manifest = None if place is None else place.known()
    splits = () if manifest is None else manifest.splits.values()
    means = [split.raw_bytes / split.records for split in splits if split.records]
    if not means:
        return _USUAL_BATCH_BYTES, f"batches of {size_text(_USUAL_BATCH_BYTES)}"
    return int(_ROWS * max(means)), (
        f"batches of {_ROWS:,} records of {size_text(max(means))}"
    )


def _rounded_gib(size_bytes: int) -> int:
    return -(-size_bytes // (1 << 30)) + 1


def _left_behind() -> Iterator[Finding]:
    """Yields the blocks of this user's processes that no longer exist."""
    left: dict[str, int] = {}
    for name in sorted(os.listdir(_DIRECTORY)):
        match = _BLOCK.fullmatch(name)
        if match is None or os.path.exists(f"/proc/{match[1]}"):
            continue
        with contextlib.suppress(OSError):
            status = os.stat(f"{_DIRECTORY}/{name}")
            old = time.time() - status.st_mtime > _UNTOUCHED_SECONDS
            if status.st_uid == os.geteuid() and old:
                left[name] = status.st_size
    # Processes of containers have other numbers there.
    used = _mapped_by_others() if left else ()
    names = [name for name in left if name not in used]
    sizes = sum(left[name] for name in names)
    if names:
        prefixes = [*dict.fromkeys(name.rsplit("-", 2)[0] for name in names)]
        files = " ".join(f"{_DIRECTORY}/{prefix}-*" for prefix in prefixes[:_SHOWN])
        more = ", and so on" if len(prefixes) > _SHOWN else ""
        yield warning(
            f"{plural(len(names), 'block')} in {_DIRECTORY} of feeds whose process has "
            f"ended: {size_text(sizes)}",
            why="they take memory until they are deleted",
            cure=f"rm {files}{more}; not if another container that trains shares "
            f"{_DIRECTORY}",
        )


def _mapped_by_others() -> set[str]:
    """Returns the blocks that visible processes have in their memory."""
    found: set[str] = set()
    for path in glob.glob("/proc/[0-9]*/maps"):
        with contextlib.suppress(OSError), open(path, errors="replace") as file:
            found.update(_MAPPED.findall(file.read()))
    return found
