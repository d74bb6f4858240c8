"""Records that are removed from a dataset, whatever happens meanwhile."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset import Writer
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import (
    CorruptShardError,
    InputError,
    JobChangedError,
    ReplacedError,
    StateMismatchError,
)
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.metadata.manifest import Manifest, open_manifest
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.provenance.locate import locate_record
from gristmill.pipelines.convert import convert as run_conversion
from gristmill.pipelines.index import index
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.job_options import (
    AppendOptions,
    ConvertOptions,
    IndexOptions,
)
from gristmill.pipelines.removal import remove as run_removal
from gristmill.pipelines.verify import verify
from gristmill.transforms.removal.cut_shard import cut_shard
from gristmill.transforms.removal.removal_job import (
    RemovalResult,
    begin_removal,
)
from tests.support.conversion import contents
from tests.support.records import (
    checksums,
    frames_of,
    read_array_records,
    text_records,
    write_array_records,
)

OLD = text_records(60)
NEW = text_records(25, seed=1)
BOTH = OLD + NEW


@pytest.fixture
def inputs(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder for each edition: `old` and `new`."""
    for name, records in (("old", OLD), ("new", NEW)):
        (tmp_path / name).mkdir()
        half = len(records) // 2
        for number, part in enumerate((records[:half], records[half:])):
            (tmp_path / name / f"{number}.tfrecord").write_bytes(frames_of(part))
    return tmp_path


def convert(output: str, source: pathlib.Path | str, **options: Any) -> None:
    options = {"num_shards": 4, **options}
    given = ConvertOptions(input=(str(source),), output=output, name="d", **options)
    run_conversion(**conversion_of(given)._asdict())


def append(output: str, source: pathlib.Path, **options: Any) -> None:
    options = {"num_shards": 2, **options}
    given = AppendOptions(input=(str(source),), output=output, **options)
    run_conversion(**conversion_of(given)._asdict())


def remove(
    output: str, records: Sequence[int], *, erase: bool = False, **asked: Any
) -> RemovalResult:
    return run_removal(output, {"records": records, **asked}, erase=erase, workers=1)


def records_of(output: str, **options: Any) -> list[bytes]:
    return list(loader.open(output, "train", **options))


def newest(output: str) -> int:
    return open_manifest(output).splits["train"].edition


def without(records: Sequence[bytes], removed: Sequence[int]) -> list[bytes]:
    gone = {*removed}
    return [record for n, record in enumerate(records) if n not in gone]


def assert_whole(output: str, records: Sequence[bytes]) -> Manifest:
    """The dataset has these records, and nothing is beside it."""
    found = verify(output, workers=1)
    assert (found.findings, list(found.leftovers)) == ((), [])
    assert records_of(output) == list(records)
    return open_manifest(output)


def files_of(output: str) -> dict[str, bytes]:
    """Returns all files of an output, by relative path."""
    storage = storage_for(output)
    return {
        info.path.removeprefix(f"{output}/"): storage.read(info.path)
        for info in sorted(storage.scan(output, deep=True))
    }


def shards_in(names: Sequence[str] | dict[str, bytes]) -> list[str]:
    return sorted(name for name in names if name.startswith("d-train.array"))


