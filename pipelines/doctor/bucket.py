"""Checks of a dataset's bucket: its place, its class, and access to it."""

from __future__ import annotations

from collections.abc import Iterator

from gristmill.dataset.storage.paths import split_path
from gristmill.pipelines.dataflow.buckets import Bucket, describe
from gristmill.pipelines.dataflow.clients import (
    READ,
    WRITE,
    bucket_roles,
    storage_client,
    within,
)
from gristmill.pipelines.doctor.dataset_place import DatasetPlace
from gristmill.pipelines.doctor.finding import Finding, error, ok, warning

_SECONDS = 4.0
# Classes whose reads are charged by the byte: https://cloud.google.com/storage/pricing.
_COLD = {"ARCHIVE", "COLDLINE", "NEARLINE"}


def look_at_bucket(
    place: DatasetPlace, *, seconds: float = _SECONDS
) -> Iterator[Finding]:
    """Yields the faults of a dataset's bucket, or its location.

    Args:
        place: The dataset's directory.
        seconds: Time limit of all requests.

    Raises:
        GristmillError: There is no such bucket, or it cannot be asked.
    """
    if not place.remote:
        return
    name = split_path(place.path)[0]
    bucket = within(
        lambda: describe(
            storage_client(None, anonymous=False, seconds=seconds),
            name,
            WRITE,
            "dataset",
            seconds=seconds / 3,  # Each of two: then there is time for the answer.
        ),
        seconds=seconds,
        what=f"asking for the bucket {name}",
    )
    found = [*_refusals(name, bucket), *_location(name, bucket), *_class(name, bucket)]
    yield from found


def _refusals(name: str, bucket: Bucket) -> Iterator[Finding]:
    missing = READ - bucket.permissions
    if missing:
        role = bucket_roles(missing, wanted=READ)
        yield error(
            f"this account may not read gs://{name}: it lacks "
            f"{', '.join(sorted(missing))}",
            why="the dataset cannot be opened",
            cure=f"gcloud storage buckets add-iam-policy-binding gs://{name} "
            f"--member=serviceAccount:ACCOUNT --role={role}",
        )
    elif not bucket.permissions.issuperset(WRITE):
        yield ok(f"this account may read gs://{name}, and not write there")


def _location(name: str, bucket: Bucket) -> Iterator[Finding]:
    where = "+".join(bucket.regions) or bucket.location
    if not where:
        yield warning(
            f"the location of gs://{name} is not known: this account may not see it",
            why="traffic between regions is slow, and charged",
            cure=f"gcloud storage buckets add-iam-policy-binding gs://{name} "
            "--member=serviceAccount:ACCOUNT --role=roles/storage.legacyBucketReader",
        )
    else:
        yield ok(f"gs://{name} is in {where}")


def _class(name: str, bucket: Bucket) -> Iterator[Finding]:
    if bucket.storage_class.upper() in _COLD:
        yield warning(
            f"gs://{name} has the storage class {bucket.storage_class.upper()}",
            why="reading from it is charged by the byte, in every epoch",
            cure=f"gcloud storage objects update --recursive gs://{name}/DATASET "
            "--storage-class=STANDARD",
        )
