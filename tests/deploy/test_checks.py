"""Checks before a submission, of real ones: in seconds, and with what to do.

The roles of deploy/iam.md are enough; a permission that is missing is named.
"""

import re
import time

import pytest

from gristmill.dataset import InputError
from gristmill.pipelines.dataflow import clients
from tests.deploy import roles
from tests.deploy.cloud import job_of, running, written_job
from tests.rows.tokenizer_files import tokenizer_json

# Here it takes one or two; where Beam tries again, 8 minutes.
LIMIT_SECONDS = 60
CONVERT = ("convert", "gs://raw/texts/*", "gs://data/texts")
IMAGE = "--sdk_container_image=us-docker.pkg.dev/my-project/gristmill/convert:1"
VIEW = {"storage.objects.get", "storage.objects.list"}
USE = VIEW | {"storage.buckets.get", "storage.objects.create", "storage.objects.delete"}


def committed(cloud):
    cloud.storage.objects.buckets["data"] |= {
        f"texts/{name.removeprefix('done/')}": kept
        for name, kept in cloud.storage.objects.buckets["data"].items()
        if name.startswith("done/")
    }


def at(cloud, location, *buckets):
    for name in buckets or ("data",):
        cloud.storage.objects.places[name] = {"location": location}


# What happens before, by name.
PREPARE = {
    "elsewhere": lambda cloud: at(cloud, "EUROPE-WEST4"),
    "all_europe": lambda cloud: at(cloud, "EU", *cloud.storage.objects.buckets),
    "denied": lambda cloud: cloud.storage.objects.denied.add("storage.objects.create"),
    "failing": lambda cloud: cloud.storage.fail("403", "list", times=1000),
    "closed": lambda cloud: cloud.dataflow.subnetworks.update(closed=False),
    "damaged": lambda cloud: cloud.storage.objects.put(
        "data", "texts/dataset.json", b"{"
    ),
    "committed": committed,
    "unseen": lambda cloud: cloud.dataflow.denied.add("compute.subnetworks.get"),
    "busy": lambda cloud: setattr(cloud.dataflow, "busy", 1),
    "always_busy": lambda cloud: setattr(cloud.dataflow, "busy", 999),
    "always_slow": lambda cloud: slow_to_list(cloud),
    "readable": lambda cloud: grant(cloud, data=VIEW, scratch=USE),
    "unreadable": lambda cloud: grant(cloud, data=set(), scratch=USE),
}
# The arguments of a submission, and what happens before; then its exit code, and what
# is said.
CHECKS = """\
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
convert gs://raw/large/* gs://data/x --match-shards
  2: the shards in progress do not fit | at least 580 GB | 8 shards of 70.00 GB
convert gs://raw/large/* gs://data/x --num-shards=4
  2: the shards in progress do not fit | 8 shards of 25.00 GB
pack gs://raw/large/* gs://data/x --num-shards=4 --length=64 --column=ids
  2: the shards in progress do not fit | 8 shards of 50.00 GB
convert gs://raw/large/* gs://data/x --shard-size=30GiB --disk_size_gb=200
  2: the shards in progress do not fit | 8 shards of 32.21 GB
convert gs://raw/large/* gs://data/x --shard-size=400GiB --disk_size_gb=200
  2: the shards in progress do not fit | 8 shards of 100.00 GB
convert gs://raw/large/* gs://data/x --shard-size=400GiB --disk_size_gb=99 # always_slow
  2: the shards in progress do not fit | 8 shards of 429.50 GB
convert gs://raw/large/* gs://data/x --shard-size=9KiB --machine_type=e2-highcpu-4
  2: the job does not fit into a worker's memory | commit of 10,850,695 shards
CONVERT --machine_type=t2a-standard-4
  2: the image is for x86-64, and the machines are Arm | e2-standard-4
CONVERT --streaming
  2: a job that ends is no streaming job | drop it
CONVERT --dataflow_kms_key=projects/p/locations/europe-west4/keyRings/r/cryptoKeys/k
  2: the key is not in the workers' region | europe-west4 | give a key of us-central1
CONVERT --num-shards=4000000 --machine_type=e2-highcpu-4
  2: the job does not fit into a worker's memory | 4,000,000 shards | highmem
CONVERT --network=mine
  2: there is no subnetwork for the workers | subnetwork mine in us-central1
  | project my-project | give --subnetwork
CONVERT --network=projects/p/global/networks/mine
  2: there is no subnetwork for the workers | subnetwork mine in us-central1
CONVERT --subnetwork=regions/us-central1/subnetworks/s
  2: there is no subnetwork for the workers | subnetwork s in us-central1
  | project my-project
CONVERT --subnetwork=https://www.googleapis.com/compute/v1/projects/host/regions/us-central1/subnetworks/s
  2: there is no subnetwork for the workers | subnetwork s | project host
CONVERT # at US-EAST1
  2: is not in the workers' region
CONVERT # at EU
  2: is not in the workers' region
CONVERT # at EUR4
  2: is not in the workers' region
CONVERT # at US-EAST1+US-WEST1
  2: is not in the workers' region
convert gs://raw/marked gs://data/x
  2: no input file matches
verify gs://data/done --temp_location=gs://scratch/tmp # unreadable
  2: this account may not use the bucket of the dataset
  | roles/storage.objectViewer
CONVERT --dry_run --cross-region # elsewhere
  0: gs://data is in EUROPE-WEST4
CONVERT --dry_run # at US-CENTRAL1
  0: nothing was submitted | checked   options
  | buckets and this account's roles | not yet   the workers' account, quotas
CONVERT --dry_run # at US
  0: nothing was submitted
CONVERT --dry_run # at NAM4
  0: nothing was submitted
CONVERT --dry_run # at NOWHERE
  0: nothing was submitted
CONVERT --dry_run # at US-CENTRAL1+US-WEST1
  0: nothing was submitted
CONVERT --dry_run --worker_region=europe-west4 # all_europe
  0: nothing was submitted
CONVERT --dry_run --worker_zone=europe-west4-b # all_europe
  0: nothing was submitted
CONVERT --dry_run --overwrite # committed
  0: split train stays until the new one is finished
  | meanwhile the bucket holds both
CONVERT --dry_run --split test # committed
  0: nothing was submitted
pack gs://raw/texts/* gs://data/rows --length=64 --num-shards=1 --dry_run \
    --tokenizer=gs://raw/models/tokenizer.json --disk_size_gb=21
  0: nothing was submitted
CONVERT --dry_run --machine_type=e2-micro
  0: disk and memory were not checked
CONVERT --dry_run --dataflow_service_options=enable_prime
  0: disk and memory were not checked
CONVERT --dry_run # unseen
  0: Private Google Access was not checked in subnetwork default
  | Required 'compute.subnetworks.get' permission | roles/compute.networkViewer
CONVERT --dry_run # busy
  0: nothing was submitted
CONVERT --dry_run # always_busy
  0: Private Google Access was not checked | The service is busy
verify gs://data/done --dry_run --temp_location=gs://scratch/tmp # readable
  0: nothing was submitted
convert gs://raw/large/* gs://data/x --num-shards=100 --dry_run
  0: nothing was submitted
convert gs://raw/*/d gs://data/x --dry_run # always_slow
  0: whether a file matches gs://raw/*/d was not checked: none of the first ones does
  | 2 objects with the prefix gs://raw/, such as gs://raw/a/1
convert gs://raw/odd/[1] gs://data/x --dry_run
  0: nothing was submitted
convert gs://raw/a gs://data/x --dry_run
  0: nothing was submitted
convert gs://raw/*/deep/? gs://data/x --dry_run
  0: nothing was submitted
"""
ROWS = re.findall(r"^(\S.*)\n  (\d): ((?:.*\n  \| )*.*)$", CHECKS, re.MULTILINE)


