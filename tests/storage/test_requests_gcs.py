"""How many requests commands make of a bucket: none that an earlier answer gives."""

from __future__ import annotations

import collections

import pytest

from gristmill import loader
from gristmill.pipelines.convert import convert
from gristmill.pipelines.verify import verify
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.planning.shard_plan import PlanOptions
from tests.servers.gcs_server import GcsServer
from tests.support.records import frames_of, text_records

FILES = 2
OUTPUT = "gs://out/c4"


@pytest.fixture
def server(server: GcsServer) -> GcsServer:
    for number in range(FILES):
        data = frames_of(text_records(300, seed=number))
        server.objects.put("in", f"part-{number}.tfrecord", data)
    return server


def job_of(output: str, shards: int) -> ConversionJob:
    return ConversionJob(
        inputs=("gs://in/*.tfrecord",),
        output=output,
        name="c4",
        plan=PlanOptions(kind="num_shards", value=shards),
    )


def requests_of(server: GcsServer) -> collections.Counter[tuple[str, str]]:
    """Takes the requests since the last call, but those for inputs."""
    found = collections.Counter(
        (kind, name) for kind, name, _ in server.log if not name.startswith("part-")
    )
    server.log.clear()
    return found


def conversion(server: GcsServer, output: str, shards: int, **options: bool) -> int:
    """Converts in this process; returns how many requests that took."""
    convert([job_of(output, shards)], workers=1, **options)
    return requests_of(server).total()


@pytest.mark.slow
@pytest.mark.parametrize(
    "overwrite", [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_a_conversion_makes_few_requests_a_shard(
    server: GcsServer, overwrite: bool
) -> None:
    counts = []
    for shards in (2, 10):
        output = f"{OUTPUT}-{shards}"
        if overwrite:
            conversion(server, output, shards + 1)
        counts.append(conversion(server, output, shards, overwrite=overwrite))
    a_shard = (counts[1] - counts[0]) / 8
    # Two writes, a look at the owner for each, one for the index; where files are
    # replaced, each of them is copied and deleted, and the old ones are.
    assert a_shard <= (14 if overwrite else 6)


def test_a_conversion_reads_the_manifest_where_another_command_may_write_it(
    server: GcsServer,
) -> None:
    convert([job_of(OUTPUT, 2)], workers=1)
    # Before the work is described, and before `dataset.json` is written, which names
    # the version that was read.
    assert requests_of(server)["media", "c4/dataset.json"] == 2


@pytest.mark.slow
def test_a_verification_makes_three_requests_a_shard(server: GcsServer) -> None:
    counts = []
    for shards in (2, 10):
        output = f"{OUTPUT}-{shards}"
        conversion(server, output, shards)
        assert verify(output, workers=1).findings == ()
        counts.append(requests_of(server).total())
    # The index, the end of the shard, which says its size and generation, and all of
    # it. A longer listing has no more requests here.
    assert counts[1] - counts[0] == 3 * 8


def test_a_place_is_told_without_a_list_that_is_not(
    server: GcsServer,
) -> None:
    conversion(server, OUTPUT, 2)
    batches = loader.global_batches(loader.open(OUTPUT), batch_size=2)
    assert "gs://in/part-" in str(batches.locate(0, 0))
    asked = requests_of(server)
    assert asked
    assert not [name for _, name in asked if "errors/" in name]
