"""Options of a job that are not given: their defaults, and how to turn each off."""

from __future__ import annotations

import dataclasses

import pytest
from apache_beam.options.pipeline_options import (
    PipelineOptions,
    WorkerOptions,
)

from gristmill.pipelines import dataflow_defaults
from gristmill.pipelines.beam.pipeline_options import checked_options
from gristmill.pipelines.dataflow.defaults import MACHINE_TYPE, set_defaults
from gristmill.pipelines.options.job_options import ConvertOptions
from tests.support.cloud import job_of, running

SSD = "compute.googleapis.com/projects//zones//diskTypes/pd-ssd"
CONVERT = ConvertOptions(input=("gs://raw/texts/*",), output="gs://data/texts")


def with_defaults(*arguments: str) -> PipelineOptions:
    given = ["--project=p", "--region=us-central1", *arguments]
    options = PipelineOptions(checked_options("DataflowRunner", given))
    set_defaults(options, CONVERT)
    return options


def workers(*arguments: str) -> WorkerOptions:
    return with_defaults(*arguments).view_as(WorkerOptions)


@pytest.mark.slow
def test_a_job_gets_the_defaults():
    with running() as cloud:
        image = "--sdk_container_image=us-docker.pkg.dev/my-project/gristmill/convert:1"
        done = cloud.submit("convert", *CONVERT.input, CONVERT.output, image)
        assert done.code == 0, done.stderr
        job = job_of(cloud)
    (pool,) = job["environment"]["workerPools"]
    assert pool["diskType"] == SSD
    assert pool["diskSizeGb"] == 100
    assert pool["autoscalingSettings"]["maxNumWorkers"] == 50
    assert pool["ipConfiguration"] == 2  # WORKER_IP_PRIVATE
    assert job["labels"]["gristmill"] == "convert"


@pytest.mark.parametrize(
    ("arguments", "disk_type"),
    [
        ((), SSD),
        (("--worker_disk_type=pd-standard",), SSD.replace("ssd", "standard")),
        (("--disk_type=a/b",), "a/b"),
        (
            ("--worker_zone=us-central1-a",),
            "compute.googleapis.com/projects/p/zones/us-central1-a/diskTypes/pd-ssd",
        ),
        (("--worker_disk_type=",), ""),
        (("--machine_type=n2-custom-6-10240",), SSD),
        (("--machine_type=custom-6-10240",), SSD),
        (("--machine_type=n4-standard-4",), None),
        (("--machine_type=c4a-standard-4",), None),
        (("--dataflow_service_options=enable_prime",), None),
    ],
)
def test_disk_types(arguments, disk_type):
    assert workers(*arguments).disk_type == disk_type


def test_prime_chooses_machines():
    assert workers().machine_type == MACHINE_TYPE
    prime = "--dataflow_service_options=enable_prime"
    assert workers(prime).machine_type is None


@pytest.mark.parametrize(
    ("arguments", "most"),
    [
        ((), 50),
        (("--max_num_workers=7",), 7),
        (("--num_workers=80",), 80),
        (("--max_num_workers=0",), 0),
    ],
)
def test_the_number_of_workers_is_capped(arguments, most):
    assert workers(*arguments).max_num_workers == most


@pytest.mark.parametrize(
    ("arguments", "public"),
    [
        ((), False),
        (("--no_use_public_ips",), False),
        (("--use_public_ips",), True),
        (("--use_public_ips=true",), True),
    ],
)
def test_addresses_are_private(arguments, public):
    assert workers(*arguments).use_public_ips is public


@pytest.mark.parametrize(
    ("shard_bytes", "machine", "disk_gb"),
    [
        (256 << 20, "e2-standard-4", 100),
        (16 << 30, "e2-standard-4", 20 + 138),
        (16 << 30, "n2-standard-8", 20 + 275),
    ],
)
def test_a_pipeline_of_ones_own_gets_them_too(shard_bytes, machine, disk_gb):
    given = ["--runner=DataflowRunner", "--project=p", f"--machine_type={machine}"]
    options = PipelineOptions(given)
    assert dataflow_defaults(options, shard_bytes=shard_bytes) is options
    found = options.view_as(WorkerOptions)
    assert (found.disk_size_gb, found.disk_type) == (disk_gb, SSD)
    assert (found.max_num_workers, found.use_public_ips) == (50, False)


@pytest.mark.parametrize(
    ("arguments", "disk_gb"),
    [
        ({"shard_size": "16GiB"}, 158),
        ({"shard_size": "1GiB"}, 100),
        ({"num_shards": 3}, 100),
    ],
)
def test_the_disk_is_that_of_the_shards(arguments, disk_gb):
    options = PipelineOptions(["--project=p", "--region=us-central1"])
    set_defaults(options, dataclasses.replace(CONVERT, **arguments))
    assert options.view_as(WorkerOptions).disk_size_gb == disk_gb
