"""Buckets without a path below them, in every command: their directory at the top."""

from __future__ import annotations

import contextlib
import io
import pathlib
from collections.abc import Iterator

import pytest

from gristmill.pipelines.commands.main import main
from tests.servers.gcs_server import GcsServer
from tests.support.records import frames_of, text_records

DATA = frames_of(text_records(30))
NO_DATASET = "3 not a committed dataset"
NO_BUCKET = "1 bucket does not exist"
# The code, and a part of what is said: of a bucket with TFRecord files, of one with a
# dataset, of one that is not there.
COMMANDS = {
    "verify BUCKET": (NO_DATASET, "0 whole; 30 records", NO_BUCKET),
    "inspect BUCKET": (NO_DATASET, "0 at gs://", NO_BUCKET),
    "head BUCKET -n 1": (
        "0 gs://files/p.tfrecord",
        "0 record 0: ",
        NO_BUCKET,
    ),
    "plan BUCKET": ("0 30", "2 the output is in the dataset", NO_BUCKET),
    "convert BUCKET OUT": ("0 30 records", "0 30 records", NO_BUCKET),
    "convert gs://files/p.tfrecord BUCKET": (
        "2 the output is the directory of its inputs",
        "0 nothing to do",
        NO_BUCKET,
    ),
    "append BUCKET gs://files/p.tfrecord": (NO_DATASET, "0 nothing to do", NO_BUCKET),
    "doctor BUCKET": ("0 gs://", "0 gs://", "1 of the dataset does not exist"),
    "view BUCKET --html OUT.html": (NO_DATASET, "0 OUT.html", NO_BUCKET),
    "index BUCKET": (
        "2 not an ArrayRecord file",
        "2 the directory is a dataset with this split already",
        NO_BUCKET,
    ),
}


LONG = ("doctor", "plan")


@pytest.fixture(scope="module")
def server() -> Iterator[GcsServer]:
    with GcsServer("files", "data") as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.objects.put("files", "p.tfrecord", DATA)
        code, said = run("convert gs://files gs://data")
        assert code == 0, said
        yield server


def run(command: str) -> tuple[int, str]:
    arguments = command.split()
    if arguments[0] in ("append", "convert", "verify"):
        arguments += ["--workers", "1"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main(arguments)
            code = 0
        except SystemExit as e:
            code = int(e.code or 0)
    return code, said.getvalue()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("slash", ["", pytest.param("/", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(each, marks=[pytest.mark.slow] * each.startswith(LONG))
        for each in COMMANDS
    ],
)
def test_a_bucket_is_a_directory(
    server: GcsServer, tmp_path: pathlib.Path, command: str, slash: str
) -> None:
    out = str(tmp_path / "out")
    for bucket, expected in zip(
        ("files", "data", "none"), COMMANDS[command], strict=True
    ):
        place = f"gs://{bucket}{slash}"
        given = command.replace("BUCKET", place).replace("OUT", f"{out}-{bucket}")
        code, said = run(given)
        status, _, text = expected.partition(" ")
        assert code == int(status), said
        assert text.replace("OUT", f"{out}-{bucket}") in said, said
    assert set(server.objects.buckets["files"]) == {"p.tfrecord"}
