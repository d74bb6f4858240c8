"""deploy/: linted, of one version of Beam, and run as far as one machine can."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import stat
import sys
from collections.abc import Callable, Iterator

import pytest
from google.cloud.dataflow_v1beta3.types import ContainerSpec
from google.cloud.monitoring_v3.types import AlertPolicy
from google.protobuf import json_format

from gristmill.pipelines.commands.template import TEMPLATES, metadata, parameters_of
from gristmill.pipelines.dataflow.defaults import MAX_WORKERS
from gristmill.transforms.beam import run_job
from tests.deploy import roles
from tests.deploy.dataflow_server import DataflowServer
from tests.deploy.gcloud_stand_in import JOB
from tests.deploy.tools import run, tool
from tests.documents.test_docs import blocks_of
from tests.servers.gcs_server import GcsServer

ROOT = pathlib.Path(__file__).parents[2]
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
def gcloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Variables that lead gcloud to a Storage and a Dataflow on loopback."""
    if shutil.which("gcloud") is None:
        pytest.skip("gcloud is not on this machine")
    with (
        GcsServer("my-bucket", "my-bucket-templates") as storage,
        DataflowServer() as service,
    ):
        services.update(storage=storage, dataflow=service)
        yield {
            "CLOUDSDK_CONFIG": str(tmp_path_factory.mktemp("gcloud")),
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{storage.url}/storage/v1/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_CLOUDBUILD": f"{service.url}/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_DATAFLOW": f"{service.url}/",
            "PROJECT": "my-project",
            "REGION": "us-central1",
            "BUCKET": "my-bucket",
        }


services: dict = {}


def template(name: str) -> dict:
    """Returns a template that was written, in Google's terms."""
    data = services["storage"].objects.buckets["my-bucket-templates"][name].data
    # Nothing that Google's message does not have: `read` would fail.
    json_format.Parse(data, ContainerSpec.pb()())
    return json.loads(data)


@pytest.mark.slow
def test_build_makes_the_image_and_templates(gcloud, docker):
    account = "worker@my-project.iam.gserviceaccount.com"
    key = "projects/p/locations/l/keyRings/r/cryptoKeys/k"
    given = {"LOCAL": "1", "TAG": "7", "SERVICE_ACCOUNT": account, "SUBNETWORK": "mine"}
    given["KMS_KEY"] = key
    done = run("deploy/build.sh", env={**gcloud, **docker, **given})
    assert done.returncode == 0, done.stdout
    image = "us-central1-docker.pkg.dev/my-project/gristmill/gristmill:7"
    calls = pathlib.Path(docker["DOCKER_LOG"]).read_text().splitlines()
    assert calls[-1] == f"docker push {image}"
    assert done.stdout.endswith(f"The image is {image}\n")
    for pipeline in TEMPLATES:
        written = template(f"gristmill-{pipeline}.json")
        assert written["image"] == image
        assert written["sdkInfo"] == {"language": "PYTHON"}
        expected = metadata(pipeline)
        for part in ("name", "description", "parameters"):
            assert written["metadata"][part] == expected[part]
        assert written["defaultEnvironment"] == {
            "additionalUserLabels": {"gristmill": pipeline},
            "ipConfiguration": "WORKER_IP_PRIVATE",
            "kmsKeyName": key,
            "maxWorkers": MAX_WORKERS,
            "serviceAccountEmail": account,
            "subnetwork": "mine",
            "stagingLocation": "gs://my-bucket/gristmill-tmp/staging",
            "tempLocation": "gs://my-bucket/gristmill-tmp",
        }


@pytest.mark.slow
def test_build_uploads_with_the_roles_of_the_document(gcloud):
    """The sources get to Cloud Build, which is not here, and no bucket is made."""
    objects = services["storage"].objects
    user = roles.bucket_permissions("building user")["scratch-templates"]
    asked = {**gcloud, "BUILD_ACCOUNT": "b@my-project.iam.gserviceaccount.com"}
    try:
        for granted in (user - {"storage.buckets.get"}, user):
            objects.granted = {"my-bucket-templates": granted}
            done = run("deploy/build.sh", env=asked)
            assert done.returncode != 0
            uploaded = [
                name
                for name in objects.buckets["my-bucket-templates"]
                if name.startswith("source/")
            ]
            assert bool(uploaded) == (granted == user), done.stdout
    finally:
        objects.granted = None
    assert ("POST", "/v1/projects/my-project/locations/us-central1/builds") in (
        services["dataflow"].requests
    )
    assert set(objects.buckets) == {"my-bucket", "my-bucket-templates"}


@pytest.fixture
def asked(tmp_path: pathlib.Path) -> Callable[..., dict]:
    """Runs a script with a stand-in for gcloud; returns what gcloud was asked for."""
    folder = tmp_path / "bin"
    folder.mkdir()
    stand_in = ROOT / "tests" / "deploy" / "gcloud_stand_in.py"
    command = f'#!/bin/sh\nexec "{sys.executable}" "{stand_in}" "$@"\n'
    (folder / "gcloud").write_text(command)
    (folder / "gcloud").chmod(0o755)
    log = tmp_path / "asked.json"
    where = {"PROJECT": "my-project", "REGION": "us-central1", "BUCKET": "my-bucket"}
    where |= {"PATH": f"{folder}:{os.environ['PATH']}", "GCLOUD_LOG": str(log)}

    def ask(script: str, *arguments: str, **variables: str) -> dict:
        done = run(DEPLOY / script, *arguments, env=where | variables)
        assert done.returncode == 0, done.stdout
        return {**json.loads(log.read_text()), "said": done.stdout}

    return ask


