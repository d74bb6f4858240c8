"""Records that are appended to a dataset, whatever happens meanwhile."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import pytest

from gristmill import loader
from gristmill.dataset import Writer
from gristmill.dataset.base.errors import (
    CorruptInputError,
    InputError,
    NotADatasetError,
    StorageChangedError,
)
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest, open_manifest
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.convert import convert as run_conversion
from gristmill.pipelines.index import index
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.job_options import (
    AppendOptions,
    ConvertOptions,
    IndexOptions,
)
from gristmill.pipelines.text.conversion import Outcome
from gristmill.pipelines.verify import verify
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.make_shards import (
    ShardResult,
    make_shard,
    shard_tasks,
)
from gristmill.transforms.jobs.conversion_job import ConversionJob
from tests.support.conversion import contents
from tests.support.records import frames_of, text_records, write_array_records

OLD = text_records(60)
NEW = text_records(25, seed=1)
MORE = text_records(13, seed=2)


@pytest.fixture
def inputs(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder for each edition: `old`, `new` and `more`."""
    for name, records in (("old", OLD), ("new", NEW), ("more", MORE)):
        (tmp_path / name).mkdir()
        half = len(records) // 2
        for number, part in enumerate((records[:half], records[half:])):
            (tmp_path / name / f"{number}.tfrecord").write_bytes(frames_of(part))
    return tmp_path


def convert(output: str, source: pathlib.Path, **options: Any) -> Outcome:
    options = {"num_shards": 2, **options}
    given = ConvertOptions(input=(str(source),), output=output, name="d", **options)
    return run_conversion(**conversion_of(given)._asdict())


def append(output: str, *sources: pathlib.Path | str, **options: Any) -> Outcome:
    options = {"num_shards": 2, **options}
    given = AppendOptions(input=tuple(map(str, sources)), output=output, **options)
    return run_conversion(**conversion_of(given)._asdict())


def records_of(output: str, **options: Any) -> list[bytes]:
    return list(loader.open(output, "train", **options))


def assert_whole(output: str, *editions: Sequence[bytes]) -> Manifest:
    """The dataset has these editions, and nothing is beside it."""
    found = verify(output, workers=1)
    assert (found.findings, list(found.leftovers)) == ((), [])
    manifest = open_manifest(output)
    ends = [part.records for part in manifest.splits["train"].parts]
    assert ends == list(map(len, editions))
    assert records_of(output) == [r for records in editions for r in records]
    return manifest


def files_of(output: str) -> dict[str, bytes]:
    """Returns all files of an output, by relative path."""
    storage = storage_for(output)
    return {
        info.path.removeprefix(f"{output}/"): storage.read(info.path)
        for info in sorted(storage.scan(output, deep=True))
    }


def job_to_append(output: str, source: pathlib.Path) -> ConversionJob:
    given = AppendOptions(input=(str(source),), output=output, num_shards=2)
    (job,) = conversion_of(given).jobs
    return job


