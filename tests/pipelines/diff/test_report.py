"""Differences of real datasets, as `gristmill diff` shows them."""

from __future__ import annotations

import json
import pathlib
from collections import Counter
from unittest import mock

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.errors import CorruptShardError
from gristmill.pipelines.commands.main import cli
from gristmill.pipelines.diff.compared_split import ComparedSplit
from gristmill.pipelines.diff.report import Report, compare, files_of
from tests.support import datasets
from tests.support.conversion import convert, job_of
from tests.support.editions import add_edition, replace_by_newest
from tests.support.packed import pack
from tests.support.records import write_tfrecords


def difference(before: str, after: str, **opened):
    sides = (
        ComparedSplit(loader.open(before, **opened)),
        ComparedSplit(loader.open(after)),
    )
    return sides, compare(*sides, part_records=7)


def counts_of(side: ComparedSplit, change) -> Counter:
    return Counter(side.dataset.read(change.records))


@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_difference_is_that_of_counts(data, tmp_path_factory):
    record = st.binary(max_size=2)
    files = st.lists(st.lists(record, max_size=5), min_size=1, max_size=4)
    given_files = data.draw(files), data.draw(files)
    folder = tmp_path_factory.mktemp("d")
    sides, found = difference(
        *(
            datasets.convert(folder / name, own, group_size=size)
            for name, own, size in zip("ab", given_files, (4, 1), strict=True)
        )
    )
    before, after = (
        Counter(record for file in own for record in file) for own in given_files
    )
    assert counts_of(sides[0], found.removed) == before - after
    assert counts_of(sides[1], found.added) == after - before
    assert found.kept.records == (before & after).total()
    for side, change in zip(sides, (found.removed, found.added), strict=True):
        assert change.digest.records == len(change.records)
        assert found.kept + change.digest == side.digest
        # Each record is of the file that it was written to.
        for path, records in files_of(side, change):
            assert path is not None
            assert records > 0


def texts(*names: str) -> list[bytes]:
    return [f"{name} {n}".encode() * (n + 1) for name in names for n in range(20)]


def test_only_what_differs_is_looked_at(tmp_path):
    kept = [texts("a"), texts("b"), texts("c")]
    before = datasets.convert(tmp_path / "before", [*kept, texts("d")])
    after = datasets.convert(tmp_path / "after", [texts("e"), *kept])
    sides, found = difference(before, after)
    assert (found.kept.records, found.indexes, found.records_read) == (60, 2, 0)
    assert [
        path.rpartition("/")[2] for path, _ in files_of(sides[0], found.removed)
    ] == ["00003.tfrecord"]
    # The same records in other shards: their digests tell.
    joined = datasets.convert(
        tmp_path / "joined", [[*kept[0], *kept[1], *kept[2], *texts("e")]]
    )
    with mock.patch.object(ComparedSplit, "part", side_effect=AssertionError):
        assert difference(after, joined)[1].kept.records == 80


def test_lengths_of_lone_records_are_in_footers(tmp_path):
    before = datasets.convert(tmp_path / "one", [texts("a")])
    fewer = datasets.convert(tmp_path / "fewer", [texts("a")[3:]])
    assert difference(before, fewer)[1].records_read == 0
    grouped = datasets.convert(tmp_path / "grouped", [texts("a")], group_size=8)
    sides, found = difference(grouped, fewer)
    assert found.records_read == 3
    assert sides[0].dataset.read(found.removed.records) == texts("a")[:3]


def test_an_edition_that_was_replaced(tmp_path, output: str):
    old = texts("a", "b")
    add_edition(tmp_path, output, 1, old)
    add_edition(tmp_path, output, 2, [*old[2:], *texts("c")[:3]])
    replace_by_newest(output)
    sides, found = difference(output, output, edition=1)
    assert sides[0].dataset.read(found.removed.records) == old[:2]
    assert sides[1].dataset.read(found.added.records) == texts("c")[:3]
    assert found.kept.records == 38
    paths = [str(tmp_path / f"input-{n}" / "in.tfrecord") for n in (1, 2)]
    assert files_of(sides[0], found.removed) == [(paths[0], 2)]
    assert files_of(sides[1], found.added) == [(paths[1], 3)]


@pytest.mark.slow
def test_sources_are_followed_through_datasets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        write_tfrecords(pathlib.Path(f"{name}.tfrecord"), texts(name))
    grouped = WriterOptions(group_size=4)
    convert(job_of("?.tfrecord", "all", plan=("num_shards", 3)))
    convert(job_of("all", "again", plan=("num_shards", 2), writer=grouped))
    convert(job_of("b.tfrecord", "b"))
    for dataset in ("all", "again"):
        sides, found = difference(dataset, "b")
        assert files_of(sides[0], found.removed) == [("a.tfrecord", 20)]
        assert found.removed.records.tolist() == [*range(20)]
        sides, found = difference("b", dataset)
        assert files_of(sides[1], found.added) == [("a.tfrecord", 20)]


def test_command_compares_editions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tfrecords(pathlib.Path("a.tfrecord"), texts("a"))
    write_tfrecords(pathlib.Path("b.tfrecord"), texts("b")[:5])
    convert(job_of("a.tfrecord", "d"))
    done = CliRunner().invoke(cli, ["append", "d", "b.tfrecord", "--workers", "1"])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(cli, ["diff", "d@1"])
    assert done.exit_code == 0, done.output
    assert "kept     20 records" in done.output
    assert "added    5 records" in done.output
    assert "5 of b.tfrecord" in done.output
    assert "the indexes of 0 shards, and no record" in done.output
    done = CliRunner().invoke(cli, ["diff", "d", "d@1", "--list"])
    lines = done.stdout.splitlines()
    assert lines[0] == "removed 20 b.tfrecord@0"
    assert len(lines) == 5
    done = CliRunner().invoke(cli, ["diff", "d", "d@1", "--list", "--json"])
    found = json.loads(done.stdout)
    assert [found[side]["edition"] for side in ("before", "after")] == [2, 1]
    assert [row["record"] for row in found["removed"]["list"]] == [*range(20, 25)]
    assert found["removed"]["files"] == [{"path": "b.tfrecord", "records": 5}]
    for wrong, code, said in (
        ("d@3", 2, "edition"),
        ("d@x", 2, "not an edition"),
        ("n", 3, "not a committed dataset"),
    ):
        done = CliRunner().invoke(cli, ["diff", wrong, "d"])
        assert done.exit_code == code
        assert said in done.output


def test_packed_rows_are_records_and_documents_are_counted(tmp_path):
    documents = [[n] * 20 for n in range(1, 9)]
    before = pack(tmp_path / "before", [documents[:4], documents[4:]], length=20)
    after = pack(tmp_path / "after", [documents[:4], documents[5:]], length=20)
    sides, found = difference(before, after)
    assert (found.kept.records, len(found.removed.records)) == (7, 1)
    report = Report(before=sides[0], after=sides[1], difference=found)
    assert "documents 8 before, 7 after" in report.text()
    assert report.as_dict(with_list=True)["after"]["tokens"] == 140


def test_index_of_another_shard_is_refused(tmp_path):
    before = datasets.convert(tmp_path / "a", [texts("a"), texts("b")])
    after = datasets.convert(tmp_path / "b", [texts("c")])
    first, second = sorted(pathlib.Path(before, "index").glob("*.index"))
    first.write_bytes(second.read_bytes())
    with pytest.raises(CorruptShardError, match="index is not the one of this shard"):
        difference(before, after)
