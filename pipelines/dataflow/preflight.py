"""Checks before a job is submitted to Dataflow, where it would fail after minutes.

Each takes seconds at most. They use the account that submits the job; in the launcher
of a template that is the account of the workers.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from apache_beam.options.pipeline_options import (
    DebugOptions,
    GoogleCloudOptions,
    PipelineOptions,
    StandardOptions,
    TestOptions,
    WorkerOptions,
)

from gristmill.dataset.base.errors import (
    GristmillError,
    InputError,
    StorageError,
    some_of,
)
from gristmill.dataset.commit.ownership import check_not_matched
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import open_manifest, read_manifest
from gristmill.dataset.storage.paths import path_texts
from gristmill.pipelines.dataflow.buckets import check_buckets, uses_of
from gristmill.pipelines.dataflow.clients import cure_of, get_json, storage_client
from gristmill.pipelines.dataflow.defaults import copies_of
from gristmill.pipelines.dataflow.job_inputs import Listed, list_inputs, shards_of
from gristmill.pipelines.dataflow.machine_types import check_machine, is_arm
from gristmill.pipelines.dataflow.worker_code import check_worker_code, has_image
from gristmill.pipelines.options.conversion_jobs import conversion_of, plan_of
from gristmill.pipelines.options.job_options import (
    ConvertOptions,
    LaunchOptions,
    Options,
    VerifyOptions,
)

_COMPUTE = "https://compute.googleapis.com/compute/v1/"
# As gcloud calls it.
_OTHER_COMPUTE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"
_PATH = re.compile(
    r"(?:https://[^/]+/compute/v1/)?(?:projects/(?P<project>[^/]+)/)?"
    r"regions/(?P<region>[^/]+)/subnetworks/(?P<name>[^/]+)"
)


class Subnetwork(NamedTuple):
    """A subnetwork: of which project, in which region, and its name."""

    project: str
    region: str
    name: str

    @property
    def path(self) -> str:
        """Its path, as Compute Engine has it."""
        return f"projects/{self.project}/regions/{self.region}/subnetworks/{self.name}"


def subnetwork_of(workers: WorkerOptions, *, project: str, region: str) -> Subnetwork:
    """Returns the subnetwork that workers will be in.

    Args:
        workers: Options of the workers.
        project: Project of the job.
        region: Region of the workers.

    Raises:
        InputError: The option names none, or one in another region.
    """
    if not workers.subnetwork:
        # A network that makes its subnetworks itself gives them its name.
        network = (workers.network or "default").rpartition("/")[2]
        return Subnetwork(project, region, network)
    match = _PATH.fullmatch(workers.subnetwork)
    if match is None or match["region"] != region:
        raise InputError(
            "Dataflow would not find the subnetwork",
            expected=f"regions/{region}/subnetworks/NAME, for a Shared VPC after "
            "https://www.googleapis.com/compute/v1/projects/HOST_PROJECT/",
            got=workers.subnetwork,
            cure="correct --subnetwork, or change --region",
        )
    return Subnetwork(match["project"] or project, region, match["name"])


def check_private_access(
    workers: WorkerOptions, cloud: GoogleCloudOptions, *, region: str
) -> list[str]:
    """Checks that workers without public addresses would reach Google's services.

    Args:
        workers: Options of the workers.
        cloud: Options of the job.
        region: Region of the workers.

    Returns:
        Remarks for the user.

    Raises:
        InputError: They would not.
    """
    if workers.use_public_ips:
        return []
    found = subnetwork_of(workers, project=cloud.project, region=region)
    where = f"subnetwork {found.name} in {region}, project {found.project}"
    url = os.environ.get(_OTHER_COMPUTE, _COMPUTE).rstrip("/") + f"/{found.path}"
    public = "or give --use_public_ips"
    try:
        status, about = get_json(url, anonymous=cloud.no_auth)
    except StorageError as e:
        status, about = 0, {"error": {"message": e.got}}
    if status == 404:
        raise InputError(
            "there is no subnetwork for the workers",
            where=where,
            expected="a network named default, or one that you name",
            cure="give --subnetwork=regions/REGION/subnetworks/NAME",
        )
    if status != 200:
        said = str(about.get("error", {}).get("message", f"HTTP {status}"))
        return [
            f"Private Google Access was not checked in {where}: "
            f"{said.splitlines()[0] if said else status}. It takes "
            f"compute.subnetworks.get: {cure_of('compute.subnetworks.get')}, {public}"
        ]
    if not about.get("privateIpGoogleAccess"):
        raise InputError(
            "workers without public addresses would reach no service of Google",
            where=where,
            expected="a subnetwork with Private Google Access",
            got="one without",
            cure=f"gcloud compute networks subnets update {found.name} --project "
            f"{found.project} --region {region} --enable-private-ip-google-access; "
            f"{public}",
        )
    return []


# What only the service or the job itself can find.
_LATER = "the workers' account, quotas, the image, and what is in the input files"


@dataclasses.dataclass
class Checks:
    """What was checked before a job is submitted.

    Attributes:
        notes: Remarks for the user.
        done: What was looked at.
        left_out: What was not.
        is_offline: Whether nothing was asked for in Google Cloud: a dry run without
            credentials.
    """

    notes: list[str] = dataclasses.field(default_factory=list)
    done: list[str] = dataclasses.field(default_factory=list)
    left_out: list[str] = dataclasses.field(default_factory=lambda: [_LATER])
    is_offline: bool = False


def preflight(
    options: Options, launch: LaunchOptions, beam_options: PipelineOptions
) -> Checks:
    """Checks what can be checked before the job runs.

    A dry run goes without credentials: what needs them is left out.
    """
    checks = Checks()
    plan = plan_of(options) if isinstance(options, ConvertOptions) else None
    cloud = beam_options.view_as(GoogleCloudOptions)
    temporary = dict.fromkeys(
        [cloud.temp_location, cloud.staging_location, cloud.template_location]
    )
    uses = uses_of(options, temporary=filter(None, temporary))
    check_worker_code(options, launch, beam_options)
    checks.done += ["options", "how the workers get the package"]
    workers = beam_options.view_as(WorkerOptions)
    zone = workers.worker_zone or workers.zone or ""
    region = workers.worker_region or zone.rpartition("-")[0] or cloud.region
    _check_service_options(beam_options, region=region)
    try:
        client = storage_client(cloud.project, anonymous=cloud.no_auth)
    except InputError as e:
        if not beam_options.view_as(TestOptions).dry_run:
            raise
        checks.is_offline = True
        checks.left_out.insert(0, f"all else: {e.what}. To do: {e.cure}")
        return checks
    listed = Listed([], whole=False, notes=[])
    if cloud.impersonate_service_account:
        checks.notes.append(
            "buckets were not checked: the job is submitted by another account"
        )
        checks.left_out.insert(0, "buckets")
    else:
        checks.notes += check_buckets(
            uses, client=client, region=region, cross_region=launch.cross_region
        )
        checks.notes += check_private_access(workers, cloud, region=region)
        listed = list_inputs(uses, client=client)
        checks.notes += listed.notes
        checks.done += ["buckets and this account's roles", "subnetwork", "inputs"]
    if isinstance(options, VerifyOptions):
        open_manifest(options.dataset)
    if isinstance(options, ConvertOptions) and plan is not None:
        splits = [job.split for job in conversion_of(options).jobs]
        checks.notes += check_output(options, splits=splits)
        checks.notes += check_machine(
            shards_of(listed, plan, copies=copies_of(options)),
            threads=beam_options.view_as(DebugOptions).number_of_worker_harness_threads,
            machine_type=workers.machine_type,
            disk_gb=workers.disk_size_gb,
        )
        checks.done += ["output", "disk and memory of the workers"]
    return checks


def _check_service_options(beam_options: PipelineOptions, *, region: str) -> None:
    """Raises InputError for options that the service takes, and that cannot work."""
    workers = beam_options.view_as(WorkerOptions)
    key = beam_options.view_as(GoogleCloudOptions).dataflow_kms_key
    wrong = None
    if beam_options.view_as(StandardOptions).streaming:
        wrong = "a job that ends is no streaming job", "--streaming", "drop it"
    elif workers.machine_type and is_arm(workers.machine_type):
        if has_image(beam_options):
            wrong = (
                "the image is for x86-64, and the machines are Arm",
                workers.machine_type,
                "give another --worker_machine_type, such as e2-standard-4",
            )
    elif key and f"/locations/{region}/" not in key:
        wrong = (
            "the key is not in the workers' region",
            key,
            f"give a key of {region}, or change --region",
        )
    if wrong is not None:
        what, got, cure = wrong
        raise InputError(what, got=got, cure=cure)


def check_output(options: ConvertOptions, *, splits: Sequence[str]) -> list[str]:
    """Checks where the output is, and that not all splits are committed already.

    Returns:
        Remarks for the user.
    """
    files = (layout.DATASET_JSON,)
    patterns = path_texts(options.input, "input")
    check_not_matched(options.output, patterns=patterns, files=files)
    try:
        manifest = read_manifest(options.output)
    except GristmillError as e:
        if options.overwrite:
            return []
        raise InputError(
            "the output cannot be read",
            where=options.output,
            got=str(e),
            cure="repair it, or choose another output",
        ) from e
    committed = [s for s in splits if manifest and manifest.find(s) is not None]
    if committed and options.overwrite:
        return [
            f"split {', '.join(committed)} stays until the new one is finished; "
            "meanwhile the bucket holds both"
        ]
    if committed and len(committed) == len(splits):
        raise InputError(
            "the output is committed already",
            where=f"{options.output}, split {some_of(committed)}",
            cure="see it with gristmill inspect, choose another output or --split, or "
            "replace it with --overwrite",
        )
    return [
        f"split {split} is committed already and will be kept" for split in committed
    ]
