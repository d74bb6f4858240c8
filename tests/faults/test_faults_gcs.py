"""Every fault that a bucket can have, in conversion: over it, or told and made good."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import pathlib
import re
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from gristmill import loader
from gristmill.dataset.base.errors import GristmillError
from gristmill.dataset.metadata.manifest import Manifest, open_manifest
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.convert import convert
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.planning.shard_plan import PlanOptions
from tests.servers.gcs_server import Fault, GcsServer
from tests.support.conversion import skipped_in
from tests.support.records import frames_of, text_records

_ALWAYS = 10**9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scenario:
    """A way to fail, and what is to come of it.

    Attributes:
        name: What happens, for the table.
        faults: Of the server; see `tests.servers.gcs_server.Fault`.
        settings: Settings of the server.
        error: The message that the user sees, as a regular expression; None if the
            conversion succeeds.
    """

    name: str
    faults: tuple[dict[str, Any], ...] = ()
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    error: str | None = None


def _fault(kind: str, operation: str = "", **options: Any) -> dict[str, Any]:
    return {"kind": kind, "operation": operation, **options}


_INPUT = "part-00001"
_SHARD = "array_record-0000"
SCENARIOS = (
    Scenario(name="nothing"),
    Scenario(
        name="for 2 s every request gets 503",
        faults=(_fault("503", times=_ALWAYS, skip=30, lasts_seconds=2),),
    ),
    Scenario(
        name="for 2 s every request gets 429",
        faults=(_fault("429", times=_ALWAYS, skip=30, lasts_seconds=2),),
    ),
    Scenario(
        name="for 2 s every connection is reset",
        faults=(_fault("reset", times=_ALWAYS, skip=30, lasts_seconds=2),),
    ),
    Scenario(
        name="6 bodies are cut short, then the connection ends",
        faults=(_fault("cut", "media", times=6, skip=2),),
    ),
    Scenario(
        name="6 bodies are short, with a length to match",
        faults=(_fault("short", "media", times=6, skip=2),),
    ),
    Scenario(
        name="2 bodies stop in the middle",
        faults=(_fault("stall", "media", times=2, skip=3),),
    ),
    Scenario(
        name="2 bodies arrive at a byte a second",
        faults=(_fault("drip", "media", times=2, skip=3),),
    ),
    Scenario(
        name="every listing arrives at a byte a second, for good",
        faults=(_fault("drip", "list", times=_ALWAYS),),
        error="no success in .* no complete answer in",
    ),
    Scenario(
        name="for 2 s a proxy answers with a page of its own",
        faults=(_fault("other", times=_ALWAYS, skip=30, lasts_seconds=2),),
    ),
    Scenario(
        name="a proxy answers every listing with a page of its own",
        faults=(_fault("other", "list", times=_ALWAYS),),
        error="answer that is not from Cloud Storage",
    ),
    Scenario(
        name="every answer takes 0.5 s more",
        settings={"latency_seconds": 0.5},
    ),
    Scenario(
        name="one bit of an input is flipped on its way",
        faults=(_fault("flip", "media", name=_INPUT, skip=2),),
    ),
    Scenario(
        name="one bit of a shard is flipped on its way",
        faults=(
            _fault("flip", "insert", name=_SHARD),
            _fault("flip", "chunk", name=_SHARD),
        ),
    ),
    Scenario(
        name="the replies to 6 uploads are lost",
        faults=(
            _fault("lost", "insert", times=4, skip=2),
            _fault("lost", "chunk", times=2),
        ),
    ),
    Scenario(
        name="an input is replaced while it is read",
        faults=(_fault("replace", "media", name=_INPUT, skip=2),),
        error="deleted or written again while it was in use",
    ),
    Scenario(
        name="an input is deleted while it is read",
        faults=(_fault("remove", "media", name=_INPUT, skip=2),),
        error="deleted or written again while it was in use",
    ),
    Scenario(
        name="credentials expire (401)",
        faults=(_fault("401", times=_ALWAYS, skip=60, message="Invalid Credentials"),),
        # Those of the tests are anonymous; others are refreshed first, then refused.
        error="credentials cannot be refreshed",
    ),
    Scenario(
        name="the right to write is taken away (403)",
        faults=(
            _fault(
                "403",
                "insert",
                times=_ALWAYS,
                skip=4,
                message="storage.objects.create denied",
            ),
            _fault(
                "403",
                "start",
                times=_ALWAYS,
                message="storage.objects.create denied",
            ),
        ),
        error="storage.objects.create denied",
    ),
    Scenario(
        name="uploads get 503 for good",
        faults=(
            _fault("503", "insert", times=_ALWAYS, skip=4),
            _fault("503", "start", times=_ALWAYS),
        ),
        error="no success in",
    ),
    Scenario(
        name="the server goes down for good",
        faults=(_fault("down", skip=60),),
        error="no success in",
    ),
)

RECORDS = [text_records(400, seed=seed) for seed in range(4)]
FILES = {
    f"part-{number:05}.tfrecord": frames_of(records)
    for number, records in enumerate(RECORDS)
}


@pytest.fixture
def server(
    server: GcsServer,
    monkeypatch: pytest.MonkeyPatch,
    blocks_of: Callable[[int], None],
) -> GcsServer:
    blocks_of(1 << 15)
    monkeypatch.setenv("GRISTMILL_GCS_TIMEOUT_SECONDS", "0.5")
    monkeypatch.setenv("GRISTMILL_GCS_DEADLINE_SECONDS", "6")
    for name, data in FILES.items():
        server.objects.put("in", name, data)
    return server


def job_of(
    source: str, output: str, *, shards: int = 6, **options: Any
) -> ConversionJob:
    return ConversionJob(
        inputs=(f"{source}/*.tfrecord",),
        output=output,
        name="c4",
        plan=PlanOptions(kind="num_shards", value=shards),
        **options,
    )


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """What a conversion on a local disk gives."""
    folder = tmp_path_factory.mktemp("faults")
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    convert([job_of(str(folder), str(folder / "out"))])
    return open_manifest(str(folder / "out"))


def shorter(scenario: Scenario) -> list[Fault]:
    """The faults of a scenario, for inputs and limits that are smaller."""
    faults = [Fault(**fault) for fault in scenario.faults]
    for fault in faults:
        fault.lasts_seconds /= 4
    return faults


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    "scenario", SCENARIOS, ids=[scenario.name for scenario in SCENARIOS]
)
def test_a_fault_is_got_over_or_told(
    server: GcsServer, expected: Manifest, scenario: Scenario
) -> None:
    server.faults += shorter(scenario)
    server.latency_seconds = scenario.settings.get("latency_seconds", 0) / 10
    begin = time.monotonic()
    message, changed = "", False
    try:
        convert([job_of("gs://in", "gs://out/c4")])
    except GristmillError as error:
        message = re.sub(r"\s+", " ", str(error))
    assert time.monotonic() - begin < 60
    assert bool(message) == bool(scenario.error)
    assert re.search(scenario.error or "", message)
    assert not scenario.faults or any(fault.began for fault in server.faults)
    if message:
        assert "gs://" in message  # The object,
        assert "to do:" in message  # and what to do.
        if server.closing.is_set():
            server.come_up()
        server.faults.clear()
        for name, data in FILES.items():
            if storage_for("gs://in").load(f"gs://in/{name}") is None or (
                server.objects.buckets["in"][name].data != data
            ):
                server.objects.put("in", name, data)
        changed = "written again" in message
        convert([job_of("gs://in", "gs://out/c4")], overwrite=changed)
    found = open_manifest("gs://out/c4")
    # Of other versions of the inputs another write was made, with names of its own.
    assert changed or found.content_digest == expected.content_digest
    assert found.splits["train"].shards == expected.splits["train"].shards
    dataset = loader.open("gs://out/c4", "train", cache_dir="")
    assert dataset.read(range(len(dataset))) == [*itertools.chain(*RECORDS)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("on_corrupt", "kind"),
    list(itertools.product(["fail", "skip"], ["none", "gzip", "zlib"])),
)
def test_damage_on_the_way_is_no_damage_of_the_input(
    server: GcsServer, blocks_of: Callable[[int], None], kind: str, on_corrupt: str
) -> None:
    """There is no checksum of a part of an object: a second look tells."""
    blocks_of(1 << 12)
    compress = {"none": bytes, "gzip": gzip.compress, "zlib": zlib.compress}[kind]
    for name, data in FILES.items():
        server.objects.put("in", name, compress(data))
        server.fail("flip", "media", name=name, skip=2)
    job = job_of("gs://in", "gs://out/c4", shards=4, on_corrupt=on_corrupt)
    (split,) = convert([job]).manifest.splits.values()
    assert (split.records, split.skipped_regions) == (1600, 0)
    assert sum(not fault.times for fault in server.faults) == len(FILES)


@pytest.mark.slow
def test_damage_of_the_input_is_told_as_on_a_local_disk(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    name = next(iter(FILES))
    data = bytearray(FILES[name])
    for offset in (len(data) // 3, len(data) // 2, len(data) - 5):
        data[offset] ^= 1
    server.objects.put("in", name, bytes(data))
    for other, content in FILES.items():
        (tmp_path / other).write_bytes(bytes(data) if other == name else content)
    found = {}
    for place in ("gs://in", str(tmp_path)):
        output = "gs://out/c4" if place == "gs://in" else str(tmp_path / "out")
        with pytest.raises(GristmillError, match="corrupt record"):
            convert([job_of(place, output)])
        job = job_of(place, output, on_corrupt="skip")
        (split,) = convert([job]).manifest.splits.values()
        found[place] = split.skipped_regions, split.records, split.records_digest
    assert found["gs://in"] == found[str(tmp_path)]
    assert found["gs://in"][0] == 3
    storage = storage_for("gs://out")
    listed = storage.match("gs://out/c4/errors/*.jsonl")
    texts = [storage.read(info.path).splitlines() for info in listed]
    lines = [json.loads(line) for text in texts for line in text]
    places = [(line["begin_bytes"], line["end_bytes"]) for line in lines]
    local = skipped_in(tmp_path / "out")
    assert places == [(line["begin_bytes"], line["end_bytes"]) for line in local]
