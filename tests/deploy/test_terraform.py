"""deploy/terraform: what Terraform makes of it, and that it grants the roles of iam.md.

Terraform is real, its provider a stand-in with the real one's schema.
"""

import json
import re
import shutil

import pytest

from tests.deploy import roles
from tests.deploy.terraform_provider import TerraformProvider
from tests.deploy.tools import ROOT, run

FOLDER = ROOT / "deploy" / "terraform"
WORKER = "gristmill-worker@my-project.iam.gserviceaccount.com"
BUILD = "gristmill-build@my-project.iam.gserviceaccount.com"
VARIABLES = {
    "project": "my-project",
    "region": "us-central1",
    "bucket": "my-bucket",
    "input_buckets": ["raw"],
    "output_buckets": ["data"],
    "launchers": ["user:launcher"],
    "submitters": ["user:submitter"],
    "builders": ["user:builder"],
    "image": "us-central1-docker.pkg.dev/my-project/gristmill/gristmill:7",
}


@pytest.fixture(scope="module")
def terraform(tmp_path_factory):
    """Runs Terraform in a copy, with a stand-in for the provider of Google Cloud."""
    if shutil.which("terraform") is None:
        pytest.skip("terraform is not on this machine")
    top = tmp_path_factory.mktemp("terraform")
    shutil.copytree(ROOT / "deploy", top / "deploy")
    (top / "variables.json").write_text(json.dumps(VARIABLES))
    folder = top / "deploy" / "terraform"

    def call(*arguments):
        env = provider.environment
        done = run("terraform", *arguments, "-no-color", env=env, cwd=folder)
        assert done.returncode == 0, done.stdout
        return done.stdout

    with TerraformProvider() as provider:
        call("init")
        yield call


@pytest.fixture(scope="module")
def plan(terraform):
    """The planned values of all resources, by type and address; outputs too."""
    terraform("plan", "-input=false", "-out=plan", "-var-file=../../variables.json")
    values = json.loads(terraform("show", "-json", "plan"))["planned_values"]
    found = {"outputs": values["outputs"]}
    for resource in values["root_module"]["resources"]:
        found.setdefault(resource["type"], {})[resource["address"]] = resource["values"]
    return found


def test_files_are_formatted_and_valid(terraform):
    done = run("terraform", f"-chdir={FOLDER}", "fmt", "-check", "-recursive", "-diff")
    assert done.returncode == 0, done.stdout
    terraform("validate")


@pytest.mark.slow
def test_its_own_tests_pass(terraform):
    assert "5 passed, 0 failed" in terraform("test")


# Where each kind of grant says of what it is.
ON = {
    "google_project_iam_member": "project",
    "google_storage_bucket_iam_member": "bucket",
    "google_artifact_registry_repository_iam_member": "repository",
    "google_service_account_iam_member": "service_account_id",
}


@pytest.mark.slow
def test_plan_grants_what_the_document_lists(plan):
    found = {
        (
            roles.MEMBERS[values["member"]],
            values["role"],
            # Of the repository, the plan knows no name: it is the only one.
            roles.PLACES[values.get(place, "gristmill").rpartition("/")[2]],
        )
        for kind, place in ON.items()
        for values in plan.get(kind, {}).values()
    }
    assert {kind for kind in plan if kind.endswith("_iam_member")} <= {*ON}
    rows = {*roles.grants()}
    # Who submits also launches: the second table says "also".
    launchers = (row for row in rows if row.account == roles.LAUNCHER)
    also = {row._replace(account=roles.SUBMITTER) for row in launchers}
    assert found == rows | also


@pytest.mark.slow
def test_plan_makes_what_the_guide_makes_by_hand(plan):
    by_hand = json.loads((ROOT / "deploy" / "lifecycle.json").read_text())
    (rule,) = by_hand["rule"]
    prefixes = []
    for name in ("temporary", "templates"):
        bucket = plan["google_storage_bucket"][f"google_storage_bucket.{name}"]
        (made,) = bucket["lifecycle_rule"]
        assert made["action"][0]["type"] == rule["action"]["type"]
        (condition,) = made["condition"]
        assert condition["age"] == rule["condition"]["age"]
        prefixes += condition["matches_prefix"]
    assert prefixes == rule["condition"]["matchesPrefix"]
    bucket = plan["google_storage_bucket"]["google_storage_bucket.temporary"]
    assert bucket["soft_delete_policy"] == [{"retention_duration_seconds": 0}]
    (images,) = plan["google_artifact_registry_repository"].values()
    assert images["docker_config"] == [{"immutable_tags": True}]
    assert (images["repository_id"], images["format"]) == ("gristmill", "DOCKER")
    services = {v["service"] for v in plan["google_project_service"].values()}
    guide = (ROOT / "deploy" / "README.md").read_text("utf-8")
    once = guide[guide.index("## Set up a project") : guide.index("## Convert")]
    assert set(re.findall(r"\w+\.googleapis\.com", once)) <= services
    lines = plan["outputs"]["environment"]["value"].splitlines()
    said = dict(line.removeprefix("export ").split("=", 1) for line in lines)
    assert said == {
        "PROJECT": "my-project",
        "REGION": "us-central1",
        "BUCKET": "my-bucket",
        "IMAGE": "us-central1-docker.pkg.dev/my-project/gristmill/gristmill:7",
        "TEMPLATE_BUCKET": "my-bucket-templates",
        "SERVICE_ACCOUNT": WORKER,
        "SUBNETWORK": "regions/us-central1/subnetworks/gristmill",
        "BUILD_ACCOUNT": BUILD,
    }