class TestRemoval:
    def test_only_shards_that_hold_some_are_written_again(self, inputs, output):
        convert(output, inputs / "old")
        before = files_of(output)
        result = remove(output, [3, 4, 59])
        manifest = assert_whole(output, without(OLD, [3, 4, 59]))
        assert (result.records, result.editions) == (3, (2,))
        assert (result.cut_shards, result.shared_shards) == (2, 2)
        after = files_of(output)
        write = manifest.splits["train"].parts[0].write
        # The state before is kept, and nothing of it was touched.
        assert {n: d for n, d in after.items() if n in before} | {
            "dataset.json": before["dataset.json"]
        } == before
        assert shards_in(after.keys() - before.keys()) == [
            f"d-train.array_record-{write}-00000-of-00004",
            f"d-train.array_record-{write}-00003-of-00004",
        ]
        split = manifest.splits["train"]
        assert [state.edition for state in split.replaced] == [1]
        assert records_of(output, edition=1) == OLD

    def test_the_ledger_adds_up(self, inputs, tmp_path):
        output, gone = str(tmp_path / "out"), [0, 17, 18, 44]
        convert(output, inputs / "old")
        base = open_manifest(output).splits["train"]
        result = remove(output, gone)
        split = open_manifest(output).splits["train"]
        own = [OLD[n] for n in gone]
        digest = RecordsDigest.of(checksums(own), np.array(list(map(len, own))))
        assert split.removed is not None
        assert dict(split.removed) == {
            "edition": 1,
            "shards_digest": base.shards_digest,
            "records": 4,
            "raw_bytes": digest.raw_bytes,
            "records_digest": digest.hex,
            "list": f"index/d-train.{split.write}.removed.npz",
            "request": split.removed["request"],
        }
        assert result.raw_bytes == digest.raw_bytes
        listed = np.load(f"{output}/{split.removed['list']}")
        assert listed["version"] == 1
        assert listed["records"].tolist() == gone
        singles = [
            RecordsDigest.of(checksums([one]), np.array([len(one)])) for one in own
        ]
        assert listed["digest_low"].tolist() == [one.low for one in singles]
        assert listed["digest_high"].tolist() == [one.high for one in singles]

    @pytest.mark.parametrize("group_size", [1, 16])
    def test_other_readers_read_it(self, inputs, tmp_path, group_size):
        output, gone = str(tmp_path / "out"), [1, 2, 30, 31, 40]
        convert(output, inputs / "old", group_size=group_size)
        remove(output, gone)
        dataset = loader.open(output)
        paths = [dataset.shard(n).path for n in range(dataset.num_shards)]
        found = [record for path in paths for record in read_array_records(path)]
        assert found == without(OLD, gone)
        import grain

        source = grain.sources.ArrayRecordDataSource(paths)
        assert [source[n] for n in range(len(source))] == without(OLD, gone)

    @pytest.mark.slow
    def test_again_and_again(self, inputs, tmp_path):
        output = str(tmp_path / "out")
        convert(output, inputs / "old")
        left, numbers = list(OLD), []
        for gone in ([5], [0, 30], [57 - 1], [20, 21, 22]):
            remove(output, gone)
            left = without(left, gone)
            manifest = assert_whole(output, left)
            numbers.append(manifest.splits["train"].edition)
        assert numbers == [2, 3, 4, 5]
        chain = list(manifest.splits["train"].removals())
        assert [edition for edition, _ in chain] == [4, 3, 2, 1]
        lists = [np.load(f"{output}/{one['list']}") for _, one in chain]
        counts = [len(listed["records"]) for listed in lists]
        assert counts == [3, 1, 2, 1]

    def test_all_records_of_a_shard_and_of_an_edition(self, inputs, tmp_path):
        output = str(tmp_path / "out")
        convert(output, inputs / "old")
        append(output, inputs / "new")
        first = loader.open(output).shard(1).first_record
        remove(output, [*range(first), *range(60, 85)])
        manifest = assert_whole(output, OLD[first:])
        assert [part.records for part in manifest.splits["train"].parts] == [
            60 - first,
            0,
        ]

    @pytest.mark.slow
    @given(data=st.data())
    @settings(max_examples=8)
    def test_any_records(self, tmp_path_factory, data):
        folder = tmp_path_factory.mktemp("any")
        records = [
            n.to_bytes(2, "big") * data.draw(st.integers(0, 40)) for n in range(30)
        ]
        (folder / "in.tfrecord").write_bytes(frames_of(records))
        output = str(folder / "out")
        group_size = data.draw(st.sampled_from([1, 2, 5]))
        convert(output, folder / "in.tfrecord", num_shards=3, group_size=group_size)
        for _ in range(2):
            numbers = st.integers(0, len(records) - 1)
            gone = data.draw(st.sets(numbers, min_size=1, max_size=12))
            remove(
                output,
                sorted(gone),
                edition=open_manifest(output).splits["train"].edition,
            )
            records = without(records, sorted(gone))
            assert_whole(output, records)

    def test_what_is_not_there_is_refused(self, inputs, tmp_path):
        output = str(tmp_path / "out")
        convert(output, inputs / "old")
        before = contents(tmp_path / "out")
        for records in ([60], [-1], []):
            with pytest.raises(InputError):
                remove(output, records)
        with pytest.raises(InputError, match="no such split"):
            remove(output, [1], split="test")
        assert contents(tmp_path / "out") == before


