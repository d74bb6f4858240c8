"""Disks and shared memory that are full, small or read-only, made so by mounts."""

from __future__ import annotations

import os
import pathlib
import stat
from collections.abc import Callable

import pytest

from gristmill.pipelines.doctor.dataset_place import DatasetPlace
from gristmill.pipelines.doctor.disks import look_at_disks
from gristmill.pipelines.doctor.finding import Finding
from tests.support.datasets import convert
from tests.support.namespaces import run_mounting

SMALL = """
import dataclasses, json, mmap, os, subprocess, sys, tempfile, time
from gristmill.pipelines.doctor.disks import look_at_disks
from gristmill.pipelines.doctor.dataset_place import DatasetPlace
from gristmill.pipelines.doctor.shared_memory import look_at_shared_memory

folder = sys.argv[1]

def mount(name, options):
    point = name if name.startswith("/") else f"{folder}/{name}"
    os.makedirs(point, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", point], check=True)
    return point

def shown(findings):
    return [dataclasses.asdict(finding) for finding in findings]

found = {}
mount("/dev/shm", "size=1m,mode=1777")
maps = []
none = 2**22  # No process has a larger number.
for process, age in ((none + 1, 99), (none + 2, 99), (none + 3, 0), (os.getpid(), 99)):
    with open(f"/dev/shm/gristmill-{process}-0123abcd-7-0", "w+b") as file:
        file.write(bytes(4096))
        file.flush()
        if process == none + 2:  # As of a process that has another number here.
            maps.append(mmap.mmap(file.fileno(), 0))
        os.utime(file.fileno(), times=(time.time() - age,) * 2)
found["small memory"] = shown(look_at_shared_memory(None))
mount("/dev/shm", "size=2g,ro")
found["no memory"] = shown(look_at_shared_memory(None))

tempfile.tempdir = os.environ["TMPDIR"] = mount("tmp", "size=80m")
os.environ["GRISTMILL_CACHE_DIR"] = mount("cache", "size=8m") + "/not/yet"
output = mount("out", "size=4g,nr_inodes=100")
found["small disks"] = shown(look_at_disks(DatasetPlace(f"{output}/c4")))
tempfile.tempdir = os.environ["TMPDIR"] = mount("ro", "ro,size=4g")
os.environ["GRISTMILL_CACHE_DIR"] = folder
found["read-only"] = shown(look_at_disks(DatasetPlace(f"{folder}/ro/c4")))

full = mount("full", "size=1m")
subprocess.run(["cp", "-r", sys.argv[2], full], check=True)
subprocess.run(["mount", "-o", "remount,ro", full], check=True)
place = DatasetPlace(f"{full}/out")
found["dataset"] = shown(f for f in look_at_disks(place) if "dataset:" in f.seen)
print(json.dumps(found))
"""


@pytest.mark.slow
def test_small_disks_and_memory_are_found(tmp_path: pathlib.Path) -> None:
    dataset = convert(tmp_path / "made", [[b"a"]])
    found = run_mounting(SMALL, str(tmp_path), dataset)
    little, left = found["small memory"]
    assert little["level"] == "warning"
    assert "free of 1.0 MiB" in little["seen"]
    assert "remount,size=" in little["cure"]
    assert "--shm-size=" in little["cure"]
    assert left["seen"].startswith("1 block in /dev/shm of feeds whose process")
    assert "4.0 KiB" in left["seen"]
    assert left["cure"].startswith("rm /dev/shm/gristmill-4194305-0123abcd-*; not if")

    temporary, in_memory, cache, files = found["small disks"]
    assert temporary["level"] == "warning"
    assert "80.0 MiB free" in temporary["seen"]
    assert "export TMPDIR=" in temporary["cure"]
    assert (in_memory["level"], "is a tmpfs" in in_memory["seen"]) == ("warning", True)
    assert (cache["level"], "8.0 MiB free" in cache["seen"]) == ("error", True)
    assert "export GRISTMILL_CACHE_DIR=" in cache["cure"]
    assert files["level"] == "warning"
    assert "(inodes)" in files["seen"]

    (memory,) = found["no memory"]
    assert memory["level"] == "error"
    assert "may not write there" in memory["seen"]
    temporary, *_, output = found["read-only"]
    for one in temporary, output:
        assert one["level"] == "error"
        assert f"cannot write to {tmp_path}/ro" in one["seen"]
    (dataset,) = found["dataset"]
    assert dataset["level"] == "ok"  # It can be read.


def look(place: DatasetPlace | None = None) -> dict[str, Finding]:
    return {finding.seen.partition(":")[0]: finding for finding in look_at_disks(place)}


def test_the_usual_places_have_room(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRISTMILL_CACHE_DIR", str(tmp_path / "not" / "yet"))
    found = look(DatasetPlace(str(tmp_path / "c4")))
    for what in ("temporary files", "cache", "output"):
        assert "free at" in found[what].seen
    assert not (tmp_path / "not").exists()


def test_a_tmpdir_that_is_not_there_is_named(
    tmp_path: pathlib.Path, temporary_in: Callable[[object], None]
) -> None:
    temporary_in(f"{tmp_path}/none here")
    (found,) = [one for one in look_at_disks(None) if "TMPDIR is" in one.seen]
    assert found.level == "warning"
    assert found.cure.startswith(f"mkdir -p '{tmp_path}/none here'")


def test_a_cache_that_is_another_users_is_named(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    temporary_in: Callable[[object], None],
) -> None:
    monkeypatch.delenv("GRISTMILL_CACHE_DIR")
    temporary_in(tmp_path)
    root = tmp_path / f"gristmill-{os.getuid()}"
    root.write_bytes(b"")  # In its place, what is no directory of this user.
    assert not stat.S_ISDIR(root.stat().st_mode)
    found = [one for one in look_at_disks(None) if one.level == "error"]
    assert [str(root) in one.seen for one in found] == [True]
    assert "export GRISTMILL_CACHE_DIR=" in found[0].cure
