"""The members in doubt after a damaged tar header, and where doubt ends.

The member of a damaged header may have been in the sample before it, in the one after
it, or in neither. Its name and the headers around it usually tell; if they do not, both
neighbours are in doubt.
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

_LOOK_BYTES = 256 << 20  # After a member that follows a damaged header.


class Doubt(NamedTuple):
    """The facts known after damage.

    Attributes:
        key: Key of the damaged sample; None if it can be any.
        resume: Offset of the next header; None if it must be searched for.
    """

    key: bytes | None = None
    resume: int | None = None


def believe(reader: MemberReader, at: int, first: Member | None) -> Doubt:
    """Returns the facts known about a damaged header.

    Its size must lead to another header. And two must agree on the sample that its
    member was in: its name, the header after it, and the sample before it.

    Args:
        reader: The reader at the header.
        at: Its offset.
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
    # The damage may have changed one neighbour's name into the other's: then the
    # checksum fits the other.
    other = before if key == after else after
    if other is not None and surplus and surplus == sum(key) - sum(other):
        return Doubt(None, resume)
    # Headers may have been lost with this one: what follows begins a sample if it
    # begins as this one did.
    if key != after and first and member and member.extension != first.extension:
        return Doubt(None, resume)
    return Doubt(key, resume)


def _is_content(
    reader: MemberReader, begin: int, end: int, header: Header, surplus: int | None
) -> bool:
    """Returns whether a range is the content of a member with a damaged header.

    If the damage is in its size, the range has other members.
    """
    at = reader.header_within(begin, end)
    if at is None:
        return True
    # The members of a tar within the tar begin where its content does; so do others if
    # the member was empty. Then each digit of its size was a zero.
    digits = sum(int(digit) for digit in f"{header.size_bytes:o}")
    return at == begin and surplus not in (None, digits)


def leave_damage(
    reader: MemberReader, doubt: Doubt, sink: Sink | None
) -> Member | None:
    """Moves past all members that may belong to a damaged sample.

    Args:
        reader: It is past the start of the damage.
        doubt: What is known after the damage.
        sink: Called with the bytes that are passed over, in order.

    Returns:
        The first member of the next sample, where the reader then is; None if the
        reader is at the end of the file.
    """
    key, resume = doubt
    bare = False  # Whether `key` comes from a header whose long name may be lost.
    while True:
        if resume is not None:
            reader.skip(resume, sink)
        elif reader.search(None, sink):
            key = None  # Other members may have been in the bytes passed over.
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
