"""Every setting that MaxText's Grain pipeline reads is honoured, or refused by name."""

from collections.abc import Iterator

import pytest

from gristmill.dataset import InputError
from gristmill.loader.maxtext.settings import SETTINGS, Only, check
from tests.support.maxtext import RECORDED, config_of


def written_out(name: str) -> list[str]:
    """Returns the settings that a name of the table stands for."""
    if "{train,eval}" in name:
        return [name.replace("{train,eval}", side) for side in ("train", "eval")]
    if name.endswith("[_eval]"):
        short = name.removesuffix("[_eval]")
        return [short, f"{short}_eval"]
    return [name]


def names_of_table() -> list[str]:
    return [
        n for setting in SETTINGS for name in setting.names for n in written_out(name)
    ]


def refusals() -> Iterator[tuple[str, str, object]]:
    for setting in SETTINGS:
        for way in ("records", "packed"):
            only = setting.of(way)
            if isinstance(only, Only):
                yield from ((way, name, only.values[0]) for name in setting.names)


def another(value: object) -> object:
    if isinstance(value, bool):
        return not value
    return 0.5 if isinstance(value, int) else "another"


def test_the_table_has_each_setting_that_was_recorded_once():
    names = names_of_table()
    assert len(set(names)) == len(names)
    assert set(names) == RECORDED["settings"].keys()


@pytest.mark.parametrize(("way", "name", "neutral"), list(refusals()))
def test_what_cannot_be_honoured_is_refused_by_name(way, name, neutral):
    value = another(neutral)
    with pytest.raises(InputError, match=rf"\b{name} of MaxText") as refused:
        check(config_of(**{name: value}), way)
    assert refused.value.got == repr(value)
    assert repr(neutral) in refused.value.expected
    assert refused.value.cure
    check(config_of(**{name: neutral}), way)