class TestTheSameAgain:
    def test_numbers_are_removed_once(self, inputs, tmp_path):
        output = str(tmp_path / "out")
        convert(output, inputs / "old")
        remove(output, [3, 4])
        before = contents(tmp_path / "out")
        result = remove(output, [4, 3])
        assert (result.records, result.editions) == (0, ())
        assert contents(tmp_path / "out") == before
        append(output, inputs / "new")
        assert remove(output, [3, 4]).records == 0
        assert_whole(output, without(OLD, [3, 4]) + NEW)

    def test_of_an_edition_they_are_removed_from_what_is_left(self, inputs, tmp_path):
        output = str(tmp_path / "out")
        convert(output, inputs / "old")
        remove(output, [3, 4])
        with pytest.raises(StateMismatchError, match="not the newest"):
            remove(output, [3, 4], edition=1)
        remove(output, [3, 4], edition=2)
        assert_whole(output, without(OLD, [3, 4, 5, 6]))
        assert remove(output, [3, 4], edition=2).records == 0

    def test_erase_later(self, inputs, output):
        convert(output, inputs / "old")
        remove(output, [3, 4])
        assert len(shards_in(files_of(output))) == 5
        remove(output, [3, 4], erase=True)
        assert_whole(output, without(OLD, [3, 4]))
        assert len(shards_in(files_of(output))) == 4

    def test_the_conversion_is_told(self, inputs, tmp_path):
        """It does not bring back in silence what was removed."""
        output = str(tmp_path / "out")
        convert(output, inputs / "old")
        append(output, inputs / "new")
        remove(output, [3, len(OLD) + 1])
        for again, source in ((convert, "old"), (append, "new")):
            with pytest.raises(JobChangedError, match="records were removed"):
                again(output, inputs / source)
        with pytest.raises(JobChangedError, match="already, from another source"):
            convert(output, inputs / "new")
        left = without(OLD + NEW, [3, len(OLD) + 1])
        assert_whole(output, left)
        given = ConvertOptions(
            input=(str(inputs / "old"),), output=output, name="d", overwrite=True
        )
        outcome = run_conversion(**conversion_of(given)._asdict())
        (note,) = (note for note in outcome.notes if "gets back" in note)
        assert "removed" in note
        assert_whole(output, OLD)


class TestErase:
    def test_no_file_holds_the_records(self, inputs, output):
        convert(output, inputs / "old", compression="uncompressed")
        append(output, inputs / "new", compression="uncompressed")
        gone = [3, 4, 70]
        remove(output, gone[:1])
        remove(output, [n - 1 for n in gone[1:]], erase=True)
        manifest = assert_whole(output, without(BOTH, gone))
        files = files_of(output)
        for number in gone:
            assert not any(BOTH[number] in data for data in files.values())
        # What was removed is still listed, and all that is listed is there.
        lists = [
            r["list"] for p in manifest.splits["train"].parts for _, r in p.removals()
        ]
        assert {name for name in files if name.endswith(".removed.npz")} == {*lists}
        assert manifest.splits["train"].replaced == ()
        assert len(shards_in(files)) == 6

    @pytest.mark.slow
    def test_what_was_left_out_is_still_known(self, inputs, tmp_path):
        path = inputs / "old" / "0.tfrecord"
        data = bytearray(path.read_bytes())
        data[20] ^= 1
        path.write_bytes(data)
        output = str(tmp_path / "out")
        convert(output, inputs / "old", on_corrupt="skip")
        before = [locate_record(loader.open(output), n) for n in range(59)]
        remove(output, [2])
        left = without(before, [2])
        for erase in (False, True):
            if erase:
                remove(output, [2], erase=True)
            opened = loader.open(output)
            found = [locate_record(opened, n) for n in range(58)]
            assert [f.source_offset_bytes for f in found] == [
                f.source_offset_bytes for f in left
            ]
        names = sorted(p.name for p in (tmp_path / "out/errors").iterdir())
        write = open_manifest(output).splits["train"].write
        assert names == [f"d-train.array_record-{write}-00000-of-00004.jsonl"]
        assert_whole(output, without(OLD[1:], [2]))

    def test_who_reads_the_old_edition_is_told(self, inputs, tmp_path):
        output = str(tmp_path / "out")
        convert(output, inputs / "old")
        opened = loader.open(output)
        assert opened[59] == OLD[59]
        remove(output, [3], erase=True)
        with pytest.raises(ReplacedError):
            opened[3]


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
            part = OLD[20 * number : 20 * number + 20]
            write_array_records(
                folder / f"{number}.array_record", part, options=options
            )
        index(IndexOptions(files=(str(folder),)))
        remove(str(folder), [3, 40])
        assert_whole(str(folder), without(OLD, [3, 40]))
        remove(str(folder), [3, 40], erase=True)
        before = assert_whole(str(folder), without(OLD, [3, 40]))
        # Shards that were cut from indexed ones go, and those stay.
        remove(str(folder), [0, 1], edition=2, erase=True)
        assert_whole(str(folder), without(OLD, [0, 1, 3, 40]))
        files = files_of(str(folder))
        cut = f"array_record-{before.splits['train'].write}-00000"
        assert not any(cut in file for file in files)
        assert {f"{number}.array_record" for number in range(3)} <= files.keys()

    @pytest.mark.slow
    def test_a_dataset_that_was_made_of_it_knows_the_sources(self, inputs, tmp_path):
        output, copy = str(tmp_path / "out"), str(tmp_path / "copy")
        convert(output, inputs / "old")
        before = [locate_record(loader.open(output), n) for n in range(60)]
        remove(output, [3, 40])
        convert(copy, output, num_shards=2)
        left, opened = without(before, [3, 40]), loader.open(copy)
        for number in range(58):
            found = locate_record(opened, number)
            assert found.source_path == left[number].source_path
            assert found.source_offset_bytes == left[number].source_offset_bytes


