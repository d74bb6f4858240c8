"""Every setting that MaxText's Grain pipeline reads is honoured, or refused by name."""

import pathlib
import re

import pytest

from gristmill.dataset import InputError
from gristmill.loader.maxtext.settings import LIMITS, check
from tests.trainers.maxtext.maxtext import RECORDED, config_of

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "train" / "maxtext.md"


def table() -> dict[str, list[str]]:
    """Returns what the page says of each setting, for records and packed rows."""
    section = (
        PAGE.read_text(encoding="utf-8").split("\n## Settings\n")[1].split("\n## ")[0]
    )
    found = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        for name in re.findall(r"`([^`]+)`", cells[0]) if len(cells) == 3 else ():
            for written in written_out(name):
                assert written not in found
                found[written] = cells[1:]
    return found


def written_out(name: str) -> list[str]:
    """Returns the settings that a name of the table stands for."""
    if "{train,eval}" in name:
        return [name.replace("{train,eval}", side) for side in ("train", "eval")]
    short = name.removesuffix("[_eval]")
    return [short] if short == name else [short, f"{short}_eval"]


def test_the_page_has_each_setting_that_was_recorded_and_what_is_refused():
    page = table()
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
    with pytest.raises(InputError, match=rf"\b{name} of MaxText") as refused:
        check(config_of(**{name: value}), way)
    assert refused.value.got == repr(value)
    assert repr(neutral) in refused.value.expected
    assert refused.value.cure
    check(config_of(**{name: neutral}), way)
