"""What every store does, on a disk and in a bucket, and what patterns mean in both."""

import contextlib
import fnmatch
import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset import InputError, StorageChangedError, StorageError
from gristmill.dataset.metadata.tfds import list_shard_files, match_shards
from gristmill.dataset.storage.lookup import delete_all, storage_for, version_of
from gristmill.dataset.storage.paths import compile_pattern, matcher_below, split_path
from tests.servers.gcs_server import GcsServer
from tests.servers.other_server import other_server
from tests.support.told import told

DATA = random.Random(1).randbytes(600_000)  # Two pieces of an upload.


pytestmark = pytest.mark.usefixtures("small_pieces")


@pytest.fixture(params=["disk", "bucket", "other server"])
def place(request, tmp_path, server, monkeypatch):
    with contextlib.ExitStack() as stack:
        if request.param == "other server":
            url = stack.enter_context(other_server("bucket"))
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        yield str(tmp_path) if request.param == "disk" else "gs://bucket"


def test_files_are_written_listed_and_deleted(place):
    storage, folder = storage_for(place), f"{place}/c4"
    assert storage.list(folder) == []
    for name in ("b", "a", "sub/c", "sub/deep/d"):
        storage.write(f"{folder}/{name}", DATA[: len(name)])
    storage.write(f"{place}/c44", b"stays")
    found = [(info.path, info.size_bytes) for info in storage.list(folder)]
    assert found == [(f"{folder}/a", 1), (f"{folder}/b", 1)]
    for ends, expected in (
        ({"suffixes": ("b", "d")}, ["b", "sub/deep/d"]),
        ({"prefix": "s"}, ["sub/c", "sub/deep/d"]),
        ({"prefix": "s", "suffixes": ("d",)}, ["sub/deep/d"]),
    ):
        scanned = sorted(info.path for info in storage.scan(folder, deep=True, **ends))
        assert scanned == [f"{folder}/{name}" for name in expected]
    assert [info.path for info in storage.scan(folder, suffixes=("a",))] == [
        f"{folder}/a"
    ]
    assert storage.stat(f"{folder}/sub") is None
    for _ in range(2):
        storage.delete(f"{folder}/a")
        assert storage.stat(f"{folder}/a") is None
    for call in (storage.read, storage.open):
        with pytest.raises(StorageError, match=r"(?s)/a\b.*check the path"):
            call(f"{folder}/a")
    delete_all(storage.scan(folder, deep=True))
    assert [info.path for info in storage.match(f"{place}/**")] == [f"{place}/c44"]


def test_ranges_of_files(place, blocks_of):
    blocks_of(40_000)
    storage, path, chance = storage_for(place), f"{place}/file", random.Random(1)
    storage.write(path, DATA)
    version = version_of(path)
    for begin, end in (
        *((0, 12), (599_990, 600_100), (600_000, 600_001), (0, None), (9, None)),
    ):
        assert storage.read(path, begin, end) == DATA[begin:end]
        expected = DATA[begin:end], version, len(DATA)
        assert storage.load(path, begin, end) == expected
    assert storage.read(path, 5, 5) == b""
    assert storage.load(f"{place}/none", 0, 1) is None
    for offset in (0, 1, 150_000, 599_999, 600_000):
        for end in (None, 200_000, 700_000):
            with storage.open(path, offset=offset, end=end) as file:
                read = iter(lambda: file.read(chance.choice((1, 777, 70_000))), b"")
                assert b"".join(read) == DATA[offset:]
    storage.write(path, b"")
    assert storage.load(path, 0, 9) == (b"", version_of(path), 0)
    with storage.open(path) as file:
        assert storage.read(path) == storage.read(path, 0, 12) == file.read(10) == b""


