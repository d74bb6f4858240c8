"""What the guide says of keys, networks and prices reaches the request for a job."""

from __future__ import annotations

import re

import pytest
from google.cloud.dataflow_v1beta3.types import FlexResourceSchedulingGoal

from gristmill.pipelines.commands.template import command_line
from tests.deploy.cloud import job_of, running, written_job
from tests.deploy.tools import ROOT

COMPUTE = "https://www.googleapis.com/compute/v1/projects"
IMAGE = "us-docker.pkg.dev/my-project/gristmill/gristmill:1"
# Where the request has what the row of the guide sets.
PLACES = {
    "your own key": (
        ("environment", "serviceKmsKeyName"),
        "projects/P/locations/us-central1/keyRings/K/cryptoKeys/N",
    ),
    "a Shared VPC": (
        ("environment", "workerPools", 0, "subnetwork"),
        f"{COMPUTE}/HOST/regions/us-central1/subnetworks/N",
    ),
    "FlexRS": (
        ("environment", "flexResourceSchedulingGoal"),
        FlexResourceSchedulingGoal.FLEXRS_COST_OPTIMIZED,
    ),
    "Dataflow Prime": (("environment", "serviceOptions"), ["enable_prime"]),
}


def rows() -> dict[str, tuple[str, str]]:
    """Returns the options of each row: those of Beam, and those of the scripts."""
    text = (ROOT / "deploy" / "README.md").read_text(encoding="utf-8")
    table = text[text.index("## Keys, networks") :].partition("\n\n- ")[0]
    found = re.findall(r"^\| ([^|]+) \| `(--[^`]+)` \| `([^`]+)` \|$", table, re.M)
    return {what: (beams, script) for what, beams, script in found}


def value(job, path):
    for step in path:
        job = job[step]
    return job


def test_the_scripts_say_the_same():
    found = rows()
    assert len(found) == len(PLACES)
    script = (ROOT / "deploy" / "launch.sh").read_text(encoding="utf-8")
    flags = {"KMS_KEY": "dataflow_kms_key=", "SUBNETWORK": "subnetwork="}
    for beams, variable in found.values():
        name, _, given = variable.partition("=")
        assert f" {name}\n" in script
        assert beams == f"--{flags.get(name, '')}{given}"


def options() -> list[str]:
    """Returns the options of Beam of all rows."""
    found = rows()
    assert all(any(row.startswith(what) for row in found) for what in PLACES)
    return [beams for beams, _ in found.values()]


def check(job: dict) -> None:
    # Prime takes no type of machine.
    assert "machineType" not in job["environment"]["workerPools"][0]
    for path, expected in PLACES.values():
        found = value(job, path)
        if isinstance(expected, FlexResourceSchedulingGoal):
            # Beam sends the number to the service, and writes the name to a file.
            assert found in (expected.value, expected.name)
        else:
            assert found == expected


@pytest.mark.slow
def test_options_of_the_guide_reach_the_request():
    with running() as cloud:
        cloud.dataflow.subnetworks["N"] = True
        image = f"--sdk_container_image={IMAGE}"
        convert = ("convert", "gs://raw/texts/*", "gs://data/texts", image)
        done = cloud.submit(*convert, *options())
        assert done.code == 0, done.stderr
        check(job_of(cloud))


@pytest.mark.slow
def test_options_of_the_guide_reach_the_request_of_a_template():
    """The launcher passes them as options of Beam."""
    place = "gs://scratch/launches/convert"
    launcher = [
        *("--input=gs://raw/texts/*", "--output=gs://data/texts", *options()),
        *("--project=my-project", "--region=us-central1"),
        f"--template_location={place}",
    ]
    with running() as cloud:
        cloud.dataflow.subnetworks["N"] = True
        line = command_line("convert", [*launcher, *cloud.arguments], image=IMAGE)
        done = cloud.gristmill(*line)
        assert done.code == 0, done.stderr
        check(written_job(cloud, place))
