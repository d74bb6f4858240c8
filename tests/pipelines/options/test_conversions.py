"""The command to copy, and the name of its output."""

from __future__ import annotations

import pathlib

import pytest

from gristmill.pipelines.options.conversions import (
    ConvertOptions,
    command_of,
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


def test_a_command_is_for_a_shell() -> None:
    options = ConvertOptions(
        input=("raw/*.jsonl", "it's"),
        output="out",
        columns="text",
        num_shards=4,
        compression="zstd:3",
        group_size=1,
    )
    assert command_of(options) == (
        "gristmill convert 'raw/*.jsonl' 'it'\"'\"'s' out --columns text "
        "--num-shards 4 --group-size 1 --compression zstd:3"
    )
    given = command_of(ConvertOptions(input=("a",), output="b"), workers=3)
    assert given.endswith("--workers 3")
