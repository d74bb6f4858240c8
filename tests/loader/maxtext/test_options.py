"""Options of the adapter, in the arguments of MaxText."""

import pytest

from gristmill.dataset import InputError
from gristmill.loader.maxtext.options import Options


def test_they_are_taken_out_of_the_arguments():
    options, others = Options.taken_from(
        ["base.yml", "gristmill_order=grain", "steps=3", "gristmill_cache_bytes=7"]
    )
    assert options == Options(order="grain", cache_bytes=7)
    assert others == ["base.yml", "steps=3"]
    text = ["gristmill_shuffle=block", "gristmill_cache=/a=b"]
    assert Options.taken_from(text) == (Options(shuffle="block", cache="/a=b"), [])


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("gristmill_ordr=grain", "gristmill_order=..., gristmill_shuffle=..."),
        ("gristmill_order", "there is no argument"),
        ("gristmill_order=", "there is no argument"),
        ("gristmill_order=random", "gristmill or grain"),
        ("gristmill_shuffle=none", "global or block"),
        ("gristmill_shuffle=none", "gristmill_shuffle, or shuffle of install()"),
        ("gristmill_cache_bytes=many", "not a number"),
    ],
)
def test_what_is_none_of_them_is_refused(argument, message):
    with pytest.raises(InputError) as refused:
        Options.taken_from(["base.yml", argument])
    assert message in str(refused.value)


def test_grains_order_has_its_own_shuffle():
    with pytest.raises(InputError, match="its own shuffle"):
        Options(order="grain", shuffle="block")
