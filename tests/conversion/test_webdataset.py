"""Tars of samples: as the package webdataset reads them, and no damage in silence."""

import functools
import gzip
import io
import tarfile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset import CorruptRecordError, InputError, encode_example
from gristmill.dataset.base.example import decode_example
from gristmill.dataset.formats.tar_samples import SampleReader, example_maker
from gristmill.loader.provenance.trace import locate
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.source import SkippedRegions
from gristmill.transforms.sources.stream_range import StreamPass
from tests.conversion.format_files import Read, features_of, listed, put
from tests.conversion.tars import (
    FORMATS,
    header_offsets,
    members_of,
    read_by_webdataset,
    some_members,
    tar_of,
)
from tests.support.conversion import convert, job_of, read_output, skipped_in
from tests.support.memory import peak_memory
from tests.support.told import told


def read(data, *, keep=False, block_bytes=1 << 20):
    """Reads a tar; leaves out damage if `keep`, as a conversion does."""
    open_reader = functools.partial(
        SampleReader, make=example_maker(), block_bytes=block_bytes
    )
    file, skipped = InputFile("in.tar", len(data)), SkippedRegions()
    reading = StreamPass(file, io.BytesIO(data), open_reader)
    good = reading.good(skipped=skipped if keep else None)
    records = [record for batch in good for record in batch.records]
    assert (reading.reader.at_end(), reading.reader.offset) == (True, len(data))
    return Read(records, skipped.found, [], [])


def refused(data, match):
    with pytest.raises(CorruptRecordError, match=match) as caught:
        read(data)
    return caught.value


def keys(records):
    return [decode_example(record)["__key__"][0].decode() for record in records]


MEMBERS = members_of(6)
TAR = tar_of(MEMBERS)
RECORDS = [*map(encode_example, read_by_webdataset(TAR))]


@given(
    members=some_members(),
    format=st.sampled_from([*FORMATS]),
    mtime=st.sampled_from([0, 1.5]),
    block_bytes=st.sampled_from([1 << 20, 700]),
)
@example([("a.x", b"1"), ("b.x", b"2"), ("a.x", b"3")], "ustar", 0, 700)
@example([("a.x", b"1"), ("b.x", b"2"), ("a.y", b"3")], "ustar", 0, 700)
@example([("README", b"alone")], "ustar", 0, 700)
@example([], "ustar", 0, 700)
def test_samples_are_those_that_webdataset_finds(members, format, mtime, block_bytes):
    if format == "ustar":
        members = [pair for pair in members if len(pair[0].encode()) < 100]
    data = tar_of(members, format=format, mtime=mtime)
    try:
        expected = read_by_webdataset(data)
    except ValueError as error:
        assert "duplicate file name" in str(error)  # noqa: PT017
        refused(data, "a second member")
        return
    seen = {}
    for sample in expected:
        key, extensions = sample["__key__"], {*sample} - {"__key__"}
        if seen.setdefault(key, extensions).isdisjoint(extensions):
            with told(InputError, "members of a sample are apart"):
                read(data, block_bytes=block_bytes)
            return
    records = read(data, block_bytes=block_bytes).records
    assert records == [*map(encode_example, expected)]


def test_memory_is_that_of_one_sample():
    stream = io.BytesIO(tar_of(members_of(60, sizes=[200_000])))
    reader = SampleReader(stream, path="in.tar", make=example_maker())
    with peak_memory() as peak:
        assert sum(len(batch.records) for batch in reader.batches()) == 60
    assert peak.bytes < 8 << 20


def with_sum(data, more):
    """Returns a tar whose first header has another sum."""
    return data[:148] + b"%06o" % (int(data[148:154], 8) + more) + data[154:]


def odd(kind, size=0):
    """Returns the header of a member."""
    header = tarfile.TarInfo("odd.jpg")
    header.type, header.linkname, header.size = kind, "x", size
    return header.tobuf(tarfile.GNU_FORMAT)


