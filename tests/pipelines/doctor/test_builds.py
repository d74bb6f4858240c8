"""Native builds, in environments where they are missing or broken."""

from __future__ import annotations

import importlib.util
import pathlib
import shutil
import sys

from gristmill.pipelines.doctor.installation import look_at_builds
from tests.support.namespaces import run_json

LOOK = """
import dataclasses, json, sys
{}
from gristmill.pipelines.doctor.installation import look_at_builds
print(json.dumps([dataclasses.asdict(one) for one in look_at_builds(None)]))
"""


def test_what_is_installed_here_works() -> None:
    (found,) = look_at_builds(None)
    assert (found.level, "snappy" in found.seen) == ("ok", True), found


def test_parts_that_are_missing_are_named(tmp_path: pathlib.Path) -> None:
    # As of an installation without a wheel for this platform: no compiled files.
    spec = importlib.util.find_spec("google_crc32c")
    assert spec is not None
    assert spec.origin is not None
    shutil.copytree(
        pathlib.Path(spec.origin).parent,
        tmp_path / "google_crc32c",
        ignore=shutil.ignore_patterns("*.so", "__pycache__"),
    )
    # As of one for another C library, and as of one that returns something else.
    (tmp_path / "brotli.py").write_text("raise ImportError('wrong ELF class')\n")
    (tmp_path / "cramjam.py").write_text(
        "class snappy:\n    compress_raw = decompress_raw = lambda data: data[:-1]\n"
    )
    code = (
        "sys.modules['gristmill.dataset.arrayrecord._chunk_hash'] = None\n"
        "import zstandard; zstandard.backend = 'cffi'"
    )
    found = run_json(
        [sys.executable, "-c", LOOK.format(code)], PYTHONPATH=str(tmp_path)
    )
    crc32c, chunk_hash, zstd, brotli, snappy = found
    assert crc32c["level"] == chunk_hash["level"] == zstd["level"] == "warning"
    assert crc32c["seen"] == "google_crc32c runs in python, not in C"
    assert "--only-binary :all: google-crc32c" in crc32c["cure"]
    assert "is not compiled" in chunk_hash["seen"]
    assert "to write shards takes longer" in chunk_hash["why"]
    assert "--no-cache-dir gristmill" in chunk_hash["cure"]
    assert "cffi" in zstd["seen"]
    assert brotli["level"] == snappy["level"] == "error"
    assert brotli["seen"] == "brotli does not work: ImportError: wrong ELF class"
    assert "other bytes than were compressed" in snappy["seen"]
    assert snappy["cure"].endswith(" cramjam")
