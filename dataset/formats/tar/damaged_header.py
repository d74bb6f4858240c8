"""What is in doubt behind a damaged header of a tar, and where it ends.

The member of a damaged header can have been in the sample before it, in the one behind
it, or in neither. Its name and the headers around it mostly tell; where they do not,
both neighbours are in doubt.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from gristmill.dataset.formats.tar.headers import (
    BLOCK_BYTES,
    Header,
    believed_header,
    checksum_surplus,
    padded,
)
from gristmill.dataset.formats.tar.member_reader import (
    BrokenError,
    Member,
    MemberReader,
    Sink,
)
from gristmill.dataset.formats.tar.samples import split_name

_LOOK_BYTES = 256 << 20  # Over a member behind a damaged header.


class Doubt(NamedTuple):
    """What is known behind damage.

    Attributes:
        key: Of the sample that was damaged; None if it can be any.
        resume: Where the next header is; None if it must be searched for.
    """

    key: bytes | None = None
    resume: int | None = None


def believe(reader: MemberReader, at: int, first: Member | None) -> Doubt:
    """Returns what can be known of a damaged header.

    Its size must lead to another header. And two must agree on the sample that its
    member was in: its name, the header behind it, and the sample before it.

    Args:
        reader: Has the header.
        at: Where it is.
        first: The first member of the sample before it.
    """
    before = None if first is None else first.key
    block = reader.data(at, at + BLOCK_BYTES)
    header = believed_header(block)
    if header is None:
        return Doubt()
    begin = at + BLOCK_BYTES
    resume = begin + padded(header.size_bytes)
    if resume - at > _LOOK_BYTES or reader.ends_before(resume):
        return Doubt()
    try:
        member = reader.member(resume)
        while member is not None and member.key is None:
            member = reader.member(member.stop)
    except BrokenError:
        return Doubt()
    surplus = checksum_surplus(block)
    if not _is_content(reader, begin, resume, header, surplus):
        return Doubt()
    after = None if member is None else member.key
    if before is not None and before == after:
        return Doubt(before, resume)
    split = split_name(header.name)
    key = None if split is None else split.key
    if key is None or key not in (before, after):
        return Doubt(None, resume)
    # The damage may have turned the name of one neighbour into that of the other: then
    # the checksum fits the other.
    other = before if key == after else after
    if other is not None and surplus and surplus == sum(key) - sum(other):
        return Doubt(None, resume)
    # Headers may have been lost with this one: what is behind begins a sample if it
    # begins as this one did.
    if key != after and first and member and member.extension != first.extension:
        return Doubt(None, resume)
    return Doubt(key, resume)


def _is_content(
    reader: MemberReader, begin: int, end: int, header: Header, surplus: int | None
) -> bool:
    """Returns whether a range is the content of a member with a damaged header.

    If its size is what was damaged, there are other members in it.
    """
    at = reader.header_within(begin, end)
    if at is None:
        return True
    # Those of a tar within the tar begin at its begin; so do others if the member
    # was empty. Then each digit of its size was a zero.
    digits = sum(int(digit) for digit in f"{header.size_bytes:o}")
    return at == begin and surplus not in (None, digits)


def leave_damage(
    reader: MemberReader, doubt: Doubt, sink: Sink | None
) -> Member | None:
    """Moves behind all members that may belong to a sample that is damaged.

    Args:
        reader: It is behind the begin of the damage.
        doubt: What is known.
        sink: Called with the bytes that are passed over, in order.

    Returns:
        The first member of the next sample, where the reader is then; None if there is
        none, and the reader is at the end of the file.
    """
    key, resume = doubt
    bare = False  # Whether `key` is of a header whose long name may be lost.
    while True:
        if resume is not None:
            reader.skip(resume, sink)
        elif reader.search(None, sink):
            key = None  # Other members may have been in what was passed.
        else:
            return None
        try:
            member = reader.member(reader.offset)
        except BrokenError:
            reader.skip(reader.offset + 1, sink)
            resume = None
            continue
        if member is None:
            reader.skip(sys.maxsize, sink)
            return None
        resume = member.stop
        if member.key is None:
            continue
        if key is None:
            key, bare = member.key, not member.extended
        elif member.key != key and bare and member.extended:
            key, bare = member.key, False
        elif member.key != key:
            return member
