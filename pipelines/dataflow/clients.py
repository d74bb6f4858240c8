"""Buckets, credentials and permissions of Google Cloud, answered in seconds.

deploy/iam.md lists the permissions; a test compares the two, and removes each in turn.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, NamedTuple

import google.auth
import requests
from google.api_core import exceptions as api
from google.api_core.retry import Retry, if_exception_type
from google.auth.transport.requests import AuthorizedSession

from gristmill.dataset.base.errors import InputError, StorageError
from gristmill.dataset.storage.gcs_connection import GcsConnection

_SECONDS = 10.0
_PAUSE_SECONDS = 0.2  # Maximum pause before a request is repeated.
# https://cloud.google.com/storage/docs/locations
_MULTI_REGIONS = {"ASIA": "asia-", "EU": "europe-", "US": "us-"}
_DUAL_REGIONS = {
    "ASIA1": ("asia-northeast1", "asia-northeast2"),
    "EUR4": ("europe-north1", "europe-west4"),
    "EUR5": ("europe-west1", "europe-west2"),
    "EUR7": ("europe-west2", "europe-west3"),
    "EUR8": ("europe-west3", "europe-west6"),
    "NAM4": ("us-central1", "us-east1"),
}


def connect(
    *, timeout_seconds: float = _SECONDS, deadline_seconds: float = _SECONDS
) -> GcsConnection:
    """Returns a connection to Cloud Storage whose calls end in time.

    Args:
        timeout_seconds: The time for one request.
        deadline_seconds: The time in which it may be repeated.

    Raises:
        InputError: There are no credentials.
    """
    try:
        found = GcsConnection(
            timeout_seconds=timeout_seconds, deadline_seconds=deadline_seconds
        )
        found.authorization()
    except StorageError as e:
        raise InputError(
            "no credentials for Google Cloud",
            got=e.got,
            cure="run `gcloud auth application-default login`, or set "
            "GOOGLE_APPLICATION_CREDENTIALS to the path of a key file",
        ) from e
    return found


def get_json(url: str, *, anonymous: bool) -> dict[str, Any]:
    """Returns the JSON document at a URL of a Google Cloud service.

    If the service is busy, the request is repeated for some seconds.

    Args:
        url: The URL.
        anonymous: Whether to use no credentials.

    Raises:
        GoogleAPIError: There is none, or this account may not read it. Libraries below
            raise other errors.
    """
    session = requests.Session()
    if not anonymous:
        scopes = ("https://www.googleapis.com/auth/cloud-platform",)
        session = AuthorizedSession(google.auth.default(scopes=scopes)[0])  # type: ignore[no-untyped-call]

    def ask() -> dict[str, Any]:
        answer = session.get(url, timeout=_SECONDS)
        if not answer.ok:
            error: Exception = api.from_http_response(answer)  # type: ignore[no-untyped-call]
            raise error
        return dict(answer.json())

    busy = if_exception_type(api.TooManyRequests, api.ServerError)
    retry = Retry(busy, initial=_PAUSE_SECONDS, timeout=_SECONDS)
    with session:
        found: dict[str, Any] = retry(ask)()
    return found


class Bucket(NamedTuple):
    """A bucket as Cloud Storage describes it.

    Attributes:
        location: Such as `US`, `EU`, `NAM4` or `US-CENTRAL1`, or both regions of a
            configurable dual-region; "" if the account may not see it.
        permissions: The requested permissions that are granted.
    """

    location: str
    permissions: frozenset[str]

    def near(self, region: str) -> bool:
        """Returns whether traffic with workers in a region stays within its location.

        An unknown location counts as near.
        """
        location, region = self.location.upper(), region.lower()
        if location in _MULTI_REGIONS:
            return region.startswith(_MULTI_REGIONS[location])
        if location in _DUAL_REGIONS:
            return region in _DUAL_REGIONS[location]
        return "-" not in location or region.upper() in location.split("+")


def describe(
    connection: GcsConnection, name: str, wanted: frozenset[str], what: str
) -> Bucket:
    """Returns Cloud Storage's description of a bucket.

    Args:
        connection: The connection, for two requests.
        name: The bucket.
        wanted: Permissions to ask for.
        what: Its role, for messages.

    Raises:
        InputError: There is no such bucket.
        StorageError: There is no answer.
    """
    bucket, location = connection.client.bucket(name), ""
    with connection.explained(f"read the bucket of the {what}", f"gs://{name}"):
        try:
            granted = {
                *bucket.test_iam_permissions(sorted(wanted), retry=connection.retry)
            }
            # roles/storage.objectUser does not show buckets, only objects.
            try:
                bucket.reload(retry=connection.retry)
                location = "+".join(bucket.data_locations or ()) or bucket.location
            except api.Forbidden:
                granted.discard("storage.buckets.get")
        except api.NotFound as e:
            raise InputError(
                f"the bucket of the {what} does not exist",
                where=f"gs://{name}",
                cure=f"create it with gcloud storage buckets create gs://{name}, or "
                "correct its name",
            ) from e
    return Bucket(location or "", frozenset(granted))


READ = frozenset({"storage.objects.get", "storage.objects.list"})
WRITE = READ | {"storage.objects.create", "storage.objects.delete"}
# Beam reads the bucket's metadata before it writes a file, and retries for 8 minutes if
# it may not.
STAGE = WRITE | {"storage.buckets.get"}

# Permission in a refusal of Dataflow -> the role to grant on the project or the
# account.
_ROLES = {
    "compute.subnetworks.get": "roles/compute.networkViewer on the project",
    "dataflow.jobs.create": "roles/dataflow.developer on the project",
    "dataflow.jobs.get": "roles/dataflow.developer on the project",
    "dataflow.messages.list": "roles/dataflow.developer on the project",
    "iam.serviceAccounts.actAs": "roles/iam.serviceAccountUser on the workers' "
    "service account",
}
_DENIED = re.compile(r"[Pp]ermission '([\w.]+)' denied")
_ACT_AS = "cannot act as service account"


def bucket_roles(missing: Collection[str], *, wanted: Collection[str]) -> str:
    """Returns the roles that grant missing permissions in a bucket, for a message.

    Args:
        missing: Permissions that an account lacks.
        wanted: All permissions that it needs there.

    >>> bucket_roles({"storage.objects.get"}, wanted=READ)
    'roles/storage.objectViewer'
    >>> bucket_roles({"storage.buckets.get"}, wanted=STAGE)
    'roles/storage.legacyBucketReader'
    """
    objects = "objectViewer" if READ.issuperset(wanted) else "objectUser"
    roles = []
    if any(permission.startswith("storage.objects.") for permission in missing):
        roles.append(f"roles/storage.{objects}")
    if "storage.buckets.get" in missing:
        roles.append("roles/storage.legacyBucketReader")
    return " and ".join(roles)


def refusal_of(message: str, *, cure: str) -> dict[str, Any]:
    """Returns `expected`, `got` and `cure` of an error for a message of Google's.

    Args:
        message: The message, which may name a permission.
        cure: What to do if it names none.
    """
    match = _DENIED.search(message)
    permission = match and match[1]
    if _ACT_AS in message:
        permission = "iam.serviceAccounts.actAs"
    if permission is None:
        return {"got": message, "cure": cure}
    expected = f"the permission {permission}"
    return {"expected": expected, "got": message, "cure": cure_of(permission)}


def cure_of(permission: str) -> str:
    """Returns the cure for a denied permission."""
    role = _ROLES.get(permission, "a role that contains it, as in deploy/iam.md,")
    return f"grant {role} to the account that submits the job"
