"""Every refusal before a submission, of real ones: in seconds, and with what to do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.support.cloud import Cloud, Done

# Here it takes one or two; where Beam tries again, 8 minutes.
LIMIT_SECONDS = 60
CONVERT = ("convert", "gs://raw/texts/*", "gs://data/texts")
IMAGE = "--sdk_container_image=us-docker.pkg.dev/my-project/gristmill/convert:1"


class Refusal(NamedTuple):
    """A submission that is refused.

    Attributes:
        message: The first line of what is said, `...` for what differs.
        arguments: What is submitted.
        said: What else is said.
        prepare: Makes it wrong, where the arguments are right.
        code: Exit code.
    """

    message: str
    arguments: tuple[str, ...]
    said: tuple[str, ...]
    prepare: Callable[[Cloud], object] = lambda cloud: None
    code: int = 2


def elsewhere(cloud: Cloud) -> None:
    cloud.storage.objects.places["data"] = {"location": "EUROPE-WEST4"}


def denied(cloud: Cloud) -> None:
    cloud.storage.objects.denied.add("storage.objects.create")


def failing(cloud: Cloud) -> None:
    cloud.storage.fail("403", "list", times=1000)


def damaged(cloud: Cloud) -> None:
    cloud.storage.objects.put("data", "damaged/dataset.json", b"{")


def committed(cloud: Cloud) -> None:
    done = cloud.gristmill(*CONVERT[:2], "gs://data/done", "--workers=1")
    assert done.code == 0, done.stderr


REFUSALS = {
    "runner": Refusal(
        "unknown Beam runner",
        (*CONVERT, "--runner=DataflowRuner"),
        ("did you mean DataflowRunner?", "'DataflowRuner'"),
    ),
    "runner twice": Refusal(
        "the runner is given twice",
        (*CONVERT, "--", "--runner=FnApiRunner"),
        ("give --runner once, before --",),
    ),
    "max_workers": Refusal(
        "Beam would ignore this option",
        (*CONVERT, "--", "--max_workers=7"),
        ("got:      --max_workers=7", "give --max_num_workers"),
    ),
    "project": Refusal(
        "no ... given for Dataflow", (*CONVERT, "--project="), ("give --project",)
    ),
    "region": Refusal(
        "no ... given for Dataflow", (*CONVERT, "--region="), ("give --region",)
    ),
    "local input": Refusal(
        "Dataflow workers cannot access the ...",
        ("convert", "here/*", "gs://data/x"),
        ("the input", "gcloud storage cp"),
    ),
    "local output": Refusal(
        "Dataflow workers cannot access the ...",
        ("convert", "gs://raw/*", "there", "--temp_location=gs://scratch/tmp"),
        ("the output",),
    ),
    "local dataset": Refusal(
        "Dataflow workers cannot access the ...",
        ("verify", "here", "--temp_location=gs://scratch/tmp"),
        ("the dataset",),
    ),
    "local files": Refusal(
        "Dataflow workers cannot access the ...",
        ("index", "here/*", "--temp_location=gs://scratch/tmp"),
        ("the files",),
    ),
    "setup file": Refusal(
        "no such file", (*CONVERT, "--setup_file=/nowhere/setup.py"), ("/nowhere",)
    ),
    "map": Refusal(
        "the workers do not have the module of ...",
        (*CONVERT, "--map=mine:shout", "--sdk_container_image=", "--use_public_ips"),
        ("of --map", "--setup_file"),
    ),
    "output bucket": Refusal(
        "the bucket of the ... does not exist",
        (*CONVERT[:2], "gs://nowhere/x", "--temp_location=gs://scratch/tmp"),
        ("the output", "gs://nowhere", "gcloud storage buckets create"),
    ),
    "input bucket": Refusal(
        "the bucket of the ... does not exist",
        ("convert", "gs://nowhere/texts/*", "gs://data/x"),
        ("the input", "gs://nowhere"),
    ),
    "temporary bucket": Refusal(
        "the bucket of the ... does not exist",
        (*CONVERT, "--temp_location=gs://notemp/x"),
        ("the temporary files", "gs://notemp"),
    ),
    "permission": Refusal(
        "this account may not use the bucket of the ...",
        CONVERT,
        ("missing: storage.objects.create", "roles/storage.objectUser"),
        denied,
    ),
    "region of a bucket": Refusal(
        "the bucket of the ... is not in the workers' region",
        CONVERT,
        ("gs://data, EUROPE-WEST4", "us-central1", "--cross-region"),
        elsewhere,
    ),
    "storage": Refusal(
        "cannot list objects",
        CONVERT,
        ("made to fail", "give this account the role roles/storage.objectUser"),
        failing,
        code=1,
    ),
    "subnetwork": Refusal(
        "Dataflow would not find the subnetwork",
        (*CONVERT, "--subnetwork=mine"),
        ("regions/us-central1/subnetworks/NAME", "correct --subnetwork"),
    ),
    "network": Refusal(
        "there is no subnetwork for the workers",
        (*CONVERT, "--network=nothing"),
        ("subnetwork nothing in us-central1", "give --subnetwork"),
    ),
    "private access": Refusal(
        "workers without public addresses would reach no service of Google",
        (*CONVERT, "--network=closed"),
        ("--enable-private-ip-google-access", "or give --use_public_ips"),
        lambda cloud: cloud.dataflow.subnetworks.update(closed=False),
    ),
    "installation": Refusal(
        "the workers could not install gristmill",
        (*CONVERT, "--sdk_container_image="),
        ("--sdk_container_image=IMAGE", "--use_public_ips", "--install-on-workers"),
    ),
    "installation of a package of one's own": Refusal(
        "the workers could not install gristmill",
        (*CONVERT, "--sdk_container_image=", "--setup_file=setup.py"),
        ("Beam's own image",),
    ),
    "pattern": Refusal(
        "no input file matches",
        ("convert", "gs://raw/texts/*.nope", "gs://data/x"),
        (
            "where:    gs://raw/texts/*.nope",
            "3 objects with the prefix gs://raw/texts/, such as "
            "gs://raw/texts/part-0.tfrecord",
        ),
    ),
    "files to index": Refusal(
        "no input file matches",
        ("index", "gs://data/nothing/*.array_record"),
        ("no object with the prefix gs://data/nothing/",),
    ),
    "dataset to verify": Refusal(
        "not a committed dataset",
        ("verify", "gs://data/nothing"),
        ("gs://data/nothing", "dataset.json"),
        code=3,
    ),
    "output among inputs": Refusal(
        "the output lies among the inputs: the next run would find it",
        ("convert", "gs://raw/**", "gs://raw/out"),
        ("gs://raw/** would match gs://raw/out/dataset.json",),
    ),
    "damaged output": Refusal(
        "the output cannot be read",
        (*CONVERT[:2], "gs://data/damaged"),
        ("repair it, or choose another output",),
        damaged,
    ),
    "committed": Refusal(
        "the output is committed already",
        (*CONVERT[:2], "gs://data/done"),
        ("gs://data/done, split train", "--overwrite"),
        committed,
    ),
    "disk": Refusal(
        "the shards in progress do not fit on a worker's disk",
        (*CONVERT, "--shard-size=100GiB", "--disk_size_gb=20"),
        ("at least 21 GB", "--disk_size_gb=21", "a smaller --shard-size"),
    ),
    "prebuilt, with a map": Refusal(
        "the workers do not have the module of ...",
        (
            *(*CONVERT, "--map=mine:shout", "--sdk_container_image="),
            "--prebuild_sdk_container_engine=cloud_build",
        ),
        ("of --map", "--setup_file"),
    ),
    "Arm": Refusal(
        "the image is for x86-64, and the machines are Arm",
        (*CONVERT, "--machine_type=t2a-standard-4"),
        ("t2a-standard-4", "e2-standard-4"),
    ),
    "streaming": Refusal(
        "a job that ends is no streaming job", (*CONVERT, "--streaming"), ("drop it",)
    ),
    "key elsewhere": Refusal(
        "the key is not in the workers' region",
        (
            *CONVERT,
            "--dataflow_kms_key=projects/p/locations/europe-west4/keyRings/r/"
            "cryptoKeys/k",
        ),
        ("europe-west4", "give a key of us-central1"),
    ),
    "memory": Refusal(
        "the job does not fit into a worker's memory",
        (*CONVERT, "--num-shards=4000000", "--machine_type=e2-highcpu-4"),
        ("4,000,000 shards", "highmem"),
    ),
}


@pytest.fixture
def cloud(services: Cloud):
    objects = services.storage.objects
    before = {name: dict(found) for name, found in objects.buckets.items()}
    yield services
    objects.buckets.update(before)
    objects.places.clear()
    objects.denied.clear()
    services.storage.faults.clear()
    services.dataflow.jobs.clear()
    services.dataflow.requests.clear()


def submit(cloud: Cloud, arguments: tuple[str, ...]) -> Done:
    command, *rest = arguments
    given = ("--runner=DataflowRunner", "--project=my-project", "--region=us-central1")
    return cloud.gristmill(command, *given, *cloud.arguments, IMAGE, *rest)


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_a_submission_is_refused(cloud: Cloud, refusal: Refusal):
    refusal.prepare(cloud)
    started = time.monotonic()
    done = submit(cloud, refusal.arguments)
    assert time.monotonic() - started < LIMIT_SECONDS
    assert done.code == refusal.code, done.stderr
    assert cloud.dataflow.requests == []
    first = done.stderr.partition("\n")[0]
    parts = map(re.escape, refusal.message.split("..."))
    assert re.fullmatch("error: " + ".*".join(parts), first)
    assert "to do:" in done.stderr
    assert "Traceback" not in done.stderr
    for text in refusal.said:
        assert text in done.stderr
