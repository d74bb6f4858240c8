"""What names of files say, and what is joined where they say different things."""

from __future__ import annotations

import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.formats.file_formats import (
    JoinedFiles,
    check_joined,
    parse_file_name,
)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("c4/c4-train.tfrecord-00000-of-00010", ("c4", "train", 10)),
        ("gs://b/c4-validation.array_record-00000-of-00001", ("c4", "validation", 1)),
        ("a-b-c-train_1.tfrecords-0000000-of-1000000", ("a-b-c", "train_1", 1_000_000)),
        ("__local_x-test.tfrecord-00001-of-00002", ("__local_x", "test", 2)),
        ("train-00000-of-01024", (None, "train", None)),
        ("validation-00000-of-00128.tfrecord.gz", (None, "validation", None)),
        ("c4-train.00000-of-01024.gz", ("c4", "train", None)),
        ("out-00000-of-00004.arrayrecord", ("out", None, None)),
        ("val2017_3.tfrecord", (None, "val", None)),
        ("TEST_3.tfrecord", (None, "test", None)),
        ("dir/dev/part-1.tfrecord", (None, "dev", None)),
        ("dev/train-1.tfrecord", (None, "train", None)),
        ("train_test_split.tfrecord", (None, None, None)),
        ("pretrain/latest-trained-1.tfrecord", (None, None, None)),
        ("x", (None, None, None)),
        ("", (None, None, None)),
    ],
)
def test_names(path, expected):
    assert parse_file_name(path) == (*expected, "")


def test_names_with_the_id_of_a_write():
    write = "0123456789abcdef"
    name = f"c4/c4-train.array_record-{write}-00003-of-00010"
    assert parse_file_name(name) == ("c4", "train", 10, write)


def test_a_notice_names_what_is_joined():
    splits = [
        f"c4-{split}.tfrecord-0000{i}-of-00003" for i in range(3) for split in "ab"
    ]
    assert JoinedFiles.of([*splits, "c4-a.tfrecord-00000-of-00001"]).notice() == (
        "files of several splits are joined: a (4 files), b (3 files)"
    )
    datasets = ["c4-train.tfrecord-00000-of-00001", "x-train.tfrecord-00000-of-00001"]
    assert check_joined(["*"], datasets) == (
        "files of several datasets are joined: c4 (1 file), x (1 file)"
    )


def test_one_pattern_is_of_one_split_and_a_list_joins():
    paths = ["train-00000-of-00001", "test-00000-of-00001"]
    with pytest.raises(InputError, match="several splits") as caught:
        check_joined(["dir/*"], paths)
    for part in ("where:    dir/*", "train (1 file), test (1 file)", "a list with"):
        assert part in str(caught.value)
    assert "train (1 file), test (1 file)" in (
        check_joined(["tr*", "te*"], paths) or ""
    )
