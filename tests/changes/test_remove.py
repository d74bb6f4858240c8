"""Records that are removed from a dataset, whatever happens meanwhile."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from gristmill import loader
from gristmill.dataset import Writer
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import (
    CorruptShardError,
    JobChangedError,
    StateMismatchError,
    StorageChangedError,
)
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.provenance.trace import locate_record
from gristmill.pipelines.commands.main import cli
from gristmill.pipelines.removal import remove as run_removal
from gristmill.transforms.removal.cut_shard import cut_shard
from gristmill.transforms.removal.removal_job import (
    RemovalResult,
    begin_removal,
)
from tests.changes.changes import PLAIN, append, convert, found_by_verify
from tests.support.editions import files_of
from tests.support.records import (
    checksums,
    frames_of,
    read_array_records,
    text_records,
    write_array_records,
)

OLD = text_records(60)
NEW = text_records(25, seed=1)


@pytest.fixture
def inputs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The current folder, with one for each edition: `old` and `new`."""
    monkeypatch.chdir(tmp_path)
    for name, records in (("old", OLD), ("new", NEW)):
        (tmp_path / name).mkdir()
        half = len(records) // 2
        for number, part in enumerate((records[:half], records[half:])):
            (tmp_path / name / f"{number}.tfrecord").write_bytes(frames_of(part))
    return tmp_path


@pytest.fixture
def made(inputs: pathlib.Path, output: str) -> str:
    """A dataset of the old records in four shards."""
    convert(output, "old/*", shards=4)
    return output


@pytest.fixture
def here(inputs: pathlib.Path) -> str:
    """The same on a disk."""
    convert("out", "old/*", shards=4)
    return "out"


def remove(
    output: str, records: Sequence[int], *, erase: bool = False, **asked: Any
) -> RemovalResult:
    return run_removal(output, {"records": records, **asked}, erase=erase, workers=1)