def grant(cloud, **granted):
    cloud.storage.objects.granted = granted


def slow_to_list(cloud):
    """Lists an object at a time, of which two take as long as a check may."""
    cloud.storage.objects.page_size = 1
    cloud.storage.fail("slow", "list", times=2, seconds=6)


class Large(bytes):
    """An object of which the service says that it has so many GB."""

    def __len__(self):
        return int(self) * 10**9


@pytest.fixture(scope="module")
def services():
    with running() as cloud:
        put = cloud.storage.objects.put
        for name in (
            "a/1",
            "a/2.gz",
            "a/deep/3",
            "odd/[1]",
            "marked/_OK",
            "marked/x/1",
        ):
            put("raw", name, b"0123456789")
        put("raw", "large/1", Large(b"30"))
        put("raw", "large/2", Large(b"70"))
        put("raw", "models/tokenizer.json", tokenizer_json())
        done = cloud.gristmill(*CONVERT[:2], "gs://data/done", "--workers=1")
        assert done.code == 0, done.stderr
        yield cloud


@pytest.fixture
def cloud(services):
    storage, dataflow = services.storage, services.dataflow
    before = {name: dict(found) for name, found in storage.objects.buckets.items()}
    yield services
    storage.objects.buckets.update(before)
    storage.objects.granted, storage.objects.page_size = None, 1000
    dataflow.subnetworks, dataflow.busy = {"default": True}, 0
    for changed in (
        *(storage.objects.places, storage.objects.denied, storage.faults),
        *(dataflow.jobs, dataflow.requests, dataflow.denied),
    ):
        changed.clear()


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        pytest.param(*row, marks=[pytest.mark.slow] * ("always" in row[0]), id=row[0])
        for row in ROWS
    ],
)
def test_a_submission_is_checked(cloud, line, code, said):
    line, _, prepare = line.partition(" # ")
    if prepare.startswith("at "):
        at(cloud, prepare[3:])
    elif prepare:
        PREPARE[prepare](cloud)
    command, *rest = line.replace("CONVERT", " ".join(CONVERT)).split()
    given = ("--runner=DataflowRunner", "--project=my-project", "--region=us-central1")
    started = time.monotonic()
    done = cloud.gristmill(command, *given, *cloud.arguments, IMAGE, *rest)
    assert time.monotonic() - started < LIMIT_SECONDS
    assert done.code == int(code), done.stderr
    assert cloud.dataflow.requests == []
    assert "Traceback" not in done.stderr
    if done.code:
        assert done.stderr.startswith("error: ")
        assert "to do:" in done.stderr
    for text in re.split(r"\n? +\| ", said):
        assert text in (done.stderr if done.code else done.stdout)