@pytest.mark.parametrize(
    ("script", "arguments", "parameters"),
    [
        (
            "launch_convert.sh",
            ("gs://a/1,gs://a/2", "gs://b/c", "num_shards=8", "overwrite=true"),
            {
                "input": "gs://a/1,gs://a/2",
                "output": "gs://b/c",
                "num_shards": "8",
                "overwrite": "true",
            },
        ),
        (
            "launch_pack.sh",
            ("gs://a/1", "gs://b/c", "2048", "tokenizer=gs://m/t.json"),
            {
                "input": "gs://a/1",
                "output": "gs://b/c",
                "length": "2048",
                "tokenizer": "gs://m/t.json",
            },
        ),
        (
            "launch_verify.sh",
            ("gs://b/c", "report=gs://b/r.json"),
            {"dataset": "gs://b/c", "report": "gs://b/r.json"},
        ),
        (
            "launch_index.sh",
            ("gs://b/c/*.array_record", "split=train"),
            {"files": "gs://b/c/*.array_record", "split": "train"},
        ),
    ],
)
def test_launch_asks_for_a_job_with_parameters(asked, script, arguments, parameters):
    pipeline = script.removeprefix("launch_").removesuffix(".sh")
    found = asked(script, *arguments)
    assert found["--parameters"] == parameters
    assert parameters.keys() <= {*parameters_of(pipeline)}
    said = found.pop("said")
    assert re.fullmatch(rf"gristmill-{pipeline}-\d{{8}}-\d{{6}}", found.pop("name"))
    # What is not given is left to the code.
    assert found == {
        "--project": "my-project",
        "--region": "us-central1",
        "--template-file-gcs-location": "gs://my-bucket-templates/"
        f"gristmill-{pipeline}.json",
        "--staging-location": "gs://my-bucket/gristmill-tmp/staging",
        "--temp-location": "gs://my-bucket/gristmill-tmp",
        "--additional-user-labels": {"gristmill": pipeline},
        "--parameters": parameters,
        "--disable-public-ips": True,
        "--format": "value(job.id)",
    }
    assert said.splitlines()[0] == JOB
    assert "has NOT finished" in said
    assert "committed" not in said
    place = f"gristmill-tmp/staging/template_launches/{JOB}/console_logs"
    assert f"  gcloud storage cat gs://my-bucket/{place}\n" in said


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
def test_gcloud_launches_as_it_is_asked(gcloud):
    """Gcloud itself splits the lists, and asks the service."""
    more = {f"p{number}": path for number, path in enumerate(NASTY)}
    done = run(
        *(DEPLOY / "launch_convert.sh", "gs://a/*,gs://b/*", "gs://c/d"),
        *(f"{name}={path}" for name, path in more.items()),
        env={
            **gcloud,
            "JOB_NAME": "mine",
            "SERVICE_ACCOUNT": "worker@my-project.iam.gserviceaccount.com",
            "SUBNETWORK": "regions/us-central1/subnetworks/mine",
            "NETWORK": "mine",
            "PIPELINE_OPTIONS": "disk_size_gb=200,number_of_worker_harness_threads=1",
            "MAX_WORKERS": "7",
            "MACHINE_TYPE": "n2-standard-8",
            "LABELS": "team=data,cost=7",
            "KMS_KEY": "projects/p/locations/l/keyRings/r/cryptoKeys/k",
        },
    )
    assert done.returncode == 0, done.stdout
    (launch,) = services["dataflow"].launches
    assert launch["launchParameter"] == {
        "jobName": "mine",
        "containerSpecGcsPath": "gs://my-bucket-templates/gristmill-convert.json",
        "parameters": {"input": "gs://a/*,gs://b/*", "output": "gs://c/d", **more},
        "environment": {
            "additionalPipelineOptions": [
                "disk_size_gb=200",
                "number_of_worker_harness_threads=1",
            ],
            "additionalUserLabels": {
                "gristmill": "convert",
                "team": "data",
                "cost": "7",
            },
            "enableStreamingEngine": False,
            "ipConfiguration": "WORKER_IP_PRIVATE",
            "kmsKeyName": "projects/p/locations/l/keyRings/r/cryptoKeys/k",
            "machineType": "n2-standard-8",
            "maxWorkers": 7,
            "network": "mine",
            "serviceAccountEmail": "worker@my-project.iam.gserviceaccount.com",
            "stagingLocation": "gs://my-bucket/gristmill-tmp/staging",
            "subnetwork": "regions/us-central1/subnetworks/mine",
            "tempLocation": "gs://my-bucket/gristmill-tmp",
        },
    }
    assert done.stdout.splitlines()[0] == JOB
    # What the launcher wrote, as the script says.
    name = f"gristmill-tmp/staging/template_launches/{JOB}/console_logs"
    services["storage"].objects.put("my-bucket", name, b"error: no credentials\n")
    (command,) = re.findall(r"^  (gcloud storage cat \S+)$", done.stdout, re.MULTILINE)
    assert "error: no credentials" in run("bash", "-c", command, env=gcloud).stdout


def test_alerts_are_as_monitoring_takes_them():
    text = (DEPLOY / "alerts.json").read_text(encoding="utf-8")
    policy = json_format.Parse(text, AlertPolicy.pb()())
    runbook = (DEPLOY / "runbook.md").read_text(encoding="utf-8")
    assert len(policy.conditions) >= 4
    for condition in policy.conditions:
        assert f"\n## {condition.display_name}\n" in runbook
        asked = condition.condition_threshold.filter
        assert 'resource.label.job_name = starts_with("gristmill-")' in asked
        if counter := re.search(r'metric_name = "([^"]+)"', asked):
            assert counter[1] in run_job.COUNTERS
