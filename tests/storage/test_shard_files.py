"""The table of shards, their indexes, and the places of records in these."""

from __future__ import annotations

import dataclasses
import io
import json
import pathlib
import pickle
import struct
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gristmill.dataset.base.columns import load_arrays
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import (
    DataLossError,
    FormatVersionError,
    InvalidDatasetError,
    StorageError,
)
from gristmill.dataset.base.places import Places
from gristmill.dataset.metadata.shard_index import (
    encode_index,
    index_of_footer,
    map_index,
    parse_index,
)
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.metadata.shard_table import ShardCollector, ShardTable
from gristmill.dataset.packed.counts import PackedCounts
from tests.support.memory import limited_memory
from tests.support.shards import collected, footer_with, report
from tests.support.watched import watched

REPORTS = [report(shard, spans=shard % 4) for shard in range(9)]
TABLE = ShardTable.of(REPORTS)


def decode(data: bytes) -> ShardTable:
    return ShardTable.decode(data, where="t.shards.npz")


def gathered(reports: list[ShardReport]) -> bytes:
    return ShardTable.of(reports).encode(gathered=True)


# Tables.


@pytest.mark.parametrize("count", [0, 1, 9])
def test_every_column_comes_back(count: int) -> None:
    made = ShardTable.of(REPORTS[:count])
    table = decode(made.encode())
    assert table.paths[1:3] == [each.path for each in REPORTS[1:3]][: max(count - 1, 0)]
    for name, values in table.columns.items():
        assert values.tolist() == made.columns[name].tolist()
        assert name not in REPORTS[0].__dataclass_fields__ or values.tolist() == [
            getattr(each, name) for each in REPORTS[:count]
        ]
    for shard, each in enumerate(REPORTS[:count]):
        assert table.paths[shard] == each.path
        assert table.spans(shard) == each.spans
        assert table.digest(shard) == each.written
    assert table.digest() == RecordsDigest.total(
        each.written for each in REPORTS[:count]
    )


def test_columns_that_are_there_at_times() -> None:
    """Unknown ones survive; what was read is not written."""
    columns = TABLE.columns | {"later": np.arange(9)}
    data = ShardTable(paths=TABLE.paths, columns=columns).encode()
    again = decode(decode(data).encode())
    assert again.columns["later"].tolist() == list(range(9))
    assert TABLE.read_digest(1) == REPORTS[1].read
    assert columns.keys() - again.columns.keys() == {
        *("shard_index", "read_records", "read_raw_bytes", "read_low"),
        *("read_high", "changed_records", "null_rows"),
    }
    assert again.index_bytes.tolist() == [0] * 9
    with_places = dataclasses.replace(report(0), index_bytes=7)
    data = ShardTable.of([with_places, report(1)]).encode()
    assert decode(data).index_bytes.tolist() == [7, 0]


def test_counts_of_packed_rows_end_with_the_shards() -> None:
    counts = [PackedCounts(documents=number + 1, tokens=9) for number in range(3)]
    table = ShardTable.of(
        [
            report(number, packed=one, segments_bytes=1, segments_crc32c=2)
            for number, one in enumerate(counts)
        ]
    )
    assert "packed_user_tokens" not in table.columns  # No conversations.
    for begin, end in ((0, 3), (0, 9000), (1, 4), (3, 5)):
        assert list(table.packed(begin, end)) == counts[begin:end]


@pytest.mark.slow
@given(
    order=st.permutations(range(9)).map(lambda order: [*order, *order[:3]]),
    cuts=st.lists(st.integers(0, 12), max_size=3),
    block=st.integers(1, 5),
)
def test_reports_are_gathered_in_any_order_and_any_parts(order, cuts, block) -> None:
    job, begin = REPORTS[0].job, 0
    whole = ShardCollector(job, block_reports=block)
    for end in [*sorted(cuts), len(order)]:
        part = [REPORTS[shard] for shard in order[begin:end]]
        one = collected(part, job=job, block_reports=block)
        whole.extend(pickle.loads(pickle.dumps(one)))
        begin = end
    assert whole.table().encode(gathered=True) == gathered(REPORTS)
    again = dataclasses.replace(REPORTS[1], file_bytes=7)
    whole.add(again)  # The later one counts.
    assert whole.table().encode(gathered=True) == gathered(
        [REPORTS[0], again, *REPORTS[2:]]
    )


WHOLE = report(1, read=report(1).written, dropped_records=1, added_records=1)


