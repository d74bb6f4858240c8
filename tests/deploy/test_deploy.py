"""deploy/: linted, of one version of Beam, and run as far as one machine can."""

import json
import pathlib
import re
import shutil
import stat
import tempfile
from types import SimpleNamespace

import pytest
from google.cloud.dataflow_v1beta3.types import ContainerSpec
from google.cloud.monitoring_v3.types import AlertPolicy
from google.protobuf import json_format

from gristmill.pipelines.commands.template import TEMPLATES, metadata, parameters_of
from gristmill.pipelines.dataflow.defaults import MAX_WORKERS
from gristmill.transforms.beam import run_job
from tests.deploy import roles
from tests.deploy.cloud import gcloud_environment
from tests.deploy.dataflow_server import JOB, DataflowServer
from tests.deploy.tools import ROOT, run, tool
from tests.documents.test_docs import blocks_of
from tests.servers.gcs_server import GcsServer

DEPLOY = ROOT / "deploy"
SCRIPTS = sorted(DEPLOY.glob("*.sh"))
DOCUMENTS = sorted(DEPLOY.glob("*.md"))


@pytest.mark.slow
def test_scripts_are_clean():
    assert len(SCRIPTS) == 9
    done = run(tool("shellcheck"), "--external-sources", *SCRIPTS)
    assert done.returncode == 0, done.stdout
    for script in SCRIPTS:
        sourced = script.name == "launch.sh"
        assert bool(script.stat().st_mode & stat.S_IXUSR) != sourced


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_in_documents_are_clean(document, tmp_path):
    blocks = [b for b in blocks_of(document.read_text()) if b.language]
    for block in blocks:
        assert block.language == "bash"
        # They need a project of Google Cloud: nothing here runs them.
        assert block.skipped
        script = tmp_path / "block.sh"
        # Blocks share variables: one sets what another reads.
        script.write_text(f"#!/usr/bin/env bash\n{block.text}\n")
        done = run(tool("shellcheck"), "--exclude=SC2034,SC2154", script)
        assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def services():
    """A Storage and a Dataflow on loopback, to which its `environment` leads gcloud."""
    if shutil.which("gcloud") is None:
        pytest.skip("gcloud is not on this machine")
    with (
        GcsServer("my-bucket", "my-bucket-templates") as storage,
        DataflowServer() as dataflow,
        tempfile.TemporaryDirectory() as folder,
    ):
        environment = gcloud_environment(folder, storage, dataflow)
        environment |= {
            "PROJECT": "my-project",
            "REGION": "us-central1",
            "BUCKET": "my-bucket",
        }
        yield SimpleNamespace(
            objects=storage.objects, dataflow=dataflow, environment=environment
        )


ACCOUNT = "worker@my-project.iam.gserviceaccount.com"
KEY = "projects/p/locations/l/keyRings/r/cryptoKeys/k"
PLACES = {
    "stagingLocation": "gs://my-bucket/gristmill-tmp/staging",
    "tempLocation": "gs://my-bucket/gristmill-tmp",
    "ipConfiguration": "WORKER_IP_PRIVATE",
}


@pytest.mark.slow
def test_build_makes_the_image_and_templates(services, docker):
    given = {"LOCAL": "1", "TAG": "7", "SERVICE_ACCOUNT": ACCOUNT, "KMS_KEY": KEY}
    given |= services.environment | docker | {"SUBNETWORK": "mine"}
    done = run("deploy/build.sh", env=given)
    assert done.returncode == 0, done.stdout
    image = "us-central1-docker.pkg.dev/my-project/gristmill/gristmill:7"
    calls = pathlib.Path(docker["DOCKER_LOG"]).read_text().splitlines()
    assert calls[-1] == f"docker push {image}"
    assert done.stdout.endswith(f"The image is {image}\n")
    for pipeline in TEMPLATES:
        name = f"gristmill-{pipeline}.json"
        data = services.objects.buckets["my-bucket-templates"][name].data
        # Nothing that Google's message does not have: it could not be read.
        json_format.Parse(data, ContainerSpec.pb()())
        written = json.loads(data)
        assert written["image"] == image
        assert written["sdkInfo"] == {"language": "PYTHON"}
        assert metadata(pipeline).items() >= written["metadata"].items()
        assert len(written["metadata"]) == 3
        assert written["defaultEnvironment"] == PLACES | {
            "additionalUserLabels": {"gristmill": pipeline},
            "kmsKeyName": KEY,
            "maxWorkers": MAX_WORKERS,
            "serviceAccountEmail": ACCOUNT,
            "subnetwork": "mine",
        }


@pytest.mark.slow
def test_build_uploads_with_the_roles_of_the_document(services):
    """The sources get to Cloud Build, which is not here, and no bucket is made."""
    objects = services.objects
    user = roles.bucket_permissions("building user")["scratch-templates"]
    account = {"BUILD_ACCOUNT": "b@my-project.iam.gserviceaccount.com"}
    try:
        for granted in (user - {"storage.buckets.get"}, user):
            objects.granted = {"my-bucket-templates": granted}
            done = run("deploy/build.sh", env=services.environment | account)
            assert done.returncode != 0
            names = objects.buckets["my-bucket-templates"]
            uploaded = [name for name in names if name.startswith("source/")]
            assert bool(uploaded) == (granted == user), done.stdout
    finally:
        objects.granted = None
    asked = "/v1/projects/my-project/locations/us-central1/builds"
    assert ("POST", asked) in services.dataflow.requests
    assert set(objects.buckets) == {"my-bucket", "my-bucket-templates"}


