"""Checks before a submission: each ends in seconds, and says why."""

from __future__ import annotations

import threading
import time

import pytest
from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    WorkerOptions,
)

from gristmill.dataset.base.errors import InputError, StorageError
from gristmill.dataset.base.system import daemon_call
from gristmill.pipelines.dataflow import buckets, clients
from gristmill.pipelines.dataflow.defaults import copies_of
from gristmill.pipelines.dataflow.job_inputs import Shards
from gristmill.pipelines.dataflow.machine_types import check_machine
from gristmill.pipelines.dataflow.preflight import (
    Subnetwork,
    check_private_access,
    subnetwork_of,
)
from gristmill.pipelines.options.job_options import (
    ConvertOptions,
    PackingOptions,
    VerifyOptions,
)
from tests.support.cloud import Cloud, running
from tests.support.dataflow_server import DataflowServer
from tests.support.tokenizer_files import tokenizer_json

CONVERT = ("convert", "gs://raw/texts/*", "gs://data/texts")
IMAGE = "--sdk_container_image=us-docker.pkg.dev/my-project/gristmill/convert:1"


@pytest.fixture(scope="module")
def cloud():
    with running() as services:
        yield services


@pytest.fixture(autouse=True)
def as_before(cloud: Cloud):
    objects = cloud.storage.objects
    yield
    objects.places.clear()
    objects.denied.clear()
    cloud.storage.faults.clear()
    cloud.dataflow.jobs.clear()
    cloud.dataflow.requests.clear()


def refused(cloud: Cloud, *arguments: str) -> str:
    """Submits what must not be submitted; returns the message."""
    started = time.monotonic()
    done = cloud.submit(*(arguments or CONVERT), IMAGE)
    assert done.code in (1, 2), done.stdout
    assert time.monotonic() - started < 60
    assert "to do:" in done.stderr
    assert "Traceback" not in done.stderr
    assert cloud.dataflow.requests == []
    return done.stderr


def accepted(cloud: Cloud, *arguments: str) -> str:
    done = cloud.submit(*(arguments or CONVERT), IMAGE, "--dry_run=True")
    assert done.code == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_good_submission_passes(cloud):
    assert "nothing was submitted" in accepted(cloud)


def test_missing_credentials_are_told_in_seconds(cloud, monkeypatch, tmp_path):
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    started = time.monotonic()
    done = cloud.gristmill(
        *(*CONVERT, "--runner=DataflowRunner", "--project=p", "--region=us-central1"),
        IMAGE,
    )
    assert done.code == 2
    assert time.monotonic() - started < 60
    assert "no credentials for Google Cloud" in done.stderr
    assert "gcloud auth application-default login" in done.stderr


def test_credentials_of_a_broken_file_are_told(cloud, monkeypatch, tmp_path):
    (tmp_path / "key.json").write_text("{}")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    with pytest.raises(InputError, match="no credentials for Google Cloud"):
        clients.find_credentials()


def test_what_does_not_answer_is_given_up():
    awake = threading.Event()
    with pytest.raises(StorageError, match="timeout after 0 seconds"):
        clients.within(lambda: awake.wait(60), seconds=0.05, what="a nap")
    awake.set()
    assert clients.within(lambda: 7, seconds=60, what="a number") == 7
    with pytest.raises(KeyError):
        clients.within(lambda: {}["x"], seconds=60, what="a failure")


def test_reading_asks_for_no_right_to_write(cloud):
    uses = buckets.uses_of(VerifyOptions(dataset="gs://data/x"), temporary=[])
    client = clients.storage_client("p", anonymous=True)
    options = {"client": client, "region": "us-central1", "cross_region": False}
    denied = cloud.storage.objects.denied
    denied |= {"storage.objects.create", "storage.objects.delete"}
    assert buckets.check_buckets(uses, **options) == []
    denied.add("storage.objects.get")
    with pytest.raises(InputError, match="objectViewer"):
        buckets.check_buckets(uses, **options)


