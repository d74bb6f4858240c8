"""Samples of a WebDataset: the members of one, and the record that it becomes.

Source: the package webdataset, 1.0.2, whose reader groups members this way.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from gristmill.dataset.base.errors import some_of
from gristmill.dataset.base.example import encode_example

KEY = "__key__"
_RESERVED = frozenset((KEY, "__url__"))  # webdataset adds them to every sample.
_NAME = re.compile(rb"((?:.*/)?[^.]+)\.([^/]*)")
_META = re.compile(rb"__[^/]*__(/|$)")


class SampleError(ValueError):
    """A sample whose members are intact but that cannot become a record."""


class Name(NamedTuple):
    """The name of a member, split where webdataset splits it.

    Attributes:
        key: Key of the sample: the path up to the first dot of the base name.
        extension: What follows that dot, in lower case.
    """

    key: bytes
    extension: str


def split_name(name: bytes) -> Name | None:
    """Splits the name of a member; None if it belongs to no sample.

    >>> split_name(b"train/0001.Seg.png")
    Name(key=b'train/0001', extension='seg.png')

    Names without an extension and names below `__...__` belong to no sample. An
    extension that is not UTF-8 comes with surrogates.
    """
    match = None if _META.match(name) else _NAME.fullmatch(name)
    if match is None:
        return None
    extension = match[2].decode("utf-8", "surrogateescape")
    return Name(match[1], extension.lower())


class RecordMaker(Protocol):
    """Makes the record of a sample."""

    def __call__(self, key: bytes, members: Mapping[str, bytes], /) -> bytes:
        """Returns the record.

        Args:
            key: Key of the sample.
            members: Contents by extension.

        Raises:
            SampleError: The sample cannot become a record.
        """


def check_member(extension: str, seen: Collection[str], *, refused: str | None) -> None:
    """Checks that a member can join a sample.

    Args:
        extension: Extension of the member.
        seen: Extensions that the sample already has.
        refused: What the member is, if it is not a file.

    Raises:
        SampleError: It is not a file, its sample has one with this extension, or the
            extension is not UTF-8.
    """
    if refused is not None:
        raise SampleError(f"a member {extension!r} that is {refused}")
    if extension in seen or extension in _RESERVED:
        raise SampleError(f"a second member {extension!r}")
    try:
        extension.encode()
    except UnicodeEncodeError as e:
        raise SampleError(f"an extension {extension!r}, which is not UTF-8") from e


class ExampleMaker:
    """Makes `tf.train.Example`s: a feature of bytes for each member, and the key.

    The bytes are those of TensorFlow's deterministic serialization.

    Args:
        known: Names of the features that a sample may have; None for any.
        chosen: Names of the features to keep; empty for all.
    """

    def __init__(
        self, known: Collection[str] | None = None, chosen: Collection[str] = ()
    ):
        self._known = None if known is None else frozenset(known) | {KEY}
        self._chosen = frozenset(chosen)

    def __call__(self, key: bytes, members: Mapping[str, bytes], /) -> bytes:
        """Returns the record; see `RecordMaker`."""
        if self._known is not None and not members.keys() <= self._known:
            raise SampleError(
                f"members {some_of(sorted(members.keys() - self._known))}, where the "
                f"samples looked at had {some_of(sorted(self._known - {KEY}), 8)}"
            )
        values = {KEY: key, **members}
        if self._chosen:
            values = {name: values[name] for name in values.keys() & self._chosen}
        return encode_example(values)


class MemberMaker:
    """Makes records that are the bytes of one member.

    Args:
        extension: Extension of the member.
    """

    def __init__(self, extension: str):
        self._extension = extension

    def __call__(self, key: bytes, members: Mapping[str, bytes], /) -> bytes:
        """Returns the record; see `RecordMaker`."""
        if self._extension == KEY:
            return key
        if self._extension not in members:
            raise SampleError(
                f"no member {self._extension!r} among {some_of(sorted(members), 8)}"
            )
        return members[self._extension]
