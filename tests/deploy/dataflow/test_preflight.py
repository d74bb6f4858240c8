"""What is accepted before a submission, and noted; `test_refusals` has what is not."""

from __future__ import annotations

import time

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.dataflow import clients
from gristmill.pipelines.dataflow.defaults import check_machine, copies_of
from gristmill.pipelines.dataflow.preflight import (
    AskedJob,
    check_buckets,
    check_private_access,
    list_input,
    shards_of,
    subnetwork_of,
)
from gristmill.pipelines.options.job_options import (
    ConvertOptions,
    LaunchOptions,
    PackingOptions,
    VerifyOptions,
)
from gristmill.transforms.planning.shard_plan import PlanOptions
from tests.deploy.cloud import Cloud, running
from tests.rows.tokenizer_files import tokenizer_json

CONVERT = ("convert", "gs://raw/texts/*", "gs://data/texts")
IMAGE = "--sdk_container_image=us-docker.pkg.dev/my-project/gristmill/convert:1"
VERIFY = VerifyOptions(dataset="gs://data/x")
OPTIONS = ConvertOptions(input=("gs://raw/texts/*",), output="gs://data/x")


@pytest.fixture(scope="module")
def cloud():
    with running() as services:
        for name in ("a/1", "a/2.gz", "a/_SUCCESS", "a/deep/3", "a/[1]", "b/c/d"):
            services.storage.objects.put("raw", name, b"0123456789")
        yield services


@pytest.fixture(autouse=True)
def as_before(cloud: Cloud):
    yield
    cloud.storage.objects.places.clear()
    cloud.storage.objects.denied.clear()
    cloud.storage.objects.page_size = 1000
    cloud.storage.faults.clear()
    cloud.dataflow.denied.clear()
    cloud.dataflow.subnetworks = {"default": True}
    cloud.dataflow.busy = []


def accepted(cloud: Cloud, *arguments: str) -> str:
    done = cloud.submit(*(arguments or CONVERT), IMAGE, "--dry_run=True")
    assert done.code == 0, done.stderr
    return done.stdout


def asked(*arguments: str, options=VERIFY) -> AskedJob:
    """Returns a job of which nothing was checked yet."""
    given = ["--project=p", "--no_auth", "--region=us-central1", *arguments]
    return AskedJob(options, LaunchOptions(), PipelineOptions(given))


def test_missing_credentials_are_told_in_seconds(cloud, monkeypatch, tmp_path):
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    given = ("--runner=DataflowRunner", "--project=p", "--region=us-central1", IMAGE)
    started = time.monotonic()
    done = cloud.gristmill(*CONVERT, *given)
    assert (done.code, time.monotonic() - started < 60) == (2, True)
    assert "no credentials for Google Cloud" in done.stderr
    assert "gcloud auth application-default login" in done.stderr
    dry = cloud.gristmill(*CONVERT, *given, "--dry_run")
    assert "all else: no credentials for Google Cloud" in dry.stdout
    (tmp_path / "key.json").write_text("{}")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    with pytest.raises(InputError, match="no credentials for Google Cloud"):
        clients.connect()


def test_reading_asks_for_no_right_to_write(cloud):
    denied = cloud.storage.objects.denied
    denied |= {"storage.objects.create", "storage.objects.delete"}
    assert [*check_buckets(asked())] == []
    denied.add("storage.objects.get")
    with pytest.raises(InputError, match="objectViewer"):
        [*check_buckets(asked())]


@pytest.mark.slow
def test_a_bucket_elsewhere_is_noted_if_it_is_allowed(cloud):
    cloud.storage.objects.places["data"] = {"location": "EUROPE-WEST4"}
    text = accepted(cloud, *CONVERT, "--cross-region")
    assert "gs://data is in EUROPE-WEST4" in text
    for name in cloud.storage.objects.buckets:
        cloud.storage.objects.places[name] = {"location": "EU"}
    cloud.storage.fail("503", "permissions", times=1)  # That is passed over.
    for option in ("--worker_region=europe-west4", "--worker_zone=europe-west4-b"):
        accepted(cloud, *CONVERT, option)


@pytest.mark.parametrize(
    ("location", "near"),
    [
        *(("US-CENTRAL1", True), ("US-EAST1", False), ("US", True), ("EU", False)),
        *(("NAM4", True), ("EUR4", False), ("NOWHERE", True), ("", True)),
        *(("US-CENTRAL1+US-WEST1", True), ("US-EAST1+US-WEST1", False)),
    ],
)
def test_locations_that_contain_a_region(location, near):
    assert clients.Bucket(location, frozenset()).near("us-central1") is near


