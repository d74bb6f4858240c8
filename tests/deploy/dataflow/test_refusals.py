"""Every refusal before a submission, of real ones: in seconds, and with what to do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from tests.deploy.cloud import Cloud

# Here it takes one or two; where Beam tries again, 8 minutes.
LIMIT_SECONDS = 60
CONVERT = ("convert", "gs://raw/texts/*", "gs://data/texts")
IMAGE = "--sdk_container_image=us-docker.pkg.dev/my-project/gristmill/convert:1"


def elsewhere(cloud: Cloud) -> None:
    cloud.storage.objects.places["data"] = {"location": "EUROPE-WEST4"}


def denied(cloud: Cloud) -> None:
    cloud.storage.objects.denied.add("storage.objects.create")


def failing(cloud: Cloud) -> None:
    cloud.storage.fail("403", "list", times=1000)


def closed(cloud: Cloud) -> None:
    cloud.dataflow.subnetworks["closed"] = False


def damaged(cloud: Cloud) -> None:
    cloud.storage.objects.put("data", "texts/dataset.json", b"{")


def committed(cloud: Cloud) -> None:
    done = cloud.gristmill(*CONVERT, "--workers=1")
    assert done.code == 0, done.stderr


PREPARE: dict[str, Callable[[Cloud], None]] = {
    one.__name__: one
    for one in (elsewhere, denied, failing, closed, damaged, committed)
}
# The arguments of a submission, and the function that makes it wrong, if they do not;
# then its exit code, and what is said.
REFUSALS = """\
CONVERT --runner=DataflowRuner
  2: unknown Beam runner | did you mean DataflowRunner? | 'DataflowRuner'
CONVERT -- --runner=FnApiRunner
  2: the runner is given twice | give --runner once, before --
CONVERT -- --max_workers=7
  2: Beam would ignore this option | got:      --max_workers=7
  | give --max_num_workers
CONVERT --project=
  2: no project given for Dataflow | give --project
CONVERT --region=
  2: no region given for Dataflow | give --region
