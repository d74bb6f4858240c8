"""Reading samples of tars: as the package webdataset, and no damage in silence."""

from __future__ import annotations

import io
import random
import tarfile
from typing import NamedTuple

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset import encode_example
from gristmill.dataset.base.errors import CorruptRecordError
from gristmill.dataset.base.example import decode_example
from gristmill.dataset.formats.streams import InflatedStream
from gristmill.dataset.formats.tar_samples import SampleReader, example_maker
from tests.conversion.streams import DribblingStream
from tests.conversion.tars import (
    FORMATS,
    header_of,
    header_offsets,
    members_of,
    read_by_webdataset,
    some_members,
    tar_of,
)
from tests.support.memory import peak_memory


class Region(NamedTuple):
    """What was left out."""

    begin: int
    end: int
    error: CorruptRecordError


class Read(NamedTuple):
    """What reading gave."""

    records: list[bytes]
    places: list[int]
    regions: list[Region]


def read(
    data: bytes, *, keep: bool = False, most: int = 1 << 20, offset: int = 0
) -> Read:
    """Reads a tar; leaves out damage as `StreamPass` does."""
    reader = SampleReader(
        DribblingStream(data[offset:], most),
        path="in.tar",
        make=example_maker(),
        offset=offset,
        size_bytes=len(data),
    )
    found = Read([], [], [])
    while True:
        try:
            for batch in reader.batches():
                found.records.extend(batch.records)
                found.places.extend(batch.places)
                assert batch.crc32cs == list(map(google_crc32c.value, batch.records))
        except CorruptRecordError as error:
            if not keep:
                raise
            begin = reader.offset
            if error.end is not None and reader.begins_at(error.end):
                reader.skip(error.end)
            else:
                reader.skip(error.offset + 1)
                reader.resync()
            found.regions.append(Region(begin, reader.offset, error))
        else:
            assert reader.at_end()
            assert reader.offset == len(data)
            for region in found.regions:
                assert region.begin == region.error.offset
            return found


def keys(records: list[bytes]) -> list[str]:
    return [decode_example(record)["__key__"][0].decode() for record in records]


def shapes(records: list[bytes]) -> dict[str, dict[str, int]]:
    """Returns the sizes of the members of each sample: what a tar has checksums of."""
    return {
        example["__key__"][0].decode(): {
            name: len(values[0]) for name, values in example.items()
        }
        for example in map(decode_example, records)
    }


MEMBERS = members_of(6)
TAR = tar_of(MEMBERS)
WHOLE = read(TAR)


class TestWholeTars:
    @given(
        members=some_members(),
        format=st.sampled_from([*FORMATS]),
        mtime=st.sampled_from([0, 1.5]),
        most=st.sampled_from([1 << 20, 700]),
    )
    def test_samples_are_those_that_webdataset_finds(
        self, members, format, mtime, most
    ):
        if format == "ustar":
            members = [pair for pair in members if len(pair[0].encode()) < 100]
        data = tar_of(members, format=format, mtime=mtime)
        try:
            expected = read_by_webdataset(data)
        except ValueError as error:
            assert "duplicate file name" in str(error)  # noqa: PT017
            with pytest.raises(CorruptRecordError, match="a second member"):
                read(data, most=most)
        else:
            assert read(data, most=most).records == list(map(encode_example, expected))

    def test_a_key_that_comes_again_is_another_sample(self):
        data = tar_of([("a.x", b"1"), ("b.x", b"2"), ("a.x", b"3"), ("a.y", b"4")])
        assert keys(read(data).records) == ["a", "b", "a"]
        assert len(read_by_webdataset(data)) == 3

    def test_empty_tars_and_empty_files_have_no_samples(self):
        assert read(tar_of([])) == ([], [], [])
        assert read(b"") == ([], [], [])
        assert read(tar_of([("README", b"alone")])).records == []

    def test_memory_is_that_of_one_sample(self):
        stream = io.BytesIO(tar_of(members_of(60, sizes=[200_000])))
        reader = SampleReader(stream, path="in.tar", make=example_maker())
        with peak_memory() as peak:
            samples = sum(len(batch.records) for batch in reader.batches())
        assert samples == 60
        assert peak.bytes < 8 << 20


