"""A split that is replaced, killed at any step: the old one or the new one, whole."""

from __future__ import annotations

import contextlib
import pathlib
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from gristmill import loader
from gristmill.dataset.base.errors import (
    ReplacedError,
)
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.loader.data.dataset import Dataset
from gristmill.pipelines.anywhere import verify
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.make_shards import make_shard, shard_tasks
from tests.faults.kills import Killer
from tests.servers.gcs_objects import StoredObject
from tests.servers.gcs_server import GcsServer
from tests.support.conversion import contents, convert, job_of
from tests.support.records import frames_of

KILLED = -9
OUT = "gs://bucket/out"
# The new shards have the sizes of the old ones, as many records, and other records.
OLD = [b"%03d " % number * 40 for number in range(120)]
NEW = [record[::-1] for record in OLD]
MAP = "def backwards(record):\n    return record[::-1]\n"
ORDER = {"old": 0, "new": 1}


def command(source: str, output: str, *, shards: int = 3) -> list[str]:
    return [
        *("convert", source, output, "--name=data", "--workers=1"),
        *(f"--num-shards={shards}", "--compression=uncompressed"),
    ]


def replacing(source: str, output: str, *more: str, shards: int = 3) -> list[str]:
    options = ("--map=mine:backwards", "--overwrite", *more)
    return [*command(source, output, shards=shards), *options]


def records_of(dataset: Dataset) -> list[bytes]:
    return dataset.read(range(len(dataset)))


def what_is_read(output: str) -> str:
    """Returns which records a reader meets that opens the dataset now."""
    records = records_of(loader.open(output, "train", verify="never", cache_dir=""))
    return {tuple(OLD): "old", tuple(NEW): "new"}[tuple(records)]


def check_held(dataset: Dataset) -> None:
    """Checks what a reader meets that has opened the old dataset."""
    with contextlib.suppress(ReplacedError):
        assert records_of(dataset) == OLD


def writes_in(names: Any) -> set[str]:
    """Returns the ids in names of files, "" of those without one."""
    marks = [
        re.search("-train(?:.array_record-|[.])([0-9a-f]{16})[.-]", name)
        for name in names
        if "-train" in name
    ]
    return {mark[1] if mark else "" for mark in marks}


def writes_of(output: str) -> set[str]:
    """Returns the ids in names of files that a dataset says it has."""
    split = open_manifest(output).splits["train"]
    return {part.write for part in split.known.values()}


def check_clean(output: str, names: Any, *, kept: bool = False) -> None:
    """Checks that the new records are there, and that nothing else is."""
    assert what_is_read(output) == "new"
    found = verify(output, workers=1)
    assert (found.findings, found.leftovers) == ((), ())
    split = open_manifest(output).splits["train"]
    assert writes_in(names) == writes_of(output)
    assert bool(split.replaced) == kept


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killer]:
    with Killer(tmp_path_factory.mktemp("killer")) as killer:
        yield killer


