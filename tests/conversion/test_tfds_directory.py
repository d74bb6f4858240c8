"""TFDS directories, made and read by tensorflow-datasets itself."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import pytest

from gristmill import loader
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.errors import (
    DataLossError,
    GristmillError,
    InputError,
)
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.conversion.commit_shards import (
    ConversionResult,
    commit_shards,
)
from gristmill.transforms.conversion.make_shards import (
    ShardResult,
    make_shard,
    shard_tasks,
)
from gristmill.transforms.directories.tfds_directory import (
    TfdsConversion,
    read_tfds_directory,
    tfds_jobs,
)
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.planning.shard_plan import PlanOptions
from tests.support import shared, tfds_data
from tests.support.records import (
    read_array_records,
    read_tfrecords,
    write_tfrecords,
)

NAME, SPLIT_RECORDS = tfds_data.NAME, tfds_data.SPLIT_RECORDS
COPIED = ("features.json", "label.labels.txt", "metadata.json", "LICENSE")


@pytest.fixture(scope="session")
def made() -> pathlib.Path:
    """A TFDS directory, to be read only."""
    return shared.made_once("tfds", tfds_data.make_tfds) / NAME / "1.2.3"


@pytest.fixture
def source(made: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of it, to be changed."""
    return pathlib.Path(shutil.copytree(made, tmp_path / "source [1]"))


def planned(
    source: pathlib.Path,
    output: pathlib.Path,
    *,
    name: str | None = None,
    splits: tuple[str, ...] | None = None,
    **options: Any,
) -> TfdsConversion:
    like = ConversionJob(inputs="in", output="out", name="like", **options)
    return tfds_jobs(str(source), str(output), name=name, splits=splits, like=like)


def convert(
    source: pathlib.Path, output: pathlib.Path, *, overwrite: bool = False, **options
) -> ConversionResult:
    jobs = planned(source, output, **options).jobs
    return run(jobs, tfds_directory=str(source), overwrite=overwrite)


def run(
    jobs: Sequence[ConversionJob], *, tfds_directory: str | None, overwrite: bool
) -> ConversionResult:
    results = []
    for job in jobs:
        taken = begin_job(job, overwrite=overwrite)
        for task in shard_tasks(taken.prepared):
            done = taken.committed is not None
            results.append(ShardResult(task, None) if done else make_shard(task))
    return commit_shards(jobs, results, tfds_directory=tfds_directory)


def source_records(directory: pathlib.Path, split: str) -> list[bytes]:
    files = sorted(directory.glob(f"{NAME}-{split}.tfrecord-*"))
    return [record for file in files for record in read_tfrecords(file)]


def shards(directory: pathlib.Path, split: str, *, name: str = NAME) -> list[str]:
    return sorted(map(str, directory.glob(f"{name}-{split}.array_record-*")))


def info_of(directory: pathlib.Path) -> dict[str, Any]:
    return json.loads((directory / "dataset_info.json").read_text())


def lengths(directory: pathlib.Path) -> dict[str, list[int]]:
    return {
        split["name"]: [int(length) for length in split["shardLengths"]]
        for split in info_of(directory)["splits"]
    }


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("plan", "train_shards", "group_size"),
    [
        (PlanOptions(), 1, 1),
        (PlanOptions(kind="match_shards", value=None), 3, 1),
        (PlanOptions(kind="num_shards", value=5), 5, 3),
        (PlanOptions(kind="num_shards", value=3), 3, 4),
        (PlanOptions(kind="shard_bytes", value=2000), 5, 100),
    ],
)
def test_tfds_reads_every_example_in_order(
    made: pathlib.Path,
    tmp_path: pathlib.Path,
    plan: PlanOptions,
    train_shards: int,
    group_size: int,
) -> None:
    writer = WriterOptions(group_size=group_size)
    result = convert(made, tmp_path, plan=plan, writer=writer)

    assert len(lengths(tmp_path)["train"]) == train_shards
    assert f"group_size:{group_size}," in result.manifest.splits["train"].writer_options
    for split, count in SPLIT_RECORDS.items():
        got = tfds_data.read_split(tmp_path, split)
        assert len(got) == count == sum(lengths(tmp_path)[split])
        assert got == tfds_data.read_in_order(made, split)
        assert [
            record
            for path in shards(tmp_path, split)
            for record in read_array_records(path)
        ] == source_records(made, split)


