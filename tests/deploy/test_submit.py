"""Submissions to Dataflow: what is asked for, what is said, and that it would run."""

import json
import re
import shutil

import pytest
from apache_beam.options.pipeline_options import PipelineOptions, WorkerOptions
from google.cloud.dataflow_v1beta3.types import FlexResourceSchedulingGoal

from gristmill.pipelines import dataflow_defaults
from gristmill.pipelines.beam.pipeline_options import checked_options
from gristmill.pipelines.commands.template import command_line
from gristmill.pipelines.dataflow.defaults import set_defaults
from gristmill.pipelines.options.job_options import ConvertOptions, PackingOptions
from gristmill.transforms.beam.same_code import sources_digest
from tests.deploy import image
from tests.deploy.cloud import (
    RECORDS,
    job_of,
    options_of_job,
    run_staged,
    running,
    written_job,
)
from tests.deploy.tools import run
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


def worker_pool(job):
    (pool,) = job["environment"]["workerPools"]
    return pool


@pytest.mark.slow
def test_a_job_is_asked_for_with_all_options(cloud):
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
    assert "NOT finished" in done.stdout
    job, pool = job_of(cloud), worker_pool(job_of(cloud))
    assert (job["name"], job["type"]) == ("my-job", 1)  # A batch.
    labels = job["labels"]
    assert (labels["team"], labels["gristmill"]) == ("data", "convert")
    expected = {
        "machineType": "n2-standard-8",
        "diskSizeGb": 80,
        "numThreadsPerWorker": 3,
        "network": "my-network",
    }
    assert expected.items() <= pool.items()
    assert pool["autoscalingSettings"]["maxNumWorkers"] == 9
    image = pool["workerHarnessContainerImage"]
    assert re.fullmatch(r"gcr.io/.*/beam_python3\.\d+_sdk:2\.77\.0", image)
    environment = job["environment"]
    assert environment["serviceAccountEmail"].startswith("worker@")
    # A process a core, so that threads are all that multiplies shards in flight.
    experiments = {"some_experiment", "use_multiple_sdk_containers"}
    assert experiments <= {*environment["experiments"]}
    assert "/scratch/tmp" in environment["tempStoragePrefix"]
    options = options_of_job(job)
    assert (options["project"], options["region"]) == ("my-project", "us-central1")
    package = "gristmill-0.1.0.tar.gz"
    assert set(cloud.staged(job)) == {
        "pipeline.pb",
        "submission_environment_dependencies.txt",
        "extra_packages.txt",
        package,
    }
    assert package in [one["name"] for one in pool["packages"]]


def test_what_is_not_given_has_defaults_of_one_job(cloud):
    """Two jobs do not write to one output."""
    done = cloud.submit(*CONVERT, IMAGE)
    assert done.code == 0, done.stderr
    assert not re.search("committed|records|done", done.stdout)
    job = job_of(cloud)
    assert re.fullmatch("gristmill-convert-texts-[0-9a-f]{8}", job["name"])
    assert "/data/gristmill-tmp/" in job["environment"]["tempStoragePrefix"]
    again = cloud.submit(*CONVERT, IMAGE)
    assert again.code == 1
    assert "There is already active job named gristmill-convert-texts" in again.stderr
    assert cloud.submit(*CONVERT[:2], "gs://data/more/texts", IMAGE).code == 0
    assert len(cloud.dataflow.jobs) == 2


# Options; that of Beam's workers that they decide, and the end of its value.
DEFAULTS = """\
| disk_type | compute.googleapis.com/projects//zones//diskTypes/pd-ssd
--worker_disk_type=pd-standard | disk_type | //zones//diskTypes/pd-standard
--disk_type=a/b | disk_type | a/b
--worker_zone=us-central1-a | disk_type | /p/zones/us-central1-a/diskTypes/pd-ssd
--worker_disk_type= | disk_type |
--machine_type=n2-custom-6-10240 | disk_type | /pd-ssd
--machine_type=custom-6-10240 | disk_type | /pd-ssd
--machine_type=n4-standard-4 | disk_type | None
--machine_type=c4a-standard-4 | disk_type | None
--dataflow_service_options=enable_prime | disk_type | None
| machine_type | e2-standard-4
--dataflow_service_options=enable_prime | machine_type | None
| max_num_workers | 50
--max_num_workers=7 | max_num_workers | 7
--num_workers=80 | max_num_workers | 80
--max_num_workers=0 | max_num_workers | 0
| use_public_ips | False
--no_use_public_ips | use_public_ips | False
--use_public_ips | use_public_ips | True
--use_public_ips=true | use_public_ips | True
"""


