"""Verifying: every file that is damaged is named."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
from collections.abc import Callable

import pytest

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.errors import StorageError
from gristmill.dataset.base.findings import Finding
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import open_manifest, read_table
from gristmill.pipelines.text.printer import text_of
from gristmill.pipelines.verify import verify as verify_all
from gristmill.transforms.beam.verify_dataset import VerifyDataset
from gristmill.transforms.checking.verification import VerifyResult, plan_verify
from gristmill.transforms.checking.verify_shard import verify_shard
from tests.support.changes import attach
from tests.support.conversion import convert, job_of
from tests.support.pipelines import BUNDLE_BASED, BUNDLES_TWICE, IN_MEMORY, run
from tests.support.records import (
    AWKWARD_RECORDS,
    footer_of,
    frames_of,
    text_records,
    write_array_records,
)
from tests.support.watched import at_storage

RECORDS = text_records(3000)


def make_dataset(
    folder: pathlib.Path,
    *,
    group_size: int = 1,
    compression: str = "zstd:3",
    records: list[bytes] | None = None,
) -> pathlib.Path:
    records = RECORDS if records is None else records
    folder.mkdir(exist_ok=True)
    (folder / "in.tfrecord").write_bytes(frames_of(records))
    writer = WriterOptions(group_size=group_size, compression=compression)
    convert(
        job_of(
            str(folder / "in.tfrecord"),
            folder / "out",
            plan=("num_shards", 3),
            writer=writer,
        )
    )
    return folder / "out"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return make_dataset(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def dataset(whole: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(shutil.copytree(whole, tmp_path / "copy"))


def verify(dataset: pathlib.Path) -> list[Finding]:
    checks = [verify_shard(task) for task in plan_verify(str(dataset)).tasks]
    return [finding for check in checks for finding in check.findings]


def shards_of(dataset: pathlib.Path) -> list[str]:
    manifest = open_manifest(str(dataset))
    return list(read_table(str(dataset), manifest.splits["train"]).paths)


def flip(path: pathlib.Path, offset: int, *, bits: int = 0x40) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ bits]))


@pytest.mark.parametrize("group_size", [1, 7])
def test_whole_dataset_has_no_findings(tmp_path: pathlib.Path, group_size: int) -> None:
    records = [*RECORDS[:500], *AWKWARD_RECORDS]
    dataset = make_dataset(tmp_path, group_size=group_size, records=records)
    assert plan_verify(str(dataset)).findings.first == ()
    checks = [verify_shard(task) for task in plan_verify(str(dataset)).tasks]
    assert [check.findings for check in checks] == [()] * 3
    assert sum(check.records for check in checks) == len(records)
    assert sum(check.raw_bytes for check in checks) == sum(map(len, records))


def test_flipped_byte_of_a_record_names_file_and_record(dataset: pathlib.Path) -> None:
    shard = shards_of(dataset)[1]
    footer = footer_of((dataset / shard).read_bytes())
    record = 321
    # The last byte of its chunk is compressed data, or its checksum.
    flip(dataset / shard, int(footer.chunk_offsets[record + 1]) - 1)
    findings = verify(dataset)
    assert [finding.path for finding in findings] == [shard]
    assert "record 321 " in findings[0].what
    assert plan_verify(str(dataset)).findings.first == ()  # No look inside.


@pytest.mark.slow
@pytest.mark.parametrize("group_size", [1, 5])
@pytest.mark.parametrize("step", [389, pytest.param(97, marks=pytest.mark.soak)])
def test_flipped_byte_anywhere_is_found(
    tmp_path: pathlib.Path, step: int, group_size: int
) -> None:
    dataset = make_dataset(tmp_path, group_size=group_size, records=RECORDS[:90])
    shard = shards_of(dataset)[0]
    clean = (dataset / shard).read_bytes()
    footer = footer_of(clean)
    data_end = int(footer.chunk_offsets[-1])
    positions = {*range(0, data_end, step), data_end + 50, len(clean) - 1}
    named = 0
    for position in sorted(positions):
        flip(dataset / shard, position)
        findings = verify(dataset)
        assert findings, position
        assert {finding.path for finding in findings} == {shard}
        named += "record" in findings[0].what
        (dataset / shard).write_bytes(clean)
    assert named > 0.8 * len(positions)
    assert verify(dataset) == []


def swap_records(dataset: pathlib.Path) -> None:
    """Makes a shard that is sound in itself, but holds other records."""
    count = next(iter(plan_verify(str(dataset)).tasks)).digest.records
    swapped = [RECORDS[1], RECORDS[0], *RECORDS[2:count]]
    write_array_records(dataset / SHARDS[0], swapped)


def cut(path: pathlib.Path) -> None:
    os.truncate(path, path.stat().st_size - 65536)


SHARDS = [layout.shard_name("data", "train", shard, 3) for shard in range(3)]
INDEXES = [layout.index_path(shard) for shard in SHARDS]
INDEX_FLIPS = {
    f"index flipped at {at}": (
        lambda out, at=at: flip(
            out / INDEXES[0], at % (out / INDEXES[0]).stat().st_size
        ),
        INDEXES[0],
        "",
        False,
    )
    for at in (3, 20, 70, 200, -3)
}
# What is done, the file that is named, what is said of it, and if listings tell it.
HARMS: dict[str, tuple[Callable[[pathlib.Path], object], str, str, bool]] = {
    "other records": (
        swap_records,
        SHARDS[0],
        "wrong size|list other chunks|record 0 is not the one that was written",
        False,
    ),
    "shard cut": (
        lambda out: cut(out / SHARDS[2]),
        SHARDS[2],
        "shard has the wrong size",
        True,
    ),
    "shard gone": (
        lambda out: (out / SHARDS[0]).unlink(),
        SHARDS[0],
        "shard is missing",
        True,
    ),
    "index gone": (
        lambda out: (out / INDEXES[1]).unlink(),
        INDEXES[1],
        "shard index is missing",
        True,
    ),
    "index of another shard": (
        lambda out: shutil.copyfile(out / INDEXES[0], out / INDEXES[1]),
        INDEXES[1],
        "shard index is not the one of this shard",
        False,
    ),
    **INDEX_FLIPS,
}


@pytest.mark.parametrize(
    ("harm", "path", "what", "listed"), HARMS.values(), ids=[*HARMS]
)
def test_a_harmed_file_is_named(
    dataset: pathlib.Path, harm, path: str, what: str, listed: bool
) -> None:
    harm(dataset)
    (finding,) = verify(dataset)
    assert finding.path == path
    assert re.search(what, finding.what)
    plan = plan_verify(str(dataset))
    if listed:
        assert plan.findings.first == (finding,)
    if path in INDEXES:  # The shard is compared all the same.
        task = [*plan.tasks][INDEXES.index(path)]
        assert verify_shard(task).records == task.digest.records


def test_damaged_table_is_a_finding_and_no_error(dataset: pathlib.Path) -> None:
    table = layout.table_path("data", "train")
    flip(dataset / table, 100)
    (finding,) = plan_verify(str(dataset)).findings.first
    assert finding.path == table
    assert finding.expected
    assert not plan_verify(str(dataset)).tasks


@pytest.mark.parametrize("failing", range(3))
def test_a_table_that_cannot_be_read_for_a_moment_is_never_passed_over(
    dataset: pathlib.Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    table = str(dataset / layout.table_path("data", "train"))

    def fail() -> None:
        raise StorageError("cannot read the file", where=table)

    at_storage(monkeypatch, "read", table, fail, skip=failing)
    found = verify_all(str(dataset), workers=1)
    assert found.findings or found.records == len(RECORDS)


def test_totals_that_do_not_add_up(dataset: pathlib.Path) -> None:
    path = dataset / layout.DATASET_JSON
    document = json.loads(path.read_bytes())
    document["raw_bytes"] += 1
    document["splits"]["train"]["raw_bytes"] += 1
    path.write_text(json.dumps(document))
    (finding,) = plan_verify(str(dataset)).findings.first
    assert finding.path == layout.table_path("data", "train")
    assert finding.what == "table of shards contradicts dataset.json"
    assert finding.expected == f"raw_bytes {document['raw_bytes']}"


def test_records_without_an_index_are_compared_by_their_chunks(
    tmp_path: pathlib.Path, decoding: str
) -> None:
    dataset = make_dataset(tmp_path, records=RECORDS[:90], compression="uncompressed")
    first, *_ = shards_of(dataset)
    footer = footer_of((dataset / first).read_bytes())
    (dataset / layout.index_path(first)).unlink()
    assert [finding.what for finding in verify(dataset)] == ["shard index is missing"]
    for chunk in (7, 9):
        flip(dataset / first, int(footer.chunk_offsets[chunk]) + 60, bits=1)
    missing, damaged = (finding.what for finding in verify(dataset))
    assert missing == "shard index is missing"
    assert damaged.startswith("record 7 cannot be decoded")


@pytest.mark.parametrize("quick", [False, True])
def test_what_both_find_is_counted_once(dataset: pathlib.Path, quick: bool) -> None:
    shards = shards_of(dataset)
    for shard in shards:
        (dataset / shard).unlink()
    found = verify_all(str(dataset), quick=quick, workers=1)
    (other,) = run(VerifyDataset(str(dataset), quick=quick))
    assert found.findings == other.findings
    assert [finding.path for finding in found.findings] == shards
    assert (found.shards, found.more_findings) == (3, 0)
    assert (found.records is None) == quick


def test_leftovers_are_counted(dataset: pathlib.Path) -> None:
    place = dataset / "tmp-data-train"
    place.mkdir()
    for number in range(1_203):
        (place / f"{number:05d}").touch()
    found = verify_all(str(dataset), quick=True)
    assert found.leftovers[0] == "tmp-data-train/00000"
    assert (len(found.leftovers), found.more_leftovers) == (1_000, 203)
    assert "1,203 files of a command" in text_of(found)


@pytest.mark.parametrize("shard_too", [False, True])
def test_a_damaged_column_is_attached_again(
    dataset: pathlib.Path, shard_too: bool
) -> None:
    values = ["value"] * len(RECORDS)
    attach(str(dataset), values)
    (path, *_) = sorted((dataset / "columns").iterdir())
    flip(path, -9 % path.stat().st_size)
    if shard_too:
        flip(dataset / shards_of(dataset)[0], 30_000)
    found = verify_all(str(dataset), workers=1)
    assert f"columns/{path.name}" in [finding.path for finding in found.findings]
    cures = found.facts["to do"]
    assert len(cures) == 1 + shard_too
    assert "`gristmill attach --overwrite`" in cures[-1]
    attach(str(dataset), [*values[1:], "another"])
    assert len(verify_all(str(dataset), workers=1).findings) == shard_too


@pytest.mark.parametrize("argv", [IN_MEMORY, BUNDLES_TWICE, BUNDLE_BASED])
def test_transform(
    whole: pathlib.Path, dataset: pathlib.Path, argv: tuple[str, ...]
) -> None:
    assert run(VerifyDataset(str(whole)), argv=argv) == [
        VerifyResult(str(whole), 3, len(RECORDS), sum(map(len, RECORDS)), ())
    ]
    shard, missing = shards_of(dataset)[1:]
    flip(dataset / shard, 30_000)
    (dataset / missing).unlink()
    (result,) = run(VerifyDataset(str(dataset)), argv=argv)
    assert result.shards == 3
    first, second = result.findings
    assert first.path == shard
    assert "record" in first.what
    assert second == Finding(missing, "shard is missing")


def test_transform_fails_without_a_dataset(tmp_path: pathlib.Path) -> None:
    with pytest.raises(Exception, match="not a committed dataset"):
        run(VerifyDataset(str(tmp_path)))