# The map of what there is in a sparse file goes on in a block.
SPARSE = odd(tarfile.GNUTYPE_SPARSE, 600)
SPARSE = with_sum(SPARSE[:482] + b"\1" + SPARSE[483:], 1)
ODD = {
    "a symbolic link": odd(tarfile.SYMTYPE),
    "a hard link": odd(tarfile.LNKTYPE),
    "a character device": odd(tarfile.CHRTYPE),
    "a FIFO": odd(tarfile.FIFOTYPE),
    "a member of type 'V'": odd(b"V"),
    "a sparse file": SPARSE + bytes(512) + b"c" * 600 + bytes(424),
}


@pytest.mark.parametrize("what", ODD)
def test_members_without_content_of_their_own(what):
    at, member = header_offsets(TAR)[6][0], ODD[what]
    data = TAR[:at] + member + TAR[at:]
    error = refused(data, "cannot become a record")
    assert error.where == f"in.tar, byte offset {at:,}, sample 'odd'"
    assert error.got == f"a member 'jpg' that is {what}"
    kept = read(data, keep=True)
    assert (kept.records, kept.regions) == (RECORDS, [(at, at + len(member))])


@pytest.mark.parametrize("format", ["gnu", "pax"])
def test_sizes_above_8_gib_are_understood(format):
    info = tarfile.TarInfo("b/huge.jpg")
    info.size = 9 << 30
    head = info.tobuf(FORMATS[format])
    data = tar_of([("a.jpg", b"1")])[:1024] + head + b"begin"
    assert "9,663,676,416 bytes" in str(refused(data, "ends in the middle"))
    reader = SampleReader(io.BytesIO(data), path="in.tar", make=example_maker())
    with told(CorruptRecordError, "too long with 'b/huge.jpg'"):
        list(reader.batches())


def test_a_name_for_all_members_is_refused():
    data = tar_of([("a.jpg", b"1")], format="pax", mtime=1.5)
    fields = tarfile.TarInfo.create_pax_global_header({"path": "x.jpg"})
    error = refused(fields + data, "extended header")
    assert error.got == "a name or a size for all members"
    comment = tarfile.TarInfo.create_pax_global_header({"comment": "of git"})
    assert keys(read(comment + data).records) == ["a"]


def test_old_headers_are_read_or_refused_where_tarfile_reads_them():
    data = tar_of([("grün.jpg", b"x")], format="gnu")
    # Some old writers summed signed bytes, and those before 1988 wrote no magic bytes.
    high = sum(byte > 127 for byte in data[:512])
    signed = with_sum(data, -256 * high)
    without = with_sum(data[:257] + bytes(8) + data[265:], -sum(data[257:265]))
    for old in (signed, without):
        with tarfile.open(fileobj=io.BytesIO(old)) as tar:
            assert tar.getnames() == ["grün.jpg"]
    assert high
    assert keys(read(signed).records) == ["grün"]
    refused(without, "not a tar, or")  # A sum often fits other data.


@pytest.mark.parametrize(
    ("extension", "got"),
    [
        ("__key__", "a second member '__key__'"),
        ("__url__", "a second member '__url__'"),
        ("\udcff", "is not UTF-8"),
    ],
)
def test_extensions_that_no_record_can_have(extension, got):
    data = tar_of([(f"a.{extension}", b"x")], format="gnu")
    assert got in str(refused(data, "cannot become a record").got)


@pytest.mark.parametrize("format", FORMATS)
def test_a_tar_that_was_cut_anywhere(format):
    members = members_of(3, ("cls", "jpg"), sizes=[0, 5, 600])
    data = tar_of(members, format=format, mtime=1.5)
    whole = read(data).records
    for size in range(1, len(data), 61):
        cut = read(data[:size], keep=True)
        assert cut.records == whole[: len(cut.records)]
        if not cut.regions:
            assert cut.records == whole
            assert size > len(data.rstrip(b"\0"))
            continue
        assert cut.regions[-1][1] == size
        assert cut.skipped[-1]["reason"] in ("truncated", "header")


