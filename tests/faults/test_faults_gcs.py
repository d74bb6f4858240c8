"""Every fault that a bucket can have, in conversion: over it, or told and made good."""

import gzip
import itertools
import re
import time
import zlib

import pytest

from gristmill import loader
from gristmill.dataset import GristmillError, open_manifest
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.convert import convert
from tests.servers.gcs_server import Fault
from tests.support.conversion import job_of as plain_job_of
from tests.support.records import frames_of, text_records

ALWAYS = 10**9
# So many requests into the work, for two seconds.
FOR_2_S = {"times": ALWAYS, "skip": 30, "lasts_seconds": 2}
BODIES = {"operation": "media", "times": 6, "skip": 2}
SLOW = {"operation": "media", "times": 2, "skip": 3}
INPUT = {"operation": "media", "name": "part-00001", "skip": 2}
SHARD = "array_record-0000"
DENIED = "storage.objects.create denied"
FIRST_4 = {"operation": "insert", "times": ALWAYS, "skip": 4}
START = {"operation": "start", "times": ALWAYS}
CHANGED = "deleted or written again while it was in use"

# What happens, as `docs/performance/faults.md` lists it, the faults of the server, and
# the message that the user sees; none if the conversion succeeds.
SCENARIOS = {
    "nothing": ([], ""),
    "for 2 s every request gets 503": ([{"kind": "503", **FOR_2_S}], ""),
    "for 2 s every request gets 429": ([{"kind": "429", **FOR_2_S}], ""),
    "for 2 s every connection is reset": ([{"kind": "reset", **FOR_2_S}], ""),
    "6 bodies are cut short, then the connection ends": (
        [{"kind": "cut", **BODIES}],
        "",
    ),
    "6 bodies are short, with a length to match": ([{"kind": "short", **BODIES}], ""),
    "2 bodies stop in the middle": ([{"kind": "stall", **SLOW}], ""),
    "2 bodies arrive at a byte a second": ([{"kind": "drip", **SLOW}], ""),
    "every listing arrives at a byte a second, for good": (
        [{"kind": "drip", "operation": "list", "times": ALWAYS}],
        "no success in .* no complete answer in",
    ),
    "for 2 s a proxy answers with a page of its own": (
        [{"kind": "other", **FOR_2_S}],
        "",
    ),
    "a proxy answers every listing with a page of its own": (
        [{"kind": "other", "operation": "list", "times": ALWAYS}],
        "answer that is not from Cloud Storage",
    ),
    "every answer takes 0.5 s more": ([], ""),
    "one bit of an input is flipped on its way": ([{"kind": "flip", **INPUT}], ""),
    "one bit of a shard is flipped on its way": (
        [
            {"kind": "flip", "operation": operation, "name": SHARD}
            for operation in ("insert", "chunk")
        ],
        "",
    ),
    "the replies to 6 uploads are lost": (
        [
            {"kind": "lost", "operation": "insert", "times": 4, "skip": 2},
            {"kind": "lost", "operation": "chunk", "times": 2},
        ],
        "",
    ),
    "an input is replaced while it is read": ([{"kind": "replace", **INPUT}], CHANGED),
    "an input is deleted while it is read": ([{"kind": "remove", **INPUT}], CHANGED),
    # Those of the tests are anonymous; others are refreshed first, then refused.
    "credentials expire (401)": (
        [{"kind": "401", "times": ALWAYS, "skip": 60}],
        "credentials cannot be refreshed",
    ),
    "the right to write is taken away (403)": (
        [
            {"kind": "403", "message": DENIED, **FIRST_4},
            {"kind": "403", "message": DENIED, **START},
        ],
        DENIED,
    ),
    "uploads get 503 for good": (
        [{"kind": "503", **FIRST_4}, {"kind": "503", **START}],
        "no success in",
    ),
    "the server goes down for good": ([{"kind": "down", "skip": 60}], "no success in"),
}

RECORDS = [text_records(400, seed=seed) for seed in range(4)]
FILES = {
    f"part-{number:05}.tfrecord": frames_of(records)
    for number, records in enumerate(RECORDS)
}


