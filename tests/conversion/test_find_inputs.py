"""A directory as input: the files directly in it, unless it is a dataset."""

from __future__ import annotations

import json
import pathlib

import pytest

from gristmill import loader
from gristmill.dataset.base.errors import GristmillError, InputError
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.job_options import ConvertOptions
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.sources.find_inputs import match_inputs
from tests.support.gcs_server import GcsServer
from tests.support.other_formats import JSON_LINES, arrow_stream
from tests.support.records import frames_of

DATA = frames_of([b"one"])
FILES = {
    "b.tfrecord": DATA,
    "a.tfrecord": DATA,
    ".hidden": DATA,
    "_SUCCESS": b"",
    "_temporary/0/part": DATA,
    "sub/c.tfrecord": DATA,
}


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
    for name, data in FILES.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    return tmp_path / "in"


def refused(pattern: object) -> str:
    with pytest.raises(InputError) as caught:
        match_inputs(str(pattern))
    return str(caught.value)


def begin_all(options: ConvertOptions) -> None:
    for job in conversion_of(options).jobs:
        begin_job(job)


@pytest.mark.parametrize("end", ["", "/", "//", "/."])
def test_the_files_in_it(folder, end):
    found = [pathlib.Path(info.path) for info in match_inputs(f"{folder}{end}")]
    assert found == [folder / "a.tfrecord", folder / "b.tfrecord"]


@pytest.mark.parametrize("end", ["", "/"])
def test_in_a_bucket(monkeypatch, end):
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        # The console makes an object for a directory.
        for name, data in {**FILES, "": b""}.items():
            server.objects.put("bucket", f"in/{name}", data)
        found = [info.path for info in match_inputs(f"gs://bucket/in{end}")]
    assert found == ["gs://bucket/in/a.tfrecord", "gs://bucket/in/b.tfrecord"]


def test_a_pattern_matches_what_it_matches(folder):
    names = [pathlib.Path(info.path).name for info in match_inputs(f"{folder}/*")]
    assert names == ["_SUCCESS", "a.tfrecord", "b.tfrecord"]


class TestDatasets:
    def test_one_of_ours(self, folder):
        (folder / "dataset.json").write_text("{}")
        message = refused(folder)
        assert "a dataset is not the only input" in message
        assert "convert it alone" in message

    def test_tfds_beside_others(self, folder):
        for name in ("dataset_info.json", "features.json"):
            (folder / name).write_text("{}")
        assert "convert it alone" in refused(folder)

    @pytest.mark.parametrize(
        "files",
        [
            # DatasetDict.save_to_disk, Dataset.save_to_disk, the cache of load_dataset,
            # download_and_prepare to Parquet, and a clone of a repository of the Hub.
            {"dataset_dict.json": b"{}", "train/data-00000-of-00001.arrow": b""},
            {
                "dataset_info.json": json.dumps({"features": {}}).encode(),
                "state.json": b"{}",
                "data-00000-of-00001.arrow": arrow_stream(),
            },
            {"dataset_info.json": b"{}", "c4-train.arrow": arrow_stream()},
        ],
    )
    def test_hugging_face(self, tmp_path, files):
        for name, data in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(data)
        message = refused(tmp_path)
        with pytest.raises(InputError) as caught:
            begin_all(ConvertOptions(input=(str(tmp_path),), output=f"{tmp_path}-out"))
        assert str(caught.value) == message
        with pytest.raises(GristmillError) as caught:
            loader.open(tmp_path)
        assert "convert it with" not in str(caught.value)
        assert "TFDS directory" not in str(caught.value)
        assert "Hugging Face dataset, which cannot be converted directly" in message
        assert "to_parquet(FILE)" in message

    def test_a_repository_of_the_hub_with_files_of_its_own(self, folder):
        (folder / "README.md").write_bytes(b"---\n")
        (folder / ".gitattributes").write_bytes(b"")
        (folder / "data.jsonl").write_bytes(JSON_LINES)
        found = {pathlib.Path(info.path).name for info in match_inputs(str(folder))}
        assert "data.jsonl" in found
        assert "README.md" not in found
