"""A Python loop writes a dataset: what it leaves, and where it goes on."""

from __future__ import annotations

import contextlib
import json
import pathlib
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from gristmill import loader
from gristmill.dataset import (
    FeatureSpec,
    InputError,
    JobChangedError,
    Writer,
    WriterOptions,
    commit_parts,
    encode_example,
    open_manifest,
    read_manifest,
)
from gristmill.dataset.arrayrecord.shard_writer import ShardWriter
from gristmill.dataset.base.errors import DataLossError, InvalidDatasetError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import read_table
from gristmill.dataset.metadata.shard_index import map_index
from gristmill.dataset.writer import writer as writer_module
from gristmill.loader.provenance.trace import locate
from gristmill.pipelines.commands.main import cli
from gristmill.pipelines.text.split_editions import manifest_text
from gristmill.pipelines.verify import verify
from tests.support.conversion import contents, convert, job_of
from tests.support.records import (
    AWKWARD_RECORDS,
    frames_of,
    text_records,
)

RECORDS = [*text_records(90), *AWKWARD_RECORDS]


def write(output: Any, records: list[bytes] = RECORDS, **options: Any) -> None:
    with Writer(output, **{"records_per_shard": 30, **options}) as writer:
        for record in records[writer.position_records :]:
            writer.write(record)


