"""The table of shards, their indexes, and the places of records in these."""

import contextlib
import dataclasses
import io
import json
import pickle
import struct

import google_crc32c
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gristmill.dataset import (
    DataLossError,
    FormatVersionError,
    InvalidDatasetError,
    PackedCounts,
    ShardReport,
    ShardTable,
    StorageError,
)
from gristmill.dataset.base.columns import load_arrays
from gristmill.dataset.base.places import Places
from gristmill.dataset.metadata.shard_index import (
    encode_index,
    index_of_footer,
    map_index,
    parse_index,
)
from gristmill.dataset.metadata.shard_table import ShardCollector
from tests.support.memory import limited_memory
from tests.support.shards import collected, footer_with, report
from tests.support.told import told
from tests.support.watched import watched

REPORTS = [report(n, spans=n % 4, index_bytes=7 + n) for n in range(9)]
TABLE = ShardTable.of(REPORTS)
REFUSED = (InvalidDatasetError, FormatVersionError)


def decode(data):
    return ShardTable.decode(data, where="t.shards.npz")


# Tables.


@pytest.mark.parametrize("count", [0, 1, 9])
def test_columns_come_back_also_unknown_ones(count):
    made = ShardTable.of(REPORTS[:count])
    columns = made.columns | {"later": np.arange(count)}
    data = ShardTable(paths=made.paths, columns=columns).encode()
    table = decode(decode(data).encode())
    assert made.columns.keys() - table.columns.keys() == {  # What was read is not kept.
        *("shard_index", "read_records", "read_raw_bytes", "read_low"),
        *("read_high", "changed_records", "null_rows"),
    }
    for name, values in table.columns.items():
        assert values.tolist() == columns[name].tolist()
    for shard, each in enumerate(REPORTS[:count]):
        found = table.paths[shard], table.spans(shard), table.digest(shard)
        assert found == (each.path, each.spans, each.written)


@pytest.mark.slow
@given(
    order=st.permutations([*range(9), 0, 4]),
    parts=st.integers(1, 4),
    block=st.integers(1, 5),
)
def test_reports_are_gathered_in_any_order_and_any_parts(order, parts, block):
    whole = ShardCollector(block_reports=block)
    for part in np.array_split(order, parts):
        reports = [REPORTS[shard] for shard in part]
        one = collected(reports, block_reports=block)
        whole.extend(pickle.loads(pickle.dumps(one)))
    again = dataclasses.replace(REPORTS[1], file_bytes=7)
    for reports in (REPORTS, [REPORTS[0], again, *REPORTS[2:]]):
        whole.add(reports[1])  # The later one counts.
        expected = ShardTable.of(reports).encode(gathered=True)
        assert whole.table().encode(gathered=True) == expected


WHOLE = report(1, read=report(1).written, dropped_records=1, added_records=1)
PACKED = PackedCounts(documents=9, empty_documents=1)


def written(**changes):
    return {"written": dataclasses.replace(WHOLE.written, **changes)}


@pytest.mark.parametrize(
    ("changes", "says", "if_mapped"),
    [
        ({"added_records": 2}, "11 read, 1 dropped, 2 added", True),
        *(({"dropped_records": n}, "lost or added", True) for n in (0, 2)),
        (written(records=9), "got:      9", True),
        # A function of the user's may change records.
        ({"read": dataclasses.replace(WHOLE.read, raw_bytes=1)}, "changed", False),
        *((written(**{name: 1}), "changed", False) for name in ("high", "low")),
        ({"packed": PACKED, "path": "a"}, "10 documents", True),
    ],
)
def test_what_was_read_for_a_shard_is_in_it(changes, says, if_mapped):
    wrong = dataclasses.replace(WHOLE, **{"path": "that"} | changes)
    table = ShardTable.of([wrong] if "packed" in changes else [WHOLE, wrong])
    for mapped in (False, True)[: 1 + if_mapped]:
        with told(DataLossError, match=says, where=wrong.path):
            table.check_counts(mapped=mapped)
    if not if_mapped:
        table.check_counts(mapped=True)


