"""What is said of the tokenizer of packed rows."""

from __future__ import annotations

import types
from typing import Any

import pytest

from gristmill.pipelines.text.split_description import tokenizer_digest, tokenizer_text


@pytest.mark.parametrize(
    ("found", "digest", "text"),
    [
        (None, None, "not known"),
        ({"kind": "ids", "digest": ""}, None, "none: the documents were tokens"),
        ({"kind": "json", "digest": "sha256:ab"}, "sha256:ab", "json, sha256:ab"),
        ({"kind": "f", "vocabulary_size": 1000, "digest": None}, None, "f, 1,000 ids"),
    ],
)
def test_the_digest_is_that_of_a_file(found: Any, digest: str | None, text: str):
    split: Any = types.SimpleNamespace(source={"options": {"pack": {"found": found}}})
    assert tokenizer_digest(split) == digest
    assert tokenizer_text(split) == text
    split.source = None
    assert tokenizer_digest(split) is None