def run(*arguments: object) -> str:
    result = CliRunner().invoke(cli, [*map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def records_of(output: Any, split: str = "train") -> list[bytes]:
    dataset = loader.open(output, split)
    return dataset.read(range(len(dataset)))


def shards_of(output: pathlib.Path, split: str = "train") -> list[pathlib.Path]:
    """Returns the shards of a split that are there, in order."""
    return sorted(output.glob(f"data-{split}.array_record-*"))


class StoppedError(Exception):
    pass


def write_until(output: Any, stop: int, **options: Any) -> None:
    """Writes some records, and then fails."""
    with (
        contextlib.suppress(StoppedError),
        Writer(output, **{"records_per_shard": 30, **options}) as writer,
    ):
        for record in RECORDS[writer.position_records : stop]:
            writer.write(record)
        raise StoppedError


class TestWhatItLeaves:
    def test_the_shards_are_those_of_a_conversion(self, tmp_path: pathlib.Path) -> None:
        for number, at in enumerate(range(0, len(RECORDS), 30)):
            (tmp_path / f"in-{number}").write_bytes(frames_of(RECORDS[at : at + 30]))
        plan = ("match_shards", None)
        inputs = tmp_path / "in-*"
        convert(job_of(inputs, tmp_path / "converted", plan=plan, name="data"))
        write(tmp_path / "data")
        theirs, ours = contents(tmp_path / "converted"), contents(tmp_path / "data")
        shards, others = (
            sorted(name for name in files if name.startswith("data-"))
            for files in (ours, theirs)
        )
        assert len(shards) == len(others) == 4
        assert [ours[name] for name in shards] == [theirs[name] for name in others]
        split, other = (
            open_manifest(tmp_path / name).splits["train"]
            for name in ("data", "converted")
        )
        assert split.records_digest == other.records_digest
        assert split.writer_options == other.writer_options
        for shard, other_shard in zip(shards, others, strict=True):
            index, expected = (
                map_index(str(tmp_path / name / layout.index_path(path)))
                for name, path in (("data", shard), ("converted", other_shard))
            )
            assert (index.crc32cs == expected.crc32cs).all()
            report = index.report()
            assert (report.path, report.written) == (shard, expected.report().written)

    def test_shards_are_bounded_by_their_bytes(self, tmp_path: pathlib.Path) -> None:
        records = [bytes(10)] * 25 + [bytes(100)] + [bytes(10)] * 3
        write(tmp_path / "data", records, records_per_shard=None, shard_bytes=100)
        table = read_table(
            tmp_path / "data", open_manifest(tmp_path / "data").splits["train"]
        )
        assert table.records.tolist() == [10, 10, 5, 1, 3]
        assert records_of(tmp_path / "data") == records

    def test_of_no_records_there_is_an_empty_shard(
        self, tmp_path: pathlib.Path
    ) -> None:
        write(tmp_path / "data", [])
        assert open_manifest(tmp_path / "data").splits["train"].shards == 1
        assert not verify(str(tmp_path / "data"), workers=1).findings

    def test_features_are_described(self, tmp_path: pathlib.Path) -> None:
        rows = [{"text": f"text {i}", "ids": [i] * i} for i in range(4)]
        features = {
            "text": FeatureSpec(kind="bytes", dtype="bytes"),
            "ids": FeatureSpec(kind="int64", dtype="int64", shape=(None,)),
        }
        with Writer(tmp_path / "data", features=features) as writer:
            for row in rows:
                row["ids"] = np.array(row["ids"], np.int64)
                writer.write(encode_example(row))
        dataset = loader.open(tmp_path / "data")
        assert dataset.features == features
        batch = loader.ExampleDecoder.of(dataset)(dataset[0:4])
        assert batch["text"].tolist() == [f"text {i}".encode() for i in range(4)]
        assert batch["ids"].row_splits.tolist() == [0, 0, 1, 3, 6]

    def test_a_record_is_traced_to_the_writer(self, tmp_path: pathlib.Path) -> None:
        write(tmp_path / "data")
        dataset = loader.open(tmp_path / "data")
        batches = loader.global_batches(dataset, batch_size=1, shuffle="none")
        found = locate(batches, 64, 0)
        assert found.source_note == (
            "written by a Python program, with gristmill.dataset.Writer"
        )
        shown = manifest_text(open_manifest(tmp_path / "data"), "here")
        assert "source    gristmill.dataset.Writer\n" in shown + "\n"

    def test_a_record_is_traced_to_the_source_that_the_program_gives(
        self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        lines = [b'{"n": %d}\n' % n for n in range(100)]
        pathlib.Path("a.jsonl").write_bytes(b"".join(lines))
        offsets = [sum(map(len, lines[:n])) for n in range(100)]
        records = [line.strip() for line in lines]

        def part(number: int, stop: int) -> None:
            sources = {"other.parquet": "parquet", "a.jsonl": "jsonl"}
            options = {"sources": sources, "records_per_shard": 7, "resume": True}
            with Writer("data", part=number, parts=2, **options) as writer:
                for n in range(50 * number + writer.position_records, stop):
                    place = ("a.jsonl", offsets[n]) if n else ("other.parquet", 3)
                    writer.write(records[n], source=place)
                if stop % 50:
                    raise TimeoutError

        with pytest.raises(TimeoutError):
            part(0, 30)
        part(0, 50)
        part(1, 100)
        commit_parts("data")
        traced = ("--batch-size", "1", "--shuffle", "none", "--json")

        def place_of(dataset: str, record: int) -> dict[str, Any]:
            found = run("trace", dataset, *traced, "--step", record, "--row", 0)
            return json.loads(found)

        for dataset in ("data", "again"):
            assert place_of(dataset, 0)["source_path"] == "other.parquet"
            assert place_of(dataset, 0)["source_record"] == 3
            for record in (1, 28, 50, 99):
                found = place_of(dataset, record)
                assert found["source_path"] == "a.jsonl"
                assert found["source_offset_bytes"] == offsets[record]
                assert found["source_line"] == record + 1
            if dataset == "data":
                run("convert", "data", "again", "--num-shards", 2)
        pathlib.Path("gone").write_text("a.jsonl@line:8\nother.parquet@3\n")
        run("remove", "data", "--records", "gone")
        assert records_of("data") == [*records[1:7], *records[8:]]
        assert place_of("data", 7)["source_offset_bytes"] == offsets[9]
        assert verify("data").findings == ()

    @pytest.mark.parametrize(
        "source", [None, ("b.jsonl", 1), ("a.jsonl", -1), ("a.jsonl", "1"), "a.jsonl"]
    )
    def test_a_source_that_it_does_not_know_is_refused(
        self, tmp_path: pathlib.Path, source: Any
    ) -> None:
        with Writer(tmp_path / "data", sources={"a.jsonl": "jsonl"}) as writer:
            writer.write(b"1", source=("a.jsonl", 0))
            with pytest.raises(InputError, match="not the source of a record"):
                writer.write(b"2", source=source)
        assert records_of(tmp_path / "data") == [b"1"]
        with (
            pytest.raises(InputError, match="was given no sources"),
            Writer(tmp_path / "other") as writer,
        ):
            writer.write(b"1", source=("a.jsonl", 0))

    @pytest.mark.parametrize(
        "sources", [["a.jsonl"], {"a.jsonl": None}, {"": "jsonl"}, {}, "a.jsonl"]
    )
    def test_sources_without_their_formats_are_refused(
        self, tmp_path: pathlib.Path, sources: Any
    ) -> None:
        with pytest.raises(InputError, match="sources are not described"):
            Writer(tmp_path / "data", sources=sources)


class TestWhereItGoesOn:
    @pytest.mark.parametrize(
        "stops", [[0], [30, 30], [29, 59, 61], [100, 40, 100], [len(RECORDS)]]
    )
    def test_restarts_do_not_change_a_byte(
        self, stops: list[int], tmp_path: pathlib.Path
    ) -> None:
        write(tmp_path / "once" / "data")
        output, kept = tmp_path / "again" / "data", 0
        for stop in stops:
            write_until(output, stop, resume=True)
            kept = max(kept, stop // 30 * 30)
            with (
                contextlib.suppress(StoppedError),
                Writer(output, records_per_shard=30, resume=True) as writer,
            ):
                assert writer.position_records == kept
                raise StoppedError
        write(output, resume=True)
        assert contents(output) == contents(tmp_path / "once" / "data")

    def test_a_damaged_or_missing_shard_is_written_again(
        self, tmp_path: pathlib.Path
    ) -> None:
        write(tmp_path / "once" / "data")
        output = tmp_path / "data"
        damages = (
            lambda shard, index: shard.write_bytes(shard.read_bytes()[:-1]),
            lambda shard, index: index.write_bytes(index.read_bytes()[:-1]),
            lambda shard, index: shard.unlink(),
            lambda shard, index: index.unlink(),
        )
        for damage in damages:
            write_until(output, 100, resume=True)
            shard = shards_of(output)[1]
            damage(shard, output / layout.index_path(shard.name))
            with (
                contextlib.suppress(StoppedError),
                Writer(output, records_per_shard=30, resume=True) as writer,
            ):
                assert writer.position_records == 30
                # What follows is not kept: it may become another.
                assert len(shards_of(output)) == 1
                raise StoppedError
        write(output, resume=True)
        assert contents(output) == contents(tmp_path / "once" / "data")

    def test_what_is_committed_is_left(self, tmp_path: pathlib.Path) -> None:
        write(tmp_path / "data")
        before = contents(tmp_path / "data")
        write(tmp_path / "data", resume=True)
        assert contents(tmp_path / "data") == before
        with Writer(tmp_path / "data", records_per_shard=30, resume=True) as writer:
            assert writer.position_records == len(RECORDS)
            with pytest.raises(InputError, match="the split is committed"):
                writer.write(b"more")
        shards_of(tmp_path / "data")[1].unlink()
        with pytest.raises(DataLossError, match="not there any more"):
            write(tmp_path / "data", resume=True)
        write(tmp_path / "data", overwrite=True)
        assert records_of(tmp_path / "data") == RECORDS
        assert not before.keys() & contents(tmp_path / "data").keys() - {"dataset.json"}
        assert not verify(str(tmp_path / "data"), workers=1).findings

    def test_what_was_appended_stays(self, tmp_path: pathlib.Path) -> None:
        write(tmp_path / "data")
        (tmp_path / "in").write_bytes(frames_of(RECORDS[:7]))
        argv = ["append", str(tmp_path / "data"), str(tmp_path / "in")]
        assert CliRunner().invoke(cli, argv).exit_code == 0
        assert records_of(tmp_path / "data") == [*RECORDS, *RECORDS[:7]]
        with Writer(tmp_path / "data", records_per_shard=30, resume=True) as writer:
            assert writer.position_records == len(RECORDS)
        assert records_of(tmp_path / "data") == [*RECORDS, *RECORDS[:7]]
        write(tmp_path / "data", RECORDS[:9], overwrite=True)
        assert records_of(tmp_path / "data") == RECORDS[:9]
        assert len(shards_of(tmp_path / "data")) == 1
        assert not verify(str(tmp_path / "data"), workers=1).leftovers

    def test_another_version_of_a_codec_does_not_go_on(
        self, tmp_path: pathlib.Path
    ) -> None:
        other = WriterOptions(versions="gristmill:1,zstd-0.1")
        with pytest.raises(JobChangedError, match=r"other bytes(.|\n)*zstd-0\.1"):
            write(tmp_path / "data", writer=other)
        assert not (tmp_path / "data").exists()
        write_until(tmp_path / "data", 70)
        (job,) = (tmp_path / "data").rglob("*.job.json")
        described = json.loads(job.read_text())
        described["parts"]["writer"]["versions"] = other.versions
        job.write_text(json.dumps(described))
        with pytest.raises(JobChangedError, match=r"other bytes(.|\n)*zstd-0\.1"):
            write(tmp_path / "data", resume=True)
        write(tmp_path / "data", overwrite=True)
        assert records_of(tmp_path / "data") == RECORDS


class TestWhatItRefuses:
    def test_a_split_that_is_there(self, tmp_path: pathlib.Path) -> None:
        write(tmp_path / "data")
        before = contents(tmp_path / "data")
        with pytest.raises(JobChangedError, match="with the same options"):
            write(tmp_path / "data")
        with pytest.raises(JobChangedError, match="records_per_shard was 30, is 40"):
            write(tmp_path / "data", records_per_shard=40, resume=True)
        with pytest.raises(InputError, match="another name"):
            write(tmp_path / "data", name="other", split="test")
        assert contents(tmp_path / "data") == before

    def test_a_record_that_gets_lost_inside(
        self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Losing(ShardWriter):
            def write(self, records: Any, crc32cs: Any) -> None:
                super().write(records[1:], crc32cs[1:])

        # Records that are lost in memory.
        monkeypatch.setattr(writer_module, "ShardWriter", Losing)
        with pytest.raises(DataLossError, match=r"100 records(.|\n)*95"):
            write(tmp_path / "data")
        assert read_manifest(tmp_path / "data") is None

    @pytest.mark.parametrize("record", ["text", bytearray(b"x"), None, 3])
    def test_records_that_are_not_bytes(
        self, tmp_path: pathlib.Path, record: Any
    ) -> None:
        with Writer(tmp_path / "data") as writer:
            writer.write(b"before")
            with pytest.raises(InputError, match=r"record 1(.|\n)*encode_example"):
                writer.write(record)
            writer.write(b"after")
        assert records_of(tmp_path / "data") == [b"before", b"after"]

    def test_a_record_that_no_reader_takes(self, tmp_path: pathlib.Path) -> None:
        with Writer(tmp_path / "data") as writer:
            writer.write(bytes(10))
            with pytest.raises(InputError, match="too large"):
                # Pages that nobody looks at take no memory.
                writer.write(bytes((1 << 31) + 1))
        assert records_of(tmp_path / "data") == [bytes(10)]

    def test_writing_outside_of_with(self, tmp_path: pathlib.Path) -> None:
        writer = Writer(tmp_path / "data")
        with pytest.raises(InputError, match="has not begun"):
            writer.write(b"early")
        assert not (tmp_path / "data").exists()
        with writer:
            writer.write(b"in time")
        with pytest.raises(InputError, match="has ended"):
            writer.write(b"late")
        with pytest.raises(InputError, match="has ended"):
            writer.__enter__()

    def test_unfinished_work_with_other_options(self, tmp_path: pathlib.Path) -> None:
        write_until(tmp_path / "data", 70)
        with pytest.raises(JobChangedError, match="records_per_shard was 30, is 40"):
            write(tmp_path / "data", records_per_shard=40, resume=True)
        write(tmp_path / "data", records_per_shard=40)
        assert open_manifest(tmp_path / "data").splits["train"].shards == 3

    def test_a_description_that_is_damaged(self, tmp_path: pathlib.Path) -> None:
        write_until(tmp_path / "data", 70)
        (job,) = (tmp_path / "data").rglob("*.job.json")
        text = job.read_text()
        for damaged in (text.replace('"shard_bytes"', '"shards_bytes"'), text[:50]):
            job.write_text(damaged)
            for call in (commit_parts, write):
                with pytest.raises(InvalidDatasetError, match="cannot be read"):
                    call(tmp_path / "data")
        job.unlink()
        write(tmp_path / "data", resume=True)
        assert records_of(tmp_path / "data") == RECORDS
