"""A check that workers without public addresses would reach Google's services."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from apache_beam.options.pipeline_options import GoogleCloudOptions, WorkerOptions

from gristmill.dataset.base.errors import InputError, StorageError
from gristmill.pipelines.dataflow.clients import get_json
from gristmill.pipelines.dataflow.permissions import cure_of

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
