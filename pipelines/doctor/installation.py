"""The versions of what is installed, and trials of its native builds."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gristmill
from gristmill.pipelines.doctor.dataset_place import DatasetPlace
from gristmill.pipelines.doctor.finding import Finding, error, ok, warning

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_DEVELOPERS = re.compile(r"extra *== *[\"']dev[\"']")


def installed_versions(
    requires: Callable[[str], list[str] | None] = importlib.metadata.requires,
) -> dict[str, str]:
    """Returns the versions of installed packages by name, without importing them.

    These are Python, gristmill, and the packages that its extras name.

    Args:
        requires: Returns the requirements of an installed package.
    """
    found = {"python": platform.python_version(), "gristmill": gristmill.__version__}
    try:
        requirements = requires("gristmill") or []
    except importlib.metadata.PackageNotFoundError:  # It runs from its sources.
        return found
    for requirement in sorted(requirements, key=str.lower):
        named = _NAME.match(requirement)
        if named is not None and not _DEVELOPERS.search(requirement):
            try:
                found[named[0]] = importlib.metadata.version(named[0])
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def look_at_versions(place: DatasetPlace | None) -> Iterator[Finding]:
    """Yields the versions of gristmill and Python, and the number of packages."""
    del place
    found = installed_versions()
    yield ok(
        f"gristmill {found['gristmill']} on Python {found['python']}, with "
        f"{len(found) - 2} of the packages that it can use"
    )


_TRIAL = bytes(range(256)) * 256
_REINSTALL = "pip install --force-reinstall --no-deps --only-binary :all: {}"


def _zstd(module: Any) -> bytes:
    packed = module.ZstdCompressor().compress(_TRIAL)
    return bytes(module.ZstdDecompressor().decompress(packed))


def _brotli(module: Any) -> bytes:
    return bytes(module.decompress(module.compress(_TRIAL, quality=1)))


def _snappy(module: Any) -> bytes:
    packed = module.snappy.compress_raw(_TRIAL)
    return bytes(module.snappy.decompress_raw(packed))


def _loaded(module: Any) -> bytes:
    del module
    return _TRIAL


# Codec -> its module, its package, and a trial.
_NATIVE: dict[str, tuple[str, str, Callable[[Any], bytes]]] = {
    "zstd": ("zstandard", "zstandard", _zstd),
    "brotli": ("brotli", "brotli", _brotli),
    "snappy": ("cramjam", "cramjam", _snappy),
    "ArrayRecord": (
        "array_record.python.array_record_module",
        "array_record",
        _loaded,
    ),
}


def look_at_builds(place: DatasetPlace | None) -> Iterator[Finding]:
    """Yields native parts that are missing, slow or broken, or that all are fine."""
    del place
    found = [*_crc32c(), *_chunk_hash(), *_codecs()]
    yield from found or [
        ok(f"crc32c, chunk hash, {', '.join(_NATIVE)} are native and work")
    ]


def _crc32c() -> Iterator[Finding]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It warns of what is reported here.
        import google_crc32c
    if google_crc32c.implementation != "c":
        yield warning(
            f"google_crc32c runs in {google_crc32c.implementation}, not in C",
            why="every record has a checksum: to compute them in Python takes two "
            "thousand times as long, at 3 MB/s",
            cure=_REINSTALL.format("google-crc32c"),
        )


def _chunk_hash() -> Iterator[Finding]:
    from gristmill.dataset.arrayrecord.chunk_hash import is_compiled

    if not is_compiled():
        yield warning(
            "the chunk hash of gristmill is not compiled: numpy computes it",
            why="it gives the same hashes, but at some 100 MB/s instead of "
            "gigabytes a second: to write shards takes longer, and to read files "
            "without an index",
            cure="apt-get install gcc python3-dev, or the like, then pip install "
            "--force-reinstall --no-deps --no-cache-dir gristmill",
        )


def _codecs() -> Iterator[Finding]:
    for codec, (name, package, trial) in _NATIVE.items():
        got = ""
        try:
            module = importlib.import_module(name)
            if trial(module) != _TRIAL:
                got = "other bytes than were compressed"
        except Exception as e:  # Native code fails in ways of its own.
            got = f"{type(e).__name__}: {e}"
        if got:
            yield error(
                f"{codec} does not work: {got}",
                why="shards that are compressed so can be neither written nor read"
                if package != "array_record"
                else "shards with transposed chunks cannot be read",
                cure=_REINSTALL.format(package),
            )
        elif codec == "zstd" and module.backend != "cext":
            yield warning(
                f"zstandard runs its {module.backend} backend, not the one in C",
                why="it compresses and decompresses slower",
                cure=_REINSTALL.format(package),
            )
