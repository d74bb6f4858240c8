"""A fast path that differs from the tokenizer: shards are made again without it."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from click.testing import CliRunner

from gristmill import dataset
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import read_table
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.commands.main import cli
from gristmill.pipelines.convert import convert
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.packing import PackingOptions
from gristmill.pipelines.text.split_description import packed_lines, packed_split
from tests.support.records import frames_of
from tests.support.tokenizer_files import tokenizer_json

SHARDS, DOCUMENTS = 4, 40
# In the documents of each of four shards, where there is a number with several digits.
NOWHERE, AT_BEGIN, IN_SECOND, LATE = (), (0,), (12, 13), (39,)


@pytest.fixture
def tokenizer(tmp_path: pathlib.Path) -> pathlib.Path:
    """A tokenizer that makes a token of each digit, which the fast path does not do."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tokenizer_json(digits=True))
    return path


def written(folder: pathlib.Path, numbers: tuple[int, ...]) -> str:
    texts = [
        f"document {'of the year 1984' if number in numbers else 'and words'} " * 3
        for number in range(DOCUMENTS)
    ]
    records = [dataset.encode_example({"text": text}) for text in texts]
    path = folder / "in.tfrecord"
    path.write_bytes(frames_of(records))
    return str(path)


def pack(source: str, output: str, tokenizer: Any, *, workers: int = 1, **more: Any):
    options = PackingOptions(
        input=(source,),
        output=output,
        tokenizer=str(tokenizer),
        length=32,
        num_shards=SHARDS,
        **more,
    )
    return convert(**conversion_of(options)._asdict(), workers=workers)


def shards_of(output: str) -> list[bytes]:
    (split,) = open_manifest(output).splits.values()
    storage = storage_for(output)
    found = [f"{output}/{path}" for path in read_table(output, split).paths]
    assert len(found) == SHARDS
    base = layout.base_name(output)
    return [storage.read(path).replace(base.encode(), b"OUT") for path in sorted(found)]


def counts_of(output: str) -> dict[str, Any]:
    packed = open_manifest(output).splits["train"].packed
    assert packed is not None
    return dict(packed)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("numbers", "again"), [(NOWHERE, 0), (AT_BEGIN, 1), (IN_SECOND, 1), (LATE, 1)]
)
def test_shards_that_differ_are_made_again(tmp_path, tokenizer, numbers, again):
    source = written(tmp_path, numbers)
    pack(source, str(tmp_path / "plain"), tokenizer)
    pack(source, str(tmp_path / "fast"), tokenizer, fast=True)
    fast = str(tmp_path / "fast")
    assert shards_of(fast) == shards_of(str(tmp_path / "plain"))
    assert counts_of(fast)["reference_shards"] == again
    assert counts_of(str(tmp_path / "plain"))["reference_shards"] == 0
    split = packed_split(open_manifest(fast).splits["train"], fast)
    assert split is not None
    assert ("--fast" in dict(packed_lines(split))) == bool(again)
    assert CliRunner().invoke(cli, ["verify", fast]).exit_code == 0
    assert not [*(tmp_path / "fast" / "index").glob(".*")]  # The note is gone.


@pytest.mark.slow
def test_workers_beside_each_other(tmp_path, tokenizer):
    """Each compares until it knows: whoever finds out, the tokens are the same."""
    source = written(tmp_path, tuple(range(DOCUMENTS)))
    pack(source, str(tmp_path / "plain"), tokenizer)
    pack(source, str(tmp_path / "fast"), tokenizer, fast=True, workers=2)
    fast = str(tmp_path / "fast")
    assert shards_of(fast) == shards_of(str(tmp_path / "plain"))
    assert 1 <= counts_of(fast)["reference_shards"] <= 2