@pytest.fixture(scope="module")
def folder(killer: Killer, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The inputs, the `--map` module, and the dataset `old`."""
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "mine.py").write_text(MAP)
    (folder / "in").write_bytes(frames_of(OLD))
    argv = command(str(folder / "in"), str(folder / "old"))
    assert killer.run(argv).status == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "stride"),
    [
        ((), 23),
        pytest.param(("--keep-replaced",), 19, marks=pytest.mark.slow),
        pytest.param(("--keep-replaced",), 11, marks=pytest.mark.soak),
        pytest.param((), 1, marks=pytest.mark.soak),
    ],
)
def test_a_kill_at_any_step_leaves_the_old_or_the_new_one(
    killer: Killer,
    folder: pathlib.Path,
    tmp_path: pathlib.Path,
    more: tuple[str, ...],
    stride: int,
) -> None:
    source, output = str(folder / "in"), tmp_path / "out"
    argv = replacing(source, str(output), *more)
    met = []
    kill_at = stride // 2 + 1
    while True:
        shutil.copytree(folder / "old", output)
        held = loader.open(str(output), verify="never")
        ended = killer.run(argv, kill_at=kill_at, cwd=folder)
        met.append(what_is_read(str(output)))
        check_held(held)
        if ended.status != KILLED:
            break
        # What comes next can be killed as well.
        killer.run(argv, kill_at=kill_at % 17 + 3, cwd=folder)
        assert ORDER[what_is_read(str(output))] >= ORDER[met[-1]]
        again = killer.run(argv, cwd=folder)
        assert again.status == 0, again.error
        check_clean(str(output), contents(output), kept=bool(more))
        shutil.rmtree(output)
        kill_at += stride
    assert ended.status == 0, ended.error
    assert met == sorted(met, key=ORDER.__getitem__)
    assert {*met} == ORDER.keys()


@pytest.fixture
def cloud_killer(server: GcsServer, tmp_path: pathlib.Path) -> Iterator[Killer]:
    with Killer(tmp_path) as killer:
        yield killer


def uploaded(server: GcsServer, files: dict[str, bytes]) -> dict[str, StoredObject]:
    """Puts files into the bucket, and returns it to come back to."""
    for name, data in files.items():
        server.objects.put("bucket", f"out/{name}", data)
    return dict(server.objects.buckets["bucket"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "stride",
    [
        31,
        pytest.param(1, marks=pytest.mark.soak),
    ],
)
def test_a_kill_at_any_request_leaves_the_old_or_the_new_one(
    cloud_killer: Killer,
    folder: pathlib.Path,
    server: GcsServer,
    tmp_path: pathlib.Path,
    stride: int,
) -> None:
    before = uploaded(server, contents(folder / "old"))
    argv = replacing(str(folder / "in"), OUT, shards=2)
    met = []
    kill_at = stride // 2 + 1
    while True:
        server.objects.buckets["bucket"] = dict(before)
        held = loader.open(OUT, "train", verify="never", cache_dir=str(tmp_path / "c"))
        # Before it is sent, or before the answer is read.
        after = kill_at % 2 == 0
        ended = cloud_killer.run(argv, kill_at=kill_at, after=after, cwd=folder)
        met.append(what_is_read(OUT))
        check_held(held)
        if ended.status != KILLED:
            break
        again = cloud_killer.run(argv, cwd=folder)
        assert again.status == 0, again.error
        check_clean(OUT, server.objects.buckets["bucket"])
        kill_at += stride
    assert ended.status == 0, ended.error
    assert met == sorted(met, key=ORDER.__getitem__)
    assert {*met} == ORDER.keys()


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), [(3, 3), (3, 20), (20, 3)])
def test_requests_for_each_shard(
    server: GcsServer, tmp_path: pathlib.Path, old: int, new: int
) -> None:
    """The commit asks for nothing of a new shard; each old file is deleted once.

    One old index is read: it tells that the shards are no files that were indexed.
    """
    (tmp_path / "in").write_bytes(frames_of(OLD))
    convert(job_of(tmp_path / "in", OUT, plan=("num_shards", old)))
    job = job_of(tmp_path / "in", OUT, plan=("num_shards", new))
    prepared = begin_job(job, overwrite=True).prepared
    results = [make_shard(task) for task in shard_tasks(prepared)]
    server.requests.clear()
    server.log.clear()
    commit_shards([job], results)
    of_shards = [entry for entry in server.log if "array_record-" in entry[1]]
    deleted = [entry for entry in of_shards if entry[0] == "delete"]
    assert len(deleted) == 2 * old
    assert len(of_shards) == len(deleted) + 1
    # Tables, descriptions and `dataset.json`, and listings.
    assert sum(server.requests.values()) - len(of_shards) < 60
    assert verify(OUT, workers=1).findings == ()


@pytest.mark.slow
def test_what_cannot_be_deleted_is_deleted_by_the_next_command(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "in").write_bytes(frames_of(OLD))
    convert(job_of(tmp_path / "in", OUT, plan=("num_shards", 3)))
    server.fail("403", "delete", times=1, name="00001-of-00003")
    convert(job_of(tmp_path / "in", OUT, plan=("num_shards", 2)), overwrite=True)
    assert writes_in(server.objects.buckets["bucket"]) == {"", *writes_of(OUT)}
    assert begin_job(job_of(tmp_path / "in", OUT, plan=("num_shards", 2))).committed
    assert writes_in(server.objects.buckets["bucket"]) == writes_of(OUT)


# Readers that open all the time.


@pytest.mark.parametrize("begun", [False, True])
def test_a_reader_of_what_is_deleted_is_told_by_what_it_was_replaced(
    output: str, tmp_path: pathlib.Path, begun: bool
) -> None:
    (tmp_path / "in").write_bytes(frames_of(OLD))
    convert(job_of(tmp_path / "in", output, plan=("num_shards", 3)))
    held = loader.open(output, verify="never", cache_dir="")
    if begun:
        assert held.read([0]) == OLD[:1]
    convert(job_of(tmp_path / "in", output, plan=("num_shards", 2)), overwrite=True)
    if begun and "://" not in output:  # The shard is open.
        assert held.read([0]) == OLD[:1]
        return
    with pytest.raises(ReplacedError) as caught:
        held.read([0])
    assert "expected: edition 1, sha256:" in str(caught.value)
    assert "got:      edition 2, made by gristmill" in str(caught.value)
