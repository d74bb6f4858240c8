"""The guide, done word by word as a new user would, against stand-ins for Google Cloud.

Its blocks run in order in one shell. Real are the scripts, `gristmill`, Terraform, and
the part of `gcloud` that builds, launches and reads templates. What else is asked of
`gcloud` has no service here: its commands and options are looked up among its own.
"""

import functools
import json
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
from itertools import pairwise

import pytest

from tests.deploy import roles
from tests.deploy.cloud import gcloud_environment, running
from tests.deploy.dataflow_server import JOB
from tests.deploy.terraform_provider import TerraformProvider
from tests.deploy.tools import run, stand_in
from tests.documents.test_docs import blocks_of
from tests.support.distributions import ROOT, copy_source
from tests.support.records import frames_of, text_records

DEPLOY = ROOT / "deploy"
LOG = "console_logs"

# Logs its arguments, and has the real one do what there is a stand-in for.
GCLOUD = """#!/bin/bash
printf '%s\\0' "$@" >> "$GCLOUD_LOG"; printf '\\n' >> "$GCLOUD_LOG"
if [[ $1 == dataflow || "$1 $2" == "storage cat" ]]; then exec {real} "$@"; fi
"""
GRISTMILL = """#!/bin/bash
if [[ " $* " == *" --runner "* ]]; then set -- "$@" {arguments}; fi
{python} -m gristmill "$@" || {{
  code=$?
  # Nothing runs here: of a job that was just submitted there is nothing to see.
  if [[ "$1 $code" != "status 3" ]]; then exit "$code"; fi
}}
"""
# Nobody is there to say yes.
TERRAFORM = """#!/bin/bash
if [[ " $* " == *" apply "* ]]; then set -- "$@" -auto-approve; fi
exec {real} "$@"
"""


def blocks(document, folder=DEPLOY):
    text = (folder / document).read_text("utf-8")
    return [block.text for block in blocks_of(text) if block.language == "bash"]


def commands(log):
    lines = log.read_bytes().split(b"\0\n")[:-1]
    return [[word.decode() for word in line.split(b"\0")] for line in lines]


@functools.cache
def known_commands():
    """Returns gcloud's own tree of its commands and their options."""
    real = pathlib.Path(os.path.realpath(shutil.which("gcloud"))).parents[1]
    table = real / "data" / "cli" / "gcloud_completions.py"
    return runpy.run_path(str(table))["STATIC_COMPLETION_CLI_TREE"]


def known(command):
    """Checks a command and its options against gcloud's own list of them."""
    tree = known_commands()
    here, flags = tree, dict(tree["flags"])
    words = iter(command)
    for word in words:
        if word in here["commands"]:
            here = here["commands"][word]
            flags |= here["flags"]
        elif word.startswith("--"):
            assert word in flags, command
            if flags[word] != "bool":
                next(words)
    assert not here["commands"], f"no whole command: {command}"
    return command


def walk(scripts, cloud, folder, **variables):
    """Runs blocks in one shell; returns what they did, and what gcloud was asked."""
    real = {name: shutil.which(name) for name in ("gcloud", "terraform")}
    for name, path in real.items():
        if path is None:
            pytest.skip(f"{name} is not on this machine")
    source = folder / "source"
    source.mkdir()
    copy_source(source)
    shutil.copytree(DEPLOY, source / "deploy", ignore=lambda *_: [".terraform"])
    path = stand_in(
        folder,
        gcloud=GCLOUD.format(real=real["gcloud"]),
        terraform=TERRAFORM.format(real=real["terraform"]),
        gristmill=GRISTMILL.format(
            python=sys.executable, arguments=" ".join(cloud.arguments)
        ),
    )
    log = folder / "gcloud.log"
    log.touch()
    done = run(
        *("bash", "-euo", "pipefail", "-c", "\n".join(scripts)),
        cwd=source,
        env={
            **cloud.environment,
            **gcloud_environment(folder / "gcloud", cloud.storage, cloud.dataflow),
            "PATH": path,
            "GCLOUD_LOG": str(log),
            **variables,
        },
        stderr=subprocess.PIPE,
    )
    return done, commands(log)


