"""The cache of footers: each read once per host, damage repaired, and not required."""

from __future__ import annotations

import logging
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import sys

import pytest

from gristmill import loader
from gristmill.dataset.base.errors import StorageError
from gristmill.loader.reading.host_cache import FooterCache
from tests.support.records import text_records, write_array_records

RECORDS = text_records(300)


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    written = tmp_path / "plain.array_record"
    write_array_records(written, RECORDS)
    return written


@pytest.fixture
def cache(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "cache"


def entries(cache: pathlib.Path) -> list[pathlib.Path]:
    return sorted(cache.glob("footers/*"))


@pytest.mark.parametrize(
    "opened",
    [
        lambda path, cache: loader.open(path, cache_dir=cache),
        lambda path, cache: loader.open([path], cache_dir=cache),
        lambda path, cache: loader.ArrayRecordDataSource(path, cache_dir=cache),
        lambda path, cache: loader.ArrayRecordDataSource(
            [f"{path}[0:300]"], cache_dir=cache
        ),
    ],
)
def test_a_footer_is_read_once(path, cache, opened) -> None:
    for _ in range(3):
        source = opened(path, cache)
        assert len(source) == 300
        assert [source[7], source[299]] == [RECORDS[7], RECORDS[299]]
        assert len(entries(cache)) == 1


def test_a_file_written_again_gets_another_index(path, cache) -> None:
    about = path.stat()
    loader.open(path, cache_dir=cache)
    others = text_records(300, seed=9)
    write_array_records(path, others)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert path.stat().st_size == about.st_size
    assert loader.open(path, cache_dir=cache)[[0, 7, 299]] == [
        others[i] for i in (0, 7, 299)
    ]
    assert len(entries(cache)) == 2


@pytest.mark.slow
def test_damage_in_the_cache_is_noticed_and_repaired(path, cache) -> None:
    loader.open(path, cache_dir=cache)
    (entry,) = entries(cache)
    good = entry.read_bytes()
    order = list(range(0, 300, 3))
    bad = [good[:cut] for cut in (0, 1, 79, 80, len(good) - 1)]
    for at in range(0, len(good), 7):
        flipped = bytearray(good)
        flipped[at] ^= 1 << at % 8
        bad.append(bytes(flipped))
    for data in bad:
        entry.write_bytes(data)
        dataset = loader.open(path, cache_dir=cache)
        assert dataset[order] == [RECORDS[i] for i in order]
        assert entry.read_bytes() == good


@pytest.mark.slow
def test_many_open_at_once(path, cache) -> None:
    paths = [shutil.copy(path, f"{path}-{i}") for i in range(8)]
    program = (
        "import sys\nfrom gristmill import loader\n"
        "dataset = loader.open(sys.argv[2:], cache_dir=sys.argv[1])\n"
        "print(len(dataset), dataset[::50] == dataset[:300:50] * 8)"
    )
    command = [sys.executable, "-c", program, str(cache), *paths]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    assert {run.communicate()[0] for run in runs} == {b"2400 True\n"}
    assert len(entries(cache)) == 8
    assert [entry.suffix for entry in entries(cache)] == [".footer"] * 8


@pytest.mark.slow
def test_worker_processes_map_the_same_pages(path, cache, tmp_path) -> None:
    dataset = loader.open(path, cache_dir=cache)
    pickled = tmp_path / "dataset.pickle"
    pickled.write_bytes(pickle.dumps(dataset))
    program = """
import pathlib, pickle, re, sys
from gristmill.loader.reading import shard_file
shard_file.read_footer = None
dataset = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())
dataset[[0, 299]]
maps = pathlib.Path("/proc/self/smaps").read_text()
(entry,) = re.findall(r"\\.footer\\n(?:.*\\n)+?Private_Dirty: +(\\d+)", maps)
print(len(dataset), entry)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(pickled)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout == "300 0\n"


def test_least_recently_used_indexes_are_deleted_first(path, cache) -> None:
    paths = [shutil.copy(path, f"{path}-{i}") for i in range(4)]
    datasets = [loader.open(one, cache_dir=cache) for one in paths]
    footers = FooterCache(str(cache / "footers"))
    by_age = sorted(entries(cache), key=lambda entry: entry.stat().st_mtime_ns)
    for age, entry in enumerate(by_age):
        os.utime(entry, (10**9 + age, 10**9 + age))
    loader.open(paths[0], cache_dir=cache)  # Has been used now.
    size = by_age[0].stat().st_blocks * 512
    footers.trim(most_bytes=2 * size)
    assert set(entries(cache)) == {by_age[0], by_age[3]}
    assert [dataset[5] for dataset in datasets] == [RECORDS[5]] * 4
    footers.trim(most_bytes=0)
    assert entries(cache) == []


def test_an_unusable_cache_is_reported_and_not_required(
    path, tmp_path, monkeypatch, caplog
) -> None:
    (tmp_path / "file").write_bytes(b"")
    place = str(tmp_path / "file" / "cache")
    monkeypatch.setenv("GRISTMILL_CACHE_DIR", place)
    with caplog.at_level(logging.WARNING):
        assert loader.open(path)[7] == RECORDS[7]
    assert re.search(r"not cached.*file/cache", caplog.text, re.DOTALL)
    with pytest.raises(StorageError, match=r"(?s)/file/cache.*as cache_dir"):
        loader.open(path, cache_dir=place)