class TestAppend:
    def test_nothing_is_touched_but_dataset_json(self, inputs, output):
        convert(output, inputs / "old")
        before = files_of(output)
        outcome = append(output, inputs / "new")
        assert "d/train, edition 2: 25 records in 2 shards, committed" in outcome.text()
        assert_whole(output, OLD, NEW)
        after = files_of(output)
        changed = [name for name in before if before[name] != after[name]]
        assert changed == ["dataset.json"]
        append(output, inputs / "more", num_shards=1)
        assert_whole(output, OLD, NEW, MORE)
        assert records_of(output, edition=2) == OLD + NEW

    def test_the_command_again_does_nothing(self, inputs, output):
        convert(output, inputs / "old")
        for source in ("new", "more"):
            append(output, inputs / source)
        before = files_of(output)
        for source in ("new", "more", "old"):
            outcome = append(output, inputs / source)
            assert outcome.committed_before == outcome.splits
            assert "committed already" in outcome.text()
        convert(output, inputs / "old")
        assert files_of(output) == before

    def test_another_split_has_editions_of_its_own(self, inputs, output):
        convert(output, inputs / "old")
        append(output, inputs / "new")
        convert(output, inputs / "more", split="val")
        append(output, inputs / "new", split="val")
        manifest = assert_whole(output, OLD, NEW)
        assert list(loader.open(output, "val")) == MORE + NEW
        splits = [layout.parse_write_key(key)[0] for key in manifest.editions]
        assert sorted(splits) == ["train", "train", "val", "val"]
        assert len(manifest.editions) == 4
        with pytest.raises(InputError, match="has several splits") as caught:
            append(output, inputs / "more")
        assert "train, val" in str(caught.value)

    def test_damage_and_functions(self, inputs, tmp_path):
        output = str(tmp_path / "out")
        convert(output, inputs / "old")
        path = inputs / "new" / "0.tfrecord"
        data = bytearray(path.read_bytes())
        data[20] ^= 1
        path.write_bytes(data)
        with pytest.raises(CorruptInputError):
            append(output, inputs / "new")
        assert not verify(output).findings
        outcome = append(output, inputs / "new", on_corrupt="skip")
        manifest = assert_whole(output, OLD, NEW[1:])
        split = manifest.splits["train"]
        assert split.skipped_regions == split.editions[1].skipped_regions == 1
        assert "LEFT OUT  1 damaged region" in outcome.text()
        outcome = append(output, inputs / "more", map="binascii:hexlify")
        assert "with --map binascii:hexlify, the one before without" in outcome.text()
        assert records_of(output)[-1] == MORE[-1].hex().encode()

    @pytest.mark.slow
    def test_on_beam(self, inputs, tmp_path):
        output, other = str(tmp_path / "out"), str(tmp_path / "other")
        for place in (output, other):
            convert(place, inputs / "old")
        append(other, inputs / "new")
        given = AppendOptions(input=(str(inputs / "new"),), output=output, num_shards=2)
        for _ in range(2):
            run_conversion(
                **conversion_of(given)._asdict(),
                beam_options=["--runner=FnApiRunner"],
            )
            assert_whole(output, OLD, NEW)
        assert contents(pathlib.Path(output)) == contents(pathlib.Path(other))

    @pytest.mark.slow
    def test_features_of_other_types_are_refused_before_anything_is_written(
        self, tmp_path
    ):
        output, lines = str(tmp_path / "out"), tmp_path / "a.jsonl"
        lines.write_text('{"id": 1, "meta": {"score": 0.5}}\n')
        given = ConvertOptions(input=(str(lines),), output=output)
        run_conversion(**conversion_of(given)._asdict())
        before = files_of(output)
        later = tmp_path / "b.jsonl"
        later.write_text('{"id": 2, "meta": {"score": 3}}\n')
        options: dict[str, Any] = {"num_shards": 1}
        with pytest.raises(InputError, match="other types than the split") as refused:
            append(output, later, **options)
        assert "meta.score" in str(refused.value)
        assert "double" in str(refused.value)
        assert files_of(output) == before
        # As the message says; also of a field of an object.
        append(output, later, columns="*,meta.score:float", **options)
        features = open_manifest(output).splits["train"].features
        assert features is not None
        assert features["meta.score"]["kind"] == "float"


class TestRefused:
    @pytest.fixture(autouse=True)
    def _old(self, inputs, tmp_path):
        self.output = str(tmp_path / "out")
        convert(self.output, inputs / "old")

    def refused(self, *sources: Any, says: str, **options: Any) -> str:
        before = files_of(self.output)
        with pytest.raises(InputError, match=says) as caught:
            append(self.output, *sources, **options)
        assert files_of(self.output) == before
        return str(caught.value)

    def test_inputs_that_are_there_already(self, inputs, monkeypatch):
        append(self.output, inputs / "new")
        told = self.refused(
            inputs / "more", inputs / "new" / "1.tfrecord", says="already"
        )
        assert "1 of 3 files are those of edition 2" in told
        assert f"where:    {inputs / 'new' / '1.tfrecord'}\n" in told
        self.refused(inputs / "old" / "0.tfrecord", says="already")
        monkeypatch.chdir(inputs)
        self.refused("more", "new/0.tfrecord", says="already")
        self.refused("new", says="already")

    def test_the_same_inputs_with_other_options_or_records(self, inputs):
        append(self.output, inputs / "new")
        told = self.refused(inputs / "new", says="differently", group_size=3)
        assert "edition 2, converted differently: writer.group_size was 1, is 3" in told
        (inputs / "new" / "0.tfrecord").write_bytes(frames_of(MORE))
        told = self.refused(inputs / "new", says="differently")
        assert f"1 input files changed: {inputs / 'new' / '0.tfrecord'}" in told

    def test_no_dataset_or_split(self, inputs, tmp_path):
        self.refused(inputs / "new", says="no such split", split="val")
        with pytest.raises(NotADatasetError):
            append(str(tmp_path / "none"), inputs / "new")
        assert not (tmp_path / "none").exists()


def test_a_split_that_metadata_of_tfds_describes(tmp_path, inputs):
    output = str(tmp_path / "out")
    convert(output, inputs / "old")
    info = {"name": "d", "fileFormat": "array_record", "splits": [{"name": "train"}]}
    path = pathlib.Path(output, "dataset_info.json")
    path.write_text(json.dumps(info))
    with pytest.raises(InputError, match="TFDS would read the first alone") as caught:
        append(output, inputs / "new")
    assert str(path) in str(caught.value)
    assert_whole(output, OLD)
    path.write_text(json.dumps(info | {"splits": [{"name": "val"}]}))
    append(output, inputs / "new")
    assert_whole(output, OLD, NEW)


