"""How many files a process may have open, against what loader and workers need."""

from __future__ import annotations

import resource
from collections.abc import Iterator

from gristmill.loader.reading.shard_file import READ_LIMITS
from gristmill.pipelines.doctor.finding import Finding, error, ok, warning
from gristmill.pipelines.doctor.place import Place
from gristmill.pipelines.local.pool import default_workers
from gristmill.pipelines.results.formatting import plural

# What a feed opens for all of its workers, and for each.
SHARED_FILES, WORKER_FILES = 8, 12
# What Python, libraries and logs have open.
_PROCESS_FILES = 64
# 256 reads of a bucket at once take up to so many connections: docs/train/storage.md.
_CONNECTIONS = 530
# An open local shard and its index, and what a reader leaves to the process.
_SHARD_FILES, SPARE_FILES = 2, 256
_WANTED = 65_536
_CURE = (
    f"ulimit -n {_WANTED}; where that is refused, LimitNOFILE={_WANTED} of a systemd "
    f"unit, or docker run --ulimit nofile={_WANTED}"
)


def look_at_descriptors(place: Place | None) -> Iterator[Finding]:
    """Yields what there are too few descriptors for, or how many there are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    # gristmill raises the soft limit where it counts what it opens.
    most = _WANTED if hard == unlimited else hard
    now = _WANTED if soft == unlimited else soft
    limits = f"open files: at most {now:,}"
    if most > now:
        limits += f", or {most:,} where gristmill raises the limit"
    workers = default_workers()
    feed = _PROCESS_FILES + SHARED_FILES + WORKER_FILES * workers
    least = _PROCESS_FILES + SHARED_FILES + WORKER_FILES
    found = []
    if most < least:
        found.append(
            error(
                f"{limits}; a feed with one worker needs {least:,}",
                why="feeds with workers are refused, and conversions may fail",
                cure=_CURE,
            )
        )
    elif most < feed:
        found.append(
            warning(
                f"{limits}; a feed with {plural(workers, 'worker')} needs {feed:,}",
                why="feeds with a worker for each core are refused",
                cure=_CURE,
            )
        )
    if now < _PROCESS_FILES + _CONNECTIONS and (place is None or place.remote):
        found.append(
            warning(
                f"{limits}; reading a bucket takes up to {_CONNECTIONS:,} connections",
                why='reads fail with "Too many open files" under load',
                cure=_CURE,
            )
        )
    manifest = None if place is None or place.remote else place.known()
    if manifest is not None:
        shards = max((split.shards for split in manifest.splits.values()), default=0)
        needed = _SHARD_FILES * min(shards, READ_LIMITS.open_shards) + SPARE_FILES
        if needed > most:
            found.append(
                warning(
                    f"{limits}; to keep {plural(shards, 'shard')} open takes "
                    f"{needed:,}",
                    why="shards are closed and opened again at every batch, which "
                    "costs more than to decode them",
                    cure=_CURE,
                )
            )
    yield from found or [ok(limits)]
