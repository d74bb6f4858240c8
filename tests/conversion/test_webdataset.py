"""WebDataset tars through whole conversions, compared with the package webdataset."""

from __future__ import annotations

import gzip
import pathlib
import shutil

import pytest

from gristmill import loader
from gristmill.dataset import encode_example
from gristmill.dataset.base.errors import (
    CorruptInputError,
    UserFunctionError,
)
from gristmill.dataset.base.example import decode_example
from gristmill.dataset.metadata.manifest import open_manifest, read_table
from gristmill.loader.provenance.locate import locate
from gristmill.pipelines.verify import verify
from tests.support.conversion import convert, job_of, read_output, skipped_in
from tests.support.tars import (
    header_offsets,
    members_of,
    read_by_webdataset,
    tar_of,
)
from tests.support.ways_to_convert import (
    check_beam,
    check_kills,
    check_workers,
)

SAMPLES = (40, 1, 90, 0, 25)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """Tars of all kinds; one was written by the package webdataset."""
    import webdataset

    folder = tmp_path_factory.mktemp("tars") / "in"
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
    return folder


@pytest.fixture(scope="module")
def expected(folder) -> list[bytes]:
    return [
        encode_example(sample)
        for path in sorted(folder.iterdir())
        for sample in read_by_webdataset(path.read_bytes())
    ]


PLANS = [
    (("num_shards", 7), 7),
    (("shard_bytes", 60_000), None),
    (("match_shards", None), 5),
]


@pytest.mark.parametrize(("plan", "shards"), PLANS)
def test_every_plan_keeps_every_sample(folder, expected, tmp_path, plan, shards):
    convert(job_of(folder, tmp_path / "out", plan=plan))
    assert read_output(tmp_path / "out") == expected
    split = open_manifest(str(tmp_path / "out")).splits["train"]
    counts = read_table(str(tmp_path / "out"), split).columns["records"].tolist()
    assert shards is None or len(counts) == shards
    if plan[0] == "match_shards":
        assert tuple(counts) == SAMPLES
    assert not verify(str(tmp_path / "out")).findings


def with_key(record: bytes) -> bytes:
    """A function for --map that fails at one sample."""
    key = decode_example(record)["__key__"][0]
    if key == b"d.e/00030":
        raise ValueError("not this one")
    return key


def test_a_function_gets_examples_and_its_error_names_the_place(folder, tmp_path):
    shutil.copy(folder / "4.tar", tmp_path / "in.tar")
    job = job_of(tmp_path / "in.tar", tmp_path / "out", map=f"{__name__}:with_key")
    convert(job)
    assert read_output(tmp_path / "out") == [b"d.e/%05d" % n for n in range(25)]
    shutil.copy(folder / "0.tar", tmp_path / "in.tar")
    at = header_offsets((folder / "0.tar").read_bytes())[90][0]
    with pytest.raises(UserFunctionError) as caught:
        convert(
            job_of(tmp_path / "in.tar", tmp_path / "other", map=f"{__name__}:with_key")
        )
    assert f"in.tar, byte offset {at:,}" in str(caught.value)


