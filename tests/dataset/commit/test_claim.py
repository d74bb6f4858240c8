"""Claims: which edition a command makes, and what becomes of another one's work."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

from gristmill import loader
from gristmill.dataset import (
    InputError,
    InvalidDatasetError,
    JobChangedError,
    StorageChangedError,
    Writer,
    commit_parts,
)
from gristmill.dataset.commit.claim import Claim, again_if_changed
from gristmill.dataset.commit.write_marker import BegunWrite, WriteMarker
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.dataset.storage.lookup import storage_for, version_of


@pytest.fixture
def output(tmp_path: pathlib.Path) -> str:
    return str(tmp_path / "data")


def write(output: str, *records: bytes, **options: bool) -> None:
    with Writer(output, **options) as writer:
        for record in records:
            writer.write(record)


def claim_of(output: str, *, overwrite: bool = True) -> Claim:
    return Claim.next(output, "data", "train", overwrite=overwrite)


def take(claim: Claim, name: str, version: str = "") -> WriteMarker:
    """Takes a claim for a write of some name."""
    marker = WriteMarker(
        output=claim.output, name="data", split=claim.key, fingerprint=name
    )
    claim.take(
        lambda: marker.store(options={}, replaces=version),
        described={marker.file: version},
    )
    return marker


def put(output: str, *files: str) -> None:
    for file in files:
        storage_for(output).write(layout.join(output, file), b"x")


def left(output: str) -> set[str]:
    place = layout.join(output, "")
    tree = storage_for(output).list_tree(output)
    return {info.path.removeprefix(place) for info in tree}


def shard(key: str = "train", number: int = 0) -> str:
    return layout.shard_name("data", key, number, 2)


@pytest.mark.parametrize(
    ("files", "edition", "strangers"),
    [
        ((), 1, set()),
        (("index/data-train.job.json", shard()), 1, set()),
        (("index/data-train.write.json", shard()), 1, set()),
        # Of another program, or left without `dataset.json` and description.
        ((shard(),), 2, {1}),
        ((shard("train.e00003"), "index/data-train.e00003.shards.npz"), 4, {3}),
        # What was begun beside them goes on.
        ((shard(), "index/data-train.e00002.write.json"), 2, {1}),
        (("index/data-train.e00002.job.json", shard("train.e00002")), 2, set()),
        # Others.
        ((shard("test"), "index/data-test.job.json", "data-trainer"), 1, set()),
    ],
)
def test_the_number_of_a_split_that_is_not_there(
    output: str, files: tuple[str, ...], edition: int, strangers: set[int]
) -> None:
    put(output, *files)
    claim = claim_of(output)
    assert (claim.edition, claim.strangers) == (edition, strangers)


def test_numbers_follow_each_other(output: str) -> None:
    for number in (1, 2, 3):
        assert claim_of(output).edition == number
        write(output, b"%d" % number, overwrite=True)
        assert open_manifest(output).splits["train"].numbers == (number,)
    with pytest.raises(InputError, match="another name"):
        Claim.next(output, "other", "train")


def test_what_another_one_has_begun_is_deleted(output: str) -> None:
    write(output, b"old")
    before = left(output)
    first = take(claim_of(output), "first")
    made = {
        *(shard("train.e00002", 0), layout.index_path(shard("train.e00002", 0))),
        *("index/data-train.e00002.shards.npz", "index/data-train.e00002.job.json"),
        "tmp-data-train.e00002/00000-of-00001/owner.json",
    }
    put(output, *made)
    _, version = BegunWrite.load(output, "data", "train.e00002")
    second = take(claim_of(output), "second", version)
    assert left(output) == {*before, second.file}
    second.check_current()
    with pytest.raises(JobChangedError, match="taken over"):
        first.check_current()
    assert loader.open(output)[0] == b"old"


def test_what_is_its_own_stays(output: str) -> None:
    claim = claim_of(output)
    marker = take(claim, "first")
    put(output, shard(number=0), shard(number=1))
    _, version = BegunWrite.load(output, "data", "train")
    claim.take(
        lambda: pytest.fail("it is described"),
        described={marker.file: version},
        own=True,
        keep=shard(number=1).__eq__,
    )
    assert left(output) == {marker.file, shard(number=1)}


def test_of_two_that_begin_at_once_one_begins_again(output: str) -> None:
    first, second = claim_of(output), claim_of(output)
    take(first, "first")
    put(output, shard())
    with pytest.raises(StorageChangedError):
        take(second, "second")
    assert shard() in left(output)


def test_a_commit_that_has_passed_its_checks_fails(output: str) -> None:
    """What it names is deleted by the one that takes over."""
    write(output, b"old")
    take(claim_of(output), "first")
    place = layout.join(output, layout.DATASET_JSON)
    seen = version_of(place)  # As a commit reads it before its checks.
    _, version = BegunWrite.load(output, "data", "train.e00002")
    take(claim_of(output), "second", version)
    with pytest.raises(StorageChangedError):
        storage_for(output).write(place, b"{}", replaces=seen)
    assert loader.open(output)[0] == b"old"


def test_a_commit_meanwhile_is_not_lost(output: str) -> None:
    write(output, b"old")
    claim = claim_of(output)
    take(claim, "first")
    _, version = BegunWrite.load(output, "data", "train.e00002")
    other = dataclasses.replace(claim, version="1")
    with pytest.raises(StorageChangedError):
        take(other, "second", version)


def test_strangers_go_at_the_commit(output: str) -> None:
    put(output, shard(number=0), shard(number=1), "data-train.txt")
    with pytest.raises(InputError, match="there already"):
        write(output, b"new")
    with Writer(output, overwrite=True) as writer:
        writer.write(b"new")
        assert {shard(number=0), shard(number=1)} <= left(output)
    assert not {shard(number=0), shard(number=1)} & left(output)
    assert "data-train.txt" in left(output)
    assert "index/data-train.shards.npz" not in left(output)
    assert loader.open(output).read([0]) == [b"new"]


def test_it_is_begun_again_a_few_times() -> None:
    tries = iter(range(100))

    def begin(until: int) -> int:
        if (number := next(tries)) < until:
            raise StorageChangedError("not at once")
        return number

    assert again_if_changed(lambda: begin(4)) == 4
    with pytest.raises(StorageChangedError):
        again_if_changed(lambda: begin(90))


def test_a_description_that_is_damaged_counts_as_none_on_request(output: str) -> None:
    write(output, b"old")
    place = layout.join(output, layout.DATASET_JSON)
    storage_for(output).write(place, b"damaged")
    with pytest.raises(InvalidDatasetError):
        write(output, b"new")
    with pytest.raises(InputError), Writer(output, overwrite=True) as writer:
        writer.write("no bytes")
    # It goes on where it was, and the commit finds it.
    assert claim_of(output).edition == 2
    with Writer(output, part=0, parts=1, overwrite=True) as writer:
        writer.write(b"new")
    assert claim_of(output).edition == 2
    commit_parts(output, overwrite=True)
    assert loader.open(output).read([0]) == [b"new"]
    assert {name for name in left(output) if "e00002" not in name} == {"dataset.json"}


class TestAConversionAndAWriteAtTheSameMoment:
    """Their descriptions have different names: both are stored, and the write goes."""

    JOB = layout.job_path("data", "train.e00002")

    def take_job(self, claim: Claim) -> None:
        claim.take(lambda: put(claim.output, self.JOB), described={self.JOB: ""})

    def described(self, output: str) -> list[str]:
        index = storage_for(output).list(layout.join(output, layout.INDEX_DIR))
        files = [info.path.removeprefix(f"{output}/") for info in index]
        return [file for file in files if ".e00002." in file]

    def test_the_conversion_is_first(self, output):
        write(output, b"old")
        claim = claim_of(output)
        marker = WriteMarker(
            output=output, name="data", split=claim.key, fingerprint="a"
        )

        def store() -> None:
            self.take_job(claim_of(output))
            marker.store(options={}, replaces="")

        with pytest.raises(StorageChangedError):
            claim.take(store, described={marker.file: ""})
        assert self.described(output) == [self.JOB]

    def test_the_write_is_first(self, output):
        write(output, b"old")
        claim, place = claim_of(output), layout.join(output, layout.DATASET_JSON)
        before = version_of(place)

        def store() -> None:
            take(claim_of(output), "a")
            put(output, self.JOB)

        claim.take(store, described={self.JOB: ""})
        assert self.described(output) == [self.JOB]
        assert version_of(place) != before  # A commit that was near fails.

    def test_one_has_committed_before_the_other_describes_its_work(self, output):
        write(output, b"old")
        claim = claim_of(output)

        def store() -> None:
            write(output, b"new", overwrite=True)
            put(output, self.JOB)

        with pytest.raises(StorageChangedError):
            claim.take(store, described={self.JOB: ""})
        assert [*loader.open(output)] == [b"new"]
