"""Credentials of Google Cloud, permissions, and a client that answers in time.

deploy/iam.md lists the permissions; a test compares the two, and takes away one after
the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from gristmill.dataset.base.errors import InputError, StorageError
from gristmill.dataset.base.system import daemon_call

T = TypeVar("T")

_SECONDS = 10.0
_PAUSE_SECONDS = 0.2  # At most, before a request is made for the second time.
_BUSY = (429, 500, 502, 503, 504)
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)


def within(call: Callable[[], T], *, seconds: float, what: str) -> T:
    """Returns the result of a call, or raises a StorageError after a timeout."""
    try:
        return daemon_call(call, thread_name="gristmill-preflight").result(seconds)
    except TimeoutError as e:
        raise StorageError(
            f"timeout after {seconds:.0f} seconds: {what}",
            cure="check the network, then run the same command again",
        ) from e


def find_credentials() -> Any:
    """Returns valid credentials, or raises an InputError."""
    import google.auth
    import google.auth.transport.requests
    from google.auth.exceptions import GoogleAuthError

    def find() -> Any:
        credentials, _ = google.auth.default(scopes=_SCOPES)
        if not credentials.valid:
            request = google.auth.transport.requests.Request()
            credentials.refresh(request)  # type: ignore[no-untyped-call]
        return credentials

    try:
        return within(find, seconds=_SECONDS, what="looking for credentials")
    except (GoogleAuthError, StorageError) as e:
        raise InputError(
            "no credentials for Google Cloud",
            got=str(e).splitlines()[0],
            cure="run `gcloud auth application-default login`, or set "
            "GOOGLE_APPLICATION_CREDENTIALS to the path of a key file",
        ) from e


def storage_client(
    project: str | None, *, anonymous: bool, seconds: float = _SECONDS
) -> Any:
    """Returns a client of google-cloud-storage, whose requests end in time.

    Args:
        project: Google Cloud project.
        anonymous: Whether to use no credentials, as with an emulator.
        seconds: How long a request may take.
    """
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.storage import Client

    from gristmill.dataset.storage.gcs_session import GcsSession, emulator_url

    server = emulator_url()
    credentials = (
        AnonymousCredentials()  # type: ignore[no-untyped-call]
        if anonymous or server
        else find_credentials()
    )
    return Client(
        project=project,
        credentials=credentials,
        client_options={"api_endpoint": server} if server else None,
        _http=GcsSession(credentials, timeout_seconds=seconds),
    )


def storage_retry(*, seconds: float = _SECONDS) -> Any:
    """Returns the retries of this client's requests: for seconds, not minutes."""
    from google.cloud.storage.retry import DEFAULT_RETRY

    return DEFAULT_RETRY.with_delay(_PAUSE_SECONDS).with_timeout(seconds)


def get_json(url: str, *, anonymous: bool) -> tuple[int, dict[str, Any]]:
    """Returns the status and the document that a service of Google Cloud answers with.

    One that is busy is asked again for some seconds.

    Args:
        url: What to get.
        anonymous: Whether to use no credentials.

    Raises:
        StorageError: It does not answer.
    """
    import requests
    from google.api_core import exceptions as api
    from google.api_core.retry import Retry, if_exception_type
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import AuthorizedSession

    def ask() -> requests.Response:
        answer = session.get(url, timeout=_SECONDS)
        if answer.status_code in _BUSY:
            # By the status alone: a busy proxy may answer with anything.
            busy = api.from_http_status(answer.status_code, "busy", response=answer)  # type: ignore[no-untyped-call]
            raise busy
        return answer

    retry = Retry(
        if_exception_type(api.GoogleAPICallError),
        initial=_PAUSE_SECONDS,
        timeout=_SECONDS,
    )
    try:
        session = requests.Session()
        if not anonymous:
            session = AuthorizedSession(find_credentials())  # type: ignore[no-untyped-call]
        with session:
            try:
                answer = retry(ask)()
            except api.RetryError as e:
                answer = e.cause.response  # Still busy: as it says.
            document = answer.json()
    except (
        requests.RequestException,
        GoogleAuthError,
        ValueError,
        RecursionError,
    ) as e:
        raise StorageError(
            "no answer",
            where=url,
            got=str(e).splitlines()[0],
            cure="check the network and the proxy of this machine, then run the same "
            "command again",
        ) from e
    return answer.status_code, document if isinstance(document, dict) else {}


READ = frozenset({"storage.objects.get", "storage.objects.list"})
WRITE = READ | {"storage.objects.create", "storage.objects.delete"}
# Beam asks for the bucket before it puts a file there, and tries again for 8 minutes if
# it may not see it.
STAGE = WRITE | {"storage.buckets.get"}

_BUCKET_ROLE = "roles/storage.legacyBucketReader"
# What Dataflow's refusals name, and the role to grant on the project or the account.
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
    """Returns the roles that grant what is missing in a bucket, for a message.

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
        roles.append(_BUCKET_ROLE)
    return " and ".join(roles)


def denied_permission(message: str) -> str | None:
    """Returns the permission that a refusal of Google's names, None for another error.

    >>> denied_permission("Causes: Permission 'dataflow.jobs.create' denied on project")
    'dataflow.jobs.create'
    """
    if _ACT_AS in message:
        return "iam.serviceAccounts.actAs"
    match = _DENIED.search(message)
    return None if match is None else match[1]


def cure_of(permission: str) -> str:
    """Returns the cure for a denied permission."""
    role = _ROLES.get(permission, "a role that contains it, as in deploy/iam.md,")
    return f"grant {role} to the account that submits the job"