@pytest.mark.slow
def test_an_answer_that_trickles_is_asked_for_again(cloud):
    uses = buckets.uses_of(VerifyOptions(dataset="gs://data/x"), temporary=[])
    client = clients.storage_client("p", anonymous=True, seconds=0.5)
    for operation in ("permissions", "bucket"):
        cloud.storage.fail("drip", operation, seconds=0.2)
    options = {"client": client, "region": "us-central1", "cross_region": False}
    call = daemon_call(
        lambda: buckets.check_buckets(uses, **options), thread_name="check"
    )
    assert call.result(60) == []
    assert not any(fault.times for fault in cloud.storage.faults)


@pytest.mark.slow
def test_a_bucket_elsewhere(cloud):
    cloud.storage.objects.places["data"] = {"location": "EUROPE-WEST4"}
    message = refused(cloud)
    assert "not in the workers' region" in message
    assert "gs://data, EUROPE-WEST4" in message
    assert "us-central1" in message
    assert "--cross-region" in message
    text = accepted(cloud, *CONVERT, "--cross-region")
    assert "gs://data is in EUROPE-WEST4" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "option", ["--worker_region=europe-west4", "--worker_zone=europe-west4-b"]
)
def test_the_region_is_that_of_the_workers(cloud, option):
    assert "europe-west4" in refused(cloud, *CONVERT, option)
    for name in cloud.storage.objects.buckets:
        cloud.storage.objects.places[name] = {"location": "EU"}
    accepted(cloud, *CONVERT, option)


@pytest.mark.slow
def test_a_storage_that_fails_is_told(cloud):
    cloud.storage.fail("503", "permissions", times=1000)
    message = refused(cloud)
    assert "cannot read the bucket" in message


@pytest.mark.slow
def test_a_hiccup_of_the_storage_is_passed_over(cloud):
    cloud.storage.fail("503", "permissions", times=1)
    accepted(cloud)


@pytest.mark.slow
def test_an_output_that_is_committed(cloud):
    done = cloud.gristmill(*CONVERT[:2], "gs://data/done")
    assert done.code == 0, done.stderr
    again = (*CONVERT[:2], "gs://data/done")
    message = refused(cloud, *again)
    assert "committed already" in message
    assert "gs://data/done, split train" in message
    remarks = accepted(cloud, *again, "--overwrite")
    assert "split train stays until the new one is finished" in remarks
    assert "meanwhile the bucket holds both" in remarks
    accepted(cloud, *again, "--split", "test")


def test_contradictions_are_found_before_any_request(cloud):
    before = cloud.storage.requests.total()
    message = refused(cloud, *CONVERT, "--match-shards", "--num-shards=3")
    assert "more than one way" in message
    assert cloud.storage.requests.total() == before


@pytest.mark.slow
def test_a_function_that_workers_would_not_have(cloud):
    done = cloud.submit(*CONVERT, "--map", "mine:shout", "--use_public_ips")
    assert done.code == 2
    assert "do not have the module of --map" in done.stderr
    assert "--setup_file" in done.stderr
    accepted(cloud, *CONVERT, "--map", "mine:shout")


@pytest.mark.slow
def test_tokens_lie_on_a_disk_beside_their_rows(cloud):
    plain = ("gs://raw/texts/*", "gs://data/rows", "--length=64", "--num-shards=1")
    cloud.storage.objects.put("raw", "models/tokenizer.json", tokenizer_json())
    tokenizer = "--tokenizer=gs://raw/models/tokenizer.json"
    accepted(cloud, "pack", *plain, tokenizer, "--disk_size_gb=21")
    options = PackingOptions(input=("gs://a/b",), output="gs://a/c")
    convert = ConvertOptions(input=("gs://a/b",), output="gs://a/c")
    assert [*map(copies_of, (convert, options))] == [1, 2]


def test_shards_that_do_not_fit_on_a_disk():
    machine = {"machine_type": "n1-standard-8", "threads": 12}
    many, few = Shards(9, 2**30, None), Shards(5, 2**30, 5 * 10**9)
    needed = 20 + 96 * 2**30 // 10**9 + 1
    with pytest.raises(InputError, match="do not fit") as raised:
        list(check_machine(many, disk_gb=needed - 1, **machine))
    assert "96 shards" in raised.value.expected
    assert f"--disk_size_gb={needed}" in raised.value.cure
    assert list(check_machine(many, disk_gb=needed, **machine)) == []
    # No more is on a disk than there is.
    assert list(check_machine(few, disk_gb=25, **machine)) == []
    with pytest.raises(InputError, match="do not fit"):
        list(check_machine(few, disk_gb=24, **machine))


