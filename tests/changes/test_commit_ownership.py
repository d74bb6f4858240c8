"""An output is refused where a later run would find it among the inputs."""

from __future__ import annotations

import pathlib

import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.commit.ownership import (
    check_holds_no_input,
    check_not_matched,
)

FILES = ["dataset.json", "index/c4-train.job.json"]


def refused(check, *arguments, **options) -> str:
    with pytest.raises(InputError) as caught:
        check(*arguments, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "output", "file"),
    [
        ("raw/*", "raw", "dataset.json"),
        ("raw/*", "raw/", "dataset.json"),
        ("raw/**", "raw/out", "dataset.json"),
        ("raw/*/*.json", "raw/out", "dataset.json"),
        ("raw/**/*job*", "raw/out", "index/c4-train.job.json"),
        ("*", ".", "dataset.json"),
        ("raw", "raw", "dataset.json"),
        ("gs://b/raw/*", "gs://b/raw", "dataset.json"),
        ("gs://b/raw/**.json", "gs://b/raw/out", "dataset.json"),
        ("gs://b/raw", "gs://b/raw", "dataset.json"),
        ("gs://b/*", "gs://b", "dataset.json"),
    ],
)
def test_patterns_that_would_match(monkeypatch, tmp_path, pattern, output, file):
    monkeypatch.chdir(tmp_path)
    patterns = ["elsewhere/*", pattern]
    message = refused(check_not_matched, output, patterns=patterns, files=FILES)
    place = str(pathlib.PurePath(output) / file) if "://" not in output else file
    assert f"{pattern} would match" in message
    assert message.split("would match ")[1].split("\n")[0].endswith(place)
    assert "to do:    choose another output" in message


@pytest.mark.parametrize(
    ("pattern", "output"),
    [
        ("raw/*", "raw/out"),
        ("raw/*", "out"),
        ("raw/**/*.tfrecord", "raw"),
        ("raw/sub/*", "raw"),
        ("gs://b/raw/*", "gs://b/raw/out"),
        ("gs://b/raw/*", "gs://c/raw"),
        ("/raw/*", "gs://b/raw"),
    ],
)
def test_patterns_that_would_not(pattern, output):
    check_not_matched(output, patterns=[pattern], files=FILES)


class TestHolds:
    @pytest.mark.parametrize("inside", ["", "index/", "deep/er/"])
    @pytest.mark.parametrize("output", ["raw", "raw/", "./raw", "link", "../{}/raw"])
    def test_inputs_in_its_directory(self, monkeypatch, tmp_path, inside, output):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "raw").mkdir()
        (tmp_path / "link").symlink_to("raw")
        place = output.format(tmp_path.name)
        for path in (f"raw/{inside}x", f"{tmp_path}/raw/{inside}x", f"link/{inside}x"):
            message = refused(check_holds_no_input, place, ["a/b", path])
            if inside:
                assert "the output is a parent directory of its inputs" in message
                assert f"got:      the input {path}" in message
            else:
                assert "the output is the directory of its inputs" in message
                assert "got:      the input x" in message

    def test_in_the_current_directory(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        refused(check_holds_no_input, ".", ["x"])
        refused(check_holds_no_input, ".", ["deep/x"])
        refused(check_holds_no_input, "/", [str(tmp_path / "x")])
        refused(check_holds_no_input, str(tmp_path), ["x"])
        check_holds_no_input("out", ["x"])
        check_holds_no_input("out", ["output/x"])

    def test_in_a_bucket(self):
        refused(check_holds_no_input, "gs://b/raw/", ["gs://b/raw/x"])
        refused(check_holds_no_input, "gs://b/raw", ["gs://b/raw/deep/x"])
        refused(check_holds_no_input, "gs://b", ["gs://b/x"])
        check_holds_no_input("gs://b/raw", ["gs://b/x", "gs://b/raw2/x", "/raw/x"])
