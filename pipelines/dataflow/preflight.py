"""Checks before a job is submitted to Dataflow, where it would fail after minutes.

Each takes seconds at most. They use the account that submits the job; in the launcher
of a template that is the account of the workers.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from gristmill.dataset.commit.output_place import check_not_matched
from gristmill.dataset.daemon_call import daemon_call
from gristmill.dataset.errors import GristmillError, InputError, StorageError, some_of
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import read_manifest
from gristmill.dataset.storage.object_names import listing_of, split_path
from gristmill.pipelines.options.definitions import (
    ConvertOptions,
    Options,
    VerifyOptions,
)

T = TypeVar("T")

_SECONDS = 10.0
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_READ = frozenset({"storage.objects.get", "storage.objects.list"})
_WRITE = _READ | {"storage.objects.create", "storage.objects.delete"}
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


class Use(NamedTuple):
    """A path that a job uses.

    Attributes:
        what: Role of the path, for messages.
        path: A gs:// path or pattern.
        permissions: Permissions that the job needs in its bucket.
    """

    what: str
    path: str
    permissions: frozenset[str]


class Bucket(NamedTuple):
    """A bucket as Cloud Storage describes it.

    Attributes:
        location: Such as `US`, `EU`, `NAM4` or `US-CENTRAL1`; "" if the account may not
            see it.
        regions: The two regions of a configurable dual-region.
        permissions: Those of the requested permissions that are granted.
    """

    location: str
    regions: tuple[str, ...]
    permissions: frozenset[str]

    def near(self, region: str) -> bool:
        """Returns whether traffic with workers in a region stays in its location.

        An unknown location counts as near.
        """
        location = self.location.upper()
        if self.regions:
            return region.upper() in map(str.upper, self.regions)
        if location in _MULTI_REGIONS:
            return region.startswith(_MULTI_REGIONS[location])
        if location in _DUAL_REGIONS:
            return region in _DUAL_REGIONS[location]
        if "-" not in location:
            return True
        return location == region.upper()


def uses_of(options: Options, *, temporary: Iterable[str]) -> list[Use]:
    """Returns the paths that a job reads and writes, if all of them are in buckets.

    `temporary` are the locations for temporary and staged files.
    """
    uses = [Use("temporary files", path, _WRITE) for path in temporary]
    if isinstance(options, ConvertOptions):
        uses += [Use("input", path, _READ) for path in options.input]
        uses += [Use("output", options.output, _WRITE)]
    elif isinstance(options, VerifyOptions):
        uses += [Use("dataset", options.dataset, _READ)]
        if options.report is not None:
            uses += [Use("report", options.report, _WRITE)]
    else:
        uses += [Use("files", path, _WRITE) for path in options.files]
    for use in uses:
        if not re.match("gs://[^/]", use.path):
            raise InputError(
                f"Dataflow workers cannot access the {use.what}",
                where=use.path,
                expected="a path in a bucket, gs://BUCKET/NAME",
                cure="copy local files to a bucket with gcloud storage cp",
            )
    return uses


def within(call: Callable[[], T], *, seconds: float, what: str) -> T:
    """Returns what a call returns, or raises a StorageError after a timeout."""
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
        project: Of Google Cloud.
        anonymous: Whether to use no credentials, as with an emulator.
        seconds: How long a request may take.
    """
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.storage import Client

    from gristmill.dataset.storage.gcs_session import GcsSession

    credentials = None if anonymous else find_credentials()
    if anonymous or os.environ.get("STORAGE_EMULATOR_HOST"):
        credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
    session = GcsSession(credentials, timeout_seconds=seconds)
    return Client(project=project, credentials=credentials, _http=session)