@pytest.mark.parametrize("failures", [3, 1000])
def test_an_error_of_pythons_parser_is_none_of_the_table(monkeypatch, failures):
    left = [SystemError("AST constructor recursion depth mismatch")] * failures

    def load(*args, **options):
        if left:
            raise left.pop()

    data = TABLE.encode()
    watched(monkeypatch, np, "load", load)
    fails = pytest.raises(InvalidDatasetError, match="depth mismatch")
    with fails if failures > 9 else contextlib.nullcontext():
        assert len(decode(data)) == 9


def column(name, index, value):
    values = TABLE.columns[name].copy()
    values[index] = value
    return {name: values}


def with_paths(second):
    names = [REPORTS[0].path.encode(), second, *(b"%d" % n for n in range(7))]
    ends = np.cumsum([*map(len, names)]).astype("<i8")
    return {"path_blob": np.frombuffer(b"".join(names), np.uint8), "path_ends": ends}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        *(({name: None}, name) for name in ("records", "path_ends")),
        ({"version": None}, "version"),
        ({"version": np.array(2)}, "another version"),
        ({"records": np.arange(6)}, "records"),
        ({"records": np.arange(9, dtype=np.int32)}, "records"),
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
        *(
            (with_paths(path), "")
            for path in (
                *(b"../escape", b"/etc/passwd", b"a/../../b", b"", b"gs://bucket/a"),
                *(b"a\\b", b"a\0b", REPORTS[0].path.encode()),
            )
        ),
    ],
    ids=str,
)
def test_columns_that_do_not_add_up(changes, says):
    with np.load(io.BytesIO(TABLE.encode())) as file:
        arrays = {name: file[name] for name in file.files} | changes
    out = io.BytesIO()
    np.savez_compressed(out, **{k: v for k, v in arrays.items() if v is not None})
    with told(REFUSED, "t.shards.npz", says):
        decode(out.getvalue()).check_paths(where="t.shards.npz")


@pytest.mark.slow
def test_arrays_that_decompress_to_far_more_than_is_stored():
    out = io.BytesIO()
    np.savez_compressed(out, version=1, zeros=np.zeros(1 << 28, np.uint8))
    with limited_memory(1 << 27), told(InvalidDatasetError, "decompress to 268,"):
        load_arrays(out.getvalue(), where="x", version=1)


# Indexes.


def index_of(counts, offsets=None, places=b"", **changes):
    footer = footer_with(counts, offsets)
    crcs = (np.arange(footer.records) * 2_654_435_761).astype(np.uint32)
    end = int(footer.chunk_offsets[-1])
    described = report(**{"file_bytes": end + 131_072} | changes)
    return encode_index(footer=footer, crc32cs=crcs, report=described, places=places)


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 32)), max_size=200),
    st.integers(1, 1 << 31),
)
@example([(1, 0)] * 200, 1)
@example([(3, 0)] * 130 + [(2, 0)], 1)
def test_an_index_says_what_the_footer_said(chunks, unit):
    counts = [count for count, _ in chunks]
    gaps = [40 + gap * unit for _, gap in chunks]
    offsets = 64 + np.append(0, np.cumsum(gaps)).astype(np.int64)
    footer = footer_with(counts, offsets)
    expected = [
        (at, offsets[at], offsets[at + 1], count, row)
        for at, count in enumerate(counts)
        for row in range(count)
    ]
    for index in (
        parse_index(index_of(counts, offsets), path="x"),
        index_of_footer(footer, path="x", file_bytes=1 << 50),
    ):
        assert (index.chunks, index.records) == (len(counts), footer.records)
        assert index.chunk_offsets(np.arange(len(offsets))).tolist() == offsets.tolist()
        assert index.chunk_records(np.arange(len(counts))).tolist() == counts
        assert [*map(tuple, index.find_records(range(sum(counts))))] == expected
        found = index.chunk_of(np.arange(footer.records))
        assert [*zip(*found, strict=True)] == [(e[0], e[4]) for e in expected]
        assert index.max_chunk_decoded_bytes == 10 * max(counts, default=0)


