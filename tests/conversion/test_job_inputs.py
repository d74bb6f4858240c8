"""The inputs of a conversion: they belong together, and apart from the output."""

from __future__ import annotations

import json
import pathlib

import pytest

from gristmill.dataset.base.errors import InputError, NotADatasetError
from gristmill.dataset.metadata import layout
from gristmill.transforms.conversion.begin import begin_job, list_inputs
from gristmill.transforms.jobs.conversion_job import ShardNames
from gristmill.transforms.sources.shards.source_split import list_shards
from tests.servers.gcs_server import GcsServer
from tests.support.conversion import contents, convert, dataset_of, job_of, shards_of
from tests.support.records import frames_of, write_array_records

C4 = [f"c4-train.tfrecord-{n:05d}-of-00003" for n in range(3)]
C4 += ["c4-validation.tfrecord-00000-of-00001"]
BESIDE = ShardNames(kind="beam", prefix="x", suffix=".arrayrecord")


@pytest.fixture
def make(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """Makes files in the current directory."""
    monkeypatch.chdir(tmp_path)

    def made(*names: str) -> None:
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(frames_of([name.encode()]))

    return made


@pytest.mark.parametrize(
    ("names", "pattern", "said"),
    [
        *((C4, p, "train (3 files), validation (1 file)") for p in ("*", "", "c4-*")),
        (["train/part-0", "val/part-0"], "*/part-*", "train (1 file), val"),
        (C4[:3], "*", None),
        (["part-0", "part-1"], "*", None),
        (["train-0", "other"], "*", None),
        (["val-0", "val-1"], "*", None),
    ],
)
def test_files_of_several_splits_are_not_joined(make, names, pattern, said):
    make(*(f"in/{name}" for name in names))
    job = job_of(f"in/{pattern}", "out")
    if said is None:
        assert len(list_inputs(job)) == len(names)
        return
    with pytest.raises(InputError, match="belong to several splits") as caught:
        list_inputs(job)
    assert said in str(caught.value)
    assert "`split`" in str(caught.value)


def test_a_split_of_another_name_joins_them(make):
    make(*C4)
    files = list_inputs(job_of("c4*", "out", split="all", join_splits=True))
    assert len(files) == 4
    joined = "files of several splits are joined: train (3 files), validation (1 file)"
    assert files.notes() == [joined]
    for split, join in (("train", True), ("validation", True), ("all", False)):
        with pytest.raises(InputError, match="belong to several splits"):
            list_inputs(job_of("c4*", "out", split=split, join_splits=join))


@pytest.mark.parametrize(("pattern", "named"), [("/*", "{}"), ("*", ".")])
def test_a_tfds_directory_is_named(make, tmp_path, pattern, named):
    make(*C4)
    (tmp_path / "dataset_info.json").write_text(json.dumps({"name": "c4"}))
    pattern = f"{tmp_path}/*tfrecord*" if pattern == "/*" else "*tfrecord*"
    expected = f"give the TFDS directory {named.format(tmp_path)}, which"
    with pytest.raises(InputError, match=expected):
        list_inputs(job_of(pattern, "/out"))


def test_files_of_one_name_become_shards_of_other_names(make):
    make("x/same", "y/same")
    job = job_of("?/same", "out", plan=("match_shards", None))
    assert "x/same and y/same" in list_inputs(job).notes()[0]
    assert convert(job).manifest.splits["train"].shards == 2
    named = {"plan": ("match_shards", None), "names": ShardNames(kind="inputs")}
    with pytest.raises(InputError, match=r"(?s)same.*x/same and y/same"):
        convert(job_of("?/same", "named", **named))


@pytest.mark.parametrize(
    ("inputs", "output", "options", "said"),
    [
        # As a pattern, as the shell expands it, and as a directory.
        ("raw/*", "raw", {}, "directory of its inputs"),
        ("raw/x", "raw/", {}, "directory of its inputs"),
        ("raw", "raw", {}, "directory of its inputs"),
        ("raw/**", "raw/out", {}, r"raw/\*\* would match raw/out/dataset.json"),
        ("**/x", "x-out", {}, None),
        ("raw/*", "raw/out", {}, None),
        ("*/*/*-of-*", "raw/out", {}, "would match raw/out/data-train.array_record-0"),
        # Other functions write beside their inputs.
        ("raw/*x", "raw", {"names": BESIDE}, None),
        ("raw/*", "raw", {"names": BESIDE}, r"would match raw/dataset\.json"),
        ("raw", "raw", {"names": BESIDE}, r"would match raw/dataset\.json"),
    ],
)
@pytest.mark.parametrize("place", ["", "gs://bucket/"])
def test_a_later_run_finds_nothing_of_the_output_among_its_inputs(
    make, monkeypatch, place, inputs, output, options, said
):
    make("raw/x", "raw/a/x-00000-of-00001")
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        for name, data in contents(".").items():
            server.objects.put("bucket", name, data)
        job = job_of(f"{place}{inputs}", f"{place}{output}", **options)
        if said is None:
            begin_job(job)
            return
        with pytest.raises(InputError, match=said.replace("raw", f"{place}raw")):
            begin_job(job)
        found = [*server.objects.buckets["bucket"]] if place else [*contents(".")]
        assert sorted(found) == ["raw/a/x-00000-of-00001", "raw/x"]


class TestShards:
    def test_splits_are_joined_by_a_list_and_not_by_a_pattern(self, tmp_path, caplog):
        for split in ("train", "test"):
            name = f"d-{split}.array_record-00000-of-00001"
            write_array_records(tmp_path / name, [split.encode()])
        with pytest.raises(InputError, match="several splits"):
            list(list_shards([f"{tmp_path}/*"], None))
        found = list(list_shards([f"{tmp_path}/d-tr*", f"{tmp_path}/d-te*"], None))
        assert len(found) == 2
        assert "splits are joined" in caplog.text

    def test_of_a_dataset(self, tmp_path):
        dataset = dataset_of(tmp_path, [b"a"] * 3)
        # A pattern leaves out what describes it.
        found = [shard.path for shard in list_shards([f"{dataset}/*"], None)]
        assert found == [f"{dataset}/{shard}" for shard in shards_of(dataset)]
        (dataset / layout.DATASET_JSON).unlink()
        for path, split, error, said in (
            (dataset, None, NotADatasetError, "unfinished"),
            (tmp_path / "nowhere", None, NotADatasetError, "nowhere"),
            (tmp_path / "no*", None, InputError, "no ArrayRecord file"),
            (dataset / "*.array_record*", "train", InputError, "files have no splits"),
        ):
            with pytest.raises(error, match=said):
                list(list_shards([str(path)], split))