class TestSamplesThatCannotBeRecords:
    @pytest.mark.parametrize(
        ("kind", "what"),
        [
            (tarfile.SYMTYPE, "a symbolic link"),
            (tarfile.LNKTYPE, "a hard link"),
            (tarfile.CHRTYPE, "a character device"),
            (tarfile.FIFOTYPE, "a FIFO"),
            (b"V", "a member of type 'V'"),
        ],
    )
    def test_links_and_the_like_are_named(self, kind, what):
        data = tar_of(
            [*MEMBERS[:6], header_of("odd.jpg", kind=kind, link="x"), *MEMBERS[6:]]
        )
        at = header_offsets(data)[6][0]
        with pytest.raises(
            CorruptRecordError, match="cannot become a record"
        ) as caught:
            read(data)
        assert caught.value.where == f"in.tar, byte offset {at:,}, sample 'odd'"
        assert caught.value.got == f"a member 'jpg' that is {what}"
        kept = read(data, keep=True)
        assert kept.records == WHOLE.records
        (region,) = kept.regions
        assert (region.begin, region.end) == (at, at + 512)

    def test_sparse_files_of_gnu_are_passed_over_whole(self):
        # As `tar --sparse` writes them: the map of what there is goes on in a block.
        sparse = header_of("s.jpg", kind=tarfile.GNUTYPE_SPARSE)
        sparse.size = 600
        block = bytearray(sparse.tobuf(tarfile.GNU_FORMAT))
        block[482] = 1
        block[148:154] = b"%06o" % (int(block[148:154], 8) + 1)
        more = bytes(504) + b"\0" * 8
        odd = bytes(block) + more + b"c" * 600 + bytes(424)
        at = header_offsets(TAR)[3][0]
        kept = read(TAR[:at] + odd + TAR[at:], keep=True)
        assert kept.records == WHOLE.records
        (region,) = kept.regions
        assert "that is a sparse file" in str(region.error)
        assert (region.begin, region.end) == (at, at + len(odd))

    @pytest.mark.parametrize("format", ["gnu", "pax"])
    def test_sizes_above_8_gib_are_understood(self, format):
        info = tarfile.TarInfo("b/huge.jpg")
        info.size = 9 << 30
        head = info.tobuf(FORMATS[format])
        data = tar_of([("a.jpg", b"1")])[:1024] + head + b"begin"
        with pytest.raises(CorruptRecordError, match=r"ends in the middle") as caught:
            read(data)
        assert "9,663,676,416 bytes" in str(caught.value)
        reader = SampleReader(io.BytesIO(data), path="in.tar", make=example_maker())
        with pytest.raises(CorruptRecordError, match=r"too long with 'b/huge\.jpg'"):
            list(reader.batches())

    def test_a_name_for_all_members_is_refused(self):
        data = bytearray(tar_of([("a.jpg", b"1")], format="pax", mtime=1.5))
        fields = tarfile.TarInfo.create_pax_global_header({"path": "x.jpg"})
        with pytest.raises(CorruptRecordError, match="extended header") as caught:
            read(bytes(fields + data))
        assert caught.value.got == "a name or a size for all members"
        comment = tarfile.TarInfo.create_pax_global_header({"comment": "of git"})
        assert keys(read(bytes(comment + data)).records) == ["a"]


def signed_sum(data: bytes) -> bytes:
    """The first header with a sum of signed bytes, as some old writers made it."""
    high = sum(byte > 127 for byte in data[:512])
    assert high
    return data[:148] + b"%06o" % (int(data[148:154], 8) - 256 * high) + data[154:]


def without_magic(data: bytes) -> bytes:
    """The first header as writers made it before 1988."""
    total = int(data[148:154], 8) - sum(data[257:265])
    return data[:148] + b"%06o" % total + data[154:257] + bytes(8) + data[265:]


def test_old_headers_are_read_or_refused_where_tarfile_reads_them():
    data = tar_of([("grün.jpg", b"x")], format="gnu")
    for change in (signed_sum, without_magic):
        with tarfile.open(fileobj=io.BytesIO(change(data))) as tar:
            assert tar.getnames() == ["grün.jpg"]
    assert keys(read(signed_sum(data)).records) == ["grün"]
    # A sum of bytes often fits other data.
    with pytest.raises(CorruptRecordError, match="not a tar, or"):
        read(without_magic(data))


