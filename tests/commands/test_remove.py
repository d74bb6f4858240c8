"""`gristmill remove`: what its file may name, and what it says."""

from __future__ import annotations

import gzip
import json
import pathlib
import tarfile
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from gristmill import dataset, loader
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.loader.provenance.locate import locate_record
from gristmill.pipelines.commands.main import cli
from gristmill.pipelines.convert import convert
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.job_options import AppendOptions, ConvertOptions
from gristmill.pipelines.text.places import located
from tests.support.records import frames_of

ROWS = [{"url": f"http://{n % 20}/", "n": n, "text": "t" * n} for n in range(60)]
RECORDS = [dataset.encode_example(row) for row in ROWS]


def frames(folder: pathlib.Path) -> pathlib.Path:
    path = folder / "in.tfrecord"
    path.write_bytes(frames_of(RECORDS))
    return path


def compressed_frames(folder: pathlib.Path) -> pathlib.Path:
    path = folder / "in.tfrecord.gz"
    path.write_bytes(gzip.compress(frames_of(RECORDS)))
    return path


def json_lines(folder: pathlib.Path) -> pathlib.Path:
    path = folder / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def compressed_csv(folder: pathlib.Path) -> pathlib.Path:
    path = folder / "in.csv.gz"
    lines = [f"{row['url']},{row['n']},{row['text']}\n" for row in ROWS]
    path.write_bytes(gzip.compress(b"url,n,text\n" + "".join(lines).encode()))
    return path


def parquet(folder: pathlib.Path) -> pathlib.Path:
    import pyarrow
    import pyarrow.parquet

    path = folder / "in.parquet"
    table = pyarrow.Table.from_pylist(ROWS)
    pyarrow.parquet.write_table(table, path, row_group_size=25)
    return path


def samples(folder: pathlib.Path) -> pathlib.Path:
    path = folder / "in.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for row in ROWS:
            member = folder / "member"
            member.write_text(str(row["text"]))
            tar.add(member, f"{row['n']:04d}.text")
    return path


def of_a_dataset(folder: pathlib.Path) -> pathlib.Path:
    made_of(frames(folder), folder / "between")
    return folder / "between"


def made_of(source: pathlib.Path, output: pathlib.Path, **options) -> str:
    options = {
        "num_shards": 3,
        "input": (str(source),),
        "output": str(output),
    } | options
    kind = AppendOptions if options.pop("appended", False) else ConvertOptions
    convert(**conversion_of(kind(**options))._asdict(), workers=1)
    return str(output)


def remove(folder: pathlib.Path, lines: list[str], *more: str) -> Result:
    (folder / "listed").write_text("\n".join(lines) + "\n")
    argv = ["remove", str(folder / "out"), "--records", str(folder / "listed"), *more]
    return CliRunner().invoke(cli, [*argv, "--workers=1"])


def place_of(opened: loader.Dataset, record: int) -> str:
    """Returns what `trace` shows as FILE@PLACE."""
    found = located(locate_record(opened, record), [opened])
    place = found["source_record"]
    if place is None:
        place = found["source_offset_bytes"]
    assert place is not None, found
    return f"{found['source_path']}@{place}"


SOURCES: list[Callable[[pathlib.Path], pathlib.Path]] = [
    *(frames, compressed_frames, json_lines, compressed_csv),
    *(parquet, samples, of_a_dataset),
]


class TestPlaces:
    @pytest.mark.one_in(3)
    @pytest.mark.parametrize(
        ("make", "group_size"), [(make, 1) for make in SOURCES] + [(frames, 8)]
    )
    def test_name_records_of_every_kind_of_source(self, tmp_path, make, group_size):
        output = made_of(make(tmp_path), tmp_path / "out", group_size=group_size)
        before = loader.open(output)
        records = list(before)
        gone = [0, 19, 20, 21, 37, 59]
        left = [n for n in range(60) if n not in gone]
        places = {n: place_of(before, n) for n in (*gone, *left[::7])}
        if make is of_a_dataset:
            assert places[0].startswith(f"{tmp_path}/in.tfrecord@")
        result = remove(tmp_path, [places[n] for n in gone], "--json")
        assert result.exit_code == 0, result.output
        opened = loader.open(output)
        assert list(opened) == [records[n] for n in left]
        # Every other record is found as before.
        for number in range(0, 54, 7):
            assert place_of(opened, number) == places[left[number]]
        result = remove(tmp_path, [places[left[7]], places[left[14]]])
        assert result.exit_code == 0, result.output
        del left[14], left[7]
        assert list(loader.open(output)) == [records[n] for n in left]

    def test_of_an_appended_edition(self, tmp_path):
        output = made_of(frames(tmp_path), tmp_path / "out")
        (tmp_path / "more.tfrecord").write_bytes(frames_of(RECORDS[:9]))
        made_of(tmp_path / "more.tfrecord", tmp_path / "out", appended=True)
        place = place_of(loader.open(output), 64)
        assert "more.tfrecord" in place
        assert remove(tmp_path, [place]).exit_code == 0
        assert list(loader.open(output)) == RECORDS + RECORDS[:4] + RECORDS[5:9]
        assert open_manifest(output).splits["train"].numbers == (1, 3)

    def test_lines_of_a_file(self, tmp_path):
        path = json_lines(tmp_path)
        output = made_of(path, tmp_path / "out")
        records = list(loader.open(output))
        assert remove(tmp_path, [f"{path}@line:3", f"{path}@line:60"]).exit_code == 0
        assert list(loader.open(output)) == records[:2] + records[3:59]


