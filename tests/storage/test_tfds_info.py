"""Which ArrayRecord files patterns and directories mean."""

from __future__ import annotations

import pathlib

import pytest

from gristmill.dataset.metadata.tfds import list_shard_files, match_shards
from tests.servers.gcs_server import GcsServer

FILES = {
    "d/a-0": b"a",
    "d/a-1": b"a",
    "d/_SUCCESS": b"",
    "d/.hidden": b"a",
    "d/dataset.json": b"{}",
    "d/index/a-0.index": b"i",
    "d/errors/a-0.jsonl": b"q",
    "d/sub/b-0": b"b",
    "tfds/c-0": b"c",
    "tfds/dataset_info.json": b"{}",
    "tfds/features.json": b"{}",
    "tfds/label.labels.txt": b"cat",
    "plain/index/a-0": b"a",
    "plain/label.txt": b"cat",
}


@pytest.fixture(scope="module", params=["local", "bucket"])
def root(request, tmp_path_factory):
    if request.param == "local":
        folder = tmp_path_factory.mktemp("files")
        for name, data in FILES.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        yield str(folder)
        return
    with GcsServer("bucket") as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", server.url)
        for name, data in FILES.items():
            server.objects.put("bucket", name, data)
        yield "gs://bucket"


def names(root: str, found) -> list[str]:
    return [info.path.removeprefix(f"{root}/") for info in found]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("d/a*", ["d/a-0", "d/a-1"]),
        ("d/*[!S]", ["d/a-0", "d/a-1"]),
        ("d/dataset.json", ["d/dataset.json"]),
        ("d/index/*", ["d/index/a-0.index"]),
        ("tfds/*json", []),
        ("plain/index/*", ["plain/index/a-0"]),
        ("none/*", []),
        ("d/", []),
    ],
)
def test_patterns(root, pattern, expected):
    found = names(root, match_shards(f"{root}/{pattern}"))
    # In a bucket, patterns match names that begin with a dot.
    assert [name for name in found if "/." not in name] == expected


@pytest.mark.parametrize(
    ("directory", "expected"),
    [
        ("d", ["d/a-0", "d/a-1"]),
        ("d/", ["d/a-0", "d/a-1"]),
        ("tfds", ["tfds/c-0"]),
        ("plain", ["plain/label.txt"]),
        ("none", []),
    ],
)
def test_directories(root, directory, expected):
    assert names(root, list_shard_files(f"{root}/{directory}")) == expected