def test_a_write_replaces_and_an_open_reads_only_what_was_seen(place, tmp_path):
    storage, path, local = storage_for(place), f"{place}/file", tmp_path / "local"
    storage.write(path, b"one", replaces="")
    first = version_of(path)
    storage.write(path, b"one", replaces="")
    assert version_of(path) == first
    with pytest.raises(StorageChangedError, match=r"(?s)changed while.*no file"):
        storage.write(path, b"two", replaces="")
    with storage.open(path, version=first) as file:
        assert file.read(9) == b"one"
    storage.write(path, b"two", replaces=first)
    assert version_of(path) != first
    with pytest.raises(StorageChangedError, match=first):
        storage.open(path, version=first)
    local.write_bytes(b"three")
    with pytest.raises(StorageChangedError, match=first):
        storage.publish(str(local), path, replaces=first)
    assert storage.read(path) == b"two"
    local.write_bytes(b"two")
    storage.publish(str(local), path, replaces=first)
    local.write_bytes(b"three")
    storage.publish(str(local), path)
    assert storage.read(path) == b"three"
    storage.delete(path)
    with pytest.raises(StorageChangedError, match=r"got: +no file"):
        storage.write(path, b"four", replaces=first)


# Patterns.

NAMES = (
    *("a.x", "b.y", "d/a.x", "d/b.x", "d/b.y", "d/e/a.x", "d/e/f/a.x", "dd/a.x"),
    *("d/with blank.x", "d/naïve ☃.x", "d/c#1.x", "d/[z].x", "d/100%.x", "d/q+1.x"),
    *(".h.x", "d/.h/x", "a[1].x", "a1.x"),
)
MATCHES = {
    "a.x": "a.x",
    "*.x": "a.x,a1.x,a[1].x",
    "?.x": "a.x",
    "a[1].x": "a[1].x",  # A file of exactly that name wins.
    "a[[]1].x": "a[1].x",
    "a[12].x": "a1.x",
    "d/b.*": "d/b.x,d/b.y",
    "d*/a.x": "d/a.x,dd/a.x",
    "d/**/a.x": "d/a.x,d/e/a.x,d/e/f/a.x",
    "**/*.y": "b.y,d/b.y",
    "d/[ab].x": "d/a.x,d/b.x",
    "d/[!a].x": "d/b.x",
    "d/[z].x": "d/[z].x",
    "d/w?th*k.x": "d/with blank.x",
    "d/*☃.x": "d/naïve ☃.x",
    "d/c#?.x": "d/c#1.x",
    "d/*+*": "d/q+1.x",
    "d/*%.x": "d/100%.x",
    "d/e/*": "d/e/a.x",
    ".*.x": ".h.x",
    **dict.fromkeys(("d", "a.x/b", "none.x", "nothing*"), ""),
}
# Of these, a listing and a matcher say the same.
OTHERS = (
    *("*", "**", "**/*", "*/*", "?/*", "d/**", "d/e", "./d/*", "d/../dd/*", "d/./*"),
    *("d/.h/*", "**/.h/*", "d/[!.]*", "d/**/b*", "d/**/**", "[de]*/*", "d/e/*/*"),
)
SHARDS = (
    *("s/a-0", "s/a-1", "s/_SUCCESS", "s/.hidden", "s/dataset.json"),
    *("s/index/a-0.index", "s/errors/a-0.jsonl", "s/sub/b-0", "plain/label.txt"),
    *("tfds/c-0", "tfds/dataset_info.json", "tfds/features.json"),
    *("tfds/label.labels.txt", "plain/index/a-0"),
)


@pytest.fixture(scope="module", params=["disk", "bucket"])
def root(request, tmp_path_factory):
    """Where there are files of some names, which hold them."""
    with GcsServer("bucket") as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", server.url)
        root = "gs://bucket"
        if request.param == "disk":
            root = str(tmp_path_factory.mktemp("files"))
        for name in (*NAMES, *SHARDS):
            storage_for(root).write(f"{root}/{name}", name.encode())
        yield root


@pytest.mark.parametrize("pattern", [*MATCHES, *OTHERS])
def test_patterns(root, pattern):
    """A matcher says of names what a listing finds, where there is no file yet."""
    storage = storage_for(root)
    found = storage.match(f"{root}/{pattern}")
    names = [info.path.removeprefix(f"{root}/") for info in found]
    if pattern in MATCHES:
        # In a bucket, `*` stands for dots too.
        seen = [name for name in names if pattern[0] == "." or name[0] != "."]
        assert ",".join(sorted(seen)) == MATCHES[pattern]
        for info in found:
            assert storage.stat(info.path) == info
            assert storage.read(info.path) == info.path[len(root) + 1 :].encode()
    if pattern in ("a[1].x", "d/[z].x", "a.x/b"):
        return
    # A directory stands for its files.
    listed = found or storage.list(f"{root}/{pattern}")
    paths = [info.path for info in listed]
    if "://" not in root:
        paths = [os.path.normpath(path) for path in paths]
    for directory in ("", "d/", "d/e/", "dd/", "none/"):
        matches = matcher_below(f"{root}/{pattern}", f"{root}/{directory}".rstrip("/"))
        for name in NAMES:
            if name.startswith(directory):
                got = matches is not None and matches(name.removeprefix(directory))
                assert got == (f"{root}/{name}" in paths), (directory, name)