# Arguments of a launch, and the parameters of the job.
LAUNCHES = """\
convert gs://a/1,gs://a/2 gs://b/c num_shards=8 overwrite=true
input=gs://a/1,gs://a/2 output=gs://b/c num_shards=8 overwrite=true
pack gs://a/1 gs://b/c 2048 tokenizer=gs://m/t.json
input=gs://a/1 output=gs://b/c length=2048 tokenizer=gs://m/t.json
verify gs://b/c report=gs://b/r.json
dataset=gs://b/c report=gs://b/r.json
index gs://b/c/*.array_record split=train
files=gs://b/c/*.array_record split=train
""".splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "expected"), [*zip(LAUNCHES[::2], LAUNCHES[1::2], strict=True)]
)
def test_launch_asks_for_a_job_with_parameters(services, line, expected):
    pipeline, *arguments = line.split()
    script = DEPLOY / f"launch_{pipeline}.sh"
    done = run(script, *arguments, env=services.environment)
    assert done.returncode == 0, done.stdout
    launch = services.dataflow.launches.pop()["launchParameter"]
    parameters = dict(one.split("=", 1) for one in expected.split())
    assert parameters.keys() <= {*parameters_of(pipeline)}
    name = launch.pop("jobName")
    assert re.fullmatch(rf"gristmill-{pipeline}-\d{{8}}-\d{{6}}", name)
    # What is not given is left to the code.
    assert launch == {
        "containerSpecGcsPath": f"gs://my-bucket-templates/gristmill-{pipeline}.json",
        "parameters": parameters,
        "environment": PLACES
        | {
            "additionalUserLabels": {"gristmill": pipeline},
            "enableStreamingEngine": False,
        },
    }
    assert done.stdout.splitlines()[0] == JOB
    assert "has NOT finished" in done.stdout
    assert "committed" not in done.stdout


NASTY = [
    "gs://a/b,overwrite=true",
    "gs://a/b~overwrite=true",
    "gs://a/b<0>overwrite=true<1>x<",
    "gs://a/b<2",
    "^~^gs://a/b~overwrite=true",
    "gs://a/b\noverwrite=true",
    "gs://a/$(echo overwrite=true) 'b' \"c\" \\ *",
]


@pytest.mark.slow
def test_launch_takes_any_path_and_all_options(services):
    """Gcloud itself splits the lists, and asks the service."""
    more = {f"p{number}": path for number, path in enumerate(NASTY)}
    subnetwork = "regions/us-central1/subnetworks/mine"
    options = "disk_size_gb=200,number_of_worker_harness_threads=1"
    done = run(
        *(DEPLOY / "launch_convert.sh", "gs://a/*,gs://b/*", "gs://c/d"),
        *(f"{name}={path}" for name, path in more.items()),
        env={
            **services.environment,
            "JOB_NAME": "mine",
            "SERVICE_ACCOUNT": ACCOUNT,
            "SUBNETWORK": subnetwork,
            "NETWORK": "mine",
            "PIPELINE_OPTIONS": options,
            "MAX_WORKERS": "7",
            "MACHINE_TYPE": "n2-standard-8",
            "LABELS": "team=data,cost=7",
            "KMS_KEY": KEY,
        },
    )
    assert done.returncode == 0, done.stdout
    launch = services.dataflow.launches.pop()["launchParameter"]
    labels = {"gristmill": "convert", "team": "data", "cost": "7"}
    assert launch == {
        "jobName": "mine",
        "containerSpecGcsPath": "gs://my-bucket-templates/gristmill-convert.json",
        "parameters": {"input": "gs://a/*,gs://b/*", "output": "gs://c/d", **more},
        "environment": PLACES
        | {
            "additionalPipelineOptions": options.split(","),
            "additionalUserLabels": labels,
            "enableStreamingEngine": False,
            "kmsKeyName": KEY,
            "machineType": "n2-standard-8",
            "maxWorkers": 7,
            "network": "mine",
            "serviceAccountEmail": ACCOUNT,
            "subnetwork": subnetwork,
        },
    }
    # What the launcher wrote, as the script says.
    name = f"gristmill-tmp/staging/template_launches/{JOB}/console_logs"
    services.objects.put("my-bucket", name, b"error: no credentials\n")
    (command,) = re.findall(r"^  (gcloud storage cat \S+)$", done.stdout, re.MULTILINE)
    log = run("bash", "-c", command, env=services.environment).stdout
    assert "error: no credentials" in log


def test_alerts_are_as_monitoring_takes_them():
    text = (DEPLOY / "alerts.json").read_text("utf-8")
    policy = json_format.Parse(text, AlertPolicy.pb()())
    runbook = (DEPLOY / "runbook.md").read_text("utf-8")
    assert len(policy.conditions) >= 4
    for condition in policy.conditions:
        assert f"\n## {condition.display_name}\n" in runbook
        asked = condition.condition_threshold.filter
        assert 'resource.label.job_name = starts_with("gristmill-")' in asked
        if counter := re.search(r'metric_name = "([^"]+)"', asked):
            assert counter[1] in run_job.COUNTERS
