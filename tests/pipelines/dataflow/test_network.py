"""Whether workers without public addresses reach Google: asked before they start."""

from __future__ import annotations

import time

import pytest
from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    WorkerOptions,
)

from gristmill.dataset.base.errors import InputError, StorageError
from gristmill.pipelines.dataflow import clients
from gristmill.pipelines.dataflow.network import (
    Subnetwork,
    check_private_access,
    subnetwork_of,
)
from tests.support.dataflow_server import DataflowServer
from tests.support.gcs_server import GcsServer

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


def test_a_busy_service_is_asked_again_when_it_says(service):
    service.busy = [{"Retry-After": "1"}]
    begin = time.monotonic()
    assert check() == []
    assert time.monotonic() - begin >= 1  # Usually at most 0.2.


def test_a_service_that_stays_busy_is_noted_in_time(service, monkeypatch):
    monkeypatch.setattr(clients, "_SECONDS", 1.0)
    service.busy = [{"Retry-After": "600"}] * 99
    (note,) = check()
    assert "The service is busy" in note
    # The second request is made at the deadline, and seldom another.
    assert len(service.busy) >= 95


@pytest.mark.parametrize("status", [200, 503])
@pytest.mark.parametrize(
    "body",
    ["", "<p>", "[]", '{"error": 1}', '{"error": {"details": [1]}}', "[" * 99999],
)
def test_any_body_of_a_service(monkeypatch, status, body):
    monkeypatch.setattr(clients, "_SECONDS", 0.3)
    with GcsServer("bucket") as server:
        server.fail("other", answer=(status, "application/json", body), times=99)
        try:
            found, document = clients.get_json(f"{server.url}/b", anonymous=True)
        except StorageError as e:
            assert server.url in str(e)  # noqa: PT017
        else:
            assert (found, isinstance(document, dict)) == (status, True)
