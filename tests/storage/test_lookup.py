"""The storage of a path."""

from __future__ import annotations

import os

import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import matcher_below
from tests.servers.gcs_server import GcsServer


class TestChoosing:
    @pytest.mark.parametrize("path", ["s3://b/c", "hdfs://x", "file:///a", "HTTP://x"])
    def test_others_are_refused_with_a_way_out(self, path: str):
        with pytest.raises(InputError, match="paths are not supported") as caught:
            storage_for(path)
        assert path in str(caught.value)
        assert "copy the data" in str(caught.value)


FILES = [
    "out/dataset.json",
    "out/a-train-00000",
    "out/index/a.index",
    "out/.hidden",
    "out/.hid/x",
    "raw/a.tfrecord",
    "raw/sub/b.tfrecord",
    "raw/sub/.c/d",
    "x[1]/a",
    "x1/a",
    "top",
]
PATTERNS = [
    *("*", "**", "**/*", "*/*", "*/*/*", "?aw/*", "out/*", "out/**", "out/index/*"),
    *("out/*train*", "out/.*", "*/.hidden", "out/[!.]*", "out/.hid/*", "**/.c/*"),
    *(
        "raw/**/b*",
        "raw/*/b.tfrecord",
        "raw/**/**",
        "raw/a.tfrecord",
        "out/dataset.json",
    ),
    *("x[1]/*", "x[1]/a", "x?/a", "x[1-3]/*", "out", "raw/sub", "raw/su*", "none/*"),
    *(
        "./out/*",
        "out/../raw/*",
        "raw/./*",
        "out/*.json",
        "o*/index/*.index",
        "[or]*/*",
    ),
]
DIRECTORIES = ["", "out", "out/index", "raw", "raw/sub", "x[1]", "none"]


def below(root: str, pattern: str, directory: str) -> set[str]:
    """Returns the files that `matcher_below` finds, whole."""
    folder = f"{root}/{directory}".rstrip("/")
    matches = matcher_below(f"{root}/{pattern}", folder)
    inside = f"{directory}/" if directory else ""
    return {
        file
        for file in FILES
        if file.startswith(inside)
        and matches is not None
        and matches(file.removeprefix(inside))
    }


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("files")
    for file in FILES:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_bytes(b"x")
    return str(root)


@pytest.fixture(scope="module")
def bucket():
    with GcsServer("bucket") as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", server.url)
        for file in FILES:
            server.objects.put("bucket", file, b"x")
        yield "gs://bucket"


class TestMatcherBelow:
    """It says of names what a listing finds of files that are there."""

    def expected(self, root: str, pattern: str, directory: str) -> set[str]:
        """Returns those that the pattern matches, or that are in it as a directory."""
        storage = storage_for(root)
        found = storage.match(f"{root}/{pattern}") or storage.list(f"{root}/{pattern}")
        home = root if "://" in root else os.path.realpath(root)
        paths = {
            info.path if "://" in root else os.path.realpath(info.path)
            for info in found
        }
        files = {path.removeprefix(f"{home}/") for path in paths}
        return {
            file for file in files if file.startswith(directory and directory + "/")
        }

    @pytest.mark.parametrize("pattern", PATTERNS)
    def test_as_local_files_are_found(self, root, pattern):
        for directory in DIRECTORIES:
            expected = self.expected(root, pattern, directory)
            assert below(root, pattern, directory) == expected

    # Only a request would tell that an object has the name of a pattern.
    @pytest.mark.parametrize("pattern", [p for p in PATTERNS if p != "x[1]/a"])
    def test_as_objects_are_found(self, bucket, pattern):
        for directory in DIRECTORIES:
            expected = self.expected(bucket, pattern, directory)
            assert below(bucket, pattern, directory) == expected

    def test_links(self, root, tmp_path):
        (tmp_path / "link").symlink_to(root)
        for pattern, directory in (
            (f"{tmp_path}/link/out/*", f"{root}/out"),
            (f"{root}/out/*", f"{tmp_path}/link/out"),
            (f"{tmp_path}/link/*/*", f"{tmp_path}/link/new"),
        ):
            assert matcher_below(pattern, directory)("dataset.json")

    def test_paths_that_are_relative(self, root, monkeypatch):
        monkeypatch.chdir(f"{root}/out")
        for pattern, directory in (
            ("*", "."),
            ("../*/*", "."),
            ("../out/*", f"{root}/out"),
            (f"{root}/out/*", ""),
            (".", "."),
            ("**", "new/deep"),
        ):
            assert matcher_below(pattern, directory)("dataset.json")
        assert matcher_below("*", "new") is None or not matcher_below("*", "new")("x")

    @pytest.mark.parametrize(
        ("pattern", "directory"),
        [
            ("/raw/*", "/out"),
            ("/raw/a*", "gs://bucket/out"),
            ("gs://raw/*", "/out"),
            ("gs://raw/*", "gs://out/c4"),
            ("gs://b/raw/*", "gs://b/out"),
        ],
    )
    def test_elsewhere_no_name_is_looked_at(self, pattern, directory):
        assert matcher_below(pattern, directory) is None

    def test_another_directory_of_the_same_beginning(self):
        matches = matcher_below("gs://b/raw*", "gs://b/raw2")
        assert matches is None or not matches("dataset.json")
        assert matcher_below("/raw/*", "/raw2") is None