@pytest.mark.parametrize("line", DEFAULTS.splitlines())
def test_an_option_has_a_default_that_can_be_turned_off(line):
    argument, name, value = (part.strip() for part in line.split("|"))
    found = str(getattr(workers(*filter(None, [argument])), name))
    assert found.endswith(value)
    assert bool(found) == bool(value)


def workers(*arguments, kind=ConvertOptions, **changed):
    given = ["--project=p", "--region=us-central1", *arguments]
    options = PipelineOptions(checked_options("DataflowRunner", given))
    job = kind(input=("gs://raw/texts/*",), output="gs://data/texts", **changed)
    set_defaults(options, job)
    return options.view_as(WorkerOptions)


@pytest.mark.parametrize(
    ("shard_bytes", "machine", "disk_gb"),
    [
        (256 << 20, "e2-standard-4", 100),
        (16 << 30, "e2-standard-4", 20 + 138),
        (16 << 30, "n2-standard-8", 20 + 275),
    ],
)
def test_the_disk_is_that_of_the_shards(shard_bytes, machine, disk_gb):
    """Also in a pipeline of one's own."""
    job = workers(f"--machine_type={machine}", shard_size=f"{shard_bytes >> 20}MiB")
    given = ["--runner=DataflowRunner", "--project=p", f"--machine_type={machine}"]
    options = PipelineOptions(given)
    assert dataflow_defaults(options, shard_bytes=shard_bytes) is options
    for found in (job, options.view_as(WorkerOptions)):
        assert (found.disk_size_gb, found.max_num_workers) == (disk_gb, 50)
        assert not found.use_public_ips


def test_tokens_lie_on_a_disk_beside_their_rows():
    found = workers(kind=PackingOptions, shard_size="16GiB")
    assert found.disk_size_gb == 20 + 275


def test_refusal_of_the_service_is_told(cloud):
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
        for said in (
            "has not succeeded",
            "a worker has no disk left",
            "https://console.cloud.google.com/dataflow/jobs/",
        ):
            assert said in done.stderr


@pytest.mark.slow
def test_the_dataset_that_an_index_makes(cloud):
    cloud.storage.objects.put("data", "found/a.array_record", b"x")
    dry = ("--dry_run=True", "--json")
    for files in ("found/*", "found/a.array_record", "found", "found/"):
        done = cloud.submit("index", f"gs://data/{files}", IMAGE, *dry)
        assert done.code == 0, done.stderr
        assert json.loads(done.stdout)["target"] == "gs://data/found"
    assert cloud.dataflow.requests == []
    assert set(cloud.storage.objects.buckets["data"]) == {"found/a.array_record"}


# --- Rows of the guide, of keys, networks and prices.

