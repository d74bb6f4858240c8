"""The exchange of new files for old ones, killed at each of its steps.

Covers: dataset/commit/aside.py.
"""

from __future__ import annotations

import concurrent.futures
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from gristmill import loader
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.commit.exchange import finish_exchange
from gristmill.dataset.errors import (
    InvalidDatasetError,
    NotADatasetError,
    StorageChangedError,
    StorageError,
)
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.dataset.metadata.read_manifest import read_manifest
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.dataset import Dataset
from gristmill.pipelines.verify import verify
from gristmill.transforms.conversion.begin_job import begin_job
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.shard_tasks import (
    ShardResult,
    make_shard,
    shard_tasks,
)
from gristmill.transforms.jobs.conversion_job import ConversionJob
from tests.support.conversion import contents, convert, job_of
from tests.support.gcs_objects import StoredObject
from tests.support.gcs_server import GcsServer
from tests.support.kills import Killer
from tests.support.records import frames_of

KILLED = -9
# The new shards have the sizes of the old ones, as many records, and other records.
OLD = [b"%03d " % number * 40 for number in range(120)]
NEW = [record[::-1] for record in OLD]
MAP = "def backwards(record):\n    return record[::-1]\n"


def command(source: str, output: str, *, shards: int = 3) -> list[str]:
    return [
        *("convert", source, output, "--name=data", "--workers=1"),
        *(f"--num-shards={shards}", "--compression=uncompressed"),
    ]


def replacing(source: str, output: str, *, shards: int = 3) -> list[str]:
    options = ("--map=mine:backwards", "--overwrite")
    return [*command(source, output, shards=shards), *options]


def records_of(dataset: Dataset) -> list[bytes]:
    return dataset.read(range(len(dataset)))


def explained(error: Exception, *words: str) -> str:
    """Returns that the reader was told, if the message has these words."""
    return "told" if all(word in str(error) for word in words) else str(error)


def what_is_read(output: str) -> str:
    """Returns which records a reader meets, or why it meets none."""
    try:
        dataset = loader.open(output, "train", verify="never", cache_dir="")
        records = records_of(dataset)
    except NotADatasetError as error:
        return explained(error, "is being replaced", "finishes the exchange")
    return {tuple(OLD): "old", tuple(NEW): "new"}[tuple(records)]


def what_is_held(dataset: Dataset) -> str:
    """Returns which records a reader meets that has opened the old dataset."""
    try:
        records = records_of(dataset)
    except InvalidDatasetError as error:
        return explained(error, "was replaced while it was in use")
    except StorageChangedError as error:
        return explained(error, "written again while it was in use")
    assert records == OLD
    return "old"


class Prepared(NamedTuple):
    """What conversions leave, in directories below a folder.

    Attributes:
        folder: Here are the inputs, the `--map` module, and `old`.
        expected: The files of the new dataset, as made where nothing was.
    """

    folder: pathlib.Path
    expected: dict[int, dict[str, bytes]]


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killer]:
    with Killer(tmp_path_factory.mktemp("killer")) as killer:
        yield killer


@pytest.fixture(scope="module")
def prepared(killer: Killer, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "mine.py").write_text(MAP)
    (folder / "in").write_bytes(frames_of(OLD))
    source = str(folder / "in")
    assert killer.run(command(source, str(folder / "old"))).status == 0
    expected = {}
    for shards in (2, 3):
        output = folder / f"new-{shards}"
        argv = replacing(source, str(output), shards=shards)
        assert killer.run(argv, cwd=folder).status == 0
        expected[shards] = contents(output)
    return Prepared(folder, expected)


ORDER = {"old": 0, "told": 1, "new": 2}
# A reader that opened the old dataset, beside one that opens it now. Before the first
# file is touched, it reads on.
TOGETHER = {
    *(("old", "old"), ("told", "old")),
    *(("told", "told"), ("new", "told")),
}


def assert_no_way_back(met: list[str]) -> None:
    """First the old one, then a moment without, then the new one."""
    found = [ORDER[what] for what in met]
    assert found == sorted(found)
    assert {*met} >= {"old", "new"}


