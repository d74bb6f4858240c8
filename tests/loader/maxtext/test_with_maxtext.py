"""What is tried with the real MaxText knows all settings that are refused."""

from __future__ import annotations

from gristmill.loader.maxtext.settings import SETTINGS, Only
from tests.with_maxtext import table


def test_there_is_a_value_to_refuse_for_each_setting() -> None:
    values = table.refused_values()
    for setting in SETTINGS:
        if isinstance(setting.packed, Only):
            tried = values.keys() | table.HAVE_NO_OTHER
            assert set(setting.names) <= tried
            for name in values.keys() & set(setting.names):
                assert values[name] not in setting.packed.values
