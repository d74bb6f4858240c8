"""What an error says of a path that holds no dataset: what is there, what to do."""

from __future__ import annotations

import pytest

from gristmill.dataset.base.errors import NotADatasetError
from gristmill.dataset.metadata.manifest import open_manifest
from tests.support.other_formats import MAKERS
from tests.support.records import frames_of, write_array_records


def assert_says(path, *parts):
    with pytest.raises(NotADatasetError, match="not a committed dataset") as caught:
        open_manifest(str(path))
    for part in (f"where:    {path}", *parts):
        assert part in str(caught.value)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "raw").mkdir()
    return tmp_path / "raw"


def test_files(folder):
    path = folder / "in"
    for data, *parts in (
        (frames_of([b"a"]), "a file: TFRecord", "`gristmill convert`"),
        (MAKERS["Parquet"](), "a file: Parquet", "`gristmill convert`"),
        (b"\0" * 99, "got:      a file\n", "give a directory"),
        (b"", "got:      a file\n", "give a directory"),
    ):
        path.write_bytes(data)
        assert_says(path, *parts)
    write_array_records(path, [b"a"])
    assert_says(path, "a file: ArrayRecord", "`gristmill index`")


def test_a_typo_names_what_is_near(folder):
    (folder / "corpus-en").mkdir()
    typo = "there is no such directory", f"there is {folder}/corpus-en"
    assert_says(folder / "corpus_en", *typo)
    assert_says(folder / "corpus-em" / "web", *typo)
    (folder / "corpus-en").rmdir()
    assert_says(folder / "corpus_en", "check the path; `gristmill convert`")