def run(*arguments: object) -> str:
    done = CliRunner().invoke(cli, [*map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.output


def records_of(output: str, **options: Any) -> list[bytes]:
    return list(loader.open(output, "train", **options))


def without(records: Sequence[Any], removed: Sequence[int]) -> list[Any]:
    gone = {*removed}
    return [record for n, record in enumerate(records) if n not in gone]


def assert_whole(output: str, records: Sequence[bytes]) -> Split:
    """The dataset has these records, and nothing is beside it."""
    assert found_by_verify(output) == ([], [])
    assert records_of(output) == list(records)
    return open_manifest(output).splits["train"]


def shards_in(output: str) -> set[str]:
    return {name for name in files_of(output) if name.startswith("d-train.array")}


class TestRemoval:
    def test_only_shards_that_hold_some_are_written_again(self, made):
        before, shards = files_of(made), shards_in(made)
        result = remove(made, [3, 4, 59])
        split = assert_whole(made, without(OLD, [3, 4, 59]))
        assert (result.records, result.editions) == (3, (2,))
        assert (result.cut_shards, result.shared_shards) == (2, 2)
        # The state before is kept, and nothing of it was touched.
        after = files_of(made)
        assert [name for name in before if before[name] != after[name]] == [
            "dataset.json"
        ]
        assert shards_in(made) - shards == {
            f"d-train.array_record-{split.write}-0000{number}-of-00004"
            for number in (0, 3)
        }
        assert [state.edition for state in split.replaced] == [1]
        assert records_of(made, edition=1) == OLD

    def test_the_ledger_adds_up(self, here):
        gone, base = [0, 17, 18, 44], open_manifest(here).splits["train"]
        result = remove(here, gone)
        split, own = open_manifest(here).splits["train"], [OLD[n] for n in gone]
        digest = RecordsDigest.of(checksums(own), np.array(list(map(len, own))))
        assert split.removed is not None
        assert dict(split.removed) == {
            "edition": 1,
            "shards_digest": base.shards_digest,
            "records": 4,
            "raw_bytes": result.raw_bytes,
            "records_digest": digest.hex,
            "list": f"index/d-train.{split.write}.removed.npz",
            "request": split.removed["request"],
        }
        assert result.raw_bytes == digest.raw_bytes
        listed = np.load(f"{here}/{split.removed['list']}")
        assert (listed["version"], listed["records"].tolist()) == (1, gone)
        singles = [
            RecordsDigest.of(checksums([one]), np.array([len(one)])) for one in own
        ]
        assert listed["digest_low"].tolist() == [one.low for one in singles]
        assert listed["digest_high"].tolist() == [one.high for one in singles]

    def test_other_readers_read_it(self, inputs):
        import grain

        gone = [1, 2, 30, 31, 40]
        run("convert", "old", "out", "--num-shards=4", "--group-size=16")
        remove("out", gone)
        dataset = loader.open("out")
        paths = [dataset.shard(n).path for n in range(dataset.facts.shards)]
        found = [record for path in paths for record in read_array_records(path)]
        source = grain.sources.ArrayRecordDataSource(paths)
        assert found == [source[n] for n in range(len(source))] == without(OLD, gone)

    def test_all_records_of_a_shard_and_of_an_edition(self, here):
        append(here, "new/*")
        first = loader.open(here).shard(1).first_record
        remove(here, [*range(first), *range(60, 85)])
        split = assert_whole(here, OLD[first:])
        assert [part.records for part in split.parts] == [60 - first, 0]


class TestTheSameAgain:
    def test_numbers_are_removed_once(self, here):
        remove(here, [3, 4])
        before = files_of(here)
        result = remove(here, [4, 3])
        assert (result.records, result.editions) == (0, ())
        assert files_of(here) == before
        append(here, "new/*")
        assert remove(here, [3, 4]).records == 0
        assert_whole(here, without(OLD, [3, 4]) + NEW)

    def test_of_an_edition_they_are_removed_from_what_is_left(self, here):
        remove(here, [3, 4])
        with pytest.raises(StateMismatchError, match="not the newest"):
            remove(here, [3, 4], edition=1)
        remove(here, [3, 4], edition=2)
        assert_whole(here, without(OLD, [3, 4, 5, 6]))
        assert remove(here, [3, 4], edition=2).records == 0

    def test_the_conversion_is_told(self, here):
        """It does not bring back in silence what was removed."""
        append(here, "new/*")
        remove(here, [3, len(OLD) + 1])
        with pytest.raises(JobChangedError, match="records were removed"):
            convert(here, "old/*", shards=4)
        with pytest.raises(JobChangedError, match="records were removed"):
            append(here, "new/*")
        with pytest.raises(JobChangedError, match="already, from another source"):
            convert(here, "new/*")
        assert_whole(here, without(OLD + NEW, [3, len(OLD) + 1]))
        said = run("convert", "old", here, "--name=d", "--overwrite")
        assert "gets back the records that were removed" in " ".join(said.split())
        assert_whole(here, OLD)


class TestErase:
    @pytest.mark.slow
    def test_what_was_left_out_is_still_known(self, inputs):
        path = inputs / "old" / "0.tfrecord"
        data = bytearray(path.read_bytes())
        data[20] ^= 1
        path.write_bytes(data)
        options = ("--num-shards=4", "--name=d", "--on-corrupt=skip")
        run("convert", "old", "out", *options)
        before = [locate_record(loader.open("out"), n) for n in range(59)]
        for erase in (False, True):
            remove("out", [2], erase=erase)
            found = [locate_record(loader.open("out"), n) for n in range(58)]
            assert [f.source_offset_bytes for f in found] == [
                f.source_offset_bytes for f in without(before, [2])
            ]
        (name,) = (path.name for path in (inputs / "out/errors").iterdir())
        split = assert_whole("out", without(OLD[1:], [2]))
        assert name == f"d-train.array_record-{split.write}-00000-of-00004.jsonl"


class TestKinds:
    """Datasets of every origin."""

    def test_of_a_writer(self, tmp_path):
        output = str(tmp_path / "out")
        with Writer(output, split="train", records_per_shard=16) as writer:
            for record in OLD:
                writer.write(record)
        remove(output, [3, 40])
        assert_whole(output, without(OLD, [3, 40]))
        note = locate_record(loader.open(output), 10).source_note
        assert (note or "").endswith("with gristmill.dataset.Writer")
        remove(output, [3, 40], erase=True)
        assert_whole(output, without(OLD, [3, 40]))

    @pytest.mark.parametrize("options", ["group_size:1", "group_size:4,brotli:5"])
    def test_that_was_indexed(self, tmp_path, options):
        folder = tmp_path / "found"
        folder.mkdir()
        for number in range(3):
            part, file = OLD[20 * number :][:20], folder / f"{number}.array_record"
            write_array_records(file, part, options=options)
        run("index", folder)
        remove(str(folder), [3, 40])
        assert_whole(str(folder), without(OLD, [3, 40]))
        remove(str(folder), [3, 40], erase=True)
        before = assert_whole(str(folder), without(OLD, [3, 40]))
        # Shards that were cut from indexed ones go, and those stay.
        remove(str(folder), [0, 1], edition=2, erase=True)
        assert_whole(str(folder), without(OLD, [0, 1, 3, 40]))
        files = files_of(str(folder))
        assert not any(f"array_record-{before.write}-00000" in file for file in files)
        assert {f"{number}.array_record" for number in range(3)} <= files.keys()


class TestRaces:
    def begun(self, output: str, records: Sequence[int], *, shards: int) -> None:
        """Leaves a removal that was killed after some of its shards."""
        removal = begin_removal(output, records)
        for task in list(removal.tasks())[:shards]:
            cut_shard(task)

    def test_shards_that_were_finished_are_kept(self, made):
        self.begun(made, [3, 30, 59], shards=2)
        before = {(i.path, i.version) for i in storage_for(made).list(made)}
        remove(made, [3, 30, 59])
        after = {(i.path, i.version) for i in storage_for(made).list(made)}
        assert sum(".array_record" in path for path, _ in after - before) == 1
        assert_whole(made, without(OLD, [3, 30, 59]))

    def test_of_two_removals_the_later_one_is_told(self, made):
        self.begun(made, [3, 59], shards=1)
        remove(made, [5])
        # The numbers are those of other records now.
        with pytest.raises(StateMismatchError, match="since this removal was begun"):
            remove(made, [59, 3])
        assert records_of(made) == without(OLD, [5])
        clean(made, unfinished=True)
        assert_whole(made, without(OLD, [5]))
        remove(made, [3, 58])
        assert_whole(made, without(OLD, [3, 5, 59]))

    def test_it_is_told_of_what_replaced_the_split_before_its_tables_were_read(
        self, made
    ):
        removal = begin_removal(made, [3, 59])
        convert(made, "new/*", overwrite=True)
        with pytest.raises(StorageChangedError, match="changed the split"):
            list(removal.tasks())
        assert records_of(made) == NEW


class TestDamage:
    def test_of_a_shard_is_found(self, here):
        path = pathlib.Path(here, "d-train.array_record-00000-of-00004")
        data = bytearray(path.read_bytes())
        data[700] ^= 1
        path.write_bytes(data)
        with pytest.raises(CorruptShardError):
            remove(here, [0])
        assert open_manifest(here).splits["train"].edition == 1
        remove(here, [59])  # Another shard.
        assert open_manifest(here).splits["train"].edition == 2

    def test_an_index_of_another_shard_is_found(self, inputs, here):
        for n in (0, 1):
            other = [record[::-1] for record in OLD[30 * n : 30 * n + 30]]
            (inputs / "old" / f"{n}.tfrecord").write_bytes(frames_of(other))
        convert("other", "old/*", shards=4, writer=PLAIN)
        name = "index/d-train.array_record-00000-of-00004.index"
        shutil.copy(f"other/{name}", f"{here}/{name}")
        with pytest.raises(CorruptShardError, match="not those that the table"):
            remove(here, [0])
