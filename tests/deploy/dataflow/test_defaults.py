"""Options of a job that are not given: their defaults, and how to turn each off."""

from __future__ import annotations

import dataclasses

import pytest
from apache_beam.options.pipeline_options import PipelineOptions, WorkerOptions

from gristmill.pipelines import dataflow_defaults
from gristmill.pipelines.beam.pipeline_options import checked_options
from gristmill.pipelines.dataflow.defaults import MACHINE_TYPE, set_defaults
from gristmill.pipelines.options.job_options import ConvertOptions

SSD = "compute.googleapis.com/projects//zones//diskTypes/pd-ssd"
OF_ZONE = "compute.googleapis.com/projects/p/zones/us-central1-a/diskTypes/pd-ssd"
CONVERT = ConvertOptions(input=("gs://raw/texts/*",), output="gs://data/texts")
PRIME = "--dataflow_service_options=enable_prime"


def workers(*arguments: str, **changed: object) -> WorkerOptions:
    given = ["--project=p", "--region=us-central1", *arguments]
    options = PipelineOptions(checked_options("DataflowRunner", given))
    set_defaults(options, dataclasses.replace(CONVERT, **changed))
    return options.view_as(WorkerOptions)


@pytest.mark.parametrize(
    ("argument", "name", "value"),
    [
        ("", "disk_type", SSD),
        ("--worker_disk_type=pd-standard", "disk_type", SSD.replace("ssd", "standard")),
        ("--disk_type=a/b", "disk_type", "a/b"),
        ("--worker_zone=us-central1-a", "disk_type", OF_ZONE),
        ("--worker_disk_type=", "disk_type", ""),
        ("--machine_type=n2-custom-6-10240", "disk_type", SSD),
        ("--machine_type=custom-6-10240", "disk_type", SSD),
        ("--machine_type=n4-standard-4", "disk_type", None),
        ("--machine_type=c4a-standard-4", "disk_type", None),
        (PRIME, "disk_type", None),
        ("", "machine_type", MACHINE_TYPE),
        (PRIME, "machine_type", None),
        ("", "max_num_workers", 50),
        ("--max_num_workers=7", "max_num_workers", 7),
        ("--num_workers=80", "max_num_workers", 80),
        ("--max_num_workers=0", "max_num_workers", 0),
        ("", "use_public_ips", False),
        ("--no_use_public_ips", "use_public_ips", False),
        ("--use_public_ips", "use_public_ips", True),
        ("--use_public_ips=true", "use_public_ips", True),
    ],
)
def test_an_option_has_a_default_that_can_be_turned_off(argument, name, value):
    assert getattr(workers(*filter(None, [argument])), name) == value


@pytest.mark.parametrize(
    ("arguments", "disk_gb"),
    [
        ({"shard_size": "16GiB"}, 158),
        ({"shard_size": "1GiB"}, 100),
        ({"num_shards": 3}, 100),
    ],
)
def test_the_disk_is_that_of_the_shards(arguments, disk_gb):
    assert workers(**arguments).disk_size_gb == disk_gb


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
