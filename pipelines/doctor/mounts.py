"""FUSE mounts through which a dataset is read, and their important flags."""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Iterator
from typing import Any

from gristmill.dataset.base.errors import GristmillError
from gristmill.dataset.metadata import layout
from gristmill.pipelines.doctor.dataset_place import DatasetPlace, Mount, mount_of
from gristmill.pipelines.doctor.finding import Finding, error, ok, warning
from gristmill.pipelines.text.formatting import plural

_GCSFUSE = "gcsfuse"
# Programs that show objects of a store as files.
_STORES = {_GCSFUSE, "blobfuse", "blobfuse2", "geesefs", "goofys", "juicefs"} | {
    "mountpoint-s3",
    "rclone",
    "s3fs",
}
# Flag of gcsfuse -> a value that suits training, and the effect without it.
# https://cloud.google.com/storage/docs/cloud-storage-fuse/cli-options
_FLAGS = {
    "cache-dir": ("/a/disk", "every epoch is requested again"),
    "file-cache-cache-file-for-range-read": (
        "true",
        "random reads do not fill the cache of files",
    ),
    "metadata-cache-ttl-secs": ("-1", "shards are looked up again after a minute"),
    "stat-cache-max-size-mb": ("-1", "some 20,000 files are remembered, no more"),
}
# Flags that a profile for training or serving sets.
_OF_PROFILES = ("metadata-cache-ttl-secs", "stat-cache-max-size-mb")
_IMPLICIT = "implicit-dirs"


def look_at_mount(place: DatasetPlace) -> Iterator[Finding]:
    """Yields the faults of a dataset's mount."""
    mount = None if place.remote else mount_of(place.path)
    if mount is None:
        return
    if not mount.kind.startswith("fuse"):
        yield ok(f"{place.path} is on {mount.kind}, mounted at {mount.point}")
        return
    yield from _foreign(mount)
    try:
        manifest = place.manifest()
    except TimeoutError:
        yield error(
            f"the {mount.kind} mount at {mount.point} does not answer",
            why="every program that looks at it hangs",
            cure=f"fusermount -uz {shlex.quote(mount.point)}, and mount it again",
        )
        return
    except GristmillError:
        return  # The check of jobs reports faults of the dataset.
    program = mount.kind.removeprefix("fuse.")
    if program not in _STORES:
        yield ok(f"{place.path} is on {mount.kind}, mounted at {mount.point}")
        return
    flags = _gcsfuse_flags(mount.point) if program == _GCSFUSE else None
    address = _address(place, mount, flags)
    if manifest is not None and not os.path.isdir(
        layout.join(place.path, layout.INDEX_DIR)
    ):
        yield error(
            f"the mount at {mount.point} shows dataset.json, and no directory "
            f"{layout.INDEX_DIR}/",
            why="directories that no mount has made are no objects: without "
            f"--{_IMPLICIT} gcsfuse does not show them, and the dataset cannot be read",
            cure=f"mount with --{_IMPLICIT}, or give {address}",
        )
    elif manifest is None:
        yield warning(
            f"{place.path} is in a {mount.kind} mount, for an output",
            why="such mounts have no hard links, and copy what is renamed: a commit is "
            "slow, and not safe against a second writer",
            cure=f"give {address} as output",
        )
    yield from _reading(mount, address, flags)


def _foreign(mount: Mount) -> Iterator[Finding]:
    """Yields that a mount is only for another user."""
    owner = f"user_id={os.geteuid()}"
    owners = [option for option in mount.options if option.startswith("user_id=")]
    if owners and owner not in owners and "allow_other" not in mount.options:
        yield error(
            f"{mount.point} was mounted by {owners[0].replace('=', ' ')}, for itself",
            why="the kernel refuses other users, root too",
            cure="echo user_allow_other >> /etc/fuse.conf, and mount it with "
            "-o allow_other",
        )