@pytest.mark.parametrize(
    ("shards", "stride"),
    [
        *((2, 23), (3, 29)),
        *(pytest.param(n, 5, marks=pytest.mark.soak) for n in (2, 3)),
        *(pytest.param(n, 1, marks=pytest.mark.soak) for n in (2, 3)),
    ],
)
def test_a_kill_at_any_step_leaves_the_old_or_the_new_one(
    killer: Killer, prepared: Prepared, tmp_path: pathlib.Path, shards: int, stride: int
) -> None:
    source, output = str(prepared.folder / "in"), tmp_path / "out"
    argv = replacing(source, str(output), shards=shards)
    met = []
    kill_at = stride // 2 + 1
    while True:
        shutil.copytree(prepared.folder / "old", output)
        held = loader.open(str(output), verify="never")
        ended = killer.run(argv, kill_at=kill_at, cwd=prepared.folder)
        met.append(what_is_read(str(output)))
        assert (met[-1], what_is_held(held)) in TOGETHER
        if ended.status != KILLED:
            break
        # What comes next can be killed as well.
        killer.run(argv, kill_at=kill_at % 17 + 3, cwd=prepared.folder)
        assert ORDER[what_is_read(str(output))] >= ORDER[met[-1]]
        again = killer.run(argv, cwd=prepared.folder)
        assert again.status == 0, again.error
        assert contents(output) == prepared.expected[shards]
        assert what_is_read(str(output)) == "new"
        shutil.rmtree(output)
        kill_at += stride
    assert ended.status == 0, ended.error
    assert_no_way_back(met)
    assert stride > 5 or {*met} == ORDER.keys()


# In a bucket.

OUT = "gs://bucket/out"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


@pytest.fixture
def cloud_killer(server: GcsServer, tmp_path: pathlib.Path) -> Iterator[Killer]:
    with Killer(tmp_path) as killer:
        yield killer


def objects_of(server: GcsServer) -> dict[str, bytes]:
    """Returns the objects of the dataset, by relative path."""
    found = server.objects.buckets["bucket"]
    return {name.removeprefix("out/"): stored.data for name, stored in found.items()}


def uploaded(server: GcsServer, files: dict[str, bytes]) -> dict[str, StoredObject]:
    """Puts files into the bucket, and returns it to come back to."""
    server.objects.buckets["bucket"].clear()
    for name, data in files.items():
        server.objects.put("bucket", f"out/{name}", data)
    return dict(server.objects.buckets["bucket"])


@pytest.mark.parametrize(
    "stride",
    [
        31,
        pytest.param(5, marks=pytest.mark.soak),
        pytest.param(1, marks=pytest.mark.soak),
    ],
)
def test_a_kill_at_any_request_leaves_the_old_or_the_new_one(
    cloud_killer: Killer,
    prepared: Prepared,
    server: GcsServer,
    tmp_path: pathlib.Path,
    stride: int,
) -> None:
    source, shards = str(prepared.folder / "in"), 2
    before = uploaded(server, contents(prepared.folder / "old"))
    argv = replacing(source, OUT, shards=shards)
    met = []
    kill_at = stride // 2 + 1
    while True:
        server.objects.buckets["bucket"] = dict(before)
        held = loader.open(OUT, "train", verify="never", cache_dir=str(tmp_path / "c"))
        # Before it is sent, or before the answer is read.
        after = kill_at % 2 == 0
        ended = cloud_killer.run(
            argv, kill_at=kill_at, after=after, cwd=prepared.folder
        )
        met.append(what_is_read(OUT))
        assert (met[-1], what_is_held(held)) in TOGETHER
        if ended.status != KILLED:
            break
        again = cloud_killer.run(argv, cwd=prepared.folder)
        assert again.status == 0, again.error
        assert objects_of(server) == prepared.expected[shards]
        kill_at += stride
    assert ended.status == 0, ended.error
    assert_no_way_back(met)
    assert stride > 5 or {*met} == ORDER.keys()


def made(folder: pathlib.Path, output: str, *, shards: int) -> list[ShardResult]:
    """Makes all shards that are to replace those of a dataset."""
    prepared = begin_job(
        job_to_replace(folder, output, shards), overwrite=True
    ).prepared
    return [make_shard(task) for task in shard_tasks(prepared)]


