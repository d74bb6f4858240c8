"""Documents that are removed from packed rows become padding; the others stay."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import google_crc32c
import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.arrayrecord.shard_copier import ShardCopier
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import (
    CorruptShardError,
    InputError,
    StateMismatchError,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.dataset.metadata.removed import read_removed
from gristmill.dataset.packed.counts import PackedSplit
from gristmill.loader.data.dataset import shards_of
from gristmill.loader.provenance.find_document import find_document
from gristmill.loader.provenance.locate import locate_record
from gristmill.pipelines.removal.named_records import Asked, asked_records
from gristmill.pipelines.removal.run_removal import remove as run_removal
from gristmill.pipelines.verify import verify
from gristmill.transforms import RemoveRecords
from gristmill.transforms.removal.commit_removal import RemovalResult
from tests.support.buckets import upload
from tests.support.conversion import contents
from tests.support.editions import files_of
from tests.support.gcs_server import GcsServer
from tests.support.kills import Killer
from tests.support.packed import documents, pack
from tests.support.pipelines import run
from tests.support.records import read_array_records
from tests.support.watched import watched

LENGTH = 32
KILLED = -9
COUNT = 24
# Of two shards: one document is longer than four rows, and is in several of them.
SHARDS = [
    [*documents(COUNT - 1, seed=1), [*range(1, 140)]],
    documents(COUNT, seed=2),
    documents(COUNT, seed=3),
]
ORDER: dict[str, Any] = {"batch_size": 4, "seed": 1}


def lines_of(output: str, numbers: Collection[tuple[int, int]]) -> list[str]:
    """Returns lines that name documents: of each the shard, and which it is there."""
    paths = shards_of(loader.open(output)).paths
    return [f"{paths[shard]}@{document}" for shard, document in numbers]


def remove(output: str, lines: Sequence[str], *, erase: bool = False) -> RemovalResult:
    asked = asked_records(output, lines)
    assert not asked.missing
    return run_removal(output, asked.arguments, erase=erase, workers=1)


def arrays_of(output: str, **options: Any) -> dict[str, np.ndarray]:
    dataset = loader.open(output, **options)
    decode = loader.PackedRows.of(dataset, document_positions=True)
    return decode(list(dataset))


def where_in(output: str, gone: Collection[tuple[int, int]]) -> np.ndarray:
    """Returns where documents are, bool [rows, length], by looking for their tokens."""
    dataset = loader.open(output, edition=1)
    found = np.zeros((len(dataset), LENGTH), bool)
    for row in range(len(dataset)):
        for piece in locate_record(dataset, row).pieces:
            shard = int(dataset.find([row])[0][0])
            if (shard, piece.document) in gone:
                found[row, piece.begin_token : piece.end_token] = True
    return found


def check(output: str, gone: Collection[tuple[int, int]]) -> None:
    """Checks every token of the newest edition, and all that is counted of them."""
    before, after = arrays_of(output, edition=1), arrays_of(output)
    padding = where_in(output, gone)
    for name, array in after.items():
        np.testing.assert_array_equal(array, np.where(padding, 0, before[name]), name)
    lost = [SHARDS[shard][document] for shard, document in gone]
    counts = [
        PackedSplit.parse(part.packed, where="").counts
        for part in (loader.open(output, edition=1).committed, newest(output))
    ]
    assert counts[1].removed_documents == len(lost)
    assert counts[1].removed_tokens == sum(map(len, lost)) == padding.sum()
    assert counts[1].documents == counts[0].documents - len(lost)
    assert counts[1].padding_tokens == counts[0].padding_tokens
    assert (
        counts[1].tokens + counts[1].removed_tokens + counts[1].padding_tokens
        == after["inputs"].size
    )
    assert counts[0].digest == counts[1].digest + digest_of(lost)
    result = verify(output, workers=1)
    assert not result.findings
    assert result.packed == counts[1]


def newest(output: str) -> Any:
    return open_manifest(output).splits["train"]


def digest_of(lost: Sequence[Sequence[int]]) -> RecordsDigest:
    data = [np.array(ids, "<u4").tobytes() for ids in lost]
    crc32cs = np.array([google_crc32c.value(one) for one in data], np.uint32)
    return RecordsDigest.of(crc32cs, np.array([len(one) for one in data], np.int64))


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("method", "rows", "group_size"),
    [
        (method, *rows)
        for method in ("best-fit", "concat")
        for rows in (("packed", 1), ("packed", 4), ("example", 1))
    ],
)
def test_only_tokens_of_removed_documents_change(tmp_path, method, rows, group_size):
    output = pack(tmp_path, SHARDS, method=method, rows=rows, group_size=group_size)
    chance = np.random.default_rng(len(method) + group_size)
    some = chance.choice(COUNT - 1, 5, replace=False).tolist()
    first = {(0, COUNT - 1), *((0, number) for number in some)}
    kept = contents(tmp_path / "out")
    result = remove(output, lines_of(output, first))
    assert (result.documents, result.records) == (6, 0)
    assert (result.cut_shards, result.shared_shards) == (1, 2)
    check(output, first)
    listed = read_removed(output, newest(output).removed)
    lost = digest_of([SHARDS[0][document] for _, document in first])
    assert listed.digest_hex == lost.hex
    assert listed.tokens.sum() * 4 == lost.raw_bytes
    second = {(0, next(n for n in range(COUNT) if n not in some)), (2, 0), (2, 23)}
    remove(output, lines_of(output, second))
    check(output, first | second)
    now = contents(tmp_path / "out")
    assert {n: d for n, d in now.items() if n in kept and n != "dataset.json"} == {
        n: d for n, d in kept.items() if n != "dataset.json"
    }
    dataset = loader.open(output)
    read = [
        row for path in shards_of(dataset).paths for row in read_array_records(path)
    ]
    assert read == list(dataset)


def test_all_documents_of_a_row(tmp_path):
    output = pack(tmp_path, [[[1, 2], [3]], [[4]]], length=4)
    remove(output, lines_of(output, {(0, 0), (0, 1)}))
    arrays = arrays_of(output)
    assert arrays["inputs"].tolist() == [[0] * 4, [4, 0, 0, 0]]
    assert arrays["inputs_segmentation"].tolist() == [[0] * 4, [1, 0, 0, 0]]
    assert not verify(output, workers=1).findings


@pytest.fixture
def packed(tmp_path: pathlib.Path) -> str:
    return pack(tmp_path, SHARDS, method="best-fit")


class TestNames:
    def test_a_document_by_its_source(self, packed):
        batches = loader.global_batches(loader.open(packed), **ORDER)
        piece = locate_record(loader.open(packed), 3).pieces[0]
        line = f"{piece.source_path}@{piece.source_offset_bytes}"
        (before,) = find_document(
            batches, piece.source_path, piece.source_offset_bytes, stop_epoch=2
        )
        assert not before.removed
        remove(packed, [line])
        check(packed, {(0, piece.document)})
        again = loader.global_batches(loader.open(packed), **ORDER)
        (after,) = find_document(
            again, piece.source_path, piece.source_offset_bytes, stop_epoch=2
        )
        assert after.removed
        assert after.pieces == before.pieces
        (first,) = locate_record(loader.open(packed), 3).pieces[:1]
        assert (first.removed, first.document) == (True, piece.document)

    def test_what_is_gone_or_never_was(self, packed):
        lines = lines_of(packed, {(0, 3)})
        remove(packed, lines)
        assert not remove(packed, lines).editions  # The same command.
        named = lines_of(packed, {(0, 3)})
        more = [f"{named[0].rpartition('@')[0]}@{COUNT}", "gone@7", "gone@line:7"]
        asked = asked_records(packed, [*named, *more])
        assert asked == Asked(asked.arguments, [*named, *more])
        assert not len(asked.arguments["records"])

    @pytest.mark.parametrize(
        ("line", "column"), [("5", None), ("no place", None), ("5", "url")]
    )
    def test_other_names_are_refused(self, packed, line, column):
        with pytest.raises(InputError, match=r"FILE@PLACE"):
            asked_records(packed, [line], column=column)

    @pytest.mark.parametrize(
        ("records", "message"),
        [
            ([1, 2], "cannot be removed, only its documents"),
            ([[10_000, 0]], "no such record"),
            ([[0, 99]], "no document begins there"),
            ([[0, -1]], "no document begins there"),
        ],
    )
    def test_wrong_numbers_are_refused(self, packed, records, message):
        with pytest.raises(InputError, match=message):
            run_removal(packed, {"records": records}, workers=1)

    def test_a_document_twice_is_refused(self, packed):
        run_removal(packed, {"records": [[0, 0]]}, workers=1)
        with pytest.raises(InputError, match="was removed before"):
            run_removal(packed, {"records": [[0, 0], [1, 0]]}, workers=1)


class TestRuns:
    @pytest.mark.parametrize("erase", [False, True])
    def test_a_run_goes_on_in_its_order(self, packed, erase):
        old = loader.open(packed)
        batches = loader.global_batches(old, **ORDER)
        feed = batches.feed(process_index=0, process_count=1, start_step=3)
        state = feed.get_state()
        order = [list(batches.indices(step)) for step in range(10)]
        remove(packed, lines_of(packed, {(0, 1), (1, 2), (0, COUNT - 1)}), erase=erase)
        dataset = loader.open(packed)
        base = loader.global_batches(loader.open(packed, edition=1), **ORDER)
        after = base.extended(dataset, step=3)
        assert [list(after.indices(step)) for step in range(10)] == order
        resumed = after.feed(process_index=0, process_count=1)
        resumed.set_state(state)
        assert next(resumed) == [dataset[number] for number in order[3]]

    def test_a_state_names_its_contents(self, packed):
        batches = loader.global_batches(loader.open(packed), **ORDER)
        state = batches.feed(process_index=0, process_count=1).get_state()
        remove(packed, lines_of(packed, {(0, 1)}))
        newer = loader.global_batches(loader.open(packed), **ORDER)
        feed = newer.feed(process_index=0, process_count=1)
        feed.set_state(state)
        assert list(next(feed)) == list(batches.read(0))


class TestErasing:
    def test_no_file_has_the_tokens(self, packed, tmp_path):
        remove(packed, lines_of(packed, {(0, COUNT - 1)}))
        result = remove(packed, lines_of(packed, {(1, 0)}), erase=True)
        assert newest(packed).numbers == (3,)
        assert not newest(packed).replaced
        assert not verify(packed, workers=1).findings
        names = {path.name for path in (tmp_path / "out").glob("*.array_record*")}
        assert names == {
            pathlib.Path(path).name for path in shards_of(loader.open(packed)).paths
        }
        assert (result.documents, result.tokens) == (1, len(SHARDS[1][0]))


def test_beam_writes_the_same_files(packed, tmp_path):
    asked = asked_records(packed, lines_of(packed, {(0, 1), (2, 5), (2, 6)}))
    records = asked.arguments["records"]
    beam = tmp_path / "beam"
    shutil.copytree(packed, beam)
    (result,) = run(RemoveRecords(dataset=beam, records=records))
    expected = run_removal(packed, {"records": records}, workers=1)
    assert result == expected
    assert contents(beam) == contents(tmp_path / "out")


@pytest.mark.slow
def test_a_bucket_gets_the_same_shards(packed, monkeypatch):
    lines = lines_of(packed, {(0, 1), (2, 5)})
    asked = asked_records(packed, lines).arguments
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        upload(server, packed, "out")
        run_removal("gs://bucket/out", asked, workers=1)
        assert not verify("gs://bucket/out", workers=1).findings
        found = arrays_of("gs://bucket/out")
    remove(packed, lines)
    for name, array in arrays_of(packed).items():
        np.testing.assert_array_equal(found[name], array)


def test_a_stopped_removal_goes_on(packed, monkeypatch):
    lines = lines_of(packed, {(0, 1), (2, 5)})
    begun = []

    def stop(copier: ShardCopier, shard: Any, *_: Any, **__: Any) -> None:
        begun.append(shard.path)
        if len(begun) == 2:
            raise OSError("stopped")

    watched(monkeypatch, ShardCopier, "copy", stop)
    with pytest.raises(OSError, match="stopped"):
        remove(packed, lines)
    assert remove(packed, lines).documents == 2
    assert len(begun) == 3
    check(packed, {(0, 1), (2, 5)})


def test_a_damaged_segment_index_is_refused(packed):
    lines = lines_of(packed, {(0, 1)})
    asked = asked_records(packed, lines)
    name = shards_of(loader.open(packed)).paths[0].rpartition("/")[2]
    path = pathlib.Path(packed, layout.segments_path(name))
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(CorruptShardError, match="segment index is damaged"):
        run_removal(packed, asked.arguments, workers=1)


def test_states_of_other_rows_are_refused(packed, tmp_path):
    batches = loader.global_batches(loader.open(packed), **ORDER)
    state = batches.feed(process_index=0, process_count=1).get_state()
    other = pack(tmp_path / "other", SHARDS[::-1], method="best-fit")
    feed = loader.global_batches(loader.open(other), **ORDER).feed(
        process_index=0, process_count=1
    )
    with pytest.raises(StateMismatchError):
        feed.set_state(state)


EVERY_STEP = pytest.param(1, marks=pytest.mark.soak)


class TestKilled:
    """Killed at each step, and run again."""

    GONE = frozenset({(0, 1), (0, COUNT - 1), (2, 5)})

    @pytest.fixture
    def killer(self, tmp_path) -> Iterator[Killer]:
        with Killer(tmp_path) as killer:
            yield killer

    def command(self, output: str, folder: pathlib.Path, *more: str) -> list[str]:
        listed = folder / "listed"
        listed.write_text("".join(f"{n}\n" for n in lines_of(output, self.GONE)))
        return ["remove", output, f"--records={listed}", "--workers=1", *more]

    def state_of(self, output: str, old: np.ndarray, new: np.ndarray) -> str:
        """Checks that the dataset is whole, as it was or as it is to be."""
        assert not verify(output, workers=1).findings
        found = arrays_of(output)["inputs"]
        assert np.array_equal(found, old) or np.array_equal(found, new)
        return "old" if np.array_equal(found, old) else "new"

    @pytest.mark.slow
    @pytest.mark.parametrize("stride", [7, EVERY_STEP])
    @pytest.mark.parametrize("more", [(), ("--erase",)], ids=["kept", "erased"])
    def test_on_a_disk(self, packed, tmp_path, killer, stride, more):
        output, before = str(tmp_path / "killed"), tmp_path / "before"
        shutil.copytree(packed, before)
        shutil.copytree(packed, output)
        old = arrays_of(packed)["inputs"]
        assert killer.run(self.command(output, tmp_path, *more)).status == 0
        new, expected = arrays_of(output)["inputs"], contents(tmp_path / "killed")
        kill_at, met = stride // 2 + 1, []
        while True:
            shutil.rmtree(output)
            shutil.copytree(before, output)
            argv = self.command(output, tmp_path, *more)
            ended = killer.run(argv, kill_at=kill_at)
            met.append(self.state_of(output, old, new))
            if ended.status != KILLED:
                break
            again = killer.run(argv)
            assert again.status == 0, again.error
            assert contents(tmp_path / "killed") == expected
            assert self.state_of(output, old, new) == "new"
            kill_at += stride
        assert ended.status == 0, ended.error
        assert {*met} == {"old", "new"}

    @pytest.mark.slow
    @pytest.mark.parametrize("stride", [19, EVERY_STEP])
    def test_in_a_bucket(self, packed, tmp_path, monkeypatch, stride):
        output, old = "gs://bucket/out", arrays_of(packed)["inputs"]
        with GcsServer("bucket") as server:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
            upload(server, packed, "out")
            before = dict(server.objects.buckets["bucket"])
            with Killer(tmp_path) as killer:
                argv = self.command(output, tmp_path, "--erase")
                assert killer.run(argv).status == 0
                new, expected = arrays_of(output)["inputs"], files_of(output)
                kill_at, met, status = stride // 2 + 1, [], KILLED
                while status == KILLED:
                    server.objects.buckets["bucket"] = dict(before)
                    # Before it is sent, or before the answer is read.
                    after = kill_at % 2 == 0
                    status = killer.run(argv, kill_at=kill_at, after=after).status
                    met.append(self.state_of(output, old, new))
                    again = killer.run(argv)
                    assert again.status == 0, again.error
                    assert files_of(output) == expected
                    kill_at += stride
            assert status == 0
            assert {*met} == {"old", "new"}
