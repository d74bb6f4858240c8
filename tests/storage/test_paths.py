"""Paths as users give them."""

from __future__ import annotations

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.storage.paths import (
    compile_pattern,
    split_path,
)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("gs://b", ("b", "")),
        ("gs://b/", ("b", "")),
        ("gs://b/a/c.x", ("b", "a/c.x")),
        ("GS://b/a", ("b", "a")),
        ("gs://my.bucket_1-2/x", ("my.bucket_1-2", "x")),
        ("gs://b/a b#1?%20[*\n/é", ("b", "a b#1?%20[*\n/é")),
        ("gs://b//a", ("b", "/a")),
    ],
)
def test_paths_are_taken_apart(path: str, expected: tuple[str, str]) -> None:
    assert split_path(path) == expected


@pytest.mark.parametrize("path", ["gs://", "gs:///x", "gs://b*/x", "gs://B/x", "/a/b"])
def test_a_path_without_bucket_is_refused(path: str) -> None:
    with pytest.raises(InputError, match="names no bucket"):
        split_path(path)


@pytest.mark.parametrize("name", ["\ud800", "a/\udcff.array_record"])
def test_a_name_that_is_no_unicode_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="cannot be the name of an object") as raised:
        split_path(f"gs://bucket/{name}")
    assert raised.value.got == ascii(f"gs://bucket/{name}")


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("a/*.x", ["a/1.x", "a/.x"], ["a/b/1.x", "b/1.x", "a/1.xy"]),
        ("a/**", ["a/1", "a/b/1"], ["b/a/1", "a"]),
        ("a/**/1.x", ["a/1.x", "a/b/1.x", "a/b/c/1.x"], ["a/b1.x", "1.x"]),
        ("**/1.x", ["1.x", "a/b/1.x"], ["a1.x"]),
        ("a**1", ["a1", "a/b/1", "abc1"], ["a2"]),
        ("a/?.x", ["a/1.x", "a/é.x"], ["a/.x", "a//.x", "a/12.x"]),
        ("a/[1-3b].x", ["a/1.x", "a/b.x"], ["a/4.x", "a/-.x"]),
        ("a/[!1].x", ["a/2.x"], ["a/1.x", "a//.x"]),
        ("a/[]]", ["a/]"], ["a/[]]"]),
        ("a/[1", ["a/[1"], ["a/1"]),
        ("a/#1 (x)+.^$", ["a/#1 (x)+.^$"], ["a/#1 (xx)+.^$"]),
        ("a\nb*", ["a\nb\nc"], ["a b"]),
    ],
)
def test_patterns(pattern: str, matching: list[str], other: list[str]) -> None:
    compiled = compile_pattern(pattern)
    assert [name for name in matching if not compiled.fullmatch(name)] == []
    assert [name for name in other if compiled.fullmatch(name)] == []


_PART = (
    st.lists(
        st.sampled_from(
            ["a", "b", "c", "é", ".", "-", "\\", "*", "?", "[ab]", "[!a-b]"]
        ),
        max_size=4,
    )
    .map("".join)
    .filter(lambda part: "**" not in part)
)
_NAME = st.text("abcé.-\\", max_size=4)


@given(st.lists(_PART, min_size=1, max_size=3), st.lists(_NAME, min_size=1, max_size=3))
def test_parts_match_as_fnmatch_says(parts: list[str], names: list[str]) -> None:
    expected = len(parts) == len(names) and all(
        fnmatch.fnmatchcase(name, part) for name, part in zip(names, parts, strict=True)
    )
    found = compile_pattern("/".join(parts)).fullmatch("/".join(names))
    assert (found is not None) == expected
