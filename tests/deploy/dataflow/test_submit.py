"""Submissions to Dataflow: what is asked for, what is said, and that it would run."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

import gristmill
from gristmill.transforms.beam.same_code import sources_digest
from tests.deploy import image
from tests.deploy.cloud import (
    RECORDS,
    Cloud,
    job_of,
    options_of_job,
    run_staged,
    running,
    written_job,
)
from tests.support import shared
from tests.support.distributions import ROOT, checked

CONVERT = ("convert", "gs://raw/texts/*", "gs://data/texts", "--num-shards", "5")
# Where a test is about something else: it takes seconds to build the package.
BUILT = "us-docker.pkg.dev/my-project/gristmill/gristmill:1"
IMAGE = f"--sdk_container_image={BUILT}"
# Workers that install what they run.
PUBLIC = "--use_public_ips"


@pytest.fixture
def cloud():
    with running() as services:
        yield services


def worker_pool(job) -> dict:
    (pool,) = job["environment"]["workerPools"]
    return pool


@pytest.mark.slow
def test_a_job_is_asked_for_with_all_options(cloud: Cloud):
    cloud.dataflow.subnetworks = {"my-network": True}
    done = cloud.submit(
        *CONVERT,
        *("--worker_machine_type", "n2-standard-8", "--labels=team=data"),
        *("--temp-location", "gs://scratch/tmp", "--job_name=my-job"),
        "--service_account_email=worker@my-project.iam.gserviceaccount.com",
        *("--network", "my-network", "--max_num_workers", "9", "--disk_size_gb=80"),
        *("--number_of_worker_harness_threads=3", "--experiments=some_experiment"),
        PUBLIC,
    )
    assert done.code == 0, done.stderr
    job = job_of(cloud)
    assert job["name"] == "my-job"
    assert job["type"] == 1  # A batch.
    assert job["labels"]["team"] == "data"
    assert job["labels"]["gristmill"] == "convert"
    pool = worker_pool(job)
    assert pool["machineType"] == "n2-standard-8"
    assert pool["diskSizeGb"] == 80
    assert pool["numThreadsPerWorker"] == 3
    assert pool["network"] == "my-network"
    assert pool["autoscalingSettings"]["maxNumWorkers"] == 9
    image = pool["workerHarnessContainerImage"]
    assert re.fullmatch(r"gcr.io/.*/beam_python3\.\d+_sdk:2\.77\.0", image)
    environment = job["environment"]
    assert environment["serviceAccountEmail"].startswith("worker@")
    assert "some_experiment" in environment["experiments"]
    # A process a core, so that threads are all that multiplies shards in flight.
    assert "use_multiple_sdk_containers" in environment["experiments"]
    assert environment["tempStoragePrefix"].endswith("scratch/tmp") or (
        "/scratch/tmp/my-job" in environment["tempStoragePrefix"]
    )
    options = options_of_job(job)
    assert (options["project"], options["region"]) == ("my-project", "us-central1")
    staged = cloud.staged(job)
    assert set(staged) == {
        "pipeline.pb",
        "submission_environment_dependencies.txt",
        "extra_packages.txt",
        "gristmill-0.1.0.tar.gz",
    }
    names = [package["name"] for package in pool["packages"]]
    assert "gristmill-0.1.0.tar.gz" in names


def test_what_is_not_given_has_defaults(cloud: Cloud):
    done = cloud.submit(*CONVERT, IMAGE)
    assert done.code == 0, done.stderr
    assert "NOT finished" in done.stdout
    assert not re.search("committed|records|done", done.stdout)
    job = job_of(cloud)
    assert re.fullmatch("gristmill-convert-texts-[0-9a-f]{8}", job["name"])
    pool = worker_pool(job)
    assert pool["machineType"] == "e2-standard-4"
    assert pool["diskSizeGb"] == 100
    assert pool["numThreadsPerWorker"] == 2
    assert pool["diskType"].endswith("diskTypes/pd-ssd")
    assert pool["autoscalingSettings"]["maxNumWorkers"] == 50
    assert pool["ipConfiguration"] == 2  # WORKER_IP_PRIVATE
    assert job["labels"]["gristmill"] == "convert"
    assert "/data/gristmill-tmp/" in job["environment"]["tempStoragePrefix"]


@pytest.mark.slow
def test_two_jobs_do_not_write_to_one_output(cloud: Cloud):
    assert cloud.submit(*CONVERT, IMAGE).code == 0
    again = cloud.submit(*CONVERT, IMAGE)
    assert again.code == 1
    assert "There is already active job named gristmill-convert-texts" in again.stderr
    elsewhere = (*CONVERT[:2], "gs://data/more/texts", IMAGE)
    assert cloud.submit(*elsewhere).code == 0
    assert len(cloud.dataflow.jobs) == 2


def test_dry_run_submits_nothing(cloud: Cloud):
    command, *rest = CONVERT
    done = cloud.submit(command, "--dry-run", *rest, IMAGE)
    assert done.code == 0, done.stderr
    assert "nothing was submitted" in done.stdout
    assert "checked   options" in done.stdout
    assert "  buckets and this account's roles" in done.stdout
    assert "not yet   the workers' account, quotas" in done.stdout
    assert cloud.dataflow.requests == []
    assert set(cloud.storage.objects.buckets["data"]) == set()


def test_refusal_of_the_service_is_told(cloud: Cloud):
    cloud.dataflow.refusal = (403, "Dataflow API has not been used in this project")
    done = cloud.submit(*CONVERT, IMAGE)
    assert done.code == 1
    assert "could not be submitted" in done.stderr
    assert "has not been used in this project" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_waiting_for_a_job_that_fails():
    with running("JOB_STATE_FAILED") as cloud:
        cloud.dataflow.errors = ["a worker has no disk left"]
        done = cloud.submit(*CONVERT, IMAGE, "--wait")
        assert done.code == 1
        assert "has not succeeded" in done.stderr
        assert "a worker has no disk left" in done.stderr
        assert "https://console.cloud.google.com/dataflow/jobs/" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "files", ["found/*", "found/a.array_record", "found", "found/"]
)
def test_the_dataset_that_an_index_makes(cloud: Cloud, files: str):
    cloud.storage.objects.put("data", "found/a.array_record", b"x")
    dry = ("--dry_run=True", "--json")
    done = cloud.submit("index", f"gs://data/{files}", IMAGE, *dry)
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["target"] == "gs://data/found"


def make_worker(folder: pathlib.Path) -> None:
    """Adds the staged package to the environment of the image, no more."""
    python = image.environment() / "venv" / "bin" / "python"
    pip = (python, "-m", "pip")
    with running() as cloud:
        assert cloud.submit(*CONVERT, PUBLIC).code == 0
        package = folder / "gristmill-0.1.0.tar.gz"
        package.write_bytes(cloud.staged(job_of(cloud))[package.name])
    options = ("--quiet", "--no-compile", "--no-deps", "--no-build-isolation")
    checked(*pip, "install", *options, package, cwd=folder)
    checked(*pip, "check", cwd=folder)
    code = "import gristmill as found; print(found.__file__, found.__version__)"
    # Nothing at the root of the repository shadows what is installed.
    for cwd in (folder, ROOT):
        where, version = checked(python, "-c", code, cwd=cwd).split()
        assert where.startswith(str(python.parents[1]))
        assert version == gristmill.__version__
        said = checked(python, "-m", "gristmill", "--version", cwd=cwd)
        assert said.strip() == f"gristmill {version}"


@pytest.fixture(scope="session")
def worker() -> pathlib.Path:
    """The Python of a worker's environment, which takes most of a minute to make."""
    shared.made_once("worker", make_worker)
    return image.environment() / "venv" / "bin" / "python"