class TestNumbers:
    def test_are_those_of_the_split(self, tmp_path):
        output = made_of(frames(tmp_path), tmp_path / "out")
        result = remove(tmp_path, ["5", "", "59", "5"])
        assert result.exit_code == 0
        assert list(loader.open(output)) == RECORDS[:5] + RECORDS[6:59]
        assert "out/train: 2 records removed, 58 left, committed as edition 2" in (
            result.output
        )
        assert "2 shards again; 1 are shared with the edition before" in result.output
        assert "kept      the edition before; --erase deletes it" in result.output
        result = remove(tmp_path, ["59", "5"])
        assert "these records were removed before; 58 left" in result.output
        assert remove(tmp_path, ["5"], "--edition=1").exit_code != 0
        assert remove(tmp_path, ["5"], "--edition=2").exit_code == 0
        assert list(loader.open(output)) == RECORDS[:5] + RECORDS[7:59]

    def test_lines_that_name_nothing_are_listed(self, tmp_path):
        output = made_of(frames(tmp_path), tmp_path / "out")
        lines = ["60", f"{tmp_path}/in.tfrecord@1", "nowhere@7", "5"]
        result = remove(tmp_path, lines)
        assert result.exit_code == 2
        assert "3 lines name nothing that is in the split" in result.output
        assert "--allow-missing" in result.output
        assert len(loader.open(output)) == 60
        result = remove(tmp_path, lines, "--allow-missing")
        assert result.exit_code == 0
        assert "not found 3 lines:\n            60\n" in result.output
        assert list(loader.open(output)) == RECORDS[:5] + RECORDS[6:]
        result = remove(tmp_path, lines[:3], "--allow-missing")
        assert result.exit_code == 2
        assert "nothing was removed" in result.output

    @pytest.mark.parametrize(
        "line", ["-1", "a", "file@", "file@x", "@5", "1.5", "9" * 5000]
    )
    def test_lines_that_cannot_name_a_record_are_refused(self, tmp_path, line):
        made_of(frames(tmp_path), tmp_path / "out")
        result = remove(tmp_path, ["3", line])
        assert result.exit_code == 2
        assert "a line names no record" in result.output


class TestValues:
    @pytest.mark.parametrize("make", [frames, json_lines, parquet])
    def test_of_a_feature_name_records(self, tmp_path, make):
        output = made_of(make(tmp_path), tmp_path / "out")
        records = list(loader.open(output))
        result = remove(tmp_path, ["http://7/", "http://19/"], "--column", "url")
        assert result.exit_code == 0, result.output
        left = [n for n in range(60) if n % 20 not in (7, 19)]
        assert list(loader.open(output)) == [records[n] for n in left]
        again = remove(tmp_path, ["http://19/", "http://7/"], "--column", "url")
        assert "these records were removed before" in again.output
        result = remove(tmp_path, ["0", "58", "5000"], "--column=n", "--allow-missing")
        assert result.exit_code == 0, result.output
        assert list(loader.open(output)) == [
            records[n] for n in left if n not in (0, 58)
        ]


class TestErase:
    def test_says_what_it_cannot_reach(self, tmp_path):
        output = made_of(frames(tmp_path), tmp_path / "out")
        result = remove(tmp_path, ["5"], "--erase")
        assert "erased     the editions before, with their files" in result.output
        assert f"NOT erased the inputs: {tmp_path}/in.tfrecord" in result.output
        assert "snapshots and backups" in result.output
        assert open_manifest(output).splits["train"].replaced == ()
