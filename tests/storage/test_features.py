"""What is known of the values of records: descriptions that are kept and joined."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.metadata.features import (
    FeatureSpec,
    encode_features,
    joined_descriptions,
    joined_features,
    parse_features,
)

DTYPES = {
    "bytes": ["bytes"],
    "float": ["float16", "float32"],
    "int64": ["bool", "int8", "uint16", "int32", "int64", "uint64"],
}
SPECS = st.sampled_from([*DTYPES]).flatmap(
    lambda kind: st.builds(
        FeatureSpec,
        kind=st.just(kind),
        dtype=st.sampled_from(DTYPES[kind]),
        shape=st.sampled_from([(), (None,), (3,), (None, 2), (2, 3)]),
        optional=st.booleans(),
        type=st.text(max_size=5),
        names=st.lists(st.text(max_size=3), max_size=3).map(tuple),
    )
)


@given(st.dictionaries(st.text(max_size=5), SPECS, max_size=5))
def test_features_survive_json_and_a_second_part_of_the_same(features) -> None:
    fields = json.loads(json.dumps(encode_features(features)))
    assert parse_features(fields) == features
    assert [*parse_features(fields)] == [*features]
    assert joined_features([features]) == features
    assert joined_features([features, features]) == features


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "int32"}, "unknown kind"),
        ({"kind": ["bytes"]}, "unknown kind"),
        ({"dtype": "float32"}, "no dtype"),
        ({"shape": [-1]}, "impossible shape"),
        ({"shape": [True]}, "impossible shape"),
        ({"shape": [2, None]}, "only the first dimension"),
        ({"shape": 3}, "must be lists"),
        ({"names": "ab"}, "must be lists"),
        (None, ""),
    ],
)
def test_bad_descriptions_name_the_feature(changed, message: str) -> None:
    good = {"kind": "int64", "dtype": "int64", "shape": []}
    with pytest.raises(ValueError, match=f"feature 'x'.*{message}"):
        parse_features({"x": changed and good | changed})


def test_descriptions_are_joined() -> None:
    x, y, short, wide, optional = (
        FeatureSpec(kind="int64", dtype=dtype, shape=(), optional=optional)
        for dtype, optional in (
            *(("int64", False), ("int8", False), ("int8", False)),
            *(("int16", False), ("int8", True)),
        )
    )
    assert joined_features([{"x": x}, {"x": x, "y": y}]) == {"x": x, "y": optional}
    assert joined_features([{"y": y}, {}]) == {"y": optional}
    assert joined_features([{"x": x}, None]) is None
    # Those of a later version are kept where they are the same.
    later = {"x": {"kind": "complex"}}
    assert joined_descriptions([later, later]) == later
    assert joined_descriptions([later, encode_features({"x": y})]) is None
    assert joined_descriptions([None, {}]) is None
    both = [encode_features({"x": each}) for each in (short, wide)]
    assert joined_descriptions(both) == both[1]
