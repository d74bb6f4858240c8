"""deploy/terraform: what Terraform makes of it, and that it grants the roles of iam.md.

Terraform is real, its provider a stand-in with the real one's schema.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.deploy import roles
from tests.deploy.terraform_provider import TerraformProvider
from tests.deploy.tools import ROOT, run

FOLDER = ROOT / "deploy" / "terraform"
WORKER = "serviceAccount:gristmill-worker@my-project.iam.gserviceaccount.com"
BUILD = "serviceAccount:gristmill-build@my-project.iam.gserviceaccount.com"
VARIABLES = {
    "project": "my-project",
    "region": "us-central1",
    "bucket": "my-bucket",
    "input_buckets": ["raw"],
    "output_buckets": ["data"],
    "launchers": ["group:launch@example.com"],
    "submitters": ["user:submit@example.com"],
    "builders": ["user:build@example.com"],
    "image": "us-central1-docker.pkg.dev/my-project/gristmill/gristmill:7",
}
# The words of iam.md.
ACCOUNTS = {
    "workers' service account": "worker",
    "launching user": "launcher",
    "user who submits without a template, also": "submitter",
    "building user": "builder",
    "build's service account": "build",
}
PLACES = {
    "project": "project",
    "input bucket": "input",
    "output bucket": "output",
    "bucket for temporary files": "temporary",
    "template bucket": "templates",
    "image repository": "repository",
    "workers' service account": "worker",
    "build's service account": "build",
}
Rows = set[tuple[str, str, str]]


def documented() -> Rows:
    """Returns the rows of the first table of iam.md, in the words of roles.tf."""
    return {
        (ACCOUNTS[row.account], row.role, PLACES[row.resource])
        for row in roles.grants()
    }


@pytest.fixture(scope="module")
def terraform(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs Terraform in a copy, with a stand-in for the provider of Google Cloud."""
    if shutil.which("terraform") is None:
        pytest.skip("terraform is not on this machine")
    top = tmp_path_factory.mktemp("terraform")
    shutil.copytree(ROOT / "deploy", top / "deploy")
    folder = top / "deploy" / "terraform"

    def call(*arguments: str, provider: TerraformProvider | None = None, **changed):
        (top / "variables.json").write_text(json.dumps(VARIABLES | changed))
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TF_")}
        return subprocess.run(
            ["terraform", f"-chdir={folder}", *arguments, "-no-color"],
            env=environment | (provider or known).environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )

    call.folder = folder
    with TerraformProvider() as known:
        done = call("init")
        assert done.returncode == 0, done.stdout
        yield call


def planned(terraform, **options) -> subprocess.CompletedProcess[str]:
    file = "-var-file=../../variables.json"
    return terraform("plan", "-input=false", "-out=plan", file, **options)


def plan(terraform, **changed) -> dict:
    """Returns the planned values of all resources, by type and address; outputs too."""
    done = planned(terraform, **changed)
    assert done.returncode == 0, done.stdout
    shown = json.loads(terraform("show", "-json", "plan").stdout)
    values = shown["planned_values"]
    found: dict = {"outputs": values["outputs"]}
    for resource in values["root_module"]["resources"]:
        found.setdefault(resource["type"], {})[resource["address"]] = resource["values"]
    return found


def test_files_are_formatted_and_valid(terraform):
    done = run("terraform", f"-chdir={FOLDER}", "fmt", "-check", "-recursive", "-diff")
    assert done.returncode == 0, done.stdout
    done = terraform("validate")
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_its_own_tests_pass(terraform):
    done = terraform("test")
    assert done.returncode == 0, done.stdout
    assert "5 passed, 0 failed" in done.stdout


MEMBERS = {
    WORKER: "worker",
    BUILD: "build",
    "group:launch@example.com": "launcher",
    "user:submit@example.com": "submitter",
    "user:build@example.com": "builder",
}
BUCKETS = {
    "raw": "input",
    "data": "output",
    "my-bucket": "temporary",
    "my-bucket-templates": "templates",
}
ON = {
    "google_project_iam_member": lambda v: "project",
    "google_storage_bucket_iam_member": lambda v: BUCKETS[v["bucket"]],
    "google_artifact_registry_repository_iam_member": lambda v: "repository",
    "google_service_account_iam_member": lambda v: re.search(
        "gristmill-(worker|build)@", v["service_account_id"]
    )[1],
}


@pytest.mark.slow
def test_plan_grants_what_the_document_lists(terraform):
    made = plan(terraform)
    found = {
        (MEMBERS[values["member"]], values["role"], place(values))
        for kind, place in ON.items()
        for values in made.get(kind, {}).values()
    }
    assert {kind for kind in made if kind.endswith("_iam_member")} <= {*ON}
    rows = documented()
    # Who submits also launches: the second table says "also".
    also = {("submitter", role, on) for who, role, on in rows if who == "launcher"}
    assert found == rows | also


@pytest.mark.slow
def test_plan_makes_what_the_guide_makes_by_hand(terraform):
    found = plan(terraform)
    by_hand = json.loads((ROOT / "deploy" / "lifecycle.json").read_text())
    (rule,) = by_hand["rule"]
    prefixes = []
    for name in ("temporary", "templates"):
        bucket = found["google_storage_bucket"][f"google_storage_bucket.{name}"]
        (made,) = bucket["lifecycle_rule"]
        assert made["action"][0]["type"] == rule["action"]["type"]
        (condition,) = made["condition"]
        assert condition["age"] == rule["condition"]["age"]
        prefixes += condition["matches_prefix"]
    assert prefixes == rule["condition"]["matchesPrefix"]
    bucket = found["google_storage_bucket"]["google_storage_bucket.temporary"]
    assert bucket["soft_delete_policy"] == [{"retention_duration_seconds": 0}]
    (network,) = found["google_compute_subnetwork"].values()
    assert network["private_ip_google_access"]
    (images,) = found["google_artifact_registry_repository"].values()
    assert images["docker_config"] == [{"immutable_tags": True}]
    assert (images["repository_id"], images["format"]) == ("gristmill", "DOCKER")
    services = {v["service"] for v in found["google_project_service"].values()}
    guide = (ROOT / "deploy" / "README.md").read_text(encoding="utf-8")
    once = guide[guide.index("## Set up a project") : guide.index("## Convert")]
    assert set(re.findall(r"\w+\.googleapis\.com", once)) <= services
    lines = found["outputs"]["environment"]["value"].splitlines()
    said = dict(line.removeprefix("export ").split("=", 1) for line in lines)
    assert said == {
        "PROJECT": "my-project",
        "REGION": "us-central1",
        "BUCKET": "my-bucket",
        "IMAGE": "us-central1-docker.pkg.dev/my-project/gristmill/gristmill:7",
        "TEMPLATE_BUCKET": "my-bucket-templates",
        "SERVICE_ACCOUNT": WORKER.removeprefix("serviceAccount:"),
        "SUBNETWORK": "regions/us-central1/subnetworks/gristmill",
        "BUILD_ACCOUNT": BUILD.removeprefix("serviceAccount:"),
    }
