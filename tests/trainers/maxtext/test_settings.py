"""Every setting that MaxText's Grain pipeline reads is honoured, or refused by name."""

import json
import pathlib
import re

import pytest

from gristmill import loader
from gristmill.dataset import InputError
from gristmill.loader.maxtext.settings import (
    LIMITS,
    Options,
    Side,
    are_packed,
    batches_of,
    check,
    open_sources,
)
from tests.trainers.maxtext.maxtext import RECORDED, RECORDS, config_of

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "train" / "maxtext.md"


def written_out(name):
    """Returns the settings that a name of the page's table stands for."""
    if "{train,eval}" in name:
        return [name.replace("{train,eval}", side) for side in ("train", "eval")]
    short = name.removesuffix("[_eval]")
    return [short] if short == name else [short, f"{short}_eval"]


def test_the_page_has_each_setting_that_was_recorded_and_what_is_refused():
    text = PAGE.read_text("utf-8")
    page = {}
    for line in text.split("\n## Settings\n")[1].split("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        for name in re.findall(r"`([^`]+)`", cells[0]) if len(cells) == 3 else ():
            for written in written_out(name):
                assert written not in page
                page[written] = cells[1:]
    assert page.keys() == RECORDED["settings"].keys()
    refused = {}
    for limit in LIMITS:
        text = " or ".join(f"`{value}`" for value in limit.values) + ", else refused"
        for name in limit.names:
            refused[name] = [None if limit.packed else text, text]
    for name, cells in page.items():
        told = [cell if cell.endswith(", else refused") else None for cell in cells]
        assert told == refused.pop(name, [None, None]), name
    assert refused == {}


REFUSED = [
    (way, name, limit.values[0])
    for limit in LIMITS
    for way in (("packed",) if limit.packed else ("records", "packed"))
    for name in limit.names
]


@pytest.mark.parametrize(("way", "name", "neutral"), REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(way, name, neutral):
    value = not neutral if isinstance(neutral, bool) else "another"
    told = rf"\b{name} of MaxText.*{neutral!r}.*got: +{value!r}\n +to do: "
    with pytest.raises(InputError, match=f"(?s){told}"):
        check(config_of(**{name: value}), way)
    check(config_of(**{name: neutral}), way)


def opened(files, *, name="train", **settings):
    config = config_of(**{f"grain_{name}_files": files}, **settings)
    return open_sources(Side(config, name), Options())


def told(*given, **settings):
    return [(part.name, len(part.dataset)) for part in opened(*given, **settings)]


def files_of(dataset, split="train"):
    return f"{dataset}/d-{split}.array_record*"


def test_a_directory_has_splits_and_a_pattern_files(records):
    assert told(records) == [("", RECORDS)]
    assert told(records, train_split="validation") == [("", 9)]
    assert told(records, name="eval") == [("", 9)]
    assert told(files_of(records)) == [("", RECORDS)]
    assert told(files_of(records, "validation")) == [("", 9)]
    assert told(loader.open(records, "train").shard(0).path) == [("", 20)]
    for name in ("train", "eval"):
        message = f"(?s)no such split.*give one of these as {name}_split"
        with pytest.raises(InputError, match=message):
            opened(records, name=name, **{f"{name}_split": "test"})
    with pytest.raises(InputError, match="grain_train_files is empty"):
        opened("")


def test_a_mixture_is_written_as_maxtext_has_it(records, others, tmp_path):
    sources = opened(f"{records},0.7; {others} , 0.3;{files_of(records)},1")
    names = [part.name for part in sources]
    assert names == ["d-train", "d-train-2", "d-train-3"]
    assert [len(part.dataset) for part in sources] == [RECORDS, 40, RECORDS]
    batches = batches_of(sources, Side(config_of(), "train"), Options(), rows=4)
    weights = batches.schedule.phases[0].mixture.weights
    assert [*map(str, weights)] == ["7/20", "3/20", "1/2"]
    with pytest.raises(InputError, match="no weight"):
        opened(f"{records};{others},1")
    file = tmp_path / "mixture.json"
    by_file = {"grain_train_mixture_config_path": str(file)}
    entries = {"one": {"path": records, "weight": 2}}
    file.write_text(json.dumps(entries))
    assert told("", **by_file) == [("one", RECORDS)]
    # Evaluation has none.
    assert told(records, name="eval", **by_file) == [("", 9)]
    wrong = [entries], {"one": {"path": records}}, {"one": "path"}, {}
    for text in [*map(json.dumps, wrong), "{"]:
        file.write_text(text)
        with pytest.raises(InputError, match="not a mixture"):
            opened("", **by_file)


def test_packed_rows_are_known_and_not_mixed_with_records(records, rows):
    assert not are_packed(opened(records))
    assert are_packed(opened(f"{rows},1;{rows},2"))
    with pytest.raises(InputError, match=f"(?s)packed rows and other.*{records}"):
        are_packed(opened(f"{rows},1;{records},2"))
    with pytest.raises(InputError, match=f"(?s)by a pattern.*give {rows}"):
        opened(files_of(rows))