PART = (
    st.lists(st.sampled_from([*"abcé.-\\*?", "[ab]", "[!a-b]"]), max_size=4)
    .map("".join)
    .filter(lambda part: "**" not in part)
)
NAME = st.text("abcé.-\\", max_size=4)


@given(st.lists(PART, min_size=1, max_size=3), st.lists(NAME, min_size=1, max_size=3))
def test_parts_match_as_fnmatch_says(parts, names):
    expected = len(parts) == len(names) and all(
        fnmatch.fnmatchcase(name, part) for name, part in zip(names, parts, strict=True)
    )
    found = compile_pattern("/".join(parts)).fullmatch("/".join(names))
    assert (found is not None) == expected


def test_patterns_of_links_of_relative_paths_and_elsewhere(tmp_path, monkeypatch):
    out = tmp_path / "root" / "out"
    out.mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "root")
    monkeypatch.chdir(out)
    for pattern, directory in (
        (f"{tmp_path}/link/out/*", str(out)),
        (f"{out}/*", f"{tmp_path}/link/out"),
        (f"{tmp_path}/link/*/*", f"{tmp_path}/link/new"),
        *(("*", "."), ("../*/*", "."), ("../out/*", str(out)), (f"{out}/*", "")),
        *((".", "."), ("**", "new/deep")),
    ):
        assert matcher_below(pattern, directory)("dataset.json")
    for pattern, directory in (
        *(("/raw/*", "/out"), ("/raw/a*", "gs://bucket/out"), ("gs://raw/*", "/out")),
        *(("gs://raw/*", "gs://out/c4"), ("gs://b/raw/*", "gs://b/out")),
        *(("/raw/*", "/raw2"), ("gs://b/raw*", "gs://b/raw2")),
    ):
        matches = matcher_below(pattern, directory)
        assert matches is None or not matches("dataset.json")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        *(("gs://b", ("b", "")), ("gs://b/", ("b", "")), ("GS://b/a", ("b", "a"))),
        ("gs://my.bucket_1-2/a/c.x", ("my.bucket_1-2", "a/c.x")),
        ("gs://b/a b#1?%20[*\n/é", ("b", "a b#1?%20[*\n/é")),
        ("gs://b//a", ("b", "/a")),
        *((bad, "no bucket") for bad in ("gs://", "gs:///x", "gs://b*/x", "gs://B/x")),
        *((f"gs://b/{bad}", "the name of an object") for bad in ("\ud800", "a/\udcff")),
        *((bad, "not supported") for bad in ("s3://b/c", "file:///a", "HTTP://x")),
    ],
)
def test_paths_of_buckets(path, expected):
    if isinstance(expected, tuple):
        assert split_path(path) == expected
        return
    with told(InputError, ascii(path)[1:-1], match=expected):
        storage_for(path).stat(path)


@pytest.mark.parametrize(
    ("find", "path", "expected"),
    [
        *((match_shards, path, "s/a-0 s/a-1") for path in ("s/a*", "s/*[!S]")),
        *((match_shards, path, "") for path in ("tfds/*json", "none/*", "s/")),
        (match_shards, "s/dataset.json", "s/dataset.json"),
        (match_shards, "s/index/*", "s/index/a-0.index"),
        (match_shards, "plain/index/*", "plain/index/a-0"),
        *((list_shard_files, path, "s/a-0 s/a-1") for path in ("s", "s/")),
        (list_shard_files, "tfds", "tfds/c-0"),
        (list_shard_files, "plain", "plain/label.txt"),
        (list_shard_files, "none", ""),
    ],
)
def test_which_array_record_files_patterns_and_directories_mean(
    root, find, path, expected
):
    found = [info.path.removeprefix(f"{root}/") for info in find(f"{root}/{path}")]
    # In a bucket, patterns match names that begin with a dot.
    assert " ".join(name for name in found if "/." not in name) == expected