convert here/* gs://data/x
  2: Dataflow workers cannot access the input | gcloud storage cp
convert gs://raw/* there --temp_location=gs://scratch/tmp
  2: Dataflow workers cannot access the output
CONVERT --temp_location=/tmp/x
  2: Dataflow workers cannot access the temporary files
verify here --temp_location=gs://scratch/tmp
  2: Dataflow workers cannot access the dataset
verify gs://data/x --report here
  2: Dataflow workers cannot access the report
index here/* --temp_location=gs://scratch/tmp
  2: Dataflow workers cannot access the files
CONVERT --setup_file=/nowhere/setup.py
  2: no such file | /nowhere
CONVERT --requirements_file=/nowhere/r.txt
  2: no such file | /nowhere
CONVERT --map=mine:shout --sdk_container_image= --use_public_ips
  2: the workers do not have the module of --map | --setup_file
convert gs://raw/texts/* gs://nowhere/x --temp_location=gs://scratch/tmp
  2: the bucket of the output does not exist | gs://nowhere
  | gcloud storage buckets create
convert gs://nowhere/texts/* gs://data/x
  2: the bucket of the input does not exist | gs://nowhere
CONVERT --temp_location=gs://notemp/x
  2: the bucket of the temporary files does not exist | gs://notemp
CONVERT --staging_location=gs://nostaging/x
  2: the bucket of the temporary files does not exist | gs://nostaging
CONVERT # denied
  2: this account may not use the bucket of the
  | missing: storage.objects.create | roles/storage.objectUser
CONVERT # elsewhere
  2: is not in the workers' region | gs://data, EUROPE-WEST4
  | us-central1 | --cross-region
CONVERT # failing
  1: cannot list objects | made to fail
  | give this account the role roles/storage.objectUser
CONVERT --subnetwork=mine
  2: Dataflow would not find the subnetwork | correct --subnetwork
  | regions/us-central1/subnetworks/NAME
CONVERT --network=nothing
  2: there is no subnetwork for the workers | subnetwork nothing in us-central1
  | give --subnetwork
CONVERT --network=closed # closed
  2: workers without public addresses would reach no service of Google
  | --enable-private-ip-google-access | or give --use_public_ips
CONVERT --sdk_container_image=
  2: the workers could not install gristmill | --sdk_container_image=IMAGE
  | --use_public_ips | --install-on-workers
CONVERT --sdk_container_image= --setup_file=setup.py
  2: the workers could not install gristmill | Beam's own image
CONVERT --sdk_container_image=apache/beam_python3.11_sdk:2.77.0
  2: the workers could not install gristmill | Beam's own image | deploy/build.sh
convert gs://raw/texts/*.nope gs://data/x
  2: no input file matches | where:    gs://raw/texts/*.nope
  | 3 objects with the prefix gs://raw/texts/, such as gs://raw/texts/part-0.tfrecord
convert gs://raw/texts/part gs://data/x
  2: no input file matches | no object with the prefix gs://raw/texts/part/
index gs://data/nothing/*.array_record
  2: no input file matches | no object with the prefix gs://data/nothing/
verify gs://data/nothing
  3: not a committed dataset | gs://data/nothing | dataset.json
convert gs://raw/** gs://raw/out
  2: the output lies among the inputs: the next run would find it
  | gs://raw/** would match gs://raw/out/dataset.json
CONVERT # damaged
  2: the output cannot be read | repair it, or choose another output
CONVERT # committed
  2: the output is committed already | gs://data/texts, split train | --overwrite
CONVERT --shard-size=100GiB --disk_size_gb=20
  2: the shards in progress do not fit on a worker's disk | at least 21 GB
  | --disk_size_gb=21 | a smaller --shard-size
CONVERT --map=m:f --sdk_container_image= --prebuild_sdk_container_engine=cloud_build
  2: the workers do not have the module of --map | --setup_file
CONVERT --machine_type=t2a-standard-4
  2: the image is for x86-64, and the machines are Arm | e2-standard-4
CONVERT --streaming
  2: a job that ends is no streaming job | drop it
CONVERT --dataflow_kms_key=projects/p/locations/europe-west4/keyRings/r/cryptoKeys/k
  2: the key is not in the workers' region | europe-west4 | give a key of us-central1
CONVERT --num-shards=4000000 --machine_type=e2-highcpu-4
  2: the job does not fit into a worker's memory | 4,000,000 shards | highmem
"""
ROWS = re.findall(r"^(\S.*)\n  (\d): ((?:.*\n  \| )*.*)$", REFUSALS, re.MULTILINE)


@pytest.fixture
def cloud(services: Cloud):
    objects = services.storage.objects
    before = {name: dict(found) for name, found in objects.buckets.items()}
    yield services
    objects.buckets.update(before)
    objects.places.clear()
    objects.denied.clear()
    services.storage.faults.clear()
    services.dataflow.jobs.clear()
    services.dataflow.requests.clear()


@pytest.mark.parametrize(("line", "code", "said"), ROWS, ids=[row[0] for row in ROWS])
def test_a_submission_is_refused(cloud: Cloud, line: str, code: str, said: str):
    line, _, prepare = line.partition(" # ")
    if prepare:
        PREPARE[prepare](cloud)
    command, *rest = line.replace("CONVERT", " ".join(CONVERT)).split()
    given = ("--runner=DataflowRunner", "--project=my-project", "--region=us-central1")
    started = time.monotonic()
    done = cloud.gristmill(command, *given, *cloud.arguments, IMAGE, *rest)
    assert time.monotonic() - started < LIMIT_SECONDS
    assert done.code == int(code), done.stderr
    assert cloud.dataflow.requests == []
    assert done.stderr.startswith("error: ")
    assert "to do:" in done.stderr
    assert "Traceback" not in done.stderr
    for text in re.split(r"\n? +\| ", said):
        assert text in done.stderr
