"""Verifying in a bucket: a listing proves the shards, and names every damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gristmill.dataset.metadata import layout
from gristmill.pipelines.verify import verify
from gristmill.transforms.checking.verification import plan_verify
from gristmill.transforms.checking.verify_shard import verify_shard
from tests.servers.gcs_objects import Objects
from tests.servers.gcs_server import Fault, GcsServer
from tests.support.conversion import convert, job_of
from tests.support.records import frames_of, text_records

SHARDS = 7
RECORDS = text_records(2000)
DATASET = "gs://bucket/sets/data"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a dataset, by their names in the bucket."""
    folder = tmp_path_factory.mktemp("verify")
    (folder / "in.tfrecord").write_bytes(frames_of(RECORDS))
    output = folder / "data"
    convert(job_of(folder / "in.tfrecord", output, plan=("num_shards", SHARDS)))
    return {
        f"sets/data/{path.relative_to(output)}": path.read_bytes()
        for path in output.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def server(
    stored: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> Iterator[GcsServer]:
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        for name, data in stored.items():
            server.objects.put("bucket", name, data)
        server.objects.page_size = 3
        yield server


def name_of(shard: int, *, of: int = SHARDS) -> str:
    return layout.shard_name("data", "train", shard, of)


def put(objects: Objects, name: str, change: Callable[[bytes], bytes]) -> None:
    """Changes an object below the dataset; one that is not there is empty before."""
    path = f"sets/data/{name}"
    found = objects.buckets["bucket"].get(path)
    objects.put("bucket", path, change(found.data if found else b""))


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def test_a_listing_proves_all_shards(server: GcsServer) -> None:
    found = verify(DATASET, quick=True)
    assert (found.findings, found.shards) == ((), SHARDS)
    assert found.not_checked == ("contents of indexes",)
    # Nothing but listings and the dataset's own small files.
    assert set(server.requests) == {"list", "media"}
    read = {name for kind, name, _ in server.log if kind == "media"}
    assert read == {
        "sets/data/dataset.json",
        f"sets/data/{layout.table_path('data', 'train')}",
        "sets/data/index/data-train.job.json",
    }
    # 8 files and a directory, 10 files of an index directory; three on a page. And
    # what might be there of columns, of damaged inputs and of unfinished files, of
    # this split and of others.
    assert server.requests["list"] == 3 + 4 + 1 + 1 + 2


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (
            lambda objects: objects.delete("bucket", f"sets/data/{name_of(2)}", {}),
            [f"{name_of(2)}: shard is missing"],
        ),
        (
            lambda objects: put(objects, name_of(0), lambda data: data[:-1]),
            [f"{name_of(0)}: shard has the wrong size"],
        ),
        (
            lambda objects: put(objects, name_of(6), flipped),
            [f"{name_of(6)}: shard is not the file that was written (expected crc32c"],
        ),
        (
            lambda objects: put(objects, name_of(6), lambda data: data + b"more"),
            [f"{name_of(6)}: shard has the wrong size"],
        ),
        (
            lambda objects: put(objects, name_of(3, of=8), lambda _: b"x"),
            [f"{name_of(3, of=8)}: file is named like a shard of train, but is none"],
        ),
        (
            lambda objects: objects.delete(
                "bucket", f"sets/data/{layout.index_path(name_of(4))}", {}
            ),
            [f"{layout.index_path(name_of(4))}: shard index is missing"],
        ),
        (
            lambda objects: put(
                objects, layout.table_path("data", "train"), lambda data: data[:-1]
            ),
            [f"{layout.table_path('data', 'train')}: table of shards is not the one"],
        ),
        (
            lambda objects: [
                put(objects, name_of(5), flipped),
                objects.delete("bucket", f"sets/data/{name_of(1)}", {}),
                put(objects, name_of(0, of=1), lambda _: b"x"),
            ],
            [
                f"{name_of(0, of=1)}: file is named like a shard",
                f"{name_of(1)}: shard is missing",
                f"{name_of(5)}: shard is not the file",
            ],
        ),
    ],
    ids=[
        *("missing", "truncated", "replaced", "longer", "extra", "index", "table"),
        "several",
    ],
)
def test_every_damage_is_named(
    server: GcsServer, damage: Callable[[Objects], object], expected: list[str]
) -> None:
    damage(server.objects)
    found = [str(finding) for finding in plan_verify(DATASET).findings.first]
    assert len(found) == len(expected)
    for finding, begin in zip(found, expected, strict=True):
        assert finding.startswith(begin)


def test_swapped_shards_of_one_size_are_found(
    server: GcsServer, stored: dict[str, bytes]
) -> None:
    """What sizes alone cannot tell."""
    sizes = {name: len(data) for name, data in stored.items()}
    first, second = (f"sets/data/{name_of(shard)}" for shard in (0, 1))
    server.objects.put("bucket", first, bytes(sizes[first]))
    server.objects.put("bucket", second, stored[second])  # The same bytes: all is well.
    (finding,) = plan_verify(DATASET).findings.first
    assert finding.path == name_of(0)


def test_every_byte_is_read_in_few_requests(server: GcsServer) -> None:
    tasks = plan_verify(DATASET).tasks
    server.requests.clear()
    checks = [verify_shard(task) for task in tasks]
    assert [check.findings for check in checks] == [()] * SHARDS
    assert sum(check.records for check in checks) == len(RECORDS)
    # The index, the end of the shard with its footer, and the shard.
    assert server.requests == {"media": 3 * SHARDS}


@pytest.mark.parametrize("kind", ["replace", "remove"])
def test_a_shard_that_changes_while_it_is_verified_is_named(
    server: GcsServer, kind: str
) -> None:
    task = [*plan_verify(DATASET).tasks][3]
    name = f"sets/data/{name_of(3)}"
    # After the read that says which generation it is.
    server.faults.append(Fault(kind, "media", name, skip=1))
    findings = [str(finding) for finding in verify_shard(task).findings]
    assert len(findings) == 1
    assert "while it was in use" in findings[0]
    assert server.faults[0].times == 0


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda data: data, []),  # The same bytes: all is well.
        (lambda data: data + bytes(1 << 16), ["shard has the wrong size"]),
        (lambda data: data[: -1 << 16], ["shard has the wrong size"]),
        (lambda data: b"", ["shard has the wrong size"]),
        (flipped, ["record"]),
        (None, ["shard is missing"]),
    ],
    ids=["same", "longer", "shorter", "empty", "flipped", "missing"],
)
def test_a_shard_is_verified_as_it_is_at_its_turn(
    server: GcsServer,
    stored: dict[str, bytes],
    change: Callable[[bytes], bytes] | None,
    expected: list[str],
) -> None:
    """Not as it was when the dataset was listed: that may be hours ago."""
    task = [*plan_verify(DATASET).tasks][3]
    name = f"sets/data/{name_of(3)}"
    server.objects.delete("bucket", name, {})
    if change is not None:
        server.objects.put("bucket", name, change(stored[name]))
    found = [finding.what for finding in verify_shard(task).findings]
    assert bool(found) == bool(expected)
    for what in expected:
        assert what in found[0]