@pytest.mark.parametrize(
    ("machine", "shards", "fits"),
    [
        ("e2-standard-4", 4_000_000, True),
        ("e2-highcpu-4", 4_000_000, False),
        ("e2-highcpu-4", 1_000_000, True),
        ("n1-custom-4-1024", 1, False),
        ("e2-highmem-2", 9_000_000, True),
    ],
)
def test_a_commit_that_does_not_fit_into_memory(machine, shards, fits):
    found = Shards(shards, 1, None)
    check = check_machine(found, threads=2, machine_type=machine, disk_gb=100)
    if fits:
        assert list(check) == []
    else:
        with pytest.raises(InputError, match="does not fit into a worker's memory"):
            list(check)


def test_machines_of_which_nothing_is_known():
    for machine in (None, "e2-micro"):
        (note,) = check_machine(
            Shards(1, 1, 1), threads=2, machine_type=machine, disk_gb=1
        )
        assert note.startswith("disk and memory were not checked")


GOOGLE = "https://www.googleapis.com/compute/v1/projects"


@pytest.fixture
def service(monkeypatch):
    with DataflowServer() as server:
        monkeypatch.setenv(
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", f"{server.url}/compute/v1/"
        )
        yield server


def check(*arguments: str) -> list[str]:
    options = PipelineOptions(["--project=p", "--no_auth", *arguments])
    workers, cloud = options.view_as(WorkerOptions), options.view_as(GoogleCloudOptions)
    return check_private_access(workers, cloud, region="us-central1")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ((), ("p", "default")),
        (("--network=mine",), ("p", "mine")),
        (("--network=projects/p/global/networks/mine",), ("p", "mine")),
        (("--subnetwork=regions/us-central1/subnetworks/s",), ("p", "s")),
        (
            (f"--subnetwork={GOOGLE}/host/regions/us-central1/subnetworks/s",),
            ("host", "s"),
        ),
    ],
)
def test_the_subnetwork_of_the_workers(arguments, found):
    workers = PipelineOptions(list(arguments)).view_as(WorkerOptions)
    subnetwork = subnetwork_of(workers, project="p", region="us-central1")
    assert subnetwork == Subnetwork(found[0], "us-central1", found[1])


@pytest.mark.parametrize("wrong", ["mine", "regions/europe-west4/subnetworks/mine"])
def test_a_subnetwork_that_dataflow_would_not_find(service, wrong):
    with pytest.raises(InputError, match="would not find the subnetwork") as raised:
        check(f"--subnetwork={wrong}")
    assert "regions/us-central1/subnetworks/NAME" in raised.value.expected


def test_private_access_is_asked_for(service):
    assert check() == []
    service.subnetworks = {"default": False}
    with pytest.raises(InputError, match="would reach no service of Google") as raised:
        check()
    assert raised.value.cure.startswith(
        "gcloud compute networks subnets update default --project p --region "
        "us-central1 --enable-private-ip-google-access"
    )
    assert "--use_public_ips" in raised.value.cure
    assert check("--use_public_ips") == []
    with pytest.raises(InputError, match="there is no subnetwork for the workers"):
        check("--network=nothing")


def test_what_may_not_be_seen_is_noted(service):
    service.denied.add("compute.subnetworks.get")
    (note,) = check()
    assert "Private Google Access was not checked in subnetwork default" in note
    assert "Required 'compute.subnetworks.get' permission" in note
    assert "roles/compute.networkViewer" in note


def test_a_service_that_does_not_answer_is_noted(monkeypatch):
    nowhere = "http://127.0.0.1:9/compute/v1"
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", nowhere)
    (note,) = check()
    assert "was not checked" in note


@pytest.mark.slow
def test_a_busy_service_is_asked_again_when_it_says(service):
    service.busy = [{"Retry-After": "1"}]
    begin = time.monotonic()
    assert check() == []
    assert time.monotonic() - begin >= 1  # Usually at most 0.2.


@pytest.mark.slow
def test_a_service_that_stays_busy_is_noted_in_time(service):
    service.busy = [{"Retry-After": "600"}] * 99
    (note,) = check()
    assert "The service is busy" in note
    # The second request is made at the deadline, and seldom another.
    assert len(service.busy) >= 95