@pytest.fixture
def server(server, monkeypatch, blocks_of):
    blocks_of(1 << 15)
    monkeypatch.setenv("GRISTMILL_GCS_TIMEOUT_SECONDS", "0.5")
    monkeypatch.setenv("GRISTMILL_GCS_DEADLINE_SECONDS", "6")
    for name, data in FILES.items():
        server.objects.put("in", name, data)
    return server


def job_of(source, output, *, shards=6, **options):
    plan = ("num_shards", shards)
    return plain_job_of(f"{source}/*.tfrecord", output, plan=plan, **options)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What a conversion on a local disk gives."""
    folder = tmp_path_factory.mktemp("faults")
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    convert([job_of(str(folder), str(folder / "out"))])
    return open_manifest(str(folder / "out"))


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("what", SCENARIOS)
def test_a_fault_is_got_over_or_told(server, expected, what):
    faults, error = SCENARIOS[what]
    # Shorter, as inputs and limits are smaller.
    server.faults += [Fault(**fault) for fault in faults]
    for fault in server.faults:
        fault.lasts_seconds /= 4
    server.latency_seconds = 0.05 if what == "every answer takes 0.5 s more" else 0
    begin = time.monotonic()
    message, changed = "", False
    try:
        convert([job_of("gs://in", "gs://out/c4")])
    except GristmillError as caught:
        message = re.sub(r"\s+", " ", str(caught))
    assert time.monotonic() - begin < 60
    assert bool(message) == bool(error)
    assert re.search(error, message)
    assert not faults or any(fault.began for fault in server.faults)
    if message:
        assert "gs://" in message  # The object,
        assert "to do:" in message  # and what to do.
        if server.closing.is_set():
            server.come_up()
        server.faults.clear()
        changed = "written again" in message
        for name, data in FILES.items() if changed else ():
            server.objects.put("in", name, data)
        convert([job_of("gs://in", "gs://out/c4")], overwrite=changed)
    found = open_manifest("gs://out/c4")
    # Of other versions of the inputs another write was made, with names of its own.
    assert changed or found.content_digest == expected.content_digest
    assert found.splits["train"].shards == expected.splits["train"].shards
    dataset = loader.open("gs://out/c4", "train", cache_dir="")
    assert dataset.read(range(len(dataset))) == [*itertools.chain(*RECORDS)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("on_corrupt", ["fail", "skip"])
@pytest.mark.parametrize("compress", [bytes, gzip.compress, zlib.compress])
def test_damage_on_the_way_is_no_damage_of_the_input(
    server, blocks_of, compress, on_corrupt
):
    """There is no checksum of a part of an object: a second look tells."""
    blocks_of(1 << 12)
    for name, data in FILES.items():
        server.objects.put("in", name, compress(data))
        server.fail("flip", "media", name=name, skip=2)
    job = job_of("gs://in", "gs://out/c4", shards=4, on_corrupt=on_corrupt)
    (split,) = convert([job]).manifest.splits.values()
    assert (split.records, split.skipped_regions) == (1600, 0)
    assert sum(not fault.times for fault in server.faults) == len(FILES)


@pytest.mark.slow
def test_damage_of_the_input_is_told_as_on_a_local_disk(server, tmp_path):
    name, *_ = FILES
    data = bytearray(FILES[name])
    for offset in (len(data) // 3, len(data) // 2, len(data) - 5):
        data[offset] ^= 1
    server.objects.put("in", name, bytes(data))
    for each in FILES:
        found = server.objects.buckets["in"][each]
        (tmp_path / each).write_bytes(found.data)
    told = []
    for place in ("gs://in", str(tmp_path)):
        with pytest.raises(GristmillError, match="corrupt record"):
            convert([job_of(place, f"{place}/out")])
        job = job_of(place, f"{place}/out", on_corrupt="skip")
        (split,) = convert([job]).manifest.splits.values()
        assert split.skipped_regions == 3
        storage = storage_for(place)
        listed = storage.match(f"{place}/out/errors/*.jsonl")
        text = b"".join(storage.read(info.path) for info in listed).decode()
        told.append((text.replace(f"{place}/", ""), split.records_digest))
    assert told[0] == told[1]