@pytest.mark.parametrize(
    ("changes", "says", "if_mapped"),
    [
        ({"added_records": 2}, "11 read, 1 dropped, 2 added", True),
        *(({"dropped_records": n}, "lost or added", True) for n in (0, 2)),
        (
            {"written": dataclasses.replace(WHOLE.written, records=9)},
            "got:      9",
            True,
        ),
        # A function of the user's may change records.
        *(
            ({which: dataclasses.replace(WHOLE.read, **{name: 1})}, "changed", False)
            for which, name in (("read", "raw_bytes"), ("written", "high"))
        ),
        ({"written": dataclasses.replace(WHOLE.written, low=1)}, "changed", False),
        (
            {"packed": PackedCounts(documents=9, empty_documents=1)},
            "10 documents",
            True,
        ),
    ],
)
def test_what_was_read_for_a_shard_is_in_it(
    changes, says: str, if_mapped: bool
) -> None:
    wrong = dataclasses.replace(WHOLE, **changes, path="that")
    for mapped in (False, True):
        table = ShardTable.of([WHOLE, wrong] if "packed" not in changes else [wrong])
        if mapped and not if_mapped:
            table.check_counts(mapped=True)
            continue
        with pytest.raises(DataLossError, match=says) as caught:
            table.check_counts(mapped=mapped)
        assert caught.value.where == "that"


def test_what_was_read_and_is_not_in_a_shard_by_right() -> None:
    left_out = RecordsDigest(records=2, raw_bytes=5, low=9, high=(1 << 64) - 1)
    selected = dataclasses.replace(
        WHOLE, read=WHOLE.written + left_out, dropped_records=3
    )
    ShardTable.of([selected]).check_counts(mapped=False, left_out=left_out)
    with pytest.raises(DataLossError, match="records changed"):
        ShardTable.of([selected]).check_counts(mapped=False)
    packed = PackedCounts(documents=10, empty_documents=1)
    rows = dataclasses.replace(WHOLE, packed=packed)
    ShardTable.of([rows]).check_counts(mapped=False)


@pytest.mark.parametrize("failures", [1, 3, 1000])
def test_an_error_of_pythons_parser_is_none_of_the_table(monkeypatch, failures) -> None:
    left = [SystemError("AST constructor recursion depth mismatch")] * failures

    def load(*args: Any, **options: Any) -> None:
        if left:
            raise left.pop()

    data = TABLE.encode()
    watched(monkeypatch, np, "load", load)
    if failures < 10:
        assert len(decode(data)) == 9
    else:
        with pytest.raises(InvalidDatasetError, match="depth mismatch"):
            decode(data)


def with_arrays(**changes: Any) -> bytes:
    """Returns the table with other arrays; None takes one out."""
    with np.load(io.BytesIO(TABLE.encode())) as file:
        arrays = {name: file[name] for name in file.files} | changes
    out = io.BytesIO()
    np.savez_compressed(out, **{k: v for k, v in arrays.items() if v is not None})
    return out.getvalue()


def column(name: str, index: int, value: int) -> dict[str, Any]:
    values = TABLE.columns[name].copy()
    values[index] = value
    return {name: values}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        *(({name: None}, name) for name in ("records", "span_whole", "path_ends")),
        ({"version": None}, "version"),
        ({"version": np.array(2)}, "another version"),
        ({"records": np.arange(6)}, "records"),
        ({"records": np.arange(9, dtype=np.int32)}, "records"),
        ({"records": np.ones((9, 1), np.int64)}, "records"),
        (column("records", 2, -1), "records"),
        # Pickles, as object arrays are, would be code of whoever made the file.
        ({"records": np.array([{}] * 9, object)}, ""),
        ({"raw_bytes": np.full(9, 1 << 61)}, "raw_bytes"),
        ({"span_file": np.zeros(3, "<i4")}, "span_begin_bytes"),
        (column("span_ends", 8, 1 << 40), "span"),
        (column("span_ends", 1, 9), "span"),
        ({"path_ends": np.arange(9)[::-1].copy()}, "path"),
        ({"path_ends": np.array([*range(8), 1 << 40])}, "path"),
        ({"path_ends": np.arange(9.0)}, "path"),
        ({"path_blob": np.array(["a"])}, "path"),
    ],
)
def test_columns_that_do_not_add_up(changes: dict[str, Any], says: str) -> None:
    with pytest.raises((InvalidDatasetError, FormatVersionError)) as caught:
        decode(with_arrays(**changes))
    assert says in str(caught.value)
    assert "t.shards.npz" in str(caught.value)


