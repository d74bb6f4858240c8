"""The inputs of a conversion: they belong together, and apart from the output."""

from __future__ import annotations

import json
import pathlib

import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.conversion.begin import begin_job, list_inputs
from gristmill.transforms.jobs.conversion_job import ConversionJob, ShardNames
from tests.servers.gcs_server import GcsServer
from tests.support.conversion import contents, job_of
from tests.support.records import frames_of


def make(folder: pathlib.Path, *names: str) -> pathlib.Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(frames_of([name.encode()]))
    return folder


def tfds(split: str, count: int) -> list[str]:
    return [f"c4-{split}.tfrecord-{i:05d}-of-{count:05d}" for i in range(count)]


@pytest.fixture
def c4(tmp_path) -> pathlib.Path:
    return make(tmp_path / "c4", *tfds("train", 3), *tfds("validation", 1))


class TestSplits:
    def refused(self, job: ConversionJob, *parts: str) -> None:
        with pytest.raises(InputError, match="belong to several splits") as caught:
            list_inputs(job)
        for part in parts:
            assert part in str(caught.value)

    @pytest.mark.parametrize("pattern", ["*tfrecord*", "*", "", "c4-*"])
    def test_those_of_one_pattern(self, c4, pattern):
        job = job_of(f"{c4}/{pattern}", "out")
        self.refused(job, "train (3 files), validation (1 file)", "`split`", str(c4))

    def test_those_of_directories(self, tmp_path):
        make(tmp_path, "train/part-0", "val/part-0")
        self.refused(job_of(f"{tmp_path}/*/part-*", "out"), "train (1 file), val")

    def test_the_directory_of_tfds_is_named(self, c4, monkeypatch):
        (c4 / "dataset_info.json").write_text(json.dumps({"name": "c4"}))
        cure = f"give the TFDS directory {c4}, which"
        self.refused(job_of(f"{c4}/*tfrecord*", "out"), cure)
        monkeypatch.chdir(c4)
        self.refused(job_of("*tfrecord*", "/out"), "give the TFDS directory ., which")

    def test_a_split_of_another_name_joins_them(self, c4):
        job = job_of(f"{c4}/*", "out", split="all", join_splits=True)
        files = list_inputs(job)
        assert len(files) == 4
        notes = (
            "files of several splits are joined: train (3 files), validation (1 file)"
        )
        assert files.notes() == [notes]
        for split in ("train", "validation"):
            self.refused(job_of(f"{c4}/*", "out", split=split, join_splits=True))
        self.refused(job_of(f"{c4}/*", "out", split="all"))

    @pytest.mark.parametrize(
        "names",
        [
            tfds("train", 3),
            ["part-0", "part-1"],
            ["train-0", "other"],
            ["val-0", "val-1"],
        ],
    )
    def test_those_of_one_split(self, tmp_path, names):
        assert len(list_inputs(job_of(make(tmp_path / "in", *names), "out"))) == len(
            names
        )


class TestOutput:
    """A later run must find nothing of the output among its inputs."""

    @pytest.mark.parametrize(
        ("inputs", "output", "what"),
        [
            # As a pattern, as the shell expands it, and as a directory.
            ("raw/*", "raw", "directory of its inputs"),
            ("raw/x", "raw/", "directory of its inputs"),
            ("raw", "raw", "directory of its inputs"),
            ("raw/**", "raw/out", r"raw/\*\* would match raw/out/dataset.json"),
            ("**/x", "x-out", None),
            ("raw/*", "raw/out", None),
        ],
    )
    def test_where_it_may_be(self, monkeypatch, tmp_path, inputs, output, what):
        monkeypatch.chdir(tmp_path)
        make(tmp_path, "raw/x")
        job = job_of(inputs, output)
        if what is None:
            begin_job(job)
        else:
            with pytest.raises(InputError, match=what):
                begin_job(job)
            assert sorted(contents(tmp_path)) == ["raw/x"]

    def test_shards_that_the_pattern_would_match(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        make(tmp_path, "raw/a/x-00000-of-00001")
        expected = "would match raw/out/data-train.array_record-00000-of-00001"
        with pytest.raises(InputError, match=expected):
            begin_job(job_of("raw/*/*-of-*", "raw/out"))

    def test_other_functions_write_beside_their_inputs(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        make(tmp_path, "raw/x.tfrecord")
        names = ShardNames(kind="beam", prefix="x", suffix=".arrayrecord")
        begin_job(job_of("raw/*.tfrecord", "raw", names=names))
        with pytest.raises(InputError, match=r"would match raw/dataset\.json"):
            begin_job(job_of("raw/*", "raw", names=names))
        with pytest.raises(InputError, match=r"would match raw/dataset\.json"):
            begin_job(job_of("raw", "raw", names=names))

    def test_in_a_bucket(self, monkeypatch):
        with GcsServer("bucket") as server:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
            server.objects.put("bucket", "raw/x", frames_of([b"x"]))
            for inputs, output in (
                ("gs://bucket/raw/*", "gs://bucket/raw/"),
                ("gs://bucket/raw", "gs://bucket/raw"),
                ("gs://bucket/**", "gs://bucket/out"),
            ):
                with pytest.raises(InputError, match="inputs"):
                    begin_job(job_of(inputs, output))
            assert list(server.objects.buckets["bucket"]) == ["raw/x"]
            begin_job(job_of("gs://bucket/raw/*", "gs://bucket/raw/out"))