@given(
    members=some_members(),
    at=st.floats(0, 1),
    lost_bytes=st.sampled_from([0, 1, 5, 512, 4096]),
    junk=st.sampled_from([b"", b"\x31", b"\xee" * 512, b"ustar\0" * 99]),
)
def test_any_damage_leaves_nothing_but_whole_samples(members, at, lost_bytes, junk):
    data = tar_of(members, format="gnu")
    try:
        known = {keys([r])[0]: {*decode_example(r)} for r in read(data).records}
    except (CorruptRecordError, InputError):
        return
    begin = int(at * len(data))
    kept = read(data[:begin] + junk + data[begin + lost_bytes :], keep=True)
    for record in kept.records if kept.regions else ():
        assert {*decode_example(record)} <= known[keys([record])[0]]


def test_a_tar_behind_the_end_of_another():
    joined = TAR + tar_of(members_of(4, seed=3, sizes=[9]))
    error = refused(joined, "continues after the mark")
    assert "tar --concatenate" in error.cure
    assert read(joined, keep=True).records == RECORDS[:-1]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_record_is_traced_to_its_sample_and_byte(tmp_path, pack):
    data = tar_of(members_of(30), format="pax", mtime=1.5)
    # The first header of a sample is that of its times, two blocks before.
    begins = [at - 1024 for at, info in header_offsets(data) if "cls" in info.name]
    path = put(tmp_path, {"in.tar": pack(data)}) / "in.tar"
    convert(job_of(path, tmp_path / "out", shards=4))
    dataset = loader.open(tmp_path / "out")
    batches = loader.global_batches(dataset, batch_size=1, shuffle="none")
    for record, key in enumerate(keys(dataset[:])):
        found = locate(batches, record, 0)
        assert (found.source_sample, found.source_note) == (key, None)
        assert found.source_offset_bytes == begins[record]


def test_features_are_the_members_of_all_files(tmp_path):
    tars = {"1.tar": members_of(3), "2.tar": members_of(3, ("jpg", "Txt"))}
    put(tmp_path, {name: tar_of(members) for name, members in tars.items()})
    features = features_of(f"{tmp_path}/*")
    assert [*features] == ["__key__", "cls", "jpg", "json", "txt"]
    assert features["__key__"] == {"kind": "bytes", "dtype": "bytes", "shape": []}
    assert features["cls"]["optional"]
    some = features_of(f"{tmp_path}/*", columns=("txt", "__key__"))
    assert [*some] == ["txt", "__key__"]


@pytest.mark.parametrize(
    ("members", "error", "words"),
    [
        ([("README", b"text")], InputError, ["no samples of a WebDataset", "tar -xf"]),
        ([("1.JPG", b"x"), ("1.jpg", b"y")], CorruptRecordError, ["a second"]),
    ],
)
def test_tars_without_a_sample_that_can_be_read(tmp_path, members, error, words):
    (tmp_path / "in.tar").write_bytes(tar_of(members))
    with told(error, *words):
        listed(tmp_path / "in.tar")


def test_a_member_that_was_not_looked_at(tmp_path):
    members = members_of(700, ("cls",), sizes=[1])
    members[600:600] = [("late.png", b"image")]
    data = tar_of(members)
    (tmp_path / "in.tar").write_bytes(data)
    at, end = (header_offsets(data)[number][0] for number in (600, 601))
    with told(
        CorruptRecordError,
        "cannot become a record",
        f"byte offset {at:,}, sample 'late'",
        "members png, where the samples looked at had cls",
    ):
        convert(job_of(tmp_path / "in.tar", tmp_path / "out"))
    convert(job_of(tmp_path / "in.tar", tmp_path / "kept", on_corrupt="skip"))
    assert len(read_output(tmp_path / "kept")) == 700
    (region,) = skipped_in(tmp_path / "kept")
    assert (region["reason"], region["begin_bytes"]) == ("sample", at)
    assert region["end_bytes"] == end