@pytest.mark.parametrize(
    "path",
    [
        *(b"../escape", b"/etc/passwd", b"a/../../b", b"", b"gs://bucket/a", b"a\\b"),
        b"a\0b",
        REPORTS[0].path.encode(),
    ],
)
def test_paths_that_leave_the_dataset_or_are_there_twice(path: bytes) -> None:
    names = [REPORTS[0].path.encode(), path, *(b"%d" % n for n in range(7))]
    ends = np.cumsum(list(map(len, names))).astype("<i8")
    blob = np.frombuffer(b"".join(names), np.uint8)
    with pytest.raises(InvalidDatasetError) as caught:
        decode(with_arrays(path_blob=blob, path_ends=ends)).check_paths(where="t")
    str(caught.value).encode("utf-8", "backslashreplace")


def test_truncation_of_a_table_at_every_length() -> None:
    data = ShardTable.of(REPORTS[:2]).encode()
    for length in range(len(data)):
        with pytest.raises(InvalidDatasetError):
            decode(data[:length])


@pytest.mark.slow
def test_arrays_that_decompress_to_far_more_than_is_stored() -> None:
    out = io.BytesIO()
    np.savez_compressed(out, version=1, zeros=np.zeros(1 << 28, np.uint8))
    with (
        limited_memory(1 << 27),
        pytest.raises(InvalidDatasetError, match="cannot be read") as error,
    ):
        load_arrays(out.getvalue(), where="x", version=1)
    assert "decompress to 268," in str(error.value.got)


# Indexes.


def index_of(counts, offsets=None, places: bytes = b"", **changes: Any) -> bytes:
    footer = footer_with(counts, offsets)
    crcs = (np.arange(footer.records) * 2_654_435_761).astype(np.uint32)
    end = int(footer.chunk_offsets[-1])
    described = report(file_bytes=end + 131_072, **changes)
    return encode_index(footer=footer, crc32cs=crcs, report=described, places=places)


@given(
    st.lists(st.integers(0, 6), max_size=200),
    st.sampled_from([50, 1 << 20, 1 << 27, 1 << 36]),
    st.randoms(use_true_random=False),
)
@example([1] * 200, 50, None)
@example([3] * 130 + [2], 50, None)
def test_an_index_says_what_the_footer_said(counts: list[int], gap, chance) -> None:
    gaps = [40 if chance is None else chance.randint(40, gap) for _ in counts]
    offsets = 64 + np.append(0, np.cumsum(gaps)).astype(np.int64)
    footer = footer_with(counts, offsets)
    chunks = len(counts)
    for index in (
        parse_index(index_of(counts, offsets), path="x"),
        index_of_footer(footer, path="x", file_bytes=1 << 50),
    ):
        assert (index.chunks, index.records) == (chunks, footer.records)
        assert index.chunk_offsets(np.arange(chunks + 1)).tolist() == offsets.tolist()
        assert index.chunk_records(np.arange(chunks)).tolist() == counts
        expected = [
            (at, row) for at, count in enumerate(counts) for row in range(count)
        ]
        columns = index.chunk_of(np.arange(footer.records))
        assert list(zip(*map(np.ndarray.tolist, columns), strict=True)) == expected
        assert [
            (chunk, begin, end, count, row)
            for chunk, begin, end, count, row in index.find_records(range(sum(counts)))
        ] == [
            (at, offsets[at], offsets[at + 1], counts[at], row) for at, row in expected
        ]
        assert index.max_chunk_decoded_bytes == 10 * max(counts, default=0)


def test_a_report_comes_back() -> None:
    given_report = report(
        3, spans=5, file_bytes=1 << 40, path="a/\udcff-00000-of-00001"
    )
    crcs = np.array([7], np.uint32)
    data = encode_index(footer=footer_with([1]), crc32cs=crcs, report=given_report)
    index = parse_index(data, path="x")
    assert index.report() == given_report
    assert index.file_crc32c == given_report.file_crc32c
    alone = index_of_footer(footer_with([2, 1]), path="x", file_bytes=131_072)
    assert alone.crc32cs.tolist() == []
    with pytest.raises(InvalidDatasetError, match="report in the shard index"):
        alone.report()


REPORT = report().to_json()


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"[]", b"null", b"[" * 100_000, REPORT[:-1]),
        REPORT.replace(b'"low"', b'"lower"'),
        REPORT.replace(b'"begin_bytes"', b'"begin"'),
        json.dumps(json.loads(REPORT) | {"spans": [5]}).encode(),
    ],
    ids=range(8),
)
def test_what_is_no_report_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidDatasetError, match="report in the shard index"):
        ShardReport.from_json(data, where="x.index")