class TestRaces:
    def begun(self, output: str, records: Sequence[int], *, shards: int) -> None:
        """Leaves a removal that was killed after some of its shards."""
        removal = begin_removal(output, records)
        for task in list(removal.tasks())[:shards]:
            cut_shard(task)

    def test_shards_that_were_finished_are_kept(self, inputs, output):
        convert(output, inputs / "old")
        self.begun(output, [3, 30, 59], shards=2)
        before = {(i.path, i.version) for i in storage_for(output).list(output)}
        remove(output, [3, 30, 59])
        after = {(i.path, i.version) for i in storage_for(output).list(output)}
        made = [path for path, _ in after - before if ".array_record" in path]
        assert len(made) == 1
        assert_whole(output, without(OLD, [3, 30, 59]))

    def test_of_two_removals_the_later_one_is_told(self, inputs, output):
        convert(output, inputs / "old")
        self.begun(output, [3, 59], shards=1)
        remove(output, [5])
        # The numbers are those of other records now.
        with pytest.raises(StateMismatchError, match="since this removal was begun"):
            remove(output, [59, 3])
        assert records_of(output) == without(OLD, [5])
        clean(output, unfinished=True)
        assert_whole(output, without(OLD, [5]))
        remove(output, [3, 58])
        assert_whole(output, without(OLD, [3, 5, 59]))

    def test_an_append_need_not_wait(self, inputs, output):
        convert(output, inputs / "old")
        self.begun(output, [3, 59], shards=1)
        append(output, inputs / "new")
        assert records_of(output) == BOTH
        remove(output, [3, 59])
        assert records_of(output) == without(BOTH, [3, 59])
        # What was begun for the state before is another write.
        clean(output, unfinished=True)
        assert_whole(output, without(BOTH, [3, 59]))


class TestDamage:
    def test_of_a_shard_is_found(self, inputs, tmp_path):
        output = str(tmp_path / "out")
        convert(output, inputs / "old")
        path = tmp_path / "out" / "d-train.array_record-00000-of-00004"
        data = bytearray(path.read_bytes())
        data[700] ^= 1
        path.write_bytes(data)
        with pytest.raises(CorruptShardError):
            remove(output, [0])
        assert open_manifest(output).splits["train"].edition == 1
        remove(output, [59])  # Another shard.
        assert open_manifest(output).splits["train"].edition == 2

    def test_an_index_of_another_shard_is_found(self, inputs, tmp_path):
        output = str(tmp_path / "out")
        convert(output, inputs / "old")
        index = tmp_path / "out" / "index"
        other = tmp_path / "other"
        for n in (0, 1):
            (inputs / "old" / f"{n}.tfrecord").write_bytes(
                frames_of([r[::-1] for r in OLD[30 * n : 30 * n + 30]])
            )
        convert(str(other), inputs / "old")
        name = "d-train.array_record-00000-of-00004.index"
        shutil.copy(other / "index" / name, index / name)
        with pytest.raises(CorruptShardError, match="not those that the table"):
            remove(output, [0])
