"""Samples are found again in their tars, and never others in their place."""

from __future__ import annotations

import gzip

import pytest

from gristmill.dataset.base.errors import CorruptRecordError
from gristmill.dataset.formats.tar_samples import sample_at
from tests.support.tars import header_offsets, members_of, tar_of

TAR = tar_of([("README", b"text"), *members_of(8, ("cls", "jpg"))])
PLACES = [at for at, _ in header_offsets(TAR)][1::2]


def test_each_sample_is_found_at_its_place(tmp_path):
    path = tmp_path / "in.tar"
    path.write_bytes(TAR)
    (tmp_path / "in.tar.gz").write_bytes(gzip.compress(TAR))
    for number, place in enumerate(PLACES):
        key = b"d.e/%05d" % number
        assert sample_at(str(path), place) == key
        assert sample_at(f"{path}.gz", place, "gzip") == key
    assert sample_at(str(tmp_path / "gone"), 0) is None
    assert sample_at(str(path), len(TAR) - 512) is None
    path.write_bytes(TAR[: PLACES[3]] + b"x" + TAR[PLACES[3] + 1 :])
    with pytest.raises(CorruptRecordError):
        sample_at(str(path), PLACES[3])
