"""Documents of JSON as somebody may have cut or changed them, for Hypothesis."""

import copy

import numpy as np
from hypothesis import strategies as st

# What may stand in place of a value, also what no JSON has.
VALUES = [
    *(None, True, False, -1, 0, 1, 2, 13, 2**63, 2**64, 1.5, 12.0, float("nan")),
    *("", "x", "12", "block", "1/0", "1/2", "9" * 5000, "\ud800", "\udcff"),
    *([], {}, [1], [[]], [{}], ["1/2", "1/2"], ["1/3", "1/3"], {"kind": "global"}),
    *("a\0b", "../x", "/etc/passwd", "gs://b/c", "a\nb", "0" * 32, {"version": 1}),
]
ODD_VALUES = [np.int64(7), np.arange(3), np.bool_(True), b"x", object()]


def places(value, place=()):
    """Returns the places of all fields and items of a document, at any depth."""
    items = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    below = [p for key, inner in items for p in places(inner, (*place, key))]
    return [place, *below] if place else below


@st.composite
def changes(draw, document, *, values=VALUES):
    """Draws a document with one to three changes, most of which make it a wrong one."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        found = places(document)
        if not found:
            break
        *path, last = draw(st.sampled_from(found))
        parent = document
        for key in path:
            parent = parent[key]
        how = draw(st.sampled_from(["set", "set", "delete", "add", "repeat", "rename"]))
        other = copy.deepcopy(draw(st.sampled_from(values)))
        if how == "set":
            parent[last] = other
        elif how == "delete":
            del parent[last]
        elif how == "add" and isinstance(parent, dict):
            parent["more"] = other
        elif how == "repeat" and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[last]))
        elif how == "rename" and isinstance(parent, dict):
            parent["x"] = parent.pop(last)
    return document