def test_an_index_takes_at_most_8_and_a_half_bytes_a_record() -> None:
    # With a long name, a report of 20 spans and 2.2 KB records.
    records = 100_000
    offsets = 64 + 1200 * np.arange(records + 1)
    data = index_of(np.ones(records, np.int64), offsets, spans=20)
    assert len(data) <= 8.5 * records


def test_places_come_last_and_are_not_mapped(tmp_path: pathlib.Path) -> None:
    section = Places(np.array([0, 0, 1]), np.array([0, 40, 7])).encode()
    path, data = tmp_path / "i.index", index_of([1, 1, 1], places=section)
    path.write_bytes(data)
    whole, mapped = parse_index(data, path="i"), map_index(str(path))
    assert data.endswith(section)
    assert whole.index_bytes == mapped.index_bytes == len(data) - len(section)
    assert whole.report().index_bytes == whole.index_bytes
    assert list(map(np.ndarray.tolist, whole.places())) == [[0, 0, 1], [0, 40, 7]]
    beginning = data[: whole.index_bytes]
    parse_index(beginning, path="i", whole=False).check()
    for part in (beginning, data[:-1]):
        with pytest.raises(InvalidDatasetError, match="wrong size"):
            parse_index(part, path="i")
    damaged = data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(InvalidDatasetError, match="damaged places"):
        parse_index(damaged, path="i").places()


@pytest.mark.parametrize("name", ["missing", "."])
def test_what_cannot_be_opened_is_an_error_of_storage(tmp_path, name: str) -> None:
    with pytest.raises(StorageError, match="shard index") as caught:
        map_index(str(tmp_path / name))
    assert str(tmp_path) in str(caught.value)


def test_every_flipped_bit_and_every_cut_of_an_index() -> None:
    good = index_of([3, 3, 2], spans=1)
    for bit in range(8 * len(good)):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises((InvalidDatasetError, FormatVersionError)) as caught:
            # Opening looks at the header alone.
            parse_index(bytes(data), path="x.index", whole=bit < 640).check()
        assert "x.index" in str(caught.value)
    for length in range(len(good)):
        with pytest.raises(InvalidDatasetError):
            parse_index(good[:length], path="x")
    with pytest.raises(InvalidDatasetError, match="wrong size"):
        parse_index(good + b"\0", path="x")


def test_an_index_of_another_version_is_refused_with_the_reason() -> None:
    data = bytearray(index_of([1]))
    struct.pack_into("<I", data, 8, 2)
    struct.pack_into("<I", data, 68, google_crc32c.value(bytes(data[:68])))
    with pytest.raises(FormatVersionError, match=r"(?s)version.*install"):
        parse_index(bytes(data), path="x.index")


# A shard or an index that is another one.


# Places.

FILES = st.integers(0, 2**31 - 1)
PLACES = st.integers(0, 2**62 - 1)


@given(
    st.lists(st.tuples(st.integers(0, 3) | FILES, st.integers(0, 999) | PLACES)),
    st.data(),
)
def test_places_come_back_and_every_flipped_bit_is_found(rows, data) -> None:
    files, places = np.array(rows, np.int64).reshape(-1, 2).T
    encoded = bytearray(Places(files, places).encode())
    got = Places.decode(bytes(encoded), len(rows))
    assert list(zip(*map(np.ndarray.tolist, got), strict=True)) == rows
    for other in {0, 1, 8, len(rows) + 1} - {len(rows)}:
        with pytest.raises(ValueError, match="places"):
            Places.decode(bytes(encoded), other)
    bit = data.draw(st.integers(0, 8 * len(encoded) - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ValueError, match=r"places|checksum"):
        Places.decode(bytes(encoded), len(rows))


@pytest.mark.parametrize("count", [65_535, 65_536, 65_537, 150_000])
def test_places_take_few_bytes(count: int) -> None:
    random = np.random.default_rng(count)
    lengths = random.lognormal(6, 1, count).astype(np.int64) + 16
    files, places = np.zeros(count, np.int64), np.cumsum(lengths) - lengths
    for found, most in (
        ((files, places), 2),
        ((files, np.arange(count)), 0.3),
        ((files, random.permutation(places)), 4),
        ((random.integers(0, 2**31, count), random.integers(0, 2**62, count)), 12),
    ):
        encoded = Places(*found).encode()
        assert len(encoded) <= most * count + 40
        assert all(map(np.array_equal, Places.decode(encoded, count), found))
