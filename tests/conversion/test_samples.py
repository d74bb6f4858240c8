"""Names of members and records of samples, as the package webdataset sees them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webdataset.tariterators import base_plus_ext

from gristmill.dataset.base.example import decode_example
from gristmill.dataset.formats.tar_members import split_name
from gristmill.dataset.formats.tar_samples import (
    ExampleMaker,
    SampleError,
    check_member,
)

NAMES = st.text("aB./_\nü", min_size=1, max_size=12)


@given(NAMES)
def test_names_are_split_as_webdataset_splits_them(name):
    key, extension = base_plus_ext(name)
    # The two rules of its `tar_file_iterator` for what it leaves out.
    outside = re.match(r"__[^/]*__($|/)", name) or (
        "/" not in name and name.startswith("__") and name.endswith("__")
    )
    split = split_name(name.encode())
    if key is None or outside:
        assert split == (None, "")
    else:
        assert split == (key.encode(), extension.lower())


MEMBERS = {"jpg": b"image", "seg.png": b"", "cls": b"7"}


def test_members_that_are_not_known_are_refused():
    make = ExampleMaker({"jpg", "cls", "seg.png", "txt"})
    assert decode_example(make(b"k", MEMBERS)).keys() == {"__key__", *MEMBERS}
    with pytest.raises(SampleError, match=r"members wav, .* had cls, jpg, seg.png"):
        make(b"k", {"wav": b"", **MEMBERS})


@pytest.mark.parametrize(
    ("extension", "refused", "message"),
    [
        ("jpg", None, "a second member 'jpg'"),
        ("__key__", None, "a second member '__key__'"),
        ("__url__", None, "a second member '__url__'"),
        ("\udcff", None, "is not UTF-8"),
        ("txt", "a symbolic link", "a member 'txt' that is a symbolic link"),
    ],
)
def test_members_that_cannot_join(extension, refused, message):
    with pytest.raises(SampleError, match=message):
        check_member(extension, MEMBERS, refused=refused)