class TestUnfinished:
    def test_overwrite_never_deletes_what_is_committed(self, inputs, output):
        convert(output, inputs / "old")
        append(output, inputs / "new")
        before = files_of(output)
        for source in ("old", "new"):
            append(output, inputs / source, overwrite=True)
            assert files_of(output) == before
        append(output, inputs / "more", overwrite=True)
        assert_whole(output, OLD, NEW, MORE)


class TestTwoAtOnce:
    def begun(
        self, output: str, *sources: pathlib.Path
    ) -> list[tuple[ConversionJob, list[ShardResult]]]:
        """Begins appends at once, and makes their shards."""
        jobs = [job_to_append(output, source) for source in sources]
        prepared = [begin_job(job).prepared for job in jobs]
        return [
            (job, [make_shard(task) for task in shard_tasks(own)])
            for job, own in zip(jobs, prepared, strict=True)
        ]

    def test_of_those_with_an_input_in_common_the_later_is_refused(
        self, inputs, output
    ):
        convert(output, inputs / "old")
        (inputs / "both").mkdir()
        for source in ("new", "more"):
            shutil.copy(inputs / source / "0.tfrecord", inputs / "both" / source)
        both = inputs / "both"
        mine, theirs = self.begun(output, both / "new", both)
        commit_shards([theirs[0]], theirs[1])
        before = files_of(output)
        with pytest.raises(StorageChangedError, match="has changed the split") as told:
            commit_shards([mine[0]], mine[1])
        assert f"edition 2 of the same {both / 'new'}" in str(told.value)
        assert files_of(output)["dataset.json"] == before["dataset.json"]
        clean(output, unfinished=True)
        assert_whole(output, OLD, MORE[:6] + NEW[:12])


class TestRepair:
    @pytest.mark.parametrize("edition", [1, 2])
    def test_lost_shards_are_made_again_and_all_editions_stay(
        self, inputs, tmp_path, edition
    ):
        output = str(tmp_path / "out")
        convert(output, inputs / "old")
        for source in ("new", "more"):
            append(output, inputs / source)
        before = files_of(output)
        part = open_manifest(output).splits["train"].part(edition)
        key = layout.write_key("train", part.write)
        lost = layout.shard_name("d", key, 1, 2)
        pathlib.Path(output, lost).unlink()
        if edition == 1:
            convert(output, inputs / "old")
        else:
            append(output, inputs / "new")
        assert_whole(output, OLD, NEW, MORE)
        after = files_of(output)
        assert after[lost] == before[lost]


class TestToOtherDatasets:
    def test_to_files_that_were_indexed(self, inputs, tmp_path):
        folder = tmp_path / "found"
        folder.mkdir()
        write_array_records(folder / "some.array_record", OLD)
        index(IndexOptions(files=(str(folder),)))
        append(str(folder), inputs / "new")
        assert_whole(str(folder), OLD, NEW)
        # They are not ours to delete, whatever was appended.
        with pytest.raises(InputError, match="gristmill did not write"):
            run_conversion(
                **conversion_of(
                    ConvertOptions(
                        input=(str(inputs / "more"),),
                        output=str(folder),
                        overwrite=True,
                    )
                )._asdict()
            )
        assert_whole(str(folder), OLD, NEW)

    def test_to_what_a_python_loop_wrote(self, inputs, output):
        with Writer(output, name="d", split="train") as writer:
            for record in OLD:
                writer.write(record)
        append(output, inputs / "new")
        append(output, inputs / "more")
        assert_whole(output, OLD, NEW, MORE)
        # A loop that is run again has nothing to do.
        with Writer(output, name="d", split="train", resume=True) as writer:
            assert writer.position_records == len(OLD)
        assert_whole(output, OLD, NEW, MORE)


class TestOfDatasets:
    def test_all_editions_become_one(self, inputs, output):
        convert(output, inputs / "old")
        for source in ("new", "more"):
            append(output, inputs / source)
        joined = f"{output}-joined"
        given = ConvertOptions(input=(output,), output=joined, num_shards=3)
        run_conversion(**conversion_of(given)._asdict())
        manifest = assert_whole(joined, OLD + NEW + MORE)
        assert not manifest.splits["train"].editions
        before = open_manifest(output).splits["train"]
        assert manifest.splits["train"].records_digest == before.records_digest
        # Down to the files that editions were made of.
        dataset = loader.open(joined, "train")
        batches = loader.global_batches(
            dataset, batch_size=len(dataset), shuffle="none", epochs=1
        )
        for record, source in ((0, "old"), (len(OLD), "new"), (-1, "more")):
            found = batches.locate(0, record % len(dataset))
            assert f"/{source}/" in (found.source_path or "")
