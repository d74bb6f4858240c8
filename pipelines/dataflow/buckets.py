"""Checks of the buckets of a job: they exist, may be used, and are near the workers."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from gristmill.dataset.base.errors import InputError, StorageError
from gristmill.dataset.storage.paths import path_texts, split_path
from gristmill.pipelines.dataflow.clients import (
    READ,
    STAGE,
    WRITE,
    bucket_roles,
    storage_retry,
)
from gristmill.pipelines.options.job_options import (
    ConvertOptions,
    Options,
    PackingOptions,
    VerifyOptions,
)
from gristmill.transforms.tokens.tokenizers import is_function

_SECONDS = 10.0
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

    `temporary` are the locations for temporary and staged files, and of the job's
    description where one is written.
    """
    uses = [Use("temporary files", path, STAGE) for path in temporary]
    if isinstance(options, ConvertOptions):
        inputs = path_texts(options.input, "input")
        uses += [Use("input", path, READ) for path in inputs]
        uses += [Use("output", options.output, WRITE)]
        file = options.tokenizer if isinstance(options, PackingOptions) else None
        if file is not None and not is_function(file):
            uses.append(Use("tokenizer", file, READ))
    elif isinstance(options, VerifyOptions):
        uses += [Use("dataset", options.dataset, READ)]
        if options.report is not None:
            uses += [Use("report", options.report, WRITE)]
    else:
        uses += [Use("files", path, WRITE) for path in options.files]
    for use in uses:
        if not re.match("gs://[^/]", use.path):
            raise InputError(
                f"Dataflow workers cannot access the {use.what}",
                where=use.path,
                expected="a path in a bucket, gs://BUCKET/NAME",
                cure="copy local files to a bucket with gcloud storage cp",
            )
    return uses


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
        bucket = describe(client, name, wanted, what)
        missing = sorted(wanted - bucket.permissions)
        if missing:
            raise InputError(
                f"this account may not use the bucket of the {what}",
                where=f"gs://{name}",
                expected=", ".join(sorted(wanted)),
                got="missing: " + ", ".join(missing),
                cure=f"grant {bucket_roles(missing, wanted=wanted)} on the bucket to "
                "it, and to the workers' service account; deploy/iam.md has commands",
            )
        if not bucket.location:
            notes.append(
                f"the location of gs://{name} was not compared with {region}: this "
                "account may not see it. storage.buckets.get is in "
                "roles/storage.legacyBucketReader"
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


def describe(
    client: Any,
    name: str,
    wanted: frozenset[str],
    what: str,
    *,
    seconds: float = _SECONDS,
) -> Bucket:
    """Returns Cloud Storage's description of a bucket.

    Args:
        client: A client of google-cloud-storage.
        name: The bucket.
        wanted: Permissions to ask for.
        what: Its role, for messages.
        seconds: How long to make each of two requests again.

    Raises:
        InputError: There is no such bucket.
        StorageError: There is no answer.
    """
    from google.api_core.exceptions import Forbidden

    bucket, retry = client.bucket(name), storage_retry(seconds=seconds)
    location, regions = "", ()
    with explained(name, what):
        granted = set(bucket.test_iam_permissions(sorted(wanted), retry=retry))
        # roles/storage.objectUser does not show buckets, only what is in them.
        try:
            bucket.reload(retry=retry)
            location = bucket.location or ""
            regions = tuple(bucket.data_locations or ())
        except Forbidden:
            granted.discard("storage.buckets.get")
    return Bucket(location, regions, frozenset(granted))


@contextlib.contextmanager
def explained(name: str, what: str) -> Iterator[None]:
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
