"""Repositories of the Hub: what is in them, and the files of their splits."""

import glob

import pyarrow as pa
import pytest

from gristmill.dataset import InputError
from gristmill.transforms.directories.hugging_face_directory import (
    is_repository,
    repository_inputs,
)
from tests.conversion.format_files import put
from tests.support.told import told

ONE = "train-00000-of-00001.parquet"


def repository(folder, *names, readme=None):
    files = {name: pa.table({"number": [n]}) for n, name in enumerate(names)}
    if readme is not None:
        files["README.md"] = readme.encode()
    return str(put(folder, files))


def inputs_of(directory, **options):
    found = repository_inputs(directory, **options)
    return {
        split: [path.removeprefix(f"{directory}/") for path in patterns]
        for split, patterns in found.items()
    }


def config(name, files):
    return f"---\nlicense: mit\nconfigs:\n- config_name: {name}\n  {files}\n---\n# T\n"


# Its files and its readme, and the patterns of each split.
INPUTS = {
    "a pattern that would match more": (
        [ONE, "train-extra-00000-of-00001.parquet"],
        None,
        {"extra": ["train-extra-*.parquet"], "train": [ONE]},
    ),
    "other words for splits": (
        ["my_eval.parquet", "training.parquet", "dev-00000-of-00001-0a1b.parquet"],
        None,
        {
            "test": ["my_eval.parquet"],
            "train": ["training.parquet"],
            "dev": ["dev-*.parquet"],
        },
    ),
    "one folder": (["en/train/0000.parquet"], None, {"train": ["en/train/*.parquet"]}),
    "a readme with splits": (
        ["data/a.parquet", "data/b.parquet"],
        config("default", "data_files: [{split: held_out, path: data/b*.parquet}]"),
        {"held_out": ["data/b*.parquet"]},
    ),
    "a readme with a pattern": (
        ["x/a.parquet"],
        config("a", "data_files: x/*.parquet"),
        {"train": ["x/*.parquet"]},
    ),
    "a readme with a folder, and lists": (
        ["en/x.parquet", "en/y.parquet", "en/z-1.parquet"],
        config(
            "a",
            "data_dir: en\n  data_files:\n  - split: train\n    path: [x.parquet, "
            "./y.parquet]\n  - split: test\n    path: z-*",
        ),
        {"train": ["en/x.parquet", "en/y.parquet"], "test": ["en/z-*"]},
    ),
    "a readme with a mapping": (
        ["x.parquet"],
        config("a", "data_files: {test: x.parquet}"),
        {"test": ["x.parquet"]},
    ),
}


@pytest.mark.parametrize("name", INPUTS)
def test_the_inputs_of_a_repository(tmp_path, name):
    names, readme, expected = INPUTS[name]
    found = repository(tmp_path, *names, readme=readme)
    assert is_repository(found)
    assert inputs_of(found) == expected
    split = [*expected][-1]
    assert inputs_of(found, splits=[split]) == {split: expected[split]}
    with pytest.raises(InputError, match="no such split") as caught:
        inputs_of(found, splits=["other"])
    assert all(split in str(caught.value) for split in expected)


def test_several_configurations_are_refused_with_commands(tmp_path):
    readme = config("en", "data_files: en/*.parquet").replace(
        "---\n# T", "- config_name: de\n  data_files: {test: 'd e/*.parquet'}\n---\n"
    )
    found = repository(tmp_path, "en/a.parquet", "d e/b.parquet", readme=readme)
    with pytest.raises(InputError, match="several configurations") as caught:
        inputs_of(found)
    assert caught.value.cure.splitlines()[1:] == [
        f"gristmill convert '{found}/en/*.parquet' en --split train",
        f"gristmill convert '{found}/d e/*.parquet' de --split test",
    ]
    folders = repository(tmp_path / "folders", f"en/{ONE}", f"de/{ONE}")
    assert is_repository(folders)
    with told(
        InputError, "several configurations", f"gristmill convert {folders}/de de"
    ):
        inputs_of(folders)
    assert inputs_of(f"{folders}/de") == {"train": ["train-*.parquet"]}


def test_partitions_are_no_configurations(tmp_path):
    names = ("year=2020/month=1/a.parquet", "year=2021/month=1/a.parquet")
    found = repository(tmp_path, *names)
    with pytest.raises(InputError, match="a table in partitions") as caught:
        inputs_of(found)
    pattern = f"{found}/*/*/*.parquet"
    assert f"gristmill convert '{pattern}' OUTPUT" in caught.value.cure
    assert len(glob.glob(pattern)) == 2


def test_which_directories_are_repositories(tmp_path):
    found = repository(tmp_path / "some", "a.parquet", "b.parquet")
    assert not is_repository(found)
    (tmp_path / "some/README.md").write_text("# Text")
    assert is_repository(found)
    (tmp_path / "some/dataset.json").touch()
    assert not is_repository(found)
    for name, expected in {"x/a": True, ".cache/a": False, "_old/a": False}.items():
        found = repository(tmp_path / name[:2], f"{name}.parquet")
        assert is_repository(found) == expected


def test_a_repository_in_a_bucket(tmp_path, server):
    repository(tmp_path, ONE)
    server.objects.put("in", "set/README.md", b"# Text")
    server.objects.put("in", f"set/data/{ONE}", (tmp_path / ONE).read_bytes())
    assert is_repository("gs://in/set")
    assert not is_repository("gs://in/missing")
    assert inputs_of("gs://in/set") == {"train": ["data/train-*.parquet"]}


def test_files_of_no_split_are_not_left_out_silently(tmp_path):
    with told(InputError, "of no split"):
        inputs_of(repository(tmp_path, "train.parquet", "more.parquet"))


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
def test_a_readme_that_cannot_be_understood_is_an_error(tmp_path, configs):
    found = repository(tmp_path, ONE, readme=f"---\nconfigs:\n{configs}\n---\n")
    with told(InputError, "cannot be understood", where=f"{found}/README.md"):
        inputs_of(found)