def job_to_replace(folder: pathlib.Path, output: str, shards: int) -> ConversionJob:
    plan = ("num_shards", shards)
    return job_of(folder / "in", output, plan=plan, writer=WriterOptions(group_size=2))


@pytest.mark.parametrize(("old", "new"), [(3, 3), (3, 20), (20, 3)])
def test_requests_for_each_shard(
    server: GcsServer, tmp_path: pathlib.Path, old: int, new: int
) -> None:
    """As `finish_exchange` says: the rest does not depend on the number of shards."""
    (tmp_path / "in").write_bytes(frames_of(OLD))
    convert(job_of(tmp_path / "in", OUT, plan=("num_shards", old)))
    results = made(tmp_path, OUT, shards=new)
    server.requests.clear()
    server.log.clear()
    commit_shards([job_to_replace(tmp_path, OUT, new)], results)
    shards = {name for _, name, _ in server.log if "array_record-" in name}
    of_shards = [entry for entry in server.log if entry[1] in shards]
    gone = old if old != new else 0
    # A copy and a deletion of each shard and each index; deletions of old ones.
    assert len(of_shards) == 4 * new + 2 * gone
    assert {operation for operation, _, _ in of_shards} <= {"copy", "delete"}
    # Tables, descriptions and `dataset.json`, and listings.
    assert sum(server.requests.values()) - len(of_shards) < 70
    assert verify(OUT, workers=1).findings == ()


@pytest.mark.parametrize(
    "fault",
    [
        *({"kind": kind, "operation": "copy", "times": 5} for kind in ("503", "reset")),
        {"kind": "lost", "operation": "copy", "times": 4},
        {"kind": "lost", "operation": "delete", "times": 4},
        {"kind": "lost", "operation": "insert", "name": "dataset.json", "times": 3},
    ],
    ids=lambda fault: f"{fault['operation']} {fault['kind']}",
)
def test_faults_of_the_server_are_got_over(
    server: GcsServer, tmp_path: pathlib.Path, fault: dict[str, Any]
) -> None:
    (tmp_path / "in").write_bytes(frames_of(OLD))
    convert(job_of(tmp_path / "in", OUT, plan=("num_shards", 3)))
    results = made(tmp_path, OUT, shards=5)
    server.fail(**fault)
    commit_shards([job_to_replace(tmp_path, OUT, 5)], results)
    assert not any(fault.times for fault in server.faults)
    assert verify(OUT, workers=1).findings == ()
    assert open_manifest(OUT).splits["train"].shards == 5
    assert not [name for name in objects_of(server) if ".new" in name]


def test_objects_that_are_copied_in_several_requests(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "in").write_bytes(frames_of(OLD))
    convert(job_of(tmp_path / "in", OUT, plan=("num_shards", 3)))
    results = made(tmp_path, OUT, shards=5)
    server.objects.rewrite_bytes = 50_000
    commit_shards([job_to_replace(tmp_path, OUT, 5)], results)
    assert verify(OUT, workers=1).findings == ()
    assert server.requests["copy"] > 20


@pytest.mark.parametrize("operation", ["copy", "delete"])
def test_an_exchange_that_fails_is_finished_by_whoever_comes_next(
    server: GcsServer, tmp_path: pathlib.Path, operation: str
) -> None:
    (tmp_path / "in").write_bytes(frames_of(OLD))
    train = job_of(tmp_path / "in", OUT, plan=("num_shards", 3))
    convert(train)
    results = made(tmp_path, OUT, shards=5)
    server.fail("403", operation, times=1000)
    with pytest.raises(StorageError, match=f"403|cannot {operation} the object"):
        commit_shards([job_to_replace(tmp_path, OUT, 5)], results)
    with pytest.raises(NotADatasetError, match="is being replaced"):
        loader.open(OUT)
    with pytest.raises(NotADatasetError, match="is being replaced"):
        verify(OUT, workers=1)
    server.faults.clear()
    # Another command altogether, which adds a split.
    convert(job_of(tmp_path / "in", OUT, split="test"))
    assert verify(OUT, workers=1).findings == ()
    splits = open_manifest(OUT).splits
    assert {name: split.shards for name, split in splits.items()} == {
        "train": 5,
        "test": 1,
    }
    assert not [name for name in objects_of(server) if ".new" in name]


