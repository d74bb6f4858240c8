"""`gristmill demo` and `doctor`: a first dataset, and a look at this machine."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import json
import os
import platform
import random
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import click

from gristmill import __version__
from gristmill.dataset.base.errors import GristmillError, StorageError
from gristmill.dataset.base.system import daemon_call
from gristmill.dataset.storage.paths import path_text, split_path
from gristmill.pipelines.commands.command import EXIT_FAILED, command
from gristmill.pipelines.commands.jobs import run_conversion
from gristmill.pipelines.commands.messages import is_quiet, next_step, refuse, show
from gristmill.pipelines.commands.shared_options import argument
from gristmill.pipelines.options.job_options import ConvertOptions
from gristmill.pipelines.text.printer import plural, size_text

_FILES, _RECORDS = 4, 1000
_TEXT = """
the of and to in a is that for it was on are as with they be at this from have
or by one had not but what all were when we there can an your which their said
if do will each about how up out them then she many some so these would other
into has more her two like him see time could no make than first been its who
now people my made over did down only way find use may water long little very
after words
"""
_SPECIAL = ("<unk>", "<s>", "</s>")


@command(with_json=False)
@argument("directory", required=False)
def demo(given: Any) -> None:
    """Write small TFRecord files, convert them, and show records.

    DIRECTORY, by default a new temporary one, gets 4 files of made-up text, 6 MB in
    all, a tokenizer of their words, and the dataset.
    """
    from gristmill.dataset.storage.base import explained
    from gristmill.dataset.storage.paths import path_text
    from gristmill.loader import open as open_dataset
    from gristmill.pipelines.text.records import ShownRecord

    made = given.directory or tempfile.mkdtemp(prefix="gristmill-demo-")
    directory = path_text(made, "demo")
    refuse(
        "://" in directory,
        "the demo writes to local disks only",
        where=directory,
        cure="give a local directory, or none for a temporary one",
    )
    with explained("write to the directory", directory):
        pattern = _write_tfrecords(f"{directory}/tfrecords")
        _write_tokenizer(f"{directory}/tokenizer.json")
    output = f"{directory}/demo"
    line = ("gristmill", "convert", pattern, output, "--num-shards", "8")
    click.echo(f"$ {shlex.join(line)}")
    conversion = ConvertOptions(input=(pattern,), output=output, num_shards=8)
    where = {"show_progress": not is_quiet()}
    click.echo(run_conversion(conversion, where).text())
    click.echo(f"\n$ {shlex.join(('gristmill', 'head', output))}")
    for number, record in enumerate(open_dataset(output)[:3]):
        click.echo(ShownRecord(number, record).text())
    next_step("inspect", output)


def _write_tfrecords(directory: str) -> str:
    """Writes TFRecord files; returns a pattern that matches them."""
    from gristmill.dataset.base.example import encode_example
    from gristmill.dataset.formats.tfrecord_frames import encode_frame

    os.makedirs(directory, exist_ok=True)
    rng, words = random.Random(17), _TEXT.split()
    for file in range(_FILES):
        path = os.path.join(directory, f"demo.tfrecord-{file:05d}-of-{_FILES:05d}")
        frames = []
        for number in range(file * _RECORDS, (file + 1) * _RECORDS):
            text = " ".join(rng.choices(words, k=rng.randint(40, 600)))
            frames.append(encode_frame(encode_example({"text": text, "id": number})))
        data = b"".join(frames)
        # Kept if it exists: a changed input would be an error in a repeated demo.
        if not os.path.exists(path) or os.path.getsize(path) != len(data):
            with open(path, "wb") as out:
                out.write(data)
    return os.path.join(directory, "demo.tfrecord-*")


def _write_tokenizer(path: str) -> None:
    """Writes a tokenizer of the words, for `gristmill pack`, as Hugging Face has it."""
    vocabulary = {token: i for i, token in enumerate((*_SPECIAL, *_TEXT.split()))}
    as_it_is = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": token, **as_it_is, "special": True}
            for i, token in enumerate(_SPECIAL)
        ],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    with open(path, "w", encoding="utf-8") as out:
        json.dump(tokenizer, out, indent=1)


_SHARED_BYTES = 32 << 20  # Two batches of a worker.
_FREE_BYTES = 1 << 30
_PACKAGES = (
    *("numpy", "pyarrow", "google-crc32c", "zstandard", "brotli", "cramjam"),
    *("array_record", "apache-beam", "google-cloud-storage", "grain", "jax"),
)
# Compiled modules, with their packages.
_COMPILED = {
    "google_crc32c._crc32c": "google-crc32c",
    "zstandard.backend_c": "zstandard",
    "_brotli": "brotli",
    "cramjam": "cramjam",
}
_Answer = tuple[str, str]  # The observation and the cure, "" if none is needed.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of a check.

    Attributes:
        check: Name of the check.
        level: `ok`; `warning`: work is slow, or may fail; `error`: work fails.
        seen: The observation.
        cure: What to do; "" if nothing.
    """

    check: str
    level: str
    seen: str
    cure: str = ""

    def text(self) -> str:
        """Returns a line, and another one with the cure."""
        cure = f"\n{'':18}to do: {self.cure}" if self.cure else ""
        return f"{self.level:7}  {self.check:8} {self.seen}{cure}"


@command(looks=True)
@argument("dataset", required=False)
def doctor(given: Any) -> None:
    """Check this machine, and where DATASET is stored.

    It looks at versions, compiled parts, memory and disks; for a dataset also at locks
    in its directory, or at its bucket. The exit code is 1 if there is an error.
    """
    dataset = given.dataset
    findings = examine(dataset)
    show({"findings": findings}, "\n".join(finding.text() for finding in findings))
    if any(finding.level == "error" for finding in findings):
        sys.exit(EXIT_FAILED)  # The findings say what to do.
    if dataset is None:
        next_step("demo", why="to try it here")
    else:
        next_step("inspect", dataset)


