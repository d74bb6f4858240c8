"""The command to copy, and the name of its output."""

from __future__ import annotations

import pathlib

import pytest

from gristmill.pipelines.options.job_options import (
    default_output,
)


@pytest.mark.parametrize(
    ("inputs", "output"),
    [
        (["gs://raw/c4/*.tfrecord"], "gs://raw/c4-arrayrecord"),
        (["gs://raw/deep/c4/train-[0-9]*"], "gs://raw/deep/c4-arrayrecord"),
        (["gs://raw"], "gs://raw/raw-arrayrecord"),
        (["/data/pile/train/"], "train-arrayrecord"),
        (["data/my texts/*.jsonl.gz", "other"], "my-texts-arrayrecord"),
        (["a.csv"], "a-arrayrecord"),
    ],
)
def test_the_output_has_the_name_of_the_input(inputs: list[str], output: str) -> None:
    assert default_output(inputs) == output


def test_a_pattern_of_this_directory(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts").mkdir()
    monkeypatch.chdir(tmp_path / "texts")
    assert default_output(["*.txt"]) == "texts-arrayrecord"
    assert default_output(["."]) == "texts-arrayrecord"