class TestDamage:
    @pytest.fixture
    def damaged(self, folder, tmp_path) -> pathlib.Path:
        """A header of sample 20 of file 0 is damaged, file 4 ends in its sample 24."""
        copy = tmp_path / "in"
        shutil.copytree(folder, copy)
        shutil.copy(copy / "0.tar", tmp_path / "whole.tar")
        data = bytearray((copy / "0.tar").read_bytes())
        data[header_offsets(bytes(data))[61][0] + 265] ^= 1
        (copy / "0.tar").write_bytes(data)
        data = (copy / "4.tar").read_bytes()
        (copy / "4.tar").write_bytes(data[: header_offsets(data)[-1][0] + 100])
        return copy

    @pytest.mark.parametrize(("plan", "shards"), PLANS)
    def test_a_tar_ends_there_and_others_are_kept(
        self, damaged, expected, tmp_path, plan, shards
    ):
        convert(job_of(damaged, tmp_path / "out", on_corrupt="skip", plan=plan))
        kept = [*expected[:20], *expected[40:-1]]
        assert read_output(tmp_path / "out") == kept
        found = skipped_in(tmp_path / "out")
        assert [region["reason"] for region in found] == ["header", "truncated"]
        assert "sample 'd.e/00020'" in found[0]["detail"]
        assert "sample 'd.e/00024'" in found[1]["detail"]
        for region in found:
            size = pathlib.Path(region["file"]).stat().st_size
            assert region["begin_bytes"] < region["end_bytes"] == size
        assert not verify(str(tmp_path / "out")).findings

    @pytest.mark.parametrize("plan", [("num_shards", 7), ("match_shards", None)])
    def test_it_is_an_error_that_names_the_sample(self, damaged, tmp_path, plan):
        with pytest.raises(CorruptInputError) as caught:
            convert(job_of(damaged, tmp_path / "out", plan=plan))
        whole = (damaged.parent / "whole.tar").read_bytes()
        at = header_offsets(whole)[60][0]
        where = f"{damaged}/0.tar, byte offset {at:,}, sample 'd.e/00020'"
        assert caught.value.where == where
        assert not (tmp_path / "out" / "dataset.json").exists()

    @pytest.mark.parametrize("shards", [1, 4])
    def test_the_rest_of_a_compressed_tar_that_was_cut(self, tmp_path, shards):
        data = tar_of(members_of(60, seed=5))
        packed = gzip.compress(data)
        path = tmp_path / "in.tar.gz"
        path.write_bytes(packed[: len(packed) * 2 // 3])
        options = {"on_corrupt": "skip", "plan": ("num_shards", shards)}
        convert(job_of(path, tmp_path / "out", **options))
        whole = list(map(encode_example, read_by_webdataset(data)))
        records = read_output(tmp_path / "out")
        assert 30 < len(records) < 50
        assert records == whole[: len(records)]
        (region,) = skipped_in(tmp_path / "out")
        assert (region["reason"], region["compressed"]) == ("compressed", True)
        assert region["begin_bytes"] < region["end_bytes"] == path.stat().st_size
        with pytest.raises(CorruptInputError, match="compressed file is damaged"):
            convert(job_of(path, tmp_path / "other"))


@pytest.mark.slow
def test_workers_change_nothing(folder, tmp_path):
    check_workers(folder, tmp_path, num_shards=5)


@pytest.mark.slow
def test_a_killed_conversion_is_finished_by_the_next(folder, expected, tmp_path):
    check_kills(folder, tmp_path, expected)


@pytest.mark.slow
def test_beam_gives_the_same_bytes(folder, tmp_path):
    check_beam(folder, tmp_path, num_shards=5)


class TestTrace:
    @pytest.mark.parametrize("pack", [bytes, gzip.compress])
    def test_every_record_to_its_sample_and_byte(self, tmp_path, pack):
        data = tar_of(members_of(30), format="pax", mtime=1.5)
        damaged = bytearray(data)
        first = [at for at, info in header_offsets(data) if info.name.endswith("cls")]
        damaged[first[12] - 700] ^= 1  # In the header before that of its name.
        path = tmp_path / "in.tar"
        path.write_bytes(pack(bytes(damaged)))
        plan = ("num_shards", 4)
        convert(job_of(path, tmp_path / "out", on_corrupt="skip", plan=plan))
        dataset = loader.open(tmp_path / "out")
        batches = loader.global_batches(dataset, batch_size=1, shuffle="none")
        for record in range(len(dataset)):
            found = locate(batches, record, 0)
            (stored,) = dataset.read([record])
            key = decode_example(stored)["__key__"][0].decode()
            assert found.source_sample == key
            number = int(key.rpartition("/")[2])
            # Its first header is that of its times, two blocks before.
            assert found.source_offset_bytes == first[number] - 1024
            assert found.source_note is None
        assert len(dataset) == 11

    def test_a_tar_that_is_gone_or_another(self, folder, tmp_path):
        path = tmp_path / "in.tar"
        shutil.copy(folder / "0.tar", path)
        convert(job_of(path, tmp_path / "out"))
        dataset = loader.open(tmp_path / "out")
        batches = loader.global_batches(dataset, batch_size=1, shuffle="none")
        assert locate(batches, 3, 0).source_sample == "d.e/00003"
        path.write_bytes(tar_of(members_of(40, seed=1)))
        for _ in range(2):
            found = locate(batches, 3, 0)
            assert found.source_sample is None
            assert found.source_offset_bytes is not None
            assert "is not as it was" in found.source_note
            path.unlink(missing_ok=True)
