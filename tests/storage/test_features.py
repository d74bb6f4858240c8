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
def test_features_survive_json(features):
    fields = json.loads(json.dumps(encode_features(features)))
    assert parse_features(fields) == features
    assert [*parse_features(fields)] == [*features]


@pytest.mark.parametrize(
    ("shape", "values"), [((), 1), ((None,), None), ((3,), 3), ((2, 3), 6), ((0,), 0)]
)
def test_values_of_a_record(shape, values):
    assert FeatureSpec(kind="bytes", dtype="bytes", shape=shape).values == values


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "int32"}, "unknown kind"),
        ({"dtype": "float32"}, "no dtype"),
        ({"shape": [-1]}, "impossible shape"),
        ({"shape": [True]}, "impossible shape"),
        ({"shape": [2, None]}, "only the first dimension"),
        ({"shape": 3}, "must be lists"),
        ({"names": "ab"}, "must be lists"),
        ({"kind": ["bytes"]}, "unknown kind"),
    ],
)
def test_bad_descriptions_name_the_feature(changed, message):
    good = {"kind": "int64", "dtype": "int64", "shape": []}
    with pytest.raises(
        ValueError, match=f"feature 'x' is badly described: .*{message}"
    ):
        parse_features({"x": {**good, **changed}})
    with pytest.raises(ValueError, match="feature 'x'"):
        parse_features({"x": None})


def ints(dtype, *shape, **others):
    return FeatureSpec(kind="int64", dtype=dtype, shape=shape, **others)


@given(st.dictionaries(st.text(max_size=3), SPECS, max_size=3))
def test_the_same_description_twice(features):
    assert joined_features([features]) == features
    assert joined_features([features, features]) == features


def test_a_feature_that_only_some_have_is_optional():
    x, y = ints("int64"), ints("int8")
    joined = joined_features([{"x": x}, {"x": x, "y": y}])
    assert joined == {"x": x, "y": ints("int8", optional=True)}
    assert joined_features([{"y": y}, {}]) == {"y": ints("int8", optional=True)}
    assert joined_features([{"x": x}, None]) is None


def test_descriptions_of_a_later_version_are_kept_where_they_are_the_same():
    later = {"x": {"kind": "complex"}}
    assert joined_descriptions([later, later]) == later
    assert joined_descriptions([later, encode_features({"x": ints("int8")})]) is None
    assert joined_descriptions([None, {}]) is None
    x, y = ({"x": ints(dtype)} for dtype in ("int8", "int16"))
    described = joined_descriptions([encode_features(x), encode_features(y)])
    assert described == encode_features(y)