def _reading(
    mount: Mount, address: str, flags: dict[str, str] | None
) -> Iterator[Finding]:
    """Yields the cost of reading through the mount, and flags that reduce it."""
    seen, mounting = f"{mount.kind} at {mount.point}{_read_ahead(mount)}", ""
    if mount.kind.endswith(_GCSFUSE):
        wanted = [*_FLAGS] if flags is None else _missing(flags)
        if not wanted:
            yield ok(f"{seen}; its flags suit training")
            return
        lacks = "; ".join(f"{name}: {_FLAGS[name][1]}" for name in wanted)
        seen += (
            "; its process is not to be seen from here, nor its flags"
            if flags is None
            else f"; {plural(len(wanted), 'flag')} not given ({lacks})"
        )
        more = " ".join(f"--{name}={_FLAGS[name][0]}" for name in wanted)
        mounting = f", or mount with {more}"
    yield warning(
        seen,
        why="local files are mapped into memory: of a mount each random record becomes "
        "requests one after the other, where gs:// paths send 256 at once",
        cure=f"give the loader {address}{mounting}",
    )


def _missing(flags: dict[str, str]) -> list[str]:
    """Returns the flags that would help and are not set."""
    profiled = _OF_PROFILES if flags.get("profile", "").startswith("aiml-") else ()
    unset = ("", "0", "false")
    return [
        name for name in _FLAGS if flags.get(name, "") in unset and name not in profiled
    ]


def _address(place: DatasetPlace, mount: Mount, flags: dict[str, str] | None) -> str:
    """Returns the path of a dataset in its bucket, as far as the mount shows it."""
    if not mount.kind.endswith(_GCSFUSE):
        return "a copy in gs:// or on a local disk"
    if flags is None:  # Part of a bucket can be mounted.
        return f"its path in gs://{mount.source}"
    inside = os.path.relpath(os.path.abspath(place.path), mount.point)
    bucket = () if mount.source == _GCSFUSE else (mount.source,)  # All are mounted.
    parts = [*bucket, flags.get("only-dir", ""), inside]
    return (
        f"gs://{'/'.join(part.strip('/') for part in parts if part not in ('', '.'))}"
    )


def _gcsfuse_flags(point: str) -> dict[str, str] | None:
    """Returns the flags of the process that serves a mount, None if it is hidden."""
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                words = file.read().decode("utf-8", "replace").split("\0")[:-1]
        except OSError:
            continue  # It has ended.
        own = words and os.path.basename(words[0]) == _GCSFUSE
        if own and os.path.abspath(words[-1]) == point:
            return _parsed_flags(words[1:])
    return None


def _parsed_flags(words: list[str]) -> dict[str, str]:
    flags = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("-"):
            name, given, value = word.lstrip("-").partition("=")
            if not given:
                value = "true" if following.startswith("--") else following or "true"
            flags[name] = value
    return _of_file(flags.get("config-file", "")) | flags


def _of_file(path: str) -> dict[str, str]:
    """Returns the settings of a configuration file by the names of their flags."""
    try:
        import yaml

        with open(path, encoding="utf-8") as file:
            document = yaml.safe_load(file)
    except (ImportError, OSError, ValueError, yaml.YAMLError):
        return {}
    found: dict[str, str] = {}

    def put(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                put(f"{prefix}-{name}" if prefix else str(name), inner)
        else:
            found[prefix] = str(value).lower()

    put("", document)
    # Flags leave the section out here.
    if "metadata-cache-stat-cache-max-size-mb" in found:
        stat = "stat-cache-max-size-mb"
        found[stat] = found[f"metadata-cache-{stat}"]
    return found


def _read_ahead(mount: Mount) -> str:
    try:
        with open(f"/sys/class/bdi/{mount.device}/read_ahead_kb") as file:
            return f", which reads {int(file.read()):,} KiB ahead"
    except (OSError, ValueError):
        return ""
