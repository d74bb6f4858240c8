"""The roles of deploy/iam.md are enough to submit; what is missing is named."""

from __future__ import annotations

import time

import pytest

from tests.deploy import roles
from tests.deploy.cloud import Cloud, job_of, written_job

ASKED = roles.asked()
# Here it takes one or two; where Beam tries again, 8 minutes.
LIMIT_SECONDS = 60
WORKERS = "workers' service account"
USERS = ("launching user", "user who submits without a template, also")
SUBMISSION = (
    *("convert", "gs://raw/texts/*", "gs://data/texts"),
    *("--temp_location=gs://scratch/tmp", "--staging_location=gs://scratch/staging"),
    "--service_account_email=worker@my-project.iam.gserviceaccount.com",
    "--sdk_container_image=us-docker.pkg.dev/my-project/gristmill/convert:1",
)


@pytest.fixture
def cloud(services: Cloud):
    services.dataflow.jobs.clear()
    services.dataflow.requests.clear()
    yield services
    services.storage.objects.granted = None
    services.dataflow.denied.clear()


def grant(cloud: Cloud, granted: set[tuple[str, str]]) -> None:
    """Lets the caller have these permissions, by resource, and no others."""
    cloud.storage.objects.granted = roles.by_bucket(granted)
    others = {row.permission for row in ASKED if row.resource not in roles.BUCKETS}
    cloud.dataflow.denied = others - {name for name, _ in granted}


@pytest.mark.slow
def test_roles_are_enough_to_submit(cloud):
    grant(cloud, roles.permissions_of(*USERS))
    done = cloud.submit(*SUBMISSION)
    assert done.code == 0, done.stderr
    assert job_of(cloud)["labels"]["gristmill"] == "convert"


@pytest.mark.slow
def test_roles_of_the_workers_are_enough_in_a_launcher(cloud):
    grant(cloud, roles.permissions_of(WORKERS))
    place = "gs://scratch/staging/template_launches/1/job_object"
    done = cloud.submit(*SUBMISSION, f"--template_location={place}")
    assert done.code == 0, done.stderr
    assert written_job(cloud, place)["labels"]["gristmill"] == "convert"


@pytest.mark.parametrize("is_committed", [False, True])
def test_roles_of_who_launches_are_enough_to_see_progress(cloud, is_committed):
    done = cloud.gristmill("convert", "gs://raw/texts/*", "gs://data/seen")
    assert done.code == 0, done.stderr
    if not is_committed:
        cloud.storage.objects.buckets["data"].pop("seen/dataset.json")
    launcher = roles.permissions_of("launching user")
    grant(cloud, launcher)
    done = cloud.gristmill("inspect", "gs://data/seen")
    assert done.code == 0, done.stderr
    assert ("NOT committed" in done.stdout) != is_committed
    grant(cloud, launcher - {("storage.objects.list", "output bucket")})
    done = cloud.gristmill("inspect", "gs://data/seen")
    assert "storage.objects.list" in done.stderr
    assert "roles/storage.objectViewer" in done.stderr


def by_name(row: roles.Asked) -> str:
    return f"{row.permission}-{row.resource}".replace(" ", "_")


@pytest.mark.parametrize(
    "row", [row for row in ASKED if "--wait" not in row.without], ids=by_name
)
def test_a_permission_that_is_missing_is_named_in_seconds(cloud, row):
    everything = {(each.permission, each.resource) for each in ASKED}
    grant(cloud, everything - {(row.permission, row.resource)})
    started = time.monotonic()
    done = cloud.submit(*SUBMISSION)
    assert time.monotonic() - started < LIMIT_SECONDS
    if row.without.startswith("a note"):
        assert done.code == 0, done.stderr
        said = done.stdout
        assert "note  " in said
    else:
        said = done.stderr
        by_dataflow = row.without == "refused by Dataflow"
        assert done.code == (1 if by_dataflow else 2), done.stdout
        assert bool(cloud.dataflow.requests) is by_dataflow
        assert cloud.dataflow.jobs == {}
        assert "to do:" in said
    assert row.permission in said
    assert row.role in said