def test_what_is_no_report_is_refused():
    alone = index_of_footer(footer_with([2, 1]), path="x", file_bytes=131_072)
    with told(InvalidDatasetError, "report in the shard index"):
        alone.report()
    described = report(3, spans=5, path="a/\udcff-00000-of-00001")
    good = described.to_json()
    assert ShardReport.from_json(good, where="x.index") == described
    spans = json.dumps(json.loads(good) | {"spans": [5]}).encode()
    for bad in (
        *(b"", b"[]", b"[" * 100_000, good[:-1], good.replace(b'"low"', b'"lower"')),
        *(good.replace(b'"begin_bytes"', b'"begin"'), spans),
    ):
        with told(InvalidDatasetError, "report in the shard index"):
            ShardReport.from_json(bad, where="x.index")


def test_places_come_last_and_are_not_mapped(tmp_path):
    section = Places(np.array([0, 0, 1]), np.array([0, 40, 7])).encode()
    path, data = tmp_path / "i.index", index_of([1, 1, 1], places=section)
    path.write_bytes(data)
    whole, mapped = parse_index(data, path="i"), map_index(str(path))
    beginning = data[: -len(section)]
    for index in (whole, mapped, whole.report()):
        assert index.index_bytes == len(beginning)
    assert [*map(np.ndarray.tolist, whole.places())] == [[0, 0, 1], [0, 40, 7]]
    parse_index(beginning, path="i", whole=False).check()
    with told(InvalidDatasetError, "wrong size"):
        parse_index(beginning, path="i")
    damaged = data[:-1] + bytes([data[-1] ^ 1])
    with told(InvalidDatasetError, "damaged places"):
        parse_index(damaged, path="i").places()
    for name in ("missing", "."):
        with pytest.raises(StorageError, match=f"(?s)shard index.*{tmp_path}"):
            map_index(str(tmp_path / name))


def test_every_flipped_bit_and_every_cut_of_an_index():
    good = index_of([3, 3, 2], spans=1)
    for bit in range(8 * len(good)):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        with told(REFUSED, "x.index"):
            # Opening looks at the header alone.
            parse_index(bytes(data), path="x.index", whole=bit < 640).check()
    for data in (*(good[:length] for length in range(len(good))), good + b"\0"):
        with pytest.raises(InvalidDatasetError):
            parse_index(data, path="x")
    later = bytearray(good)
    struct.pack_into("<I", later, 8, 2)
    struct.pack_into("<I", later, 68, google_crc32c.value(bytes(later[:68])))
    with pytest.raises(FormatVersionError, match=r"(?s)version.*install"):
        parse_index(bytes(later), path="x.index")


# Places, and how much all of it takes.

FILES = st.integers(0, 3) | st.integers(0, 2**31 - 1)
PLACES = st.integers(0, 999) | st.integers(0, 2**62 - 1)


@given(st.lists(st.tuples(FILES, PLACES)), st.data())
def test_places_come_back_and_every_flipped_bit_is_found(rows, data):
    files, places = np.array(rows, np.int64).reshape(-1, 2).T
    encoded = bytearray(Places(files, places).encode())
    got = Places.decode(bytes(encoded), len(rows))
    assert [*zip(*map(np.ndarray.tolist, got), strict=True)] == rows
    for other in {0, 1, 8, len(rows) + 1} - {len(rows)}:
        with told(ValueError, "places"):
            Places.decode(bytes(encoded), other)
    bit = data.draw(st.integers(0, 8 * len(encoded) - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ValueError, match=r"places|checksum"):
        Places.decode(bytes(encoded), len(rows))


@pytest.mark.parametrize("count", [65_535, 65_536, 65_537, 150_000])
def test_an_index_and_its_places_take_few_bytes(count):
    # With a long name, a report of 20 spans and 2.2 KB records.
    offsets = 64 + 1200 * np.arange(count + 1)
    assert len(index_of(np.ones(count, int), offsets, spans=20)) <= 8.5 * count
    random = np.random.default_rng(count)
    files, places = np.zeros(count, int), np.cumsum(random.integers(16, 999, count))
    for found, most in (
        ((files, places), 2),
        ((files, np.arange(count)), 0.3),
        ((files, random.permutation(places)), 4),
        ((random.integers(0, 2**31, count), random.integers(0, 2**62, count)), 12),
    ):
        encoded = Places(*found).encode()
        assert len(encoded) <= most * count + 40
        assert all(map(np.array_equal, Places.decode(encoded, count), found))
