"""WebDataset tars through whole conversions, compared with the package webdataset."""

from __future__ import annotations

import gzip
import pathlib
from typing import Any

import pytest

from gristmill import loader
from gristmill.dataset import encode_example
from gristmill.dataset.base.errors import (
    CorruptInputError,
    CorruptRecordError,
    InputError,
)
from gristmill.dataset.base.example import decode_example
from gristmill.loader.provenance.trace import locate
from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.formats import RecordOptions, SourceSpec
from gristmill.transforms.sources.source import source_of
from tests.conversion.tars import (
    header_offsets,
    members_of,
    read_by_webdataset,
    tar_of,
)
from tests.support.conversion import convert, job_of, read_output, skipped_in


@pytest.mark.parametrize("shards", [1, 4])
def test_the_rest_of_a_compressed_tar_that_was_cut(tmp_path, shards):
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

    def test_a_tar_that_is_gone_or_another(self, tmp_path):
        path = tmp_path / "in.tar"
        path.write_bytes(tar_of(members_of(40)))
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


class TestWhatIsFound:
    @pytest.fixture
    def inputs(self, tmp_path) -> pathlib.Path:
        folder = tmp_path / "in"
        folder.mkdir()
        (folder / "1.tar").write_bytes(tar_of(members_of(3)))
        (folder / "2.tar").write_bytes(tar_of(members_of(3, ("jpg", "Txt"))))
        return folder

    def spec_of(self, inputs, **options: Any) -> SourceSpec:
        return find_inputs([f"{inputs}/*"], options=RecordOptions(**options)).spec

    def test_the_members_of_all_files(self, inputs):
        spec = self.spec_of(inputs)
        assert spec[:3] == ("webdataset", "example", ())
        features = source_of(spec).features()
        assert [*features] == ["__key__", "cls", "jpg", "json", "txt"]
        assert features["__key__"] == {"kind": "bytes", "dtype": "bytes", "shape": []}
        assert features["cls"]["optional"] is True

    def test_chosen_members_in_their_order(self, inputs):
        spec = self.spec_of(inputs, columns=("txt", "__key__"))
        assert [*source_of(spec).features()] == ["txt", "__key__"]
        convert(
            job_of(
                inputs,
                inputs.parent / "out",
                records=RecordOptions(columns=("txt", "__key__")),
            )
        )
        records = list(map(decode_example, read_output(inputs.parent / "out")))
        assert [[*record] for record in records[2:4]] == [
            ["__key__"],
            ["__key__", "txt"],
        ]

    def test_one_member_as_it_is(self, inputs):
        spec = self.spec_of(inputs, record="column:jpg")
        assert source_of(spec).features() is None
        out = inputs.parent / "out"
        convert(job_of(inputs, out, records=RecordOptions(record="column:jpg")))
        expected = [
            sample["jpg"]
            for name in ("1.tar", "2.tar")
            for sample in read_by_webdataset((inputs / name).read_bytes())
        ]
        assert read_output(out) == expected

    def test_tars_without_samples(self, tmp_path):
        (tmp_path / "in.tar").write_bytes(tar_of([("README", b"text")]))
        with pytest.raises(InputError, match="no samples of a WebDataset") as caught:
            find_inputs([str(tmp_path / "in.tar")])
        assert "tar -xf" in str(caught.value)

    def test_a_member_that_was_not_looked_at(self, tmp_path):
        members = members_of(700, ("cls",), sizes=[1])
        members[600:600] = [("late.png", b"image")]
        data = tar_of(members)
        (tmp_path / "in.tar").write_bytes(data)
        at = header_offsets(data)[600][0]
        with pytest.raises(
            CorruptRecordError, match="cannot become a record"
        ) as caught:
            convert(job_of(tmp_path / "in.tar", tmp_path / "out"))
        assert f"byte offset {at:,}, sample 'late'" in str(caught.value)
        assert "members png, where the samples looked at had cls" in str(caught.value)
        convert(
            job_of(
                tmp_path / "in.tar",
                tmp_path / "kept",
                on_corrupt="skip",
            )
        )
        assert len(read_output(tmp_path / "kept")) == 700
        (region,) = skipped_in(tmp_path / "kept")
        assert (region["reason"], region["begin_bytes"]) == ("sample", at)
        assert region["end_bytes"] == header_offsets(data)[601][0]


def test_damage_of_all_samples_is_named_where_no_members_are_found(tmp_path):
    (tmp_path / "in.tar").write_bytes(tar_of([("1.JPG", b"x"), ("1.jpg", b"y")]))
    with pytest.raises(CorruptRecordError, match="cannot become a record") as caught:
        find_inputs([f"{tmp_path}/in.tar"])
    assert "a second member 'jpg'" in str(caught.value.got)
