"""A packing with the fast path of a tokenizer: the same rows, or an error."""

import pytest

from gristmill import dataset
from gristmill.dataset import FastTokenizerDiffersError
from gristmill.transforms import PackOptions
from tests.rows.tokenizer_files import tokenizer_json
from tests.support.conversion import contents, convert, job_of
from tests.support.records import frames_of


def pack(folder, name, numbers, **options):
    """Packs forty documents, some of which hold a number, and returns the files.

    The tokenizer makes a token of each digit: the fast path does not.
    """
    (folder / "tokenizer.json").write_bytes(tokenizer_json(digits=True))
    texts = [("of 1984" if n in numbers else "and words") for n in range(40)]
    records = [dataset.encode_example({"text": f"document {t} " * 3}) for t in texts]
    (folder / "in").write_bytes(frames_of(records))
    tokenizer = str(folder / "tokenizer.json")
    options = PackOptions(length=32, column="text", tokenizer=tokenizer, **options)
    plan = ("num_shards", 4)
    convert(job_of(folder / "in", folder / name, plan=plan, pack=options))
    return contents(folder / name)


def test_rows_are_those_of_the_tokenizer(tmp_path):
    plain, fast = pack(tmp_path, "plain", ()), pack(tmp_path, "fast", (), fast=True)
    shards = [name for name in plain if name.startswith("data-train.array_record-")]
    assert len(shards) == 4
    assert [fast[name] for name in shards] == [plain[name] for name in shards]


@pytest.mark.parametrize("numbers", [(0,), (12, 13), (39,)])
def test_other_tokens_are_an_error_that_names_the_document(tmp_path, numbers):
    with pytest.raises(FastTokenizerDiffersError) as caught:
        pack(tmp_path, "rows", numbers, fast=True)
    assert caught.value.cure == "leave out --fast"
    assert f"{tmp_path}/in" in caught.value.where
    assert not (tmp_path / "rows" / "dataset.json").exists()
