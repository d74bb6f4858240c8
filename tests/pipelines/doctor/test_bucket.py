"""Places and classes of buckets, and buckets that may not be used."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from gristmill.dataset.base.errors import InputError, StorageError
from gristmill.pipelines.doctor.bucket import look_at_bucket
from gristmill.pipelines.doctor.dataset_place import DatasetPlace
from tests.support.gcs_server import Fault, GcsServer


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    with GcsServer("data") as storage:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        yield storage


@pytest.mark.parametrize(
    ("about", "where"),
    [
        ({"location": "US-CENTRAL1"}, "US-CENTRAL1"),
        (
            {
                "location": "US",
                "customPlacementConfig": {"dataLocations": ["US-EAST1", "US-WEST1"]},
            },
            "US-EAST1+US-WEST1",
        ),
    ],
)
def test_the_place_of_a_bucket_is_shown(
    storage: GcsServer, about: dict[str, object], where: str
) -> None:
    storage.objects.places["data"] = about
    (found,) = look_at_bucket(DatasetPlace("gs://data/c4"))
    assert (found.level, found.seen) == ("ok", f"gs://data is in {where}")
    assert [*look_at_bucket(DatasetPlace("/some/where"))] == []


def test_cold_classes_are_named(storage: GcsServer) -> None:
    storage.objects.places["data"] = {"location": "US", "storageClass": "NEARLINE"}
    _, found = look_at_bucket(DatasetPlace("gs://data/c4"))
    assert (found.level, "NEARLINE" in found.seen) == ("warning", True)
    assert "--storage-class=STANDARD" in found.cure


def test_permissions_that_are_missing_are_named(storage: GcsServer) -> None:
    reading = {"storage.objects.get", "storage.objects.list"}
    storage.objects.granted = {"data": {"storage.objects.list", "storage.buckets.get"}}
    refused, _ = look_at_bucket(DatasetPlace("gs://data/c4"))
    assert refused.level == "error"
    assert refused.seen.endswith("it lacks storage.objects.get")
    assert "--role=roles/storage.objectViewer" in refused.cure

    storage.objects.granted = {"data": reading}
    reads, nowhere = look_at_bucket(DatasetPlace("gs://data/c4"))
    assert (reads.level, "and not write there" in reads.seen) == ("ok", True)
    assert (nowhere.level, "is not known" in nowhere.seen) == ("warning", True)
    assert "roles/storage.legacyBucketReader" in nowhere.cure


def test_a_bucket_that_does_not_exist_or_answer_is_an_error(storage: GcsServer) -> None:
    with pytest.raises(InputError, match="does not exist"):
        [*look_at_bucket(DatasetPlace("gs://other/c4"))]
    storage.faults.append(Fault("stall", "permissions", times=99))
    with pytest.raises(StorageError):
        [*look_at_bucket(DatasetPlace("gs://data/c4"), seconds=0.3)]


@pytest.mark.slow
@pytest.mark.parametrize("seconds", ["1", "600"])
def test_a_busy_bucket_is_asked_again_in_time(storage: GcsServer, seconds: str) -> None:
    headers = {"Retry-After": seconds}
    storage.faults.append(Fault("503", "permissions", headers=headers))
    begin = time.monotonic()
    found = look_at_bucket(DatasetPlace("gs://data/c4"), seconds=6.0)
    assert [one.level for one in found] == ["ok"]
    assert time.monotonic() - begin >= 1  # Usually at most 0.2.
