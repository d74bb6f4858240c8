"""Names of files: one kind each, as TFDS builds them, never outside of the dataset."""

import pathlib
import re

import pytest

from gristmill.dataset import InputError, InvalidDatasetError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.layout import KINDS
from gristmill.dataset.storage.base import is_unfinished
from gristmill.transforms import ShardNames
from gristmill.transforms.conversion.begin import begin_job
from tests.support.columns import attach_numbers, examples
from tests.support.conversion import contents, job_of
from tests.support.distributions import ROOT
from tests.support.records import frames_of, text_records
from tests.support.removals import remove_from

WRITE = "0123456789abcdef"
PARTS = {
    **{"NAME": "c4-en", "SPLIT": "train-a", "WRITE": WRITE, "COLUMN": "score"},
    "SHARD": f"c4-en-train-a.array_record-{WRITE}-00003-of-00064",
    **{"LIST": "part-00001-of-00004", "KEY": WRITE},
}


def test_the_page_has_the_same_table():
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (ROOT / "docs/reference/format.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    expected = [[f"`{kind.pattern}`", kind.what, kind.holds] for kind in KINDS]
    first = rows.index(expected[0])
    assert rows[first : first + len(KINDS)] == expected


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.pattern)
def test_a_path_is_of_one_kind(kind):
    path = kind.path(**PARTS)
    found = kind.parse(path, NAME=PARTS["NAME"])
    assert found is not None
    assert found.items() <= PARTS.items()
    assert kind.path(**found) == path
    if "SPLIT" in found:
        for name, split in (("c4-en", "train"), ("c4-en", "a"), ("en", "train-a")):
            assert kind.parse(path, NAME=name, SPLIT=split) is None
    others = {one for one in KINDS if one is not kind and one.parse(path)}
    # Any name can be that of a shard which was indexed.
    assert others <= {layout.SHARD}
    assert path.startswith(kind.prefix(**PARTS))
    assert path.endswith(kind.suffix)
    # What holds records is found where it is left.
    swept = {*layout.OF_SHARDS, layout.TEMPORARY, layout.UNFINISHED}
    assert kind in swept or not kind.holds
    assert is_unfinished(path) == (kind is layout.UNFINISHED)


def test_nothing_else_is_written(tmp_path):
    output = examples(tmp_path, [3, 4])
    attach_numbers(output, tmp_path, 7)
    remove_from(output, [2])
    for file in pathlib.Path(output).rglob("*"):
        path = file.relative_to(output).as_posix()
        found = [kind for kind in KINDS if kind.parse(path, NAME="d", SPLIT="train")]
        assert found or path in layout.DIRECTORIES, path


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (
            layout.check_name,
            "c4 C4 c4-en a_b v1.2 a+b 1 _x",
            "-c4 c4- c4--en .c4 a/b ä .. a*b a[b] $HOME",
        ),
        (layout.check_split, "train test_2 T en-train", "- a.b train- a/b train[:10%]"),
        (
            lambda key: layout.write_key(*layout.parse_write_key(key)),
            f"train train.{WRITE}",
            f".{WRITE} train. train.0123 train.0123456789ABCDEF train.{WRITE}.{WRITE} "
            f"train.{WRITE}0 train.e00002",
        ),
        (
            lambda path: layout.check_relative(path, where="x"),
            "a a/b c4-train.array_record-00000-of-00001 a[1]/..b ä",
            "/ /a .. ../a a/.. a/../b . ./a a//b a/ a\\b gs://b/c file:///etc C:\\x",
        ),
    ],
    ids=["names", "splits", "keys", "paths"],
)
def test_names_that_are_refused(check, good, bad):
    assert " ".join(map(check, good.split())) == good
    for name in ["", "a\0b", *bad.split()]:
        message = r"`name`|`split`|split name|outside"
        with pytest.raises((InputError, InvalidDatasetError), match=message):
            check(name)
    for name in ("a b", "a\n"):
        if "/" not in good:
            with pytest.raises((InputError, InvalidDatasetError), match=message):
                check(name)


@pytest.mark.parametrize(
    ("file", "names", "refused"),
    [
        ("a\\b", ShardNames(kind="inputs", suffix=".ar"), "a\\b.ar"),
        ("a\\b", ShardNames(kind="inputs", suffix="/ar"), "a\\b/ar"),
        ("a\\b", ShardNames(kind="beam", prefix="a\\b"), "a\\b-00000-of-00001"),
        *(
            (name, ShardNames(kind="inputs"), name)
            for name in ("dataset.json", "index", "errors")
        ),
    ],
)
def test_a_shard_that_no_reader_would_open_or_that_is_another_file(
    tmp_path, file, names, refused
):
    (tmp_path / file).write_bytes(frames_of(text_records(4)))
    pattern = f"{tmp_path}/{file.replace(chr(92), '?')}"
    job = job_of(pattern, tmp_path / "out", names=names, plan=("match_shards", None))
    with pytest.raises(InputError, match=re.escape(repr(refused))):
        begin_job(job)
    assert not (tmp_path / "out").exists() or contents(tmp_path / "out") == {}
