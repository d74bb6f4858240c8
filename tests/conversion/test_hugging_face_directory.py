"""Repositories of the Hub: what is in them, and the files of their splits."""

import glob
import itertools

import pyarrow as pa
import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.directories.hugging_face_directory import (
    configurations,
    is_repository,
    repository_inputs,
    splits_by_names,
)
from tests.conversion.parquet_files import write_parquet
from tests.servers.gcs_server import GcsServer

README = "---\nconfigs:\n{}---\n"


def repository(folder, *names, readme=None):
    for number, name in enumerate(names):
        write_parquet(folder / name, pa.table({"number": [number]}))
    if readme is not None:
        (folder / "README.md").write_text(readme)
    return str(folder)


def inputs_of(directory, **options):
    found = repository_inputs(directory, **options)
    return {
        split: [path.removeprefix(f"{directory}/") for path in patterns]
        for split, patterns in found.items()
    }


def test_splits_by_names(tmp_path):
    found = repository(
        tmp_path,
        "data/train-00000-of-00002-ab.parquet",
        "data/train-00001-of-00002-cd.parquet",
        "data/validation-00000-of-00001-ef.parquet",
        readme="# Text",
    )
    assert is_repository(found)
    assert inputs_of(found) == {
        "train": ["data/train-*.parquet"],
        "validation": ["data/validation-*.parquet"],
    }
    assert list(inputs_of(found, splits=["validation"])) == ["validation"]
    with pytest.raises(InputError, match="no such split") as caught:
        inputs_of(found, splits=["test"])
    assert "train, validation" in str(caught.value)


def test_a_pattern_that_would_match_more_is_not_used(tmp_path):
    found = repository(
        tmp_path, "train-00000-of-00001.parquet", "train-extra-00000-of-00001.parquet"
    )
    assert inputs_of(found) == {
        "extra": ["train-extra-*.parquet"],
        "train": ["train-00000-of-00001.parquet"],
    }


def test_the_readme_says_which_files(tmp_path):
    config = "- config_name: default\n  data_files:\n  - split: {}\n    path: {}\n"
    readme = README.format(config.format("held_out", "data/b*.parquet"))
    found = repository(tmp_path, "data/a.parquet", "data/b.parquet", readme=readme)
    assert is_repository(found)
    assert inputs_of(found) == {"held_out": ["data/b*.parquet"]}


def test_several_configurations_are_refused_with_commands(tmp_path):
    readme = README.format(
        "- config_name: en\n  data_files: en/*.parquet\n"
        "- config_name: de\n  data_files:\n  - split: test\n    path: 'd e/*.parquet'\n"
    )
    found = repository(tmp_path, "en/a.parquet", "d e/b.parquet", readme=readme)
    with pytest.raises(InputError, match="several configurations") as caught:
        inputs_of(found)
    commands = caught.value.cure.splitlines()[1:]
    assert commands == [
        f"gristmill convert '{found}/en/*.parquet' en --split train",
        f"gristmill convert '{found}/d e/*.parquet' de --split test",
    ]


def test_partitions_are_no_configurations(tmp_path):
    names = ("year=2020/month=1/a.parquet", "year=2021/month=1/a.parquet")
    found = repository(tmp_path, *names)
    with pytest.raises(InputError, match="a table in partitions") as caught:
        inputs_of(found)
    pattern = f"{found}/*/*/*.parquet"
    assert f"gristmill convert '{pattern}' OUTPUT" in caught.value.cure
    assert len(glob.glob(pattern)) == 2


def test_folders_are_configurations(tmp_path):
    names = ("en/train-00000-of-00001.parquet", "de/train-00000-of-00001.parquet")
    found = repository(tmp_path, *names)
    assert is_repository(found)
    with pytest.raises(InputError, match="several configurations") as caught:
        inputs_of(found)
    assert f"gristmill convert {found}/de de" in caught.value.cure
    assert inputs_of(f"{found}/de") == {"train": ["train-*.parquet"]}
    alone = repository(tmp_path / "other", "en/train/0000.parquet")
    assert inputs_of(alone) == {"train": ["en/train/*.parquet"]}


@pytest.mark.parametrize(
    ("names", "readme", "expected"),
    [
        (["a.parquet", "b.parquet"], None, False),
        (["a.parquet", "b.parquet"], "# Text", True),
        (["x/a.parquet"], None, True),
        ([], "# Text", False),
        ([".cache/a.parquet", "_old/a.parquet"], "# Text", False),
    ],
)
def test_which_directories_are_repositories(tmp_path, names, readme, expected):
    assert is_repository(repository(tmp_path, *names, readme=readme)) == expected


def test_files_and_patterns_and_other_datasets_are_none(tmp_path):
    name = "train-00000-of-00001.parquet"
    found = repository(tmp_path, name)
    assert is_repository(found)
    assert not is_repository(f"{found}/{name}")
    assert not is_repository(f"{found}/*")
    assert not is_repository(f"{found}/missing")
    (tmp_path / "dataset.json").touch()
    assert not is_repository(found)


def test_a_repository_in_a_bucket(tmp_path, monkeypatch):
    name = "train-00000-of-00001.parquet"
    repository(tmp_path, name)
    with GcsServer("in") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.objects.put("in", "set/README.md", b"# Text")
        server.objects.put("in", f"set/data/{name}", (tmp_path / name).read_bytes())
        assert is_repository("gs://in/set")
        assert not is_repository("gs://in/missing")
        assert inputs_of("gs://in/set") == {"train": ["data/train-*.parquet"]}


DESCRIBED = """---
license: mit
configs:
{configs}
---
# A data set
configs: not these
"""


def described(configs):
    return configurations(DESCRIBED.format(configs=configs), where="README.md")


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
