"""Samples are found again in their tars, and never others in their place."""

from __future__ import annotations

import gzip
import pathlib

import pytest

from gristmill.dataset import encode_example
from gristmill.dataset.formats.tar.find_sample import FoundSample, find_sample
from tests.support.tars import header_offsets, members_of, tar_of

MEMBERS = members_of(8, ("cls", "jpg"))
TAR = tar_of([("README", b"text"), *MEMBERS])
PLACES = [at for at, _ in header_offsets(TAR)][1::2]


@pytest.fixture
def path(tmp_path) -> pathlib.Path:
    (tmp_path / "in.tar").write_bytes(TAR)
    (tmp_path / "in.tar.gz").write_bytes(gzip.compress(TAR))
    return tmp_path / "in.tar"


def test_each_sample_from_each_start(path):
    for begin in (0, 3, 7):
        start = PLACES[begin] if begin else 0
        for number in range(8 - begin):
            sample = find_sample(str(path), start, number)
            key = b"d.e/%05d" % (begin + number)
            assert sample[:2] == (key, PLACES[begin + number])
            assert sample.members["jpg"] == MEMBERS[2 * (begin + number) + 1][1]
            packed = find_sample(f"{path}.gz", start, number, compression="gzip")
            assert packed == sample


def test_what_was_set_aside_is_passed_over(path):
    data = bytearray(TAR)
    data[PLACES[2] + 3] ^= 1
    path.write_bytes(data)
    assert find_sample(str(path), 0, 3) is None
    region = PLACES[1], PLACES[3]
    assert find_sample(str(path), 0, 3, regions=[region]).key == b"d.e/00005"
    # As good as it is now: what was set aside is not among the records.
    path.write_bytes(TAR)
    assert find_sample(str(path), 0, 3, regions=[region]).key == b"d.e/00005"


def test_a_record_is_of_its_sample_alone():
    sample = FoundSample(b"k", 0, {"jpg": b"image", "cls": b"1"})
    for record in (
        b"image",
        b"1",
        b"k",
        encode_example({"__key__": b"k", "jpg": b"image", "cls": b"1"}),
        encode_example({"cls": b"1"}),
    ):
        assert sample.gave(record)
    for record in (
        b"other",
        encode_example({"__key__": b"l", "jpg": b"image", "cls": b"1"}),
        encode_example({"cls": b"2"}),
        encode_example({"txt": b""}),
    ):
        assert not sample.gave(record)
