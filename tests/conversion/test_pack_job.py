"""What a packing takes of its tokenizer: bytes of a token, and the fast path."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import pytest

from gristmill import dataset
from gristmill.dataset.base.errors import FastTokenizerDiffersError, NotADatasetError
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.pipelines.convert import convert
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.job_options import PackingOptions
from gristmill.transforms.jobs.pack_options import PackOptions, TokenizerSpec
from tests.rows.tokenizer_files import tokenizer_json
from tests.support.conversion import contents
from tests.support.records import frames_of

SHARDS, DOCUMENTS = 4, 40
# In the documents of each of four shards, where there is a number with several digits.
NOWHERE, AT_BEGIN, IN_SECOND, LATE = (), (0,), (12, 13), (39,)


def pack(folder: pathlib.Path, name: str, numbers: tuple[int, ...], **options) -> str:
    """Packs with a tokenizer that makes a token of each digit: the fast path does not.

    Args:
        folder: Where.
        name: Of the output, in it.
        numbers: Documents that hold a number.
        **options: More options of the job.
    """
    (folder / "tokenizer.json").write_bytes(tokenizer_json(digits=True))
    records = [
        dataset.encode_example(
            {"text": f"document {'of 1984' if number in numbers else 'and words'} " * 3}
        )
        for number in range(DOCUMENTS)
    ]
    (folder / "in.tfrecord").write_bytes(frames_of(records))
    said = PackingOptions(
        input=(str(folder / "in.tfrecord"),),
        output=str(folder / name),
        name="data",
        tokenizer=str(folder / "tokenizer.json"),
        length=32,
        num_shards=SHARDS,
        **options,
    )
    convert(**conversion_of(said)._asdict(), workers=1)
    return str(folder / name)


def test_rows_are_those_of_the_tokenizer(tmp_path):
    plain = contents(pack(tmp_path, "plain", NOWHERE))
    fast = contents(pack(tmp_path, "fast", NOWHERE, fast=True))
    shards = [name for name in plain if name.startswith("data-train.array_record-")]
    assert len(shards) == SHARDS
    assert [fast[name] for name in shards] == [plain[name] for name in shards]


@pytest.mark.parametrize("numbers", [AT_BEGIN, IN_SECOND, LATE])
def test_other_tokens_are_an_error_that_names_the_document(tmp_path, numbers):
    with pytest.raises(FastTokenizerDiffersError) as caught:
        pack(tmp_path, "rows", numbers, fast=True)
    assert caught.value.cure == "leave out --fast"
    assert f"{tmp_path}/in.tfrecord" in caught.value.where
    with pytest.raises(NotADatasetError):
        open_manifest(str(tmp_path / "rows"))


@pytest.mark.parametrize(
    ("vocabulary_size", "id_bytes"),
    [(1, 2), (65_536, 2), (65_537, 3), (1 << 24, 3), ((1 << 24) + 1, 4)],
)
def test_bytes_of_a_token(vocabulary_size, id_bytes):
    spec = TokenizerSpec(
        kind="huggingface",
        digest="sha256:00",
        library="tokenizers 0.23.3",
        vocabulary_size=vocabulary_size,
        eos_id=2,
        special_ids={"</s>": 2},
    )
    assert spec.id_bytes == id_bytes
    found = PackOptions(length=2048, tokenizer="t.json", eos="</s>", found=spec)
    text = json.dumps(dataclasses.asdict(found))
    assert PackOptions.of_dict(json.loads(text)) == found
