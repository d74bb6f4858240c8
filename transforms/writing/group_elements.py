"""What goes through the shuffle to a group: its records and its task, as bytes.

A record carries the hash of its content, which decides its place, so that it is
computed once; with keys, its key. An element's first byte says what it is.
"""

from __future__ import annotations

import struct

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.planning.write_plan import (
    GroupTask,
    Key,
    content_hash,
    encode_key,
    group_of,
)

Element = bytes | tuple[Key, bytes]

RECORD, KEYED_RECORD, TASK = b"rkt"
RECORD_BEGIN = 17  # After the hash of its content.
_RECORD, _KEYED_RECORD, _TASK = b"r", b"k", b"t"
_KEYED = struct.Struct("<cI")


def not_a_record(element: object, *, keyed: bool) -> InputError:
    """Returns the error for an element that cannot be written."""
    return InputError(
        "element cannot be written as a record",
        expected="(key, bytes)" if keyed else "bytes",
        got=f"{type(element).__name__} {element!r:.100}",
        cure="map elements to bytes first, such as with SerializeToString(); for "
        "(key, bytes), give keyed=True",
    )


def assign_record(record: bytes, groups: int) -> tuple[int, bytes]:
    """Returns the group of a record without key, and the element for it.

    Raises:
        InputError: It is no record.
    """
    if not isinstance(record, bytes):
        raise not_a_record(record, keyed=False)
    place = content_hash(record)
    return group_of(place, groups), b"".join((_RECORD, place, record))


def assign_pair(pair: tuple[Key, bytes], groups: int) -> tuple[int, bytes]:
    """Returns the group of a record with key, and the element for it.

    Raises:
        InputError: It is no such pair.
    """
    key, record = split_pair(pair)
    head = _KEYED.pack(_KEYED_RECORD, len(key))
    return group_of(content_hash(key), groups), b"".join((head, key, record))


def split_pair(pair: tuple[Key, bytes]) -> tuple[bytes, bytes]:
    """Returns the encoded key and the record of a pair.

    Raises:
        InputError: It is none.
    """
    if isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], bytes):
        return encode_key(pair[0]), pair[1]
    raise not_a_record(pair, keyed=True)


def record_of(element: bytes) -> bytes:
    """Returns the record of an element that is one."""
    if element[0] == RECORD:
        return element[RECORD_BEGIN:]
    return key_and_record(element)[1]


def key_and_record(element: bytes) -> tuple[bytes, bytes]:
    """Returns the encoded key and the record of an element with key."""
    begin = _KEYED.size
    end = begin + _KEYED.unpack_from(element)[1]
    return element[begin:end], element[end:]


def encode_task(task: GroupTask) -> bytes:
    """Returns the element for a task."""
    return _TASK + task.pack()


def task_of(element: bytes) -> GroupTask | None:
    """Returns the task of an element, None if it is a record."""
    return GroupTask.unpack(element[1:]) if element[0] == TASK else None