def test_missing_credentials_are_told_in_seconds(cloud, monkeypatch, tmp_path):
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    given = ("--runner=DataflowRunner", "--project=p", "--region=us-central1", IMAGE)
    started = time.monotonic()
    done = cloud.gristmill(*CONVERT, *given)
    assert (done.code, time.monotonic() - started < LIMIT_SECONDS) == (2, True)
    assert "no credentials for Google Cloud" in done.stderr
    assert "gcloud auth application-default login" in done.stderr
    dry = cloud.gristmill(*CONVERT, *given, "--dry_run")
    assert "all else: no credentials for Google Cloud" in dry.stdout
    (tmp_path / "key.json").write_text("{}")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    with pytest.raises(InputError, match="no credentials for Google Cloud"):
        clients.connect()


# --- Roles and permissions of deploy/iam.md.

ASKED = roles.asked()
SUBMISSION = (
    *CONVERT,
    *("--temp_location=gs://scratch/tmp", "--staging_location=gs://scratch/staging"),
    "--service_account_email=worker@my-project.iam.gserviceaccount.com",
    IMAGE,
)


def let(cloud, granted):
    """Lets the caller have these permissions, by resource, and no others."""
    cloud.storage.objects.granted = roles.by_bucket(granted)
    others = {row.permission for row in ASKED if row.resource not in roles.BUCKETS}
    cloud.dataflow.denied |= others - {name for name, _ in granted}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("accounts", "place"),
    [
        (("launching user", "user who submits without a template, also"), None),
        # In a launcher.
        (
            ("workers' service account",),
            "gs://scratch/staging/template_launches/1/job_object",
        ),
    ],
)
def test_roles_are_enough_to_submit(cloud, accounts, place):
    let(cloud, roles.permissions_of(*accounts))
    template = [] if place is None else [f"--template_location={place}"]
    done = cloud.submit(*SUBMISSION, *template)
    assert done.code == 0, done.stderr
    job = job_of(cloud) if place is None else written_job(cloud, place)
    assert job["labels"]["gristmill"] == "convert"


@pytest.mark.parametrize("is_committed", [False, True])
def test_roles_of_who_launches_are_enough_to_see_progress(cloud, is_committed):
    if not is_committed:
        cloud.storage.objects.buckets["data"].pop("done/dataset.json")
    launcher = roles.permissions_of("launching user")
    let(cloud, launcher)
    done = cloud.gristmill("inspect", "gs://data/done")
    assert done.code == 0, done.stderr
    assert ("NOT committed" in done.stdout) != is_committed
    let(cloud, launcher - {("storage.objects.list", "output bucket")})
    done = cloud.gristmill("inspect", "gs://data/done")
    assert "storage.objects.list" in done.stderr
    assert "roles/storage.objectViewer" in done.stderr


@pytest.mark.parametrize(
    "row",
    [row for row in ASKED if "--wait" not in row.without],
    ids=lambda row: f"{row.permission}-{row.resource}".replace(" ", "_"),
)
def test_a_permission_that_is_missing_is_named_in_seconds(cloud, row):
    everything = {(each.permission, each.resource) for each in ASKED}
    let(cloud, everything - {(row.permission, row.resource)})
    started = time.monotonic()
    done = cloud.submit(*SUBMISSION)
    assert time.monotonic() - started < LIMIT_SECONDS
    if row.without.startswith("a note"):
        assert done.code == 0, done.stderr
        said = done.stdout
        assert "note  " in said
    else:
        said = done.stderr
        by_dataflow = row.without == "refused by Dataflow"
        assert done.code == (1 if by_dataflow else 2), done.stdout
        assert bool(cloud.dataflow.requests) is by_dataflow
        assert cloud.dataflow.jobs == {}
        assert "to do:" in said
    assert row.permission in said
    assert row.role in said
