"""Options of packing: what is refused, and how they are kept."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.jobs.pack_options import PackOptions, TokenizerSpec

SPEC = TokenizerSpec(
    kind="huggingface",
    digest="sha256:00",
    library="tokenizers 0.23.3",
    vocabulary_size=50_257,
    eos_id=2,
    special_ids={"</s>": 2},
)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"length": 1}, "`length` is out of range"),
        ({"length": (1 << 24) + 1}, "`length` is out of range"),
        ({"method": "first-fit"}, "unknown `method`"),
        ({"rows": "json"}, "unknown `rows`"),
        ({"fast": True}, "`fast` has no effect without `tokenizer`"),
        ({"tokenizer": "t.json", "vocabulary_size": 9}, "`vocabulary_size` has no"),
        ({"add_special_tokens": True}, "`add_special_tokens` has no effect"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PackOptions(**{"length": 2048, **fields})


@pytest.mark.parametrize("found", [None, SPEC], ids=["asked", "found"])
def test_json_gives_them_back(found: TokenizerSpec | None) -> None:
    options = PackOptions(length=2048, tokenizer="t.json", eos="</s>", found=found)
    text = json.dumps(dataclasses.asdict(options))
    assert PackOptions.of_dict(json.loads(text)) == options


@pytest.mark.parametrize(
    ("vocabulary_size", "id_bytes"),
    [(1, 2), (65_536, 2), (65_537, 3), (1 << 24, 3), ((1 << 24) + 1, 4)],
)
def test_bytes_of_a_token(vocabulary_size: int, id_bytes: int) -> None:
    spec = dataclasses.replace(SPEC, vocabulary_size=vocabulary_size)
    assert spec.id_bytes == id_bytes