@pytest.mark.parametrize(
    ("extension", "got"),
    [
        ("__key__", "a second member '__key__'"),
        ("__url__", "a second member '__url__'"),
        ("\udcff", "is not UTF-8"),
    ],
)
def test_extensions_that_no_record_can_have(extension, got):
    with pytest.raises(CorruptRecordError, match="cannot become a record") as caught:
        read(tar_of([(f"a.{extension}", b"x")], format="gnu"))
    assert got in str(caught.value.got)


class TestDamage:
    @pytest.mark.parametrize("format", [*FORMATS])
    def test_a_tar_that_was_cut_anywhere(self, format):
        members = members_of(3, ("cls", "jpg"), sizes=[0, 5, 600])
        data = tar_of(members, format=format, mtime=1.5)
        whole = read(data)
        end = len(data.rstrip(b"\0"))
        for size in range(1, len(data), 61):
            cut = read(data[:size], keep=True)
            if not cut.regions:
                assert cut.records == whole.records
                assert size > end
                continue
            assert cut.records == whole.records[: len(cut.records)]
            assert cut.regions[-1].end == size
            assert cut.regions[-1].error.reason in ("truncated", "header")

    @pytest.mark.slow
    @pytest.mark.parametrize("format", [*FORMATS])
    def test_every_byte_of_a_header(self, format):
        data = tar_of(members_of(4, sizes=[0, 7, 600]), format=format, mtime=1.5)
        whole = read(data)
        lost = []
        for at, _ in header_offsets(data)[3:9]:
            for position in range(at, at + 512, 5):
                changed = bytearray(data)
                changed[position] ^= 1 << position % 7
                kept = read(bytes(changed), keep=True)
                good = [r for r in kept.records if r in whole.records]
                assert good == kept.records, position - at
                lost.append(len(whole.records) - len(good))
                assert lost[-1] or 148 <= position - at < 156
        assert max(lost) == len(whole.records)  # All from the damage on.

    @given(data=st.data())
    def test_any_damage_leaves_nothing_but_whole_samples(self, data):
        members = data.draw(some_members())
        content = tar_of(members, format="gnu")
        try:
            whole = read(content)
        except CorruptRecordError:
            return
        position = data.draw(st.integers(0, len(content) - 1))
        length = data.draw(st.sampled_from([1, 5, 512, 4096]))
        junk = data.draw(st.sampled_from([b"", b"\xee" * length, b"ustar\0" * length]))
        rest = content[position + data.draw(st.sampled_from([0, length])) :]
        changed = content[:position] + junk + rest
        kept = read(changed, keep=True)
        if kept.regions:
            known = shapes(whole.records)
            for key, shape in shapes(kept.records).items():
                assert key in known
                assert shape.keys() <= known[key].keys()

    @pytest.mark.parametrize("length", [1, 100, 512, 5000])
    def test_junk_between_samples(self, length):
        junk = random.Random(length).randbytes(length)
        at = header_offsets(TAR)[9][0]
        changed = TAR[:at] + junk + TAR[at:]
        with pytest.raises(CorruptRecordError, match="corrupt header") as caught:
            read(changed)
        # It may have been a header, of the sample before or of that behind.
        assert f"at byte offset {at:,}" in str(caught.value)
        kept = read(changed, keep=True)
        assert kept.records == WHOLE.records[:2]

    def test_a_tar_behind_the_end_of_another(self):
        joined = TAR + tar_of(members_of(4, seed=3, sizes=[9]))
        with pytest.raises(
            CorruptRecordError, match="continues after the mark"
        ) as caught:
            read(joined)
        assert "tar --concatenate" in str(caught.value)
        assert "zeros, then other bytes" in str(caught.value)
        kept = read(joined, keep=True)
        assert kept.records == WHOLE.records[:-1]

    def test_the_damage_of_a_compressed_file_is_told_apart(self):
        import gzip

        packed = gzip.compress(tar_of(members_of(40, sizes=[900])))
        stream = InflatedStream(
            io.BytesIO(packed[: len(packed) // 2]), path="in.tar.gz", compression="gzip"
        )
        reader = SampleReader(stream, path="in.tar.gz", make=example_maker())
        good: list[bytes] = []
        with pytest.raises(CorruptRecordError, match="compressed file is") as caught:
            good.extend(r for batch in reader.batches() for r in batch.records)
        assert caught.value.reason == "compressed"
        assert len(good) > 10
        assert caught.value.offset == reader.offset