def check_buckets(
    uses: Sequence[Use], *, client: Any, region: str, cross_region: bool
) -> list[str]:
    """Checks that buckets exist, may be used, and are near the workers.

    Args:
        uses: Paths that the job reads and writes.
        client: A client of google-cloud-storage.
        region: Region of the workers.
        cross_region: Whether buckets in other regions are allowed.

    Returns:
        Remarks for the user. A check that fails raises an error.
    """
    notes = []
    places: dict[str, list[Use]] = {}
    for use in uses:
        places.setdefault(split_path(use.path)[0], []).append(use)
    for name, here in places.items():
        wanted = frozenset().union(*(use.permissions for use in here))
        what = " and ".join(dict.fromkeys(use.what for use in here))
        bucket = _describe(client, name, wanted, what)
        missing = sorted(wanted - bucket.permissions)
        if missing:
            role = "objectUser" if wanted == _WRITE else "objectViewer"
            raise InputError(
                f"this account may not use the bucket of the {what}",
                where=f"gs://{name}",
                expected=", ".join(sorted(wanted)),
                got="missing: " + ", ".join(missing),
                cure=f"grant roles/storage.{role} on the bucket to it, and to the "
                "workers' service account",
            )
        if not bucket.location:
            notes.append(
                f"the location of gs://{name} was not compared with {region}: this "
                "account may not see it"
            )
        elif not bucket.near(region):
            where = "+".join(bucket.regions) or bucket.location
            if not cross_region:
                raise InputError(
                    f"the bucket of the {what} is not in the workers' region",
                    where=f"gs://{name}, {where}",
                    expected=f"a location that contains {region}",
                    cure="change --region, or allow slower and charged traffic between "
                    "regions with --cross-region",
                )
            notes.append(f"gs://{name} is in {where}, the workers in {region}")
    return notes


def _describe(client: Any, name: str, wanted: frozenset[str], what: str) -> Bucket:
    from google.api_core.exceptions import Forbidden

    bucket = client.bucket(name)
    location, regions = "", ()
    with _explained(name, what):
        granted = bucket.test_iam_permissions(sorted(wanted), retry=_retry())
        # roles/storage.objectUser does not show buckets, only what is in them.
        with contextlib.suppress(Forbidden):
            bucket.reload(retry=_retry())
            location = bucket.location or ""
            regions = tuple(bucket.data_locations or ())
    return Bucket(location, regions, frozenset(granted))


def _retry() -> Any:
    from google.cloud.storage.retry import DEFAULT_RETRY

    return DEFAULT_RETRY.with_timeout(_SECONDS)


@contextlib.contextmanager
def _explained(name: str, what: str) -> Iterator[None]:
    """Turns errors of the client into errors that say what to do."""
    from google.api_core.exceptions import GoogleAPIError, NotFound
    from requests import RequestException

    try:
        yield
    except NotFound as e:
        raise InputError(
            f"the bucket of the {what} does not exist",
            where=f"gs://{name}",
            cure=f"create it with gcloud storage buckets create gs://{name}, or "
            "correct its name",
        ) from e
    except (GoogleAPIError, RequestException, ConnectionError) as e:
        cause = getattr(e, "cause", None) or e
        raise StorageError(
            f"cannot read the bucket of the {what}",
            where=f"gs://{name}",
            got=str(cause).splitlines()[0] if str(cause) else type(cause).__name__,
            cure="check the network and the account, then run the same command again",
        ) from e


def check_inputs(uses: Sequence[Use], *, client: Any) -> None:
    """Checks that an object exists under the prefix of each input pattern."""
    for use in uses:
        if use.what not in ("input", "files"):
            continue
        bucket, name = split_path(use.path)
        prefix, _ = listing_of(name)
        with _explained(bucket, use.what):
            found = any(
                client.list_blobs(bucket, prefix=prefix, max_results=1, retry=_retry())
            )
        if not found:
            raise InputError(
                "no input file matches",
                where=use.path,
                got=f"no object with the prefix gs://{bucket}/{prefix}",
                cure="check the path",
            )


def check_output(options: ConvertOptions, *, splits: Sequence[str]) -> list[str]:
    """Checks where the output is, and that not all splits are committed already.

    Returns:
        Remarks for the user.
    """
    files = (layout.DATASET_JSON,)
    check_not_matched(options.output, patterns=options.input, files=files)
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
    committed = [s for s in splits if manifest and s in manifest.splits]
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