@pytest.mark.slow
def test_an_output_that_is_committed_may_be_replaced(cloud):
    output = (*CONVERT[:2], "gs://data/done")
    assert cloud.gristmill(*output).code == 0
    remarks = accepted(cloud, *output, "--overwrite")
    assert "split train stays until the new one is finished" in remarks
    assert "meanwhile the bucket holds both" in remarks
    accepted(cloud, *output, "--split", "test")


@pytest.mark.slow
def test_tokens_lie_on_a_disk_beside_their_rows(cloud):
    plain = ("gs://raw/texts/*", "gs://data/rows", "--length=64", "--num-shards=1")
    cloud.storage.objects.put("raw", "models/tokenizer.json", tokenizer_json())
    tokenizer = "--tokenizer=gs://raw/models/tokenizer.json"
    accepted(cloud, "pack", *plain, tokenizer, "--disk_size_gb=21")
    rows = PackingOptions(input=("gs://a/b",), output="gs://a/c")
    assert [*map(copies_of, (OPTIONS, rows))] == [1, 2]


def machine(name: str | None, disk_gb: int, threads: int = 2) -> PipelineOptions:
    given = asked(f"--disk_size_gb={disk_gb}").beam
    given.machine_type, given.number_of_worker_harness_threads = name, threads
    return given


def test_machines_of_which_nothing_is_known():
    for name in (None, "e2-micro"):
        (note,) = check_machine(1, 1, machine(name, 1))
        assert note.startswith("disk and memory were not checked")


@pytest.mark.parametrize(
    ("kind", "value", "whole", "shards"),
    [
        ("match_shards", None, True, (2, 700)),
        ("shard_bytes", 500, True, (2, 500)),
        ("shard_bytes", 5000, True, (1, 1000)),
        ("shard_bytes", 5000, False, (1, 5000)),
        ("num_shards", 4, True, (4, 250)),
    ],
)
def test_the_shards_of_a_job(kind, value, whole, shards):
    plan = PlanOptions(kind=kind, value=value)
    assert shards_of([300, 700], plan, whole=whole) == shards
    twice = shards_of([300, 700], plan, whole=whole, copies=2)
    assert twice == (shards[0], 2 * shards[1])
    assert shards_of([], plan, whole=False)[0] in (0, value)


@pytest.mark.parametrize(
    ("path", "files"),
    [
        *(("gs://raw/a/1", 1), ("gs://raw/a/[1]", 1), ("gs://raw/a/[12]", 1)),
        *(("gs://raw/a", 3), ("gs://raw/a/", 3), ("gs://raw/a/*", 4)),
        *(("gs://raw/a/**", 5), ("gs://raw/*/deep/?", 1), ("gs://raw/a/x", 0)),
    ],
)
def test_inputs_are_found(cloud, path, files):
    sizes, _, whole = list_input(path, ends=time.monotonic() + 60)
    assert (sizes, whole) == ([10] * files, True)


def test_listing_ends_in_time(cloud):
    cloud.storage.objects.page_size = 2
    before = cloud.storage.requests["list"]
    sizes, seen, whole = list_input("gs://raw/**/d", ends=0)
    assert (sizes, whole) == ([], False)
    assert "1 object with the prefix gs://raw/, such as gs://raw/a/1" in seen
    sizes, _, whole = list_input("gs://raw/a/**", ends=0)
    assert (sizes, whole) == ([10], False)
    assert cloud.storage.requests["list"] == before + 2


GOOGLE = "https://www.googleapis.com/compute/v1/projects"


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
    assert subnetwork_of(asked(*arguments)) == found


def private_access(*arguments: str) -> list[str]:
    return [*check_private_access(asked(*arguments))]


def test_what_may_not_be_seen_is_noted(cloud, monkeypatch):
    cloud.dataflow.denied.add("compute.subnetworks.get")
    (note,) = private_access()
    assert "Private Google Access was not checked in subnetwork default" in note
    assert "Required 'compute.subnetworks.get' permission" in note
    assert "roles/compute.networkViewer" in note
    nowhere = "http://127.0.0.1:9/compute/v1"
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE", nowhere)
    (note,) = private_access()
    assert "was not checked" in note


@pytest.mark.slow
def test_a_busy_service_is_asked_again(cloud):
    cloud.dataflow.busy = [{}]
    assert private_access() == []
    cloud.dataflow.busy = [{}] * 999
    (note,) = private_access()
    assert "The service is busy" in note
