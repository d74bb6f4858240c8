"""Reading the samples of a tar forward from a stream, and finding one after damage.

A tar describes itself poorly: headers have checksums, contents have none. A sample ends
where one with another key begins, so it is complete only once the header after it was
read. If that is damaged, its remains may still tell whether the sample before it had
another member; if not, both neighbours are in doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO, ClassVar

import google_crc32c

from gristmill.dataset.base.errors import CorruptRecordError
from gristmill.dataset.formats.streams.inflated_stream import Readable
from gristmill.dataset.formats.streams.record_batch import RecordBatch
from gristmill.dataset.formats.tar.damaged_header import Doubt, believe, leave_damage
from gristmill.dataset.formats.tar.member_reader import (
    BrokenError,
    Member,
    MemberReader,
    Sink,
    name_text,
)
from gristmill.dataset.formats.tar.samples import RecordMaker, SampleError, check_member
from gristmill.dataset.formats.tfrecord.frame_layout import MAX_RECORD_BYTES

READ_BYTES = 1 << 20
_BATCH_BYTES = 1 << 20
_crc32c = google_crc32c.value
End = int | Callable[[], int | None] | None


class _TooLongError(BrokenError):
    """A member that makes its sample longer than a record can be."""

    def __init__(self, member: Member) -> None:
        super().__init__(
            "length",
            f"sample of a WebDataset is too long with {name_text(member.name)}",
            member.start,
            expected=f"at most {MAX_RECORD_BYTES:,} bytes in a sample",
            got=f"{member.end - member.begin:,} bytes in this member",
        )
        self.member = member


class SampleReader(MemberReader):
    """Reads samples forward from one stream, and finds the next one after damage.

    Memory: one sample or one block, whichever is larger. A false size never makes it
    allocate more than the file holds.

    Args:
        stream: Bytes from `offset` on.
        path: Path of the file, for messages.
        make: Builds the record of a sample.
        offset: Offset in the (decompressed) file of the stream's first byte.
        size_bytes: Size of the file if known; None for compressed streams.
        read_bytes: How much to read at a time.
    """

    lookback_bytes: ClassVar[int] = 0

    def __init__(
        self,
        stream: Readable | BinaryIO,
        *,
        path: str,
        make: RecordMaker,
        offset: int = 0,
        size_bytes: int | None = None,
        read_bytes: int = READ_BYTES,
    ):
        self._path = path
        self._make = make
        self._ahead: Member | None = None  # The parsed header at `offset`.
        self._doubt: Doubt | None = None  # Facts known since damage at `offset`.
        super().__init__(
            stream, offset=offset, size_bytes=size_bytes, read_bytes=read_bytes
        )

    def restart(self, stream: Readable | BinaryIO) -> None:
        """Goes on with another stream of the same bytes, which begins at `offset`."""
        super().restart(stream)
        self._ahead = self._doubt = None

    def batches(self, end: End = None) -> Iterator[RecordBatch]:
        """Yields the samples that begin before `end`, in groups.

        A sample begins at the header of its first member.

        Args:
            end: File offset, exclusive; None for the end of the file. Or a function
                that returns it, None as long as it is not yet known.

        Raises:
            CorruptRecordError: At the first place that is damaged, after all samples
                before it were yielded. The reader stays there, for `skip` or `resync`.
        """
        more = True
        while more:
            places: list[int] = []
            batch, size, error = RecordBatch(places, [], []), 0, None
            while size < _BATCH_BYTES:
                try:
                    sample = self.next_sample(end)
                except CorruptRecordError as e:
                    sample, error = None, e
                if sample is None:
                    more = False
                    break
                place, record = sample
                size += len(record)
                places.append(place)
                batch.records.append(record)
                batch.crc32cs.append(_crc32c(record))
            if batch.records:
                yield batch
            if error is not None:
                raise error

    def next_sample(self, end: End = None) -> tuple[int, bytes] | None:
        """Skips the next sample; returns where it began, and its record.

        None if no sample begins before `end`; the reader is then at the first one after
        it. Raises as `batches` does.
        """
        self.drop_passed()
        ahead, self._ahead, self._doubt = self._ahead, None, None
        if ahead is not None and ahead.start != self.offset:
            ahead = None  # It was skipped.
        if not self._is_before(end, self.offset):
            self._ahead = ahead
            return None
        if self.at_end() and self.stream_error is None:
            return None
        members: list[Member] = []
        at = self.offset
        try:
            while (member := ahead or self.member(at)) is not None:
                ahead = None
                if not members and member.key is not None:
                    self.offset = member.start
                    if not self._is_before(end, self.offset):
                        self._ahead = member
                        return None
                if members and member.key not in (None, members[0].key):
                    ahead = member
                    break
                self._need(member)
                if member.key is not None:
                    members.append(member)
                at = member.stop
        except BrokenError as broken:
            if not self._is_complete(broken, members):
                raise self._damage(broken, members) from broken
            at = broken.at
        else:
            at = self.end_offset() if ahead is None else ahead.start
        record = self._record(members, at) if members else None
        start, self.offset, self._ahead = self.offset, at, ahead
        return None if record is None else (start, record)

    def _record(self, members: list[Member], stop: int) -> bytes:
        try:
            contents: dict[str, bytes] = {}
            for member in members:
                check_member(member.extension, contents, refused=member.refused)
                contents[member.extension] = self.data(member.begin, member.end)
            return self._make(members[0].key or b"", contents)
        except SampleError as e:
            self._doubt = Doubt(members[0].key, resume=members[0].stop)
            broken = BrokenError(
                "sample",
                "sample of a WebDataset cannot become a record",
                members[0].start,
                expected="members that are files, each with an extension of its own, "
                "and which the record can have",
                got=str(e),
            )
            raise self._error(broken, members, end=stop) from e

    def _need(self, member: Member) -> None:
        """Makes the content of a member available."""
        cut = self.ends_before(member.end)
        if not cut and member.end - self.offset > MAX_RECORD_BYTES:
            raise _TooLongError(member)
        if cut or not self.fill(member.end):
            raise self.cut(member.begin, member.end, member)

    def _is_complete(self, broken: BrokenError, members: list[Member]) -> bool:
        """Returns whether a sample has all its members, though what follows is broken.

        It has if the damaged header belonged to another sample.
        """
        if not members or broken.reason != "header":
            return False
        key = believe(self, broken.at, members[0]).key
        return key is not None and key != members[0].key

    def _damage(self, broken: BrokenError, members: list[Member]) -> CorruptRecordError:
        """Returns the error of a fault, and moves the reader to where it begins."""
        first = members[0] if members else None
        doubt, end = Doubt(), None
        if broken.reason == "header":
            doubt = believe(self, broken.at, first)
        elif isinstance(broken, _TooLongError):
            key = broken.member.key if first is None else first.key
            doubt = Doubt(key, resume=broken.member.stop)
        elif broken.reason == "truncated":
            # Raised once: a caller that sets the damage aside continues after it.
            error, self.stream_error = self.stream_error, None
            if error is None:
                end = self.end_offset()
            else:
                broken = BrokenError(
                    "compressed",
                    "compressed file is damaged, or ends too early",
                    broken.at,
                    expected="an intact compressed stream",
                    got=error.detail,
                )
        self.offset = members[0].start if members else broken.at
        self._doubt = doubt
        return self._error(broken, members, end=end)

    def _error(
        self, broken: BrokenError, members: list[Member], *, end: int | None
    ) -> CorruptRecordError:
        """Returns the error of damage that begins here."""
        sample, got = "", broken.got
        if members:
            sample = f", sample {name_text(members[0].key or b'')}"
        if broken.at != self.offset:
            got = f"{got} (at byte offset {broken.at:,})"
        error = CorruptRecordError(
            broken.what,
            where=f"{self._path}, byte offset {self.offset:,}{sample}",
            expected=broken.expected,
            got=got,
            cure=broken.cure,
        )
        error.reason, error.offset, error.end = broken.reason, self.offset, end
        error.detail = f"{broken.what}{sample}: expected {broken.expected}, got {got}"
        return error

    def resync(self, *, limit: int | None = None, sink: Sink | None = None) -> bool:
        """Moves forward to the next sample that is whole, as far as that can be known.

        After damage, that is one of which no member can have been damaged. Elsewhere,
        the reader can be in the middle of a sample, whose earlier members it has not
        seen: it takes a member for a first one if the next sample begins with the same
        extension. It can also be within a member that is itself a tar. So a reader that
        starts in the middle of a file must compare its first sample with where the
        reader before it ended.

        Args:
            limit: File offset at which the search gives up, exclusive.
            sink: Called with the bytes that are passed over, in order.

        Returns:
            Whether a sample was found; if not, the reader is at or after `limit`, or at
            the end.
        """
        doubt, self._doubt = self._doubt, None
        if doubt is not None:
            self._ahead = leave_damage(self, doubt, sink)
            return self._ahead is not None
        while self.search(limit, sink):
            try:
                found = self._first_whole(self.offset)
            except BrokenError:
                # Reading shows where the damage is, if there is any.
                return True
            if found is None:
                self.skip(self.offset + 1, sink)
                continue
            self.skip(found.start, sink)
            return limit is None or found.start < limit
        return False

    def _first_whole(self, at: int) -> Member | None:
        """Returns the first member, from a header on, that seems to begin a sample."""
        first: Member | None = None
        while (member := self.member(at)) is not None:
            at = member.stop
            if member.key is None:
                continue
            # The header that has the long name of the first may already be passed.
            if first is None or (member.extended and not first.extended):
                first = member
            elif member.key != first.key:
                return first if first.extension == member.extension else member
            elif at - first.start > MAX_RECORD_BYTES:
                break
        return first

    def _is_before(self, end: End, offset: int) -> bool:
        if callable(end):
            self.fill(offset + 1)  # Whatever is not known then comes after it.
            end = end()
        return end is None or offset < end
