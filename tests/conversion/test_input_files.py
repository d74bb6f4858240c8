"""Input files: found by patterns, in a fixed order, recognised by what is in them."""

from __future__ import annotations

import gzip
import os
import pathlib

import numpy as np
import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.input_files import InputFiles
from tests.support.records import frames_of

DATA = frames_of([b"one", b"two"])


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
    for name in ("b", "a", "c.gz"):
        (tmp_path / name).write_bytes(DATA)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "d").write_bytes(DATA)
    return tmp_path


class TestFind:
    @pytest.mark.parametrize(
        ("patterns", "expected"),
        [
            (("*",), ["a", "b", "c.gz"]),
            (("a",), ["a"]),
            (("b", "a"), ["a", "b"]),
            (("[ab]", "?", "a"), ["a", "b"]),
            (("**/d", "b"), ["b", "deep/er/d"]),
        ],
    )
    def test_patterns(self, folder, patterns, expected):
        files = find_inputs([f"{folder}/{pattern}" for pattern in patterns])
        assert list(files.paths) == [f"{folder}/{name}" for name in expected]
        assert files.sizes.tolist() == [len(DATA)] * len(expected)

    def test_each_pattern_must_match(self, folder):
        with pytest.raises(InputError) as caught:
            find_inputs([f"{folder}/a", f"{folder}/z*"])
        assert f"{folder}/z*" in str(caught.value)

    def test_many_empty_files_are_counted_and_some_named(self, tmp_path):
        for number in range(9):
            (tmp_path / f"empty{number}").write_bytes(b"")
        with pytest.raises(InputError) as caught:
            find_inputs([f"{tmp_path}/*"])
        assert "9 input files are empty" in str(caught.value)
        assert f"{tmp_path}/empty2 and 6 more" in str(caught.value)
        assert "empty3" not in str(caught.value)
        assert len(find_inputs([f"{tmp_path}/*"], allow_empty_files=True)) == 9


class TestList:
    def test_survives_encoding(self, folder):
        (folder / "nämé\udcff").write_bytes(gzip.compress(DATA, mtime=0))
        files = find_inputs([f"{folder}/*"])
        again = InputFiles.of_arrays(files.arrays())
        assert list(again.paths) == list(files.paths)
        assert list(again.versions) == list(files.versions)
        assert again.sizes.tolist() == files.sizes.tolist()
        assert again.splittable.tolist() == files.splittable.tolist()
        assert again.digest == files.digest
        for name, array in again.arrays().items():
            np.testing.assert_array_equal(array, files.arrays()[name])

    def test_the_digest_follows_names_and_sizes(self, folder):
        before = find_inputs([f"{folder}/*"]).digest
        os.utime(folder / "a", ns=(1, 1))
        assert find_inputs([f"{folder}/*"]).digest == before
        (folder / "a").write_bytes(DATA + DATA)
        changed = find_inputs([f"{folder}/*"]).digest
        (folder / "a").rename(folder / "aa")
        assert len({before, changed, find_inputs([f"{folder}/*"]).digest}) == 3

    def test_names_twice(self, folder):
        assert find_inputs([f"{folder}/*"]).notes() == []
        (folder / "deep" / "a").write_bytes(DATA)
        (note,) = find_inputs([f"{folder}/*", f"{folder}/deep/a"]).notes()
        assert f"{folder}/a and {folder}/deep/a" in note
