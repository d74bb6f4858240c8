"""Samples of a WebDataset: the members of a tar that become one record."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, BinaryIO

import google_crc32c

from gristmill.dataset.base.errors import CorruptRecordError, InputError, some_of
from gristmill.dataset.base.example import encode_example
from gristmill.dataset.formats.streams import (
    Compression,
    End,
    InflatedStream,
    Readable,
    RecordBatch,
)
from gristmill.dataset.formats.tar_members import (
    Member,
    MemberReader,
    name_text,
)
from gristmill.dataset.formats.tfrecord_frames import MAX_RECORD_BYTES
from gristmill.dataset.storage.lookup import storage_for

KEY = "__key__"
_RESERVED = frozenset((KEY, "__url__"))  # webdataset adds them to every sample.


class SampleError(ValueError):
    """A sample whose members are intact but that cannot become a record."""


RecordMaker = Callable[[bytes, Mapping[str, bytes]], bytes]
"""Makes the record of a sample, by its key and the contents of its members by
extension; raises `SampleError` if it cannot become one."""


def _check_member(extension: str, seen: Collection[str], refused: str | None) -> None:
    """Raises SampleError if a member cannot join; `refused` says why it is no file."""
    if refused is not None:
        raise SampleError(f"a member {extension!r} that is {refused}")
    if extension in seen or extension in _RESERVED:
        raise SampleError(f"a second member {extension!r}")
    try:
        extension.encode()
    except UnicodeEncodeError as e:
        raise SampleError(f"an extension {extension!r}, which is not UTF-8") from e


def example_maker(
    known: Collection[str] | None = None, chosen: Collection[str] = ()
) -> RecordMaker:
    """Returns the maker of `tf.train.Example`s: a feature a member, and the key.

    The bytes are those of TensorFlow's deterministic serialization.

    Args:
        known: Names of the features that a sample may have; None for any.
        chosen: Names of the features to keep; empty for all.
    """
    allowed = None if known is None else frozenset(known) | {KEY}

    def make(key: bytes, members: Mapping[str, bytes]) -> bytes:
        if allowed is not None and not members.keys() <= allowed:
            raise SampleError(
                f"members {some_of(sorted(members.keys() - allowed))}, where the "
                f"samples looked at had {some_of(sorted(allowed - {KEY}), 8)}"
            )
        values = {KEY: key, **members}
        if chosen:
            values = {name: values[name] for name in values.keys() & {*chosen}}
        return encode_example(values)

    return make


def member_maker(extension: str) -> RecordMaker:
    """Returns the maker of records that are the bytes of one member, or the key."""

    def make(key: bytes, members: Mapping[str, bytes]) -> bytes:
        values = {KEY: key, **members}
        if extension not in values:
            raise SampleError(
                f"no member {extension!r} among {some_of(sorted(members), 8)}"
            )
        return values[extension]

    return make


_BATCH_BYTES = 1 << 20
_SEEN_SAMPLES = 1 << 16  # Their names are kept: enough to see that a tar is not sorted.
_crc32c = google_crc32c.value


class SampleReader(MemberReader):
    """Reads samples forward from one stream.

    A false size never makes it allocate more than the file holds.
    """

    def __init__(
        self, stream: Readable | BinaryIO, *, make: RecordMaker, **options: Any
    ):
        self._make = make
        self._ahead: Member | None = None  # The parsed header at `offset`.
        self._seen: dict[bytes, frozenset[str]] = {}
        super().__init__(stream, **options)

    def restart(self, stream: Readable | BinaryIO) -> None:
        super().restart(stream)
        self._ahead = None

    def batches(self, end: End = None) -> Iterator[RecordBatch]:
        """Yields the samples that begin before `end`; see `StreamReader`.

        A sample begins at the header of its first member.
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
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.start != self.offset:
            ahead = None  # It was skipped.
        if not self._is_before(end, self.offset):
            self._ahead = ahead
            return None
        if self.at_end() and self._stream_error is None:
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
        except CorruptRecordError as error:
            raise self._of_sample(error, members) from error
        else:
            at = self.end_offset() if ahead is None else ahead.start
        record = self._record(members, at) if members else None
        start, self.offset, self._ahead = self.offset, at, ahead
        return None if record is None else (start, record)

    def _record(self, members: list[Member], stop: int) -> bytes:
        key = members[0].key or b""
        try:
            contents: dict[str, bytes] = {}
            for member in members:
                _check_member(member.extension, contents, member.refused)
                contents[member.extension] = self.data(member.begin, member.end)
            self._check_together(members[0], contents)
            return self._make(key, contents)
        except SampleError as e:
            raise self.corrupt(
                "sample",
                "sample of a WebDataset cannot become a record",
                expected="members that are files, each with an extension of its own, "
                "and which the record can have",
                got=str(e),
                end=stop,
                of=f", sample {name_text(key)}",
            ) from e

    def _check_together(self, first: Member, contents: Mapping[str, bytes]) -> None:
        """Raises InputError if a sample continues after it has ended.

        A sample that occurs twice, with the same members, is allowed.
        """
        key, extensions = first.key or b"", contents.keys()
        before = self._seen.get(key)
        if before is None:
            if len(self._seen) < _SEEN_SAMPLES:
                self._seen[key] = frozenset(extensions)
        elif before.isdisjoint(extensions):
            raise InputError(
                "members of a sample are apart in a tar",
                where=f"{self.path}, byte offset {first.start:,}",
                expected="the members of a sample one after the other, as "
                "tar --sort=name writes them",
                got=f"{some_of(sorted(before))} of sample {name_text(key)} before, "
                f"and {some_of(sorted(extensions))} here",
                cure="extract the tar, and write it again with: tar --sort=name -cf",
            )

    def _need(self, member: Member) -> None:
        """Makes the content of a member available."""
        cut = self.size_bytes is not None and member.end > self.size_bytes
        if not cut and member.end - self.offset > MAX_RECORD_BYTES:
            raise self.corrupt(
                "length",
                f"sample of a WebDataset is too long with {name_text(member.name)}",
                expected=f"at most {MAX_RECORD_BYTES:,} bytes in a sample",
                got=f"{member.end - member.begin:,} bytes in this member",
                offset=member.start,
            )
        if cut or not self.fill(member.end):
            raise self.cut(member.begin, member.end, member.name)

    def _of_sample(
        self, error: CorruptRecordError, members: list[Member]
    ) -> CorruptRecordError:
        """Returns damage as that of its sample, and moves the reader to its start."""
        at, end = error.offset, None
        self.offset = members[0].start if members else at
        of = f", sample {name_text(members[0].key or b'')}" if members else ""
        if error.reason == "truncated":
            try:
                self.check_stream()
            except CorruptRecordError as e:
                error = e
            else:
                end = self.end_offset()
        return self.corrupt(
            error.reason,
            error.what,
            expected=str(error.expected),
            got=f"{error.got} (at byte offset {at:,})"
            if at != self.offset
            else str(error.got),
            cure=str(error.cure),
            end=end,
            of=of,
        )

    def resync(self, *, limit: int | None = None) -> bool:
        """Moves to the end: no member after damage is known to be intact."""
        del limit
        self.skip(sys.maxsize)
        return False

    def _is_before(self, end: End, offset: int) -> bool:
        if callable(end):
            self.fill(offset + 1)  # An end that is still unknown comes after it.
            end = end()
        return end is None or offset < end


def sample_at(path: str, place: int, compression: Compression = "none") -> bytes | None:
    """Returns the name of the sample of a tar that begins at a place.

    None if the tar is missing or has no such sample. A compressed one is read from its
    start.

    Args:
        path: The file.
        place: Offset of the sample's first header, in the (decompressed) file.
        compression: How the file is compressed.

    Raises:
        StorageError: The file cannot be read.
        CorruptRecordError: It is damaged there.
    """
    storage = storage_for(path)
    known = storage.stat(path)
    if known is None:
        return None
    plain = compression == "none"
    with storage.open(path, offset=place if plain else 0) as file:
        stream: Readable | BinaryIO = file
        if not plain:
            stream = InflatedStream(file, path=path, compression=compression)
        reader = SampleReader(
            stream,
            path=path,
            make=lambda key, members: key,
            offset=place if plain else 0,
            size_bytes=known.size_bytes if plain else None,
        )
        reader.skip(place)
        member = None if reader.at_end() else reader.member(place)
    return None if member is None else member.key
