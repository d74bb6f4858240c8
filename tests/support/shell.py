"""The command line, as a shell calls it, and what it gets to convert."""

from __future__ import annotations

import pathlib
import subprocess
import sys

from tests.support.records import read_array_records, text_records, write_tfrecords

FILES, RECORDS = 3, 200


def gristmill(
    *arguments: str, cwd: pathlib.Path, **options
) -> subprocess.CompletedProcess:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "gristmill",
            *map(str, arguments),
        ],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


def succeeded(*arguments: str, cwd: pathlib.Path) -> str:
    done = gristmill(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_source(directory: pathlib.Path) -> pathlib.Path:
    """Writes the TFRecord files that `expected_records` are in."""
    for file in range(FILES):
        write_tfrecords(
            directory / f"part-{file}.tfrecord", text_records(RECORDS, seed=file)
        )
    return directory


def expected_records() -> list[bytes]:
    return [r for file in range(FILES) for r in text_records(RECORDS, seed=file)]


def records_of(output: pathlib.Path, split: str = "train") -> list[bytes]:
    shards = sorted(output.glob(f"*-{split}.array_record-*"))
    return [record for shard in shards for record in read_array_records(shard)]
