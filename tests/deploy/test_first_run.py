"""deploy/first_run.sh, as far as it goes without a project of Google Cloud.

`gcloud storage ls` is answered by a script, the checks of a submission by local
servers. Of the whole run, the conversion happens on this machine instead of Dataflow:
what follows it, `inspect`, `verify` and the table, is the real thing.
"""

import itertools
import json
import shlex
import subprocess
import sys

import pytest

from tests.deploy.cloud import FILES, RECORDS, running
from tests.deploy.tools import run, stand_in
from tests.support.distributions import ROOT

SCRIPT = ROOT / "deploy" / "first_run.sh"
NAMES = [f"gs://raw/texts/part-{number}.tfrecord" for number in range(FILES)]
GCLOUD = f"""#!/bin/bash
[[ "$1 $2 $3" == "storage ls gs://raw/"* ]] || exit 9
printf '%s\\n' {" ".join(NAMES)}
"""
# Submits to the local servers; with LOCALLY, converts on this machine instead.
GRISTMILL = """#!/bin/bash
if [[ "$*" == *" --runner "* && -n ${{LOCALLY:-}} ]]; then
  printf '%s\\n' "$@" > "$LOCALLY"
  if [[ -z ${{CONVERTED:-}} ]]; then
    here=()
    for word in "$@"; do
      if [[ $word == --runner ]]; then break; fi
      here+=("$word")
    done
    {python} -m gristmill "${{here[@]}}" --workers 1 --json > /dev/null || exit
  fi
  echo '{{"state": "done", "job_id": "2026-01-02_03"}}'
  exit
fi
if [[ "$*" == *" --runner "* ]]; then set -- "$@" {arguments}; fi
exec {python} -m gristmill "$@"
"""


@pytest.fixture(scope="module")
def cloud():
    with running() as services:
        yield services


def first_run(folder, *arguments, cloud=None, **more):
    own = " ".join([] if cloud is None else cloud.arguments)
    gristmill = GRISTMILL.format(python=sys.executable, arguments=own)
    path = stand_in(folder, gcloud=GCLOUD, gristmill=gristmill)
    env = {"PATH": path, **more}
    return run("bash", SCRIPT, *arguments, env=env, cwd=folder, stderr=subprocess.PIPE)


PLACE = {
    "PROJECT": "my-project",
    "REGION": "us-central1",
    "BUCKET": "scratch",
    "TAG": "7",
    "IMAGE": "",
}
# What else Terraform exports, and the option that it becomes.
EXPORTED = {
    "SERVICE_ACCOUNT": "worker@my-project.iam.gserviceaccount.com",
    "SUBNETWORK": "regions/us-central1/subnetworks/gristmill",
    "KMS_KEY": "projects/p/locations/us-central1/keyRings/r/cryptoKeys/k",
}


def test_usage(tmp_path):
    done = first_run(tmp_path, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: PROJECT=")
    assert first_run(tmp_path, "gs://raw/texts/*").returncode == 2
    for name, said in (("REGION", "set the region"), ("TAG", "set the tag")):
        given = ("gs://raw/texts/*", "gs://data/x")
        done = first_run(tmp_path, *given, **PLACE | {name: ""})
        assert done.returncode == 1
        assert said in done.stderr


@pytest.mark.slow
def test_a_dry_run_checks_and_submits_nothing(cloud, tmp_path):
    """Also with the lines of the page as they stand."""
    cloud.dataflow.subnetworks["gristmill"] = True
    given = ("--dry-run", "gs://raw/texts/*", "gs://data/first")
    done = first_run(tmp_path, *given, cloud=cloud, EVERY="2", **PLACE, **EXPORTED)
    assert done.returncode == 0, done.stderr
    assert f"{FILES} files match; taking {(FILES + 1) // 2}" in done.stderr
    found = json.loads(done.stdout)
    assert (found["state"], found["job_id"]) == ("dry run", None)
    assert found["checked"]
    text = (SCRIPT.parents[1] / "docs/reference/tested.md").read_text("utf-8")
    block = text[text.index("export PROJECT=my-project") :].partition("```")[0]
    export, dry, real = block.strip().splitlines()
    assert real == dry.replace("--dry-run ", "")
    variables = dict(word.split("=") for word in export.split()[1:]) | {"FILES": "1"}
    cloud.storage.objects.buckets[variables["BUCKET"]] = {}
    done = first_run(tmp_path, *shlex.split(dry)[1:], cloud=cloud, **variables)
    assert done.returncode == 0, done.stderr
    assert not cloud.dataflow.jobs


@pytest.mark.slow
def test_the_table_has_what_was_converted_and_verified(cloud, tmp_path):
    given = ("gs://raw/texts/*", "gs://data/table", "--num-shards", "2")
    options = tmp_path / "options"
    more = {"cloud": cloud, "FILES": "1", "LOCALLY": str(options), **PLACE}
    done = first_run(tmp_path, *given, **more, **EXPORTED)
    assert done.returncode == 0, done.stderr
    asked = options.read_text().split("\n")
    assert asked[1] == NAMES[0]
    image = "us-central1-docker.pkg.dev/my-project/gristmill/gristmill:7"
    assert {
        "--temp_location": "gs://scratch/gristmill-tmp",
        "--sdk_container_image": image,
        "--service_account_email": EXPORTED["SERVICE_ACCOUNT"],
        "--subnetwork": EXPORTED["SUBNETWORK"],
        "--dataflow_kms_key": EXPORTED["KMS_KEY"],
    }.items() <= dict(itertools.pairwise(asked)).items()
    assert asked[-2] == "--wait"
    rows = dict(line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:])
    assert rows["input"] == f"1 of {FILES} files"
    assert rows["records"] == f"{RECORDS:,} in 2 shards"
    assert f"{RECORDS:,} records, nothing wrong" in rows["verify"]
    assert rows["job"] == "2026-01-02_03 in us-central1"

    # Damage ends it with the code of `verify`, and is in the table.
    files = cloud.files("gs://data/table")
    (name,) = (name for name in files if name.endswith("1-of-00002"))
    data = bytearray(files[name])
    data[-9] ^= 1
    cloud.storage.objects.put("data", f"table/{name}", bytes(data))
    # A conversion would make the damaged shard again.
    damaged = first_run(tmp_path, *given, **more, CONVERTED="1")
    assert damaged.returncode == 3
    assert "DAMAGED" in damaged.stdout