def entry_point(
    cloud: Cloud, python: pathlib.Path, pipeline: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Runs a template's entry point as its launcher does: in the image, by its path."""
    folder = python.parents[2] / "template"
    shutil.copytree(ROOT / "deploy" / "templates", folder, dirs_exist_ok=True)
    return subprocess.run(
        [
            *(str(python), str(folder / "main.py"), *arguments),
            *("--runner=DataflowRunner", "--project=my-project"),
            *("--region=us-central1", f"--job_name={pipeline}-1"),
            *(
                "--staging_location=gs://scratch/staging",
                "--machine_type=n2-standard-2",
            ),
            *("--temp_location=gs://scratch/tmp", '--labels={"by": "launcher"}'),
            f"--template_location=gs://scratch/launches/{pipeline}",
            *cloud.arguments,
        ],
        cwd=folder,
        # What the launcher starts does not stay root, as in the image.
        env={
            **os.environ,
            "GRISTMILL_IMAGE": BUILT,
            "GRISTMILL_USER": "nobody",
            "HOME": str(image.environment()),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_templates_would_run(cloud: Cloud, worker: pathlib.Path):
    checked(
        *(worker, "-m", "gristmill", "convert", "gs://raw/texts/part-0*"),
        *("gs://raw/texts/part-1*", "gs://data/here/texts"),
        *("--group-size=4", "--num-shards=4"),
        cwd=worker.parent,
    )
    expected = cloud.files("gs://data/here/texts")

    launched = entry_point(
        *(cloud, worker, "convert"),
        "--input=gs://raw/texts/part-0*,gs://raw/texts/part-1*",
        *("--output=gs://data/texts", "--group_size=4", "--num_shards=4"),
        *("--overwrite=false", f"--setup_file={image.environment()}/source/setup.py"),
    )
    assert launched.returncode == 0, launched.stderr
    assert "nothing has run" in launched.stdout
    assert cloud.dataflow.requests == []
    job = written_job(cloud, "gs://scratch/launches/convert")
    assert job["labels"] == {
        "by": "launcher",
        "gristmill": "convert",
        "gristmill-sources": sources_digest(),
    }
    pool = worker_pool(job)
    assert pool["workerHarnessContainerImage"] == BUILT
    assert pool["machineType"] == "n2-standard-2"
    assert pool["numThreadsPerWorker"] == 2
    assert run_staged(cloud.staged(job)["pipeline.pb"], worker) == "DONE"
    assert cloud.files("gs://data/texts") == expected

    verified = entry_point(
        *(cloud, worker, "verify", "--dataset=gs://data/texts"),
        "--report=gs://data/report.json",
    )
    assert verified.returncode == 0, verified.stderr
    job = written_job(cloud, "gs://scratch/launches/verify")
    # An image that holds everything: nothing is staged to be installed.
    assert set(cloud.staged(job)) <= {
        "pipeline.pb",
        "submission_environment_dependencies.txt",
    }
    assert run_staged(cloud.staged(job)["pipeline.pb"], worker) == "DONE"
    report = json.loads(cloud.files("gs://data")["report.json"])
    assert (report["records"], report["findings"]) == (2 * RECORDS, [])

    shards = [
        name for name in expected if re.fullmatch(r"[\w-]+\.array_record-.*", name)
    ]
    for name in shards:
        cloud.storage.objects.put("data", f"found/{name}", expected[name])
    found = entry_point(cloud, worker, "index", "--files=gs://data/found/*")
    assert found.returncode == 0, found.stderr
    job = written_job(cloud, "gs://scratch/launches/index")
    assert run_staged(cloud.staged(job)["pipeline.pb"], worker) == "DONE"
    assert f"{2 * RECORDS} in {len(shards)} shards" in (
        cloud.gristmill("inspect", "gs://data/found").stdout
    )
