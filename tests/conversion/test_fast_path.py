"""A fast path that differs from the tokenizer is refused."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from gristmill import dataset
from gristmill.dataset.base.errors import FastTokenizerDiffersError, NotADatasetError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import open_manifest, read_table
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.convert import convert
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.job_options import PackingOptions
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


def test_rows_are_those_of_the_tokenizer(tmp_path, tokenizer):
    source = written(tmp_path, NOWHERE)
    pack(source, str(tmp_path / "plain"), tokenizer)
    pack(source, str(tmp_path / "fast"), tokenizer, fast=True)
    assert shards_of(str(tmp_path / "fast")) == shards_of(str(tmp_path / "plain"))


@pytest.mark.parametrize("numbers", [AT_BEGIN, IN_SECOND, LATE])
def test_other_tokens_are_an_error_that_names_the_document(
    tmp_path, tokenizer, numbers
):
    source, output = written(tmp_path, numbers), str(tmp_path / "rows")
    with pytest.raises(FastTokenizerDiffersError) as caught:
        pack(source, output, tokenizer, fast=True)
    assert caught.value.cure == "leave out --fast"
    assert source in caught.value.where
    with pytest.raises(NotADatasetError):
        open_manifest(output)