# Where the request has what the row of the guide sets.
PLACES = {
    "your own key": (
        "serviceKmsKeyName",
        "projects/P/locations/us-central1/keyRings/K/cryptoKeys/N",
    ),
    "a Shared VPC": (
        "subnetwork",
        "https://www.googleapis.com/compute/v1/projects/HOST/regions/us-central1/"
        "subnetworks/N",
    ),
    "FlexRS": (
        "flexResourceSchedulingGoal",
        FlexResourceSchedulingGoal.FLEXRS_COST_OPTIMIZED,
    ),
    "Dataflow Prime": ("serviceOptions", ["enable_prime"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("by_template", [False, True])
def test_options_of_the_guide_reach_the_request(cloud, by_template):
    """A launcher passes them as options of Beam, the scripts say the same."""
    text = (ROOT / "deploy" / "README.md").read_text("utf-8")
    table = text[text.index("## Keys, networks") :].partition("\n\n- ")[0]
    rows = re.findall(r"^\| ([^|]+) \| `(--[^`]+)` \| `([^`]+)` \|$", table, re.M)
    assert len(rows) == len(PLACES)
    script = (ROOT / "deploy" / "launch.sh").read_text("utf-8")
    flags = {"KMS_KEY": "dataflow_kms_key=", "SUBNETWORK": "subnetwork="}
    for what, beams, variable in rows:
        assert any(what.startswith(place) for place in PLACES)
        name, _, given = variable.partition("=")
        assert f" {name}\n" in script
        assert beams == f"--{flags.get(name, '')}{given}"
    options = [beams for _, beams, _ in rows]
    cloud.dataflow.subnetworks["N"] = True
    if by_template:
        place = "gs://scratch/launches/convert"
        launcher = ["--input=gs://raw/texts/*", "--output=gs://data/texts", *options]
        launcher += ["--project=my-project", "--region=us-central1"]
        launcher += [f"--template_location={place}", *cloud.arguments]
        done = cloud.gristmill(*command_line("convert", launcher, image=BUILT))
        assert done.code == 0, done.stderr
        job = written_job(cloud, place)
    else:
        done = cloud.submit(*CONVERT, IMAGE, *options)
        assert done.code == 0, done.stderr
        job = job_of(cloud)
    # Prime takes no type of machine.
    assert "machineType" not in worker_pool(job)
    asked = job["environment"] | worker_pool(job)
    for name, expected in PLACES.values():
        if isinstance(expected, FlexResourceSchedulingGoal):
            # Beam sends the number to the service, and writes the name to a file.
            assert asked[name] in (expected.value, expected.name)
        else:
            assert asked[name] == expected


# --- That it would run.


def make_worker(folder):
    """Installs the wheel in the environment of the image, as its last stage does."""
    place = image.environment()
    pip = (place / "venv" / "bin" / "python", "-m", "pip")
    (wheel,) = (place / "wheels").iterdir()
    options = ("--quiet", "--no-compile", "--no-deps", "--no-index")
    checked(*pip, "install", *options, wheel, cwd=folder)
    checked(*pip, "check", cwd=folder)


@pytest.fixture(scope="session")
def worker():
    """The Python of a worker's environment, which takes most of a minute to make."""
    shared.made_once("worker", make_worker)
    return image.environment() / "venv" / "bin" / "python"


def entry_point(cloud, python, pipeline, *arguments):
    """Runs a template's entry point as its launcher does: in the image, by its path."""
    folder = python.parents[2] / "template"
    shutil.copytree(ROOT / "deploy" / "templates", folder, dirs_exist_ok=True)
    return run(
        *(python, folder / "main.py", *arguments, "--runner=DataflowRunner"),
        *("--project=my-project", "--region=us-central1", f"--job_name={pipeline}-1"),
        *("--staging_location=gs://scratch/staging", "--machine_type=n2-standard-2"),
        *("--temp_location=gs://scratch/tmp", '--labels={"by": "launcher"}'),
        f"--template_location=gs://scratch/launches/{pipeline}",
        *cloud.arguments,
        cwd=folder,
        # What the launcher starts does not stay root, as in the image.
        env={
            "GRISTMILL_IMAGE": BUILT,
            "GRISTMILL_USER": "nobody",
            "HOME": str(image.environment()),
        },
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_templates_would_run(cloud, worker):
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
    assert launched.returncode == 0, launched.stdout
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
    assert verified.returncode == 0, verified.stdout
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
    assert found.returncode == 0, found.stdout
    job = written_job(cloud, "gs://scratch/launches/index")
    assert run_staged(cloud.staged(job)["pipeline.pb"], worker) == "DONE"
    assert f"{2 * RECORDS} in {len(shards)} shards" in (
        cloud.gristmill("inspect", "gs://data/found").stdout
    )
