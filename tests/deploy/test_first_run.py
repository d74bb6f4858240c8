"""deploy/first_run.sh, as far as it goes without a project of Google Cloud.

`gcloud storage ls` is answered by a script, the checks of a submission by local
servers. Of the whole run, the conversion happens on this machine instead of Dataflow:
what follows it, `inspect`, `verify` and the table, is the real thing.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.cloud import FILES, RECORDS, Cloud, running

SCRIPT = pathlib.Path(__file__).parents[2] / "deploy" / "first_run.sh"
NAMES = [f"gs://raw/texts/part-{number}.tfrecord" for number in range(FILES)]
GCLOUD = f"""#!/bin/bash
[[ "$*" == "storage ls gs://raw/texts/*" ]] || exit 9
printf '%s\\n' {" ".join(NAMES)}
"""
# Submits to the local servers; with LOCALLY, converts on this machine instead.
GRISTMILL = """#!/bin/bash
if [[ "$*" == *" --runner "* && -n ${{LOCALLY:-}} ]]; then
  printf '%s\\n' "$@" > "$LOCALLY"
  if [[ -z ${{CONVERTED:-}} ]]; then
    set -- "${{@:1:$(($# - 10))}}" --workers 1 --json
    {python} -m gristmill "$@" > /dev/null || exit
  fi
  echo '{{"state": "done", "job_id": "2026-01-02_03"}}'
  exit
fi
if [[ "$*" == *" --runner "* ]]; then set -- "$@" {arguments}; fi
exec {python} -m gristmill "$@"
"""


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    with running() as services:
        yield services


def first_run(
    folder: pathlib.Path, *arguments: str, cloud: Cloud | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    place = folder / "bin"
    place.mkdir(exist_ok=True)
    own = " ".join([] if cloud is None else cloud.arguments)
    texts = {
        "gcloud": GCLOUD,
        "gristmill": GRISTMILL.format(python=sys.executable, arguments=own),
    }
    for name, text in texts.items():
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    path = f"{place}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments],
        env={**os.environ, "PATH": path, **more},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


PLACE = {"PROJECT": "my-project", "REGION": "us-central1", "BUCKET": "scratch"}
IMAGE = "--sdk_container_image=us-docker.pkg.dev/my-project/gristmill/gristmill:1"


def test_usage(tmp_path: pathlib.Path) -> None:
    done = first_run(tmp_path, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: PROJECT=")
    assert first_run(tmp_path, "gs://raw/texts/*").returncode == 2
    done = first_run(
        tmp_path, "gs://raw/texts/*", "gs://data/x", **{**PLACE, "REGION": ""}
    )
    assert (done.returncode, "set the region" in done.stderr) == (1, True)


@pytest.mark.slow
def test_a_dry_run_checks_and_submits_nothing(
    cloud: Cloud, tmp_path: pathlib.Path
) -> None:
    given = ("--dry-run", "gs://raw/texts/*", "gs://data/first", IMAGE)
    done = first_run(tmp_path, *given, cloud=cloud, EVERY="2", **PLACE)
    assert done.returncode == 0, done.stderr
    assert f"{FILES} files match; taking {(FILES + 1) // 2}" in done.stderr
    found = json.loads(done.stdout)
    assert (found["state"], found["job_id"]) == ("dry run", None)
    assert found["checked"]
    assert not cloud.dataflow.jobs


@pytest.mark.slow
def test_the_table_has_what_was_converted_and_verified(
    cloud: Cloud, tmp_path: pathlib.Path
) -> None:
    given = ("gs://raw/texts/*", "gs://data/table", "--num-shards", "2")
    options = tmp_path / "options"
    done = first_run(
        tmp_path, *given, cloud=cloud, FILES="1", LOCALLY=str(options), **PLACE
    )
    assert done.returncode == 0, done.stderr
    asked = options.read_text().split("\n")
    assert asked[1] == NAMES[0]
    assert asked[-5:-1] == [
        "--temp_location",
        "gs://scratch/gristmill-tmp",
        "--json",
        "--wait",
    ]
    rows = dict(line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:])
    assert rows["input"] == f"1 of {FILES} files"
    assert rows["records"] == f"{RECORDS:,} in 2 shards"
    assert f"{RECORDS:,} records, nothing wrong" in rows["verify"]
    assert rows["job"] == "2026-01-02_03 in us-central1"

    # Damage ends it with the code of `verify`, and is in the table.
    (name,) = (
        name for name in cloud.files("gs://data/table") if name.endswith("1-of-00002")
    )
    path = f"table/{name}"
    data = bytearray(cloud.files("gs://data/table")[name])
    data[-9] ^= 1
    cloud.storage.objects.put("data", path, bytes(data))
    # A conversion would make the damaged shard again.
    again = {"FILES": "1", "LOCALLY": str(options), "CONVERTED": "1", **PLACE}
    damaged = first_run(tmp_path, *given, cloud=cloud, **again)
    assert damaged.returncode == 3
    assert "DAMAGED" in damaged.stdout
