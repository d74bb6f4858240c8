"""A conversion that is killed goes on, whatever the format of its inputs."""

from __future__ import annotations

import gzip
import pathlib
import signal

import pytest

from tests.faults.kills import Killer
from tests.order.input_files import WRITERS, rows_of
from tests.support.conversion import contents, read_output, skipped_in

ROWS = rows_of(1, 600)
BAD = (3, 290, 571)
# By itself: each command would import all that this file does.
KEEP = """
def keep_most(record):
    return None if record.startswith(b"17") else record + b"!"
"""


def write(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Writes rows, of lines and of frames some that are damaged."""
    path = folder / f"in.{name}"
    WRITERS[name](path, ROWS)
    data = path.read_bytes()
    if name == "tfrecord":
        damaged, at = bytearray(data), 0
        for number in range(max(BAD) + 1):
            if number in BAD:
                damaged[at + 14] ^= 1
            at += 16 + int.from_bytes(data[at : at + 8], "little")
        path.write_bytes(gzip.compress(damaged))
    elif name == "jsonl":
        lines = data.splitlines(True)
        for number in BAD:
            lines[number] = lines[number].replace(b"}", b"")
        path.write_bytes(b"".join(lines))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["tfrecord", "jsonl", "csv", "parquet", "webdataset", "arrayrecord"]
)
def test_a_killed_command_goes_on(tmp_path, name) -> None:
    (tmp_path / "keeping.py").write_text(KEEP)
    path = write(tmp_path, name)
    argv = ["--name", "data", "--num-shards", "9", "--workers", "1", "--on-corrupt"]
    argv += ["skip", "--input-format", name, "--map", "keeping:keep_most"]
    with Killer(tmp_path) as killer:

        def run(output: pathlib.Path, **kill):
            command = ["convert", str(path), str(output), *argv]
            return killer.run(command, cwd=tmp_path, **kill)

        ended = run(tmp_path / "undisturbed")
        assert ended.status == 0, ended.error
        expected, left = contents(tmp_path / "undisturbed"), set()
        for kill_at in (9, 24, 41):
            output = tmp_path / str(kill_at)
            ended = run(output, kill_at=kill_at)
            assert ended.status == -signal.SIGKILL, ended.error
            before = finished(output)
            left.add(len(before))
            # Again, and killed in one of the shards that are missing.
            run(output, kill_at=13, after=True)
            ended = run(output)
            assert ended.status == 0, ended.error
            assert before.items() <= finished(output).items()
            assert contents(output) == expected
    assert len(left) > 1  # They were killed at different shards.
    bad = len(BAD) if name in ("tfrecord", "jsonl") else 0
    assert len(skipped_in(tmp_path / "undisturbed")) == bad
    assert len(read_output(tmp_path / "undisturbed")) > 500


def finished(output: pathlib.Path) -> dict[str, tuple[int, int]]:
    """Returns the identity of each shard that has its index."""
    names = {path.stem for path in output.glob("index/*.index")}
    states = {name: (output / name).stat() for name in names}
    return {name: (state.st_ino, state.st_mtime_ns) for name, state in states.items()}