@pytest.mark.slow
def test_metadata_is_that_of_the_input(
    made: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    result = convert(made, tmp_path)
    for name in COPIED:
        assert (tmp_path / name).read_bytes() == (made / name).read_bytes()
    features = json.loads((made / "features.json").read_bytes())
    assert result.manifest.features == features
    assert open_manifest(str(tmp_path)).features == features
    dataset = loader.open(tmp_path, split="train")
    labels = loader.ExampleDecoder.of(dataset, ["label"])(dataset[:4])["label"]
    assert labels.tolist() == [
        example["label"][1] for example in tfds_data.read_in_order(made, "train")[:4]
    ]
    before, after = map(tfds_data.read_info, (made, tmp_path))
    assert after["labels"] == list(tfds_data.LABELS)
    assert after["metadata"] == {"made_by": "hand"}
    # TFDS counts the bytes of the examples, and so do we.
    assert after == before | {
        "file_format": "array_record",
        "files": {split: shards(tmp_path, split) for split in SPLIT_RECORDS},
    }


class TestEmptyShards:
    """Files and shards without records, which Beam pipelines leave behind."""

    def test_of_the_input(self, source: pathlib.Path, tmp_path: pathlib.Path) -> None:
        path = source / f"{NAME}-train.tfrecord-00001-of-00003"
        path.write_bytes(b"")
        splits = info_of(source)["splits"]
        splits[0]["shardLengths"][1] = "0"
        tfds_data.edit_info(source, splits=splits)
        out = tmp_path / "out"
        convert(source, out, plan=PlanOptions(kind="match_shards", value=None))
        assert lengths(out)["train"] == [8, 0, 8]
        got = tfds_data.read_split(out, "train")
        assert got == tfds_data.read_in_order(source, "train")

    def test_a_split_of_no_files(
        self, source: pathlib.Path, tmp_path: pathlib.Path
    ) -> None:
        splits = [*info_of(source)["splits"], {"name": "test"}]
        tfds_data.edit_info(source, splits=splits)
        conversion = tfds_jobs(str(source), str(tmp_path / "out"))
        assert [job.split for job in conversion.jobs] == list(SPLIT_RECORDS)
        convert(source, tmp_path / "out")
        # TFDS would fail to open any split.
        assert list(lengths(tmp_path / "out")) == list(SPLIT_RECORDS)
        assert tfds_data.read_splits(tmp_path / "out").keys() == SPLIT_RECORDS.keys()
        with pytest.raises(InputError, match="no files to convert"):
            tfds_jobs(str(source), str(tmp_path / "out"), splits=("test",))


class TestNamesOfFiles:
    """Which files a split has, with TFDS's own code as the oracle."""

    @pytest.mark.slow
    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("count", [1, 10, 99_999, 100_000])
    @pytest.mark.parametrize(
        "template",
        [
            "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            "{SPLIT}/part.{SHARD_INDEX}.{FILEFORMAT}",
            "a+b (c)-{NUM_SHARDS}[{SHARD_INDEX}]*.{FILEFORMAT}",
        ],
    )
    def test_as_tfds_names_them(
        self, tmp_path: pathlib.Path, template: str, count: int
    ) -> None:
        from tensorflow_datasets.core.naming import ShardedFileTemplate

        split = {
            "name": "my-split",
            "filepathTemplate": template,
            "shardLengths": ["1"] * count,
        }
        write_info(tmp_path, splits=[split])
        found = read_tfds_directory(str(tmp_path)).splits["my-split"]
        names = ShardedFileTemplate(
            data_dir=tmp_path,
            template=template,
            dataset_name="ds",
            split="my-split",
            filetype_suffix="tfrecord",
        )
        assert len(set(found.files)) == count
        assert sorted(found.files) == list(found.files)
        for shard in {0, 1, count // 3, count - 2, count - 1} & set(range(count)):
            path = names.sharded_filepath(shard_index=shard, num_shards=count)
            assert f"{tmp_path}/{found.files[shard]}" == str(path)


def write_info(directory: pathlib.Path, **fields: Any) -> None:
    (directory / "features.json").write_text("{}")
    info = {"name": "ds", "fileFormat": "tfrecord", "version": "1.0.0"} | fields
    (directory / "dataset_info.json").write_text(json.dumps(info))


class TestRefusals:
    """What is wrong with a directory, said before anything is converted."""

    def refused(self, source: pathlib.Path, *words: str, **options: Any) -> None:
        output = source.parent / "out"
        with pytest.raises(GristmillError) as caught:
            tfds_jobs(str(source), options.pop("output", str(output)), **options)
        for word in words:
            assert word in str(caught.value)
        assert not output.exists()

    def test_a_missing_file(self, source: pathlib.Path) -> None:
        (source / f"{NAME}-train.tfrecord-00001-of-00003").unlink()
        self.refused(
            source,
            "split train",
            "missing: __odd_builder-train.tfrecord-00001-of-00003",
            "expected: 3 files",
            "got:      2 files, 1 missing",
            "copy the missing files",
        )
        # Whether asked for or not: what is left would be half of a dataset.
        self.refused(source, "split train", splits=("validation",))

    @pytest.mark.parametrize("stranger", ["00003-of-00003", "00000-of-00016"])
    def test_a_surplus_file(self, source: pathlib.Path, stranger: str) -> None:
        name = f"{NAME}-validation.tfrecord-{stranger}"
        write_tfrecords(source / name, [b"a"])
        self.refused(
            source, "split validation", name, "got:      4 files", "1 more than listed"
        )

    def test_an_empty_file_that_should_not_be(self, source: pathlib.Path) -> None:
        (source / f"{NAME}-train.tfrecord-00002-of-00003").write_bytes(b"")
        self.refused(source, "-00002-of-00003", "expected: 8 records", "0 bytes")

    @pytest.mark.parametrize("name", ["features.json", "dataset_info.json"])
    def test_missing_metadata(self, source: pathlib.Path, name: str) -> None:
        (source / name).unlink()
        self.refused(source, "not a whole TFDS directory", f"no {name}")

    @pytest.mark.parametrize("name", ["features.json", "dataset_info.json"])
    @pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff{}", b"null"])
    def test_damaged_metadata(
        self, source: pathlib.Path, name: str, text: bytes
    ) -> None:
        (source / name).write_bytes(text)
        self.refused(source, f"{name} cannot be used", str(source / name))

    @pytest.mark.parametrize(
        "fields",
        [
            {"name": None},
            {"splits": ["train"]},
            {"splits": [{}]},
            {"splits": [{"name": "a"}, {"name": "a"}]},
            {"splits": [{"name": "a", "shardLengths": ["x"]}]},
            {"splits": [{"name": "a", "shardLengths": [None]}]},
            {"splits": [{"name": "a", "shardLengths": ["-1"]}]},
            {"alternativeFileFormats": 7, "fileFormat": "riegeli"},
            {
                "splits": [
                    {"name": "a", "shardLengths": ["1"], "filepathTemplate": "{ODD}"}
                ]
            },
            {
                "splits": [
                    {
                        "name": "a",
                        "shardLengths": ["1", "1"],
                        "filepathTemplate": "{SPLIT}",
                    }
                ]
            },
        ],
    )
    def test_metadata_that_makes_no_sense(
        self, source: pathlib.Path, fields: dict[str, Any]
    ) -> None:
        tfds_data.edit_info(source, **fields)
        self.refused(source, "dataset_info.json cannot be used")

    @pytest.mark.parametrize("template", ["../{SHARD_INDEX}", "/etc/{SHARD_INDEX}"])
    def test_files_outside_of_the_directory(
        self, source: pathlib.Path, template: str
    ) -> None:
        split = {"name": "a", "shardLengths": ["1"], "filepathTemplate": template}
        tfds_data.edit_info(source, splits=[split])
        self.refused(source, "outside of its own directory")

    @pytest.mark.parametrize("end", ["", "/", "/../source [1]"])
    def test_the_output_is_the_input(self, source: pathlib.Path, end: str) -> None:
        output = f"{source}{end}"
        self.refused(source, "the TFDS directory itself", output=output)


class TestRecordsRead:
    """The records read are those that dataset_info.json promises."""

    @pytest.mark.parametrize("change", ["fewer", "more"])
    @pytest.mark.parametrize(
        "plan",
        [PlanOptions(), PlanOptions(kind="num_shards", value=4)],
    )
    def test_a_difference_is_an_error(
        self,
        source: pathlib.Path,
        tmp_path: pathlib.Path,
        change: str,
        plan: PlanOptions,
    ) -> None:
        path = source / f"{NAME}-validation.tfrecord-00001-of-00003"
        records = read_tfrecords(path)
        changed = records[1:] if change == "fewer" else [*records, records[0]]
        write_tfrecords(path, changed)
        with pytest.raises(DataLossError) as caught:
            convert(source, tmp_path / "out", plan=plan)
        got = len(changed)
        for words in (
            "split validation",
            "1 of 3 files",
            path.name,
            "expected: 8 records, 2 in this file",
            f"got:      {6 + got} records, {got} in this file",
            "shardLengths",
        ):
            assert words in str(caught.value)
        assert not (tmp_path / "out" / "dataset.json").exists()
        assert not (tmp_path / "out" / "dataset_info.json").exists()

        # The cure of the message works, and shards that are finished stay.
        made_before = {
            p: p.stat().st_mtime_ns for p in (tmp_path / "out").glob("*-of-*")
        }
        splits = info_of(source)["splits"]
        splits[1]["shardLengths"][1] = str(got)
        tfds_data.edit_info(source, splits=splits)
        convert(source, tmp_path / "out", plan=plan)
        assert sum(lengths(tmp_path / "out")["validation"]) == 6 + got
        assert made_before == {p: p.stat().st_mtime_ns for p in made_before}

    def test_records_that_moved_between_files_are_found(
        self, source: pathlib.Path, tmp_path: pathlib.Path
    ) -> None:
        first, second = (
            source / f"{NAME}-train.tfrecord-0000{shard}-of-00003" for shard in (0, 1)
        )
        records = read_tfrecords(first)
        write_tfrecords(second, [*read_tfrecords(second), records[-1]])
        write_tfrecords(first, records[:-1])
        with pytest.raises(DataLossError, match="2 of 3 files"):
            convert(source, tmp_path / "out")
