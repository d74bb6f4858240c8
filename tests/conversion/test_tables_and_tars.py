"""Parquet files and tars through whole conversions, compared with other readers."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq
import pytest

from gristmill.dataset import encode_example
from gristmill.dataset.base.errors import CorruptInputError, UserFunctionError
from gristmill.dataset.base.example import decode_example
from gristmill.dataset.metadata.manifest import open_manifest, read_table
from gristmill.pipelines.verify import verify
from gristmill.transforms.tables.example_rows import encode_rows
from gristmill.transforms.tables.table_features import features_of
from tests.conversion.parquet_files import flip, page_offset, some_table, write_parquet
from tests.conversion.tars import header_offsets, members_of, read_by_webdataset, tar_of
from tests.conversion.ways_to_convert import (
    check_beam,
    check_kills,
    check_workers,
    shard_bytes,
)
from tests.servers.gcs_server import GcsServer
from tests.support.conversion import convert, job_of, read_output, skipped_in


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """Files of a format, and what becomes of them when they are damaged.

    Attributes:
        counts: Records of each file.
        make: Makes the files in a folder.
        read: Returns the records of a file, by other readers.
        damage: Damages files of a folder; returns where the first error is.
        lost: The records that are then lost, by their numbers.
        reasons: What is said of each region that is left out.
        failing: Returns where the record is at which `picky` fails.
    """

    counts: tuple[int, ...]
    make: Callable[[pathlib.Path], None]
    read: Callable[[pathlib.Path], list[bytes]]
    damage: Callable[[pathlib.Path], str]
    lost: tuple[range, ...]
    reasons: tuple[tuple[str, str], ...]
    failing: Callable[[pathlib.Path], str]


ROWS = (900, 1, 2300, 0, 400)
SAMPLES = (40, 1, 90, 0, 25)


def make_tables(folder: pathlib.Path) -> None:
    for number, rows in enumerate(ROWS):
        table = some_table(rows + 1, seed=number)[:rows]
        path = folder / f"{number}.parquet"
        write_parquet(path, table, row_group_size=500, use_dictionary=number % 2 == 0)


def read_rows(path: pathlib.Path) -> list[bytes]:
    table = pq.read_table(path)
    batches = table.combine_chunks().to_batches()
    features = features_of(table.schema)
    return [record for batch in batches for record in encode_rows(batch, features)]


def damage_tables(folder: pathlib.Path) -> str:
    """File 2 cannot be read from row 1,000 to 1,500, file 4 not at all."""
    flip(folder / "2.parquet", page_offset(folder / "2.parquet", 2, 1))
    (folder / "4.parquet").write_bytes((folder / "4.parquet").read_bytes()[:-1])
    return f"{folder}/2.parquet, row 1,000"


def make_tars(folder: pathlib.Path) -> None:
    """Tars of all kinds; one is written by the package webdataset."""
    import webdataset

    folder.mkdir()
    for number, samples in enumerate(SAMPLES):
        members = members_of(samples, seed=number)
        path = folder / f"{number}.tar"
        if number != 2:
            format_name = ("ustar", "gnu", "", "pax", "pax")[number]
            path.write_bytes(tar_of(members, format=format_name, mtime=number + 0.5))
            continue
        with webdataset.TarWriter(str(path)) as writer:
            for sample in read_by_webdataset(tar_of(members)):
                writer.write(sample | {"__key__": sample["__key__"].decode()})


def read_samples(path: pathlib.Path) -> list[bytes]:
    return list(map(encode_example, read_by_webdataset(path.read_bytes())))


def damage_tars(folder: pathlib.Path) -> str:
    """A header of sample 20 of file 0 is damaged, file 4 ends in its sample 24."""
    data = bytearray((folder / "0.tar").read_bytes())
    offsets = [at for at, _ in header_offsets(bytes(data))]
    data[offsets[61] + 265] ^= 1
    (folder / "0.tar").write_bytes(data)
    last = (folder / "4.tar").read_bytes()
    (folder / "4.tar").write_bytes(last[: header_offsets(last)[-1][0] + 100])
    return f"{folder}/0.tar, byte offset {offsets[60]:,}, sample 'd.e/00020'"


def failing_sample(folder: pathlib.Path) -> str:
    at = header_offsets((folder / "0.tar").read_bytes())[90][0]
    return f"{folder}/0.tar, byte offset {at:,}"


KINDS = {
    "parquet": Kind(
        counts=ROWS,
        make=make_tables,
        read=read_rows,
        damage=damage_tables,
        lost=(range(1901, 2401), range(3201, 3601)),
        reasons=(("row group 2", ""), ("footer", "")),
        failing=lambda folder: f"{folder}/0.parquet, row 450",
    ),
    "webdataset": Kind(
        counts=SAMPLES,
        make=make_tars,
        read=read_samples,
        damage=damage_tars,
        lost=(range(20, 40), range(155, 156)),
        reasons=(
            ("header", "sample 'd.e/00020'"),
            ("truncated", "sample 'd.e/00024'"),
        ),
        failing=failing_sample,
    ),
}


@dataclasses.dataclass(frozen=True)
class Inputs:
    """A folder of files of a kind, to be read only, and their records."""

    kind: Kind
    folder: pathlib.Path
    records: list[bytes]


@pytest.fixture(scope="module", params=KINDS)
def inputs(request, tmp_path_factory) -> Inputs:
    kind, folder = KINDS[request.param], tmp_path_factory.mktemp("files") / "in"
    kind.make(folder)
    paths = sorted(folder.iterdir())
    return Inputs(kind, folder, [one for path in paths for one in kind.read(path)])


PLANS = [("num_shards", 7), ("shard_bytes", 40_000), ("match_shards", None)]
every_plan = pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan[0])


@every_plan
def test_every_record_once_and_in_order(inputs, tmp_path, plan) -> None:
    convert(job_of(inputs.folder, tmp_path / "out", plan=plan))
    assert read_output(tmp_path / "out") == inputs.records
    split = open_manifest(str(tmp_path / "out")).splits["train"]
    counts = read_table(str(tmp_path / "out"), split).columns["records"].tolist()
    if plan[0] == "match_shards":
        assert tuple(counts) == inputs.kind.counts
    assert plan[0] != "num_shards" or len(counts) == 7
    assert not verify(str(tmp_path / "out")).findings


@pytest.fixture
def damaged(inputs, tmp_path) -> tuple[pathlib.Path, str]:
    copy = pathlib.Path(shutil.copytree(inputs.folder, tmp_path / "in"))
    return copy, inputs.kind.damage(copy)


@every_plan
def test_damage_is_left_out_and_all_else_kept(inputs, damaged, tmp_path, plan) -> None:
    convert(job_of(damaged[0], tmp_path / "out", on_corrupt="skip", plan=plan))
    lost = {number for some in inputs.kind.lost for number in some}
    kept = [record for n, record in enumerate(inputs.records) if n not in lost]
    assert read_output(tmp_path / "out") == kept
    regions: list[Any] = skipped_in(tmp_path / "out")
    for region, (reason, detail) in zip(regions, inputs.kind.reasons, strict=True):
        assert region["reason"] == reason
        assert detail in region["detail"]
        size = pathlib.Path(region["file"]).stat().st_size
        rows = region.get("begin_row"), region.get("end_row")
        assert rows == (1000, 1500) or region["end_bytes"] == size
    assert not verify(str(tmp_path / "out")).findings


def test_damage_is_an_error_that_names_its_place(inputs, damaged, tmp_path) -> None:
    folder, where = damaged
    (folder / "4.parquet").unlink(missing_ok=True)
    with pytest.raises(CorruptInputError) as caught:
        convert(job_of(folder, tmp_path / "out", plan=("num_shards", 7)))
    assert caught.value.where == where
    assert not (tmp_path / "out" / "dataset.json").exists()


def picky(record: bytes) -> bytes:
    """A function for --map that fails at one record."""
    values = decode_example(record)
    if values.get("number") == [450] or values.get("__key__") == [b"d.e/00030"]:
        raise ValueError("not this one")
    return record


def test_the_error_of_a_function_names_the_place(inputs, tmp_path) -> None:
    with pytest.raises(UserFunctionError) as caught:
        convert(job_of(inputs.folder, tmp_path / "out", map=f"{__name__}:picky"))
    assert inputs.kind.failing(inputs.folder) in str(caught.value)


@pytest.mark.slow
def test_workers_change_nothing(inputs, tmp_path) -> None:
    check_workers(inputs.folder, tmp_path, num_shards=5)


@pytest.mark.slow
def test_a_killed_conversion_is_finished_by_the_next(inputs, tmp_path) -> None:
    check_kills(inputs.folder, tmp_path, inputs.records)


@pytest.mark.slow
def test_beam_gives_the_same_bytes(inputs, tmp_path) -> None:
    check_beam(inputs.folder, tmp_path, num_shards=5)


@pytest.mark.slow
def test_a_bucket_gives_the_same_bytes(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "in"
    make_tables(folder)
    convert(job_of(folder, tmp_path / "local", plan=("num_shards", 4)))
    with GcsServer("in") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        for path in folder.iterdir():
            server.objects.put("in", f"rows/{path.name}", path.read_bytes())
        # Damaged on its way: a footer, and pages.
        server.fail("flip", "media", name="2.parquet", skip=2, times=2)
        convert(job_of("gs://in/rows/*", tmp_path / "gs", plan=("num_shards", 4)))
        assert not any(fault.times for fault in server.faults)
    assert shard_bytes(tmp_path / "gs") == shard_bytes(tmp_path / "local")