@pytest.mark.slow
def test_guide_word_by_word(tmp_path):
    with running() as cloud, TerraformProvider() as provider:
        storage = cloud.storage.objects
        storage.buckets |= {"my-bucket": {}, "my-bucket-templates": {}}
        cloud.dataflow.subnetworks["gristmill"] = True
        # One person builds, launches and submits, with no more than the roles.
        people = (roles.LAUNCHER, "building user", roles.SUBMITTER)
        granted = roles.bucket_permissions(*people)
        granted["my-bucket"] = granted.pop("scratch")
        granted["my-bucket-templates"] = granted.pop("scratch-templates")
        for part in range(2):
            data = frames_of(text_records(20, seed=part))
            storage.put("raw", f"c4/{part}.tfrecord", data)
        name = f"gristmill-tmp/staging/template_launches/{JOB}/{LOG}"
        storage.put("my-bucket", name, b"error: no input file matches\n")
        storage.granted = granted
        done, asked = walk(blocks("README.md"), cloud, tmp_path, **provider.environment)
        assert done.returncode == 0, done.stderr[-3000:]
        # The launcher's log, as the guide shows it.
        assert "error: no input file matches" in done.stdout
        said = "\n".join(
            " ".join(w for w in c if w[0] != "-") for c in map(known, asked)
        )
        for part in """\
services enable
artifacts repositories create gristmill
storage buckets create gs://my-bucket
storage buckets update gs://my-bucket deploy/lifecycle.json
compute networks subnets update default
builds submit""".splitlines():
            assert re.search(f"^{part}", said, re.MULTILINE), part
        image = "us-central1-docker.pkg.dev/my-project/gristmill/gristmill:1"
        for pipeline in ("convert", "pack", "verify", "index"):
            name = f"gristmill-{pipeline}.json"
            template = json.loads(storage.buckets["my-bucket-templates"][name].data)
            assert template["image"] == image
            # The second build knows what Terraform made.
            account = template["defaultEnvironment"]["serviceAccountEmail"]
            assert account == "gristmill-worker@my-project.iam.gserviceaccount.com"
        launched = [each["launchParameter"] for each in cloud.dataflow.launches]
        assert [each["parameters"] for each in launched] == [
            {"input": "gs://raw/c4/*.tfrecord", "output": "gs://data/c4"}
            | {"shard_size": "1GiB"},
            {"dataset": "gs://data/c4", "report": "gs://data/c4-verified.json"},
        ]
        (job,) = cloud.dataflow.jobs.values()
        (pool,) = job["environment"]["workerPools"]
        assert pool["workerHarnessContainerImage"] == image


@pytest.mark.slow
def test_how_to_of_a_first_job(tmp_path):
    _, project, build, plan, _, submit, verify, _ = blocks(
        "dataflow.md", ROOT / "docs" / "prepare"
    )
    # No worker runs: what the job would have made is made here, before it is verified.
    (made,) = [line for line in plan.splitlines() if line.startswith("gristmill plan")]
    made = made.replace("plan", "convert", 1).replace("--output ", "")
    with running() as cloud:
        storage = cloud.storage.objects
        storage.buckets["my-bucket"] = {}
        for part in range(2):
            data = frames_of(text_records(20, seed=part))
            storage.put("raw", f"c4/{part}.tfrecord", data)
        dry = submit.rstrip() + " --dry_run"
        script = [project, build, plan, dry, submit, made, verify]
        done, asked = walk(script, cloud, tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        assert [job["name"].split("-")[1] for job in cloud.dataflow.jobs.values()] == [
            "convert",
            "verify",
        ]
    assert "convert checked: nothing was submitted" in done.stdout
    assert "gristmill convert 'gs://raw/c4/*.tfrecord' gs://data/c4" in done.stdout
    assert [*map(known, asked)]


@pytest.mark.slow
def test_commands_of_the_roles(tmp_path):
    variables = {
        "PROJECT": "my-project",
        "REGION": "us-central1",
        "BUCKET": "my-bucket",
        "INPUT_BUCKET": "raw",
        "OUTPUT_BUCKET": "data",
        "LAUNCHER": "launcher",
        "BUILDER": "builder",
        "KMS_KEY": "projects/p/locations/us-central1/keyRings/r/cryptoKeys/k",
    }
    with running() as cloud:
        done, asked = walk(blocks("iam.md"), cloud, tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    granted = set()
    for command in map(known, asked):
        if "add-iam-policy-binding" in command and "kms" not in command:
            at = command.index("add-iam-policy-binding")
            place = roles.PLACES[command[at + 1].removeprefix("gs://")]
            value = dict(pairwise(command))
            granted.add((roles.MEMBERS[value["--member"]], value["--role"], place))
    # One person launches here and submits.
    also = {roles.SUBMITTER: roles.LAUNCHER}
    assert granted == {
        (also.get(row.account, row.account), row.role, row.resource)
        for row in roles.grants()
    }


def test_no_page_submits_workers_that_could_not_install_the_package():
    pages = [*DEPLOY.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    found = 0
    for page in pages:
        for block in blocks(page.name, page.parent):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("gristmill") and "DataflowRunner" in line:
                    assert "--sdk_container_image" in line, f"{page}: {line}"
                    found += 1
    assert found >= 4
