"""The files of the splits of a repository."""

import itertools

import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.directories.hugging_face_directory import (
    configurations,
    splits_by_names,
)

README = """---
license: mit
configs:
{configs}
---
# A data set
configs: not these
"""


def described(configs):
    return configurations(README.format(configs=configs), where="README.md")


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (
            ["data/train-00001-of-00002.parquet", "data/train-00000-of-00002.parquet"],
            {"train": 2},
        ),
        (
            ["train-00000-of-00001-0a1b.parquet", "dev-00000-of-00001.parquet"],
            {"dev": 1, "train": 1},
        ),
        (["c4-test-00000-of-00001.parquet"], {"test": 1}),
        (
            ["train/a.parquet", "train/b.parquet", "val/a.parquet"],
            {"train": 2, "validation": 1},
        ),
        (["my_eval.parquet", "training.parquet"], {"test": 1, "train": 1}),
        (["a.parquet", "b.parquet"], {"train": 2}),
        (["default/train/0000.parquet"], {"train": 1}),
    ],
)
def test_names_tell_the_splits(names, splits):
    found = splits_by_names(names)
    assert {split: len(files) for split, files in found.items()} == splits
    assert sorted(itertools.chain(*found.values())) == sorted(names)


def test_missing_files_of_a_split_are_an_error():
    names = [f"data/train-{number:05}-of-00004.parquet" for number in (0, 1, 3)]
    with pytest.raises(InputError, match="files of a set are missing") as caught:
        splits_by_names(names)
    assert caught.value.where == "data/train-00002-of-00004.parquet"


def test_files_of_no_split_are_not_left_out_silently():
    with pytest.raises(InputError, match="of no split"):
        splits_by_names(["train.parquet", "more.parquet"])


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        (
            "- config_name: a\n  data_files: x/*.parquet",
            {"a": {"train": ["x/*.parquet"]}},
        ),
        (
            "- config_name: a\n  data_files: [x.parquet, y.parquet]",
            {"a": {"train": ["x.parquet", "y.parquet"]}},
        ),
        (
            "- config_name: a\n  data_dir: en\n  data_files:\n"
            "  - split: train\n    path: [x.parquet, ./y.parquet]\n"
            "  - split: test\n    path: z-*",
            {"a": {"train": ["en/x.parquet", "en/y.parquet"], "test": ["en/z-*"]}},
        ),
        (
            "- config_name: a\n  data_files: {test: x.parquet}\n"
            "- config_name: b\n  data_files: y.parquet",
            {"a": {"test": ["x.parquet"]}, "b": {"train": ["y.parquet"]}},
        ),
        ("- config_name: a", {}),
    ],
)
def test_what_a_readme_says(configs, expected):
    assert described(configs) == expected


@pytest.mark.parametrize(
    "configs",
    [
        "- data_files: a.parquet",
        "- config_name: a\n  data_files: [{split: train}]",
        "- config_name: a\n  data_files: ../a.parquet",
        "- config_name: a\n  data_files: https://example.com/a.parquet",
        "- config_name: 'a",
        "  nothing",
    ],
)
def test_a_readme_that_cannot_be_understood_is_an_error(configs):
    with pytest.raises(InputError, match="cannot be understood") as caught:
        described(configs)
    assert caught.value.where == "README.md"
