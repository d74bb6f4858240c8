"""What MaxText's settings name."""

import json

import pytest

from gristmill import loader
from gristmill.dataset import InputError
from gristmill.loader.maxtext.settings import (
    Options,
    Side,
    Sources,
    are_packed,
    batches_of,
    open_sources,
)
from tests.trainers.maxtext.maxtext import RECORDS, config_of, files_of


def opened(files, *, name="train", **settings) -> Sources:
    config = config_of(**{f"grain_{name}_files": files}, **settings)
    return open_sources(Side(config, name), Options())


def lengths(sources: Sources) -> list[int]:
    return [len(part.dataset) for part in sources]


def names(sources: Sources) -> list[str]:
    return [part.name for part in sources]


def test_a_directory_has_splits_and_a_pattern_files(records):
    assert lengths(opened(records)) == [RECORDS]
    assert lengths(opened(records, train_split="validation")) == [9]
    assert lengths(opened(records, name="eval")) == [9]
    assert lengths(opened(files_of(records, "train"))) == [RECORDS]
    assert lengths(opened(files_of(records, "validation"))) == [9]
    assert lengths(opened(loader.open(records, "train").shard(0).path)) == [20]
    assert names(opened(records)) == [""]
    for name in ("train", "eval"):
        with pytest.raises(InputError, match="no such split") as refused:
            opened(records, name=name, **{f"{name}_split": "test"})
        assert refused.value.cure == f"give one of these as {name}_split"
    with pytest.raises(InputError, match="grain_train_files is empty"):
        opened("")


def test_a_mixture_is_written_as_maxtext_has_it(records, others, tmp_path):
    sources = opened(f"{records},0.7; {others} , 0.3;{files_of(records, 'train')},1")
    assert names(sources) == ["d-train", "d-train-2", "d-train-3"]
    assert [part.weight for part in sources] == ["0.7", "0.3", "1"]
    assert lengths(sources) == [RECORDS, 40, RECORDS]
    batches = batches_of(sources, Side(config_of(), "train"), Options(), rows=4)
    shares = [str(share) for share in batches.schedule.phases[0].mixture.weights]
    assert shares == ["7/20", "3/20", "1/2"]
    file = tmp_path / "mixture.json"
    entries = {"one": {"path": records, "weight": 2}}
    file.write_text(json.dumps(entries))
    sources = opened("", grain_train_mixture_config_path=str(file))
    assert names(sources) == ["one"]
    # Evaluation has none.
    found = opened(records, name="eval", grain_train_mixture_config_path=str(file))
    assert names(found) == [""]
    with pytest.raises(InputError, match="no weight"):
        opened(f"{records};{others},1")
    wrong = [entries], {"one": {"path": records}}, {"one": "path"}, {}
    for text in [*map(json.dumps, wrong), "{"]:
        file.write_text(text)
        with pytest.raises(InputError, match="not a mixture"):
            opened("", grain_train_mixture_config_path=str(file))


def test_packed_rows_are_known_and_not_mixed_with_records(records, rows):
    assert not are_packed(opened(records))
    assert are_packed(opened(rows))
    assert are_packed(opened(f"{rows},1;{rows},2"))
    with pytest.raises(InputError, match="packed rows and other records") as refused:
        are_packed(opened(f"{rows},1;{records},2"))
    assert refused.value.where == records
    with pytest.raises(InputError, match="by a pattern") as refused:
        opened(files_of(rows, "train"))
    assert refused.value.cure == f"give {rows}"
