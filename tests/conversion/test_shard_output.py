"""A user's function is tried on the first records, before anything is written."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from gristmill.dataset.base.errors import CorruptInputError, UserFunctionError
from gristmill.transforms.conversion.begin import list_inputs, try_function
from tests.support.conversion import convert, job_of, read_output
from tests.support.records import frames_of, text_records

RECORDS = text_records(30)
MODULE = """
import pathlib
SEEN = pathlib.Path({seen!r})

def seen(record):
    with SEEN.open("ab") as file:
        file.write(record + b"\\n")
    return record

def text(record):
    return "not bytes"
"""


@pytest.fixture
def seen(tmp_path, monkeypatch) -> pathlib.Path:
    """A file in which the function writes down what it is called with."""
    path = tmp_path / "seen"
    name = f"tried_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE.format(seen=str(path)))
    monkeypatch.syspath_prepend(str(tmp_path))
    return path


def module_of(seen: pathlib.Path) -> str:
    return f"tried_{seen.parent.name}"


def tried(seen: pathlib.Path, folder: pathlib.Path, **options) -> list[bytes]:
    """Returns the records that the function was tried on."""
    seen.unlink(missing_ok=True)
    job = job_of(
        folder, folder.parent / "out", map=f"{module_of(seen)}:seen", **options
    )
    try_function(job, list_inputs(job).first(8))
    assert not (folder.parent / "out").exists()
    return seen.read_bytes().splitlines() if seen.exists() else []


@pytest.fixture
def inputs(tmp_path) -> pathlib.Path:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a").write_bytes(frames_of(RECORDS))
    return folder


def test_the_first_ten_records(seen, inputs):
    assert tried(seen, inputs) == RECORDS[:10]
    (inputs / "a").write_bytes(frames_of(RECORDS[:3]))
    (inputs / "b").write_bytes(frames_of(RECORDS))
    assert tried(seen, inputs) == RECORDS[:3]


def test_damage_at_the_beginning(seen, inputs):
    data = frames_of(RECORDS)
    (inputs / "a").write_bytes(b"damage" + data)
    assert tried(seen, inputs, on_corrupt="skip") == RECORDS[:10]
    (inputs / "a").write_bytes(data[:20] + b"?" + data[21:])
    with pytest.raises(CorruptInputError, match="corrupt record"):
        tried(seen, inputs)
    assert tried(seen, inputs, on_corrupt="skip") == RECORDS[1:11]


def test_what_it_returns_is_looked_at_and_dropped(seen, inputs, tmp_path):
    job = job_of(inputs, tmp_path / "out", map=f"{module_of(seen)}:text")
    with pytest.raises(UserFunctionError, match="cannot be written") as caught:
        convert(job)
    assert f"{inputs}/a, byte offset 0" in str(caught.value)
    assert not (tmp_path / "out").exists()
    convert(job_of(inputs, tmp_path / "out", map=f"{module_of(seen)}:seen"))
    assert read_output(tmp_path / "out") == RECORDS
    assert seen.read_bytes().splitlines() == RECORDS[:10] + RECORDS


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_command_writes_nothing(inputs, tmp_path, workers: str):
    # With several workers it is tried in a process of its own: the command lives on.
    (tmp_path / "mine.py").write_text(
        "import os\n"
        "def mine(record):\n"
        "    if os.environ['WORKERS'] == '2':\n"
        "        os.kill(os.getpid(), 9)\n"
        "    return recrod\n"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "gristmill", "convert", "in/*", "out"),
            *("--map=mine:mine", f"--workers={workers}"),
        ],
        cwd=tmp_path,
        env={**os.environ, "WORKERS": workers},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    expected = "a worker process ended" if workers == "2" else "'recrod' is not defined"
    assert expected in done.stderr
    assert not (tmp_path / "out").exists()