def examine(dataset: str | None, *, seconds: float = 15.0) -> list[Finding]:
    """Runs all checks at once; one that does not answer in time is a warning.

    Args:
        dataset: A dataset's directory; None to check the machine alone.
        seconds: The time for all of them.

    Raises:
        InputError: The dataset is not a path.
    """
    path = None if dataset is None else path_text(dataset, "dataset")
    local = None if path is None or "://" in path else path
    looks: dict[str, Callable[[], _Answer]] = {
        "versions": _versions,
        "compiled": _compiled,
        "memory": _memory,
        "disk": lambda: _disk(local),
    }
    if path is not None:
        if local is None:
            looks["bucket"] = lambda: _bucket(path, seconds)
        else:
            looks["locks"] = lambda: _locks(path)
    running = {
        name: daemon_call(look, thread_name=f"gristmill-doctor-{name}")
        for name, look in looks.items()
    }
    deadline, found = time.monotonic() + seconds, []
    for name, call in running.items():
        try:
            seen, cure = call.result(max(0.0, deadline - time.monotonic()))
            level = "warning" if cure else "ok"
        except TimeoutError:
            level, seen = "warning", "no answer in time"
            cure = "check the network and the mounts (`findmnt`)"
        except GristmillError as e:
            level, seen = "error", f"{e.where}: {e.summary}" if e.where else e.summary
            cure = e.cure or ""
        found.append(Finding(check=name, level=level, seen=seen, cure=cure))
    return found


def _versions() -> _Answer:
    seen = f"gristmill {__version__}, Python {platform.python_version()}"
    for name in _PACKAGES:
        try:
            seen += f", {name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return f"{seen}, {platform.platform()}", ""


def _compiled() -> _Answer:
    from gristmill.dataset.arrayrecord.compiled import decoder

    missing = []
    for name, package in _COMPILED.items():
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(package)
    if missing:
        names = " ".join(missing)
        cure = f"pip install --force-reinstall --no-deps --only-binary :all: {names}"
        return f"not compiled, which is slow: {names}", cure
    if decoder() is None:
        seen = "the chunk decoder of gristmill is not compiled, which is slow"
        return seen, "install a C compiler (gcc, python3-dev), then gristmill again"
    return "checksums, chunk decoder, zstd, brotli and snappy are compiled", ""


def _memory() -> _Answer:
    from gristmill.pipelines.local.pool import default_workers

    if sys.platform != "linux":
        return "not looked at: this is not Linux", ""
    with open("/proc/meminfo", encoding="ascii") as file:
        available = re.search(r"MemAvailable: +(\d+)", file.read())
    memory = size_text(1024 * int(available[1])) if available else "unknown"
    shared, workers = _free("/dev/shm"), default_workers()
    seen, cure = f"{memory} available; {size_text(shared)} free in /dev/shm", ""
    if shared < workers * _SHARED_BYTES:
        seen += f", little for batches of {plural(workers, 'worker')}"
        cure = "mount -o remount,size=2G /dev/shm, or docker run --shm-size=2g"
    return seen, cure


def _disk(path: str | None) -> _Answer:
    places = {"temporary files": tempfile.gettempdir(), "the dataset": path}
    places["the cache"] = os.environ.get("GRISTMILL_CACHE_DIR")
    seen, cure = [], ""
    for what, place in places.items():
        if place:
            there = _existing(place)
            seen.append(f"{size_text(_free(there))} free for {what} in {place}")
            if not os.access(there, os.W_OK | os.X_OK):
                seen[-1] += ", where this user cannot write"
                cure = (
                    "choose another place: TMPDIR, GRISTMILL_CACHE_DIR, another output"
                )
            elif _free(there) < _FREE_BYTES:
                cure = cure or "free some space, or choose another place"
    return "; ".join(seen), cure


def _existing(path: str) -> str:
    """Returns the path, or the nearest directory above it that exists."""
    there = os.path.abspath(path)
    while not os.path.isdir(there):
        there = os.path.dirname(there)
    return there


def _free(path: str) -> int:
    """Returns the free bytes of a file system, 0 if there is none."""
    try:
        about = os.statvfs(path)
    except OSError:
        return 0
    return about.f_bavail * about.f_frsize


def _locks(path: str) -> _Answer:
    from gristmill.dataset.storage.directory_lock import locked, unless_in_use

    there = _existing(path)
    with locked(there, wait_seconds=1.0), unless_in_use(there) as unlocked:
        if not unlocked:
            return f"a lock of {there} keeps out other processes", ""
    seen = f"locks do not hold in {there}: two writers at once could lose data"
    return seen, "run one command at a time on a dataset there"


def _bucket(path: str, seconds: float) -> _Answer:
    from gristmill.pipelines.dataflow import clients

    name, _ = split_path(path)
    third = seconds / 3  # For each of two requests: then there is time to answer.
    connection = clients.connect(timeout_seconds=seconds, deadline_seconds=third)
    found = clients.describe(connection, name, clients.WRITE, "dataset")
    if missing := clients.READ - found.permissions:
        role = clients.bucket_roles(missing, wanted=clients.READ)
        raise StorageError(
            f"this account may not read the bucket: {', '.join(sorted(missing))}",
            where=f"gs://{name}",
            cure=f"grant {role} on the bucket to this account",
        )
    where = found.location or "an unknown location"
    writes = "" if found.permissions.issuperset(clients.WRITE) else ", not write"
    return f"gs://{name} is in {where}; this account may read{writes}", ""