@pytest.mark.parametrize("skip", range(3))
def test_a_table_that_cannot_be_read_for_a_moment_is_not_lost(
    server: GcsServer, tmp_path: pathlib.Path, skip: int
) -> None:
    """The old one before the exchange and in it, then the new one in its place."""
    (tmp_path / "in").write_bytes(frames_of(OLD))
    convert(job_of(tmp_path / "in", OUT, plan=("num_shards", 3)))
    results = made(tmp_path, OUT, shards=5)
    server.fail("403", "media", name="out/index/data-train.shards.npz", skip=skip)
    with pytest.raises(StorageError, match="cannot read the object"):
        commit_shards([job_to_replace(tmp_path, OUT, 5)], results)
    assert not any(fault.times for fault in server.faults)
    commit_shards([job_to_replace(tmp_path, OUT, 5)], results)
    assert verify(OUT, workers=1).findings == ()
    assert open_manifest(OUT).splits["train"].shards == 5


@pytest.mark.parametrize(
    ("operation", "name", "skip"),
    [
        *(("copy", "", 0), ("copy", ".index", 2), ("copy", "shards.npz", 0)),
        *(("delete", "job.json", 0), ("delete", "00001-of-00003", 0)),
        *(("delete", ".new-", 0), ("delete", "owner.json", 0)),
        *(("list", "", 8), ("list", "", 12)),
        *(("insert", "dataset.json", 1), ("insert", "dataset.json", 2)),
    ],
)
def test_two_that_finish_the_same_exchange(
    server: GcsServer, tmp_path: pathlib.Path, operation: str, name: str, skip: int
) -> None:
    (tmp_path / "in").write_bytes(frames_of(OLD))
    convert(job_of(tmp_path / "in", OUT, plan=("num_shards", 3)))
    results = made(tmp_path, OUT, shards=5)
    server.fail("hold", operation, name=name, skip=skip)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        job = job_to_replace(tmp_path, OUT, 5)
        slow = pool.submit(commit_shards, [job], results)
        assert server.held.wait(30)
        finish_exchange(OUT)
        server.release.set()
        assert slow.result(60).manifest == read_manifest(OUT)
    assert verify(OUT, workers=1).findings == ()
    assert not [name for name in objects_of(server) if ".new" in name]


def test_a_file_written_again_in_the_middle_of_an_exchange(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    """The same command beside it writes its description again."""
    (tmp_path / "in").write_bytes(frames_of(OLD))
    convert(job_of(tmp_path / "in", OUT, plan=("num_shards", 3)))
    results = made(tmp_path, OUT, shards=5)
    place = f"{OUT}/.new-data-train/index/data-train.inputs.npz"
    server.fail("hold", "copy", name=place.removeprefix("gs://bucket/"))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        job = job_to_replace(tmp_path, OUT, 5)
        slow = pool.submit(commit_shards, [job], results)
        assert server.held.wait(30)
        storage = storage_for(OUT)
        content = storage.load(place)
        assert content is not None
        storage.write(place, content.data, replaces=content.version)
        server.release.set()
        assert slow.result(60).manifest == read_manifest(OUT)
    assert verify(OUT, workers=1).findings == ()
    assert not [name for name in objects_of(server) if ".new" in name]


@pytest.mark.parametrize("operation", ["media", "insert"])
def test_the_same_commit_twice_at_once(
    server: GcsServer, tmp_path: pathlib.Path, operation: str
) -> None:
    """One of them is held before it reads its table, or before it commits."""
    (tmp_path / "in").write_bytes(frames_of(OLD))
    convert(job_of(tmp_path / "in", OUT, plan=("num_shards", 3)))
    results = made(tmp_path, OUT, shards=5)
    names = {"media": ".new-data-train/index/data-train.shards.npz"}
    server.fail("hold", operation, name=names.get(operation, "out/dataset.json"))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        job = job_to_replace(tmp_path, OUT, 5)
        slow = pool.submit(commit_shards, [job], results)
        assert server.held.wait(30)
        first = commit_shards([job], results)
        server.release.set()
        assert slow.result(60).manifest == first.manifest
    assert verify(OUT, workers=1).findings == ()
    assert not [name for name in objects_of(server) if ".new" in name]
