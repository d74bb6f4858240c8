"""The table of shards: cheap at a million rows, every value checked."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.columns import Texts, encode_texts, load_arrays
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import (
    DataLossError,
    FormatVersionError,
    InvalidDatasetError,
)
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.packed.counts import PackedCounts
from tests.support.memory import limited_memory
from tests.support.shards import report
from tests.support.watched import watched


def table_of(count: int) -> ShardTable:
    return ShardTable.of([report(shard, spans=shard % 4) for shard in range(count)])


def decode(data: bytes) -> ShardTable:
    return ShardTable.decode(data, where="t.shards.npz")


class TestRoundTrip:
    @pytest.mark.parametrize("count", [0, 1, 2, 57])
    def test_every_column_comes_back(self, count: int):
        reports = [report(shard, spans=shard % 4) for shard in range(count)]
        table = decode(ShardTable.of(reports).encode())
        assert len(table) == count
        assert list(table.paths) == [item.path for item in reports]
        assert table.records.tolist() == [item.written.records for item in reports]
        assert table.file_bytes.tolist() == [item.file_bytes for item in reports]
        assert table.file_crc32cs.tolist() == [item.file_crc32c for item in reports]
        for column in (
            "dropped_records",
            "added_records",
            "skipped_regions",
            "skipped_bytes",
        ):
            values = [getattr(item, column) for item in reports]
            assert table.columns[column].tolist() == values
            assert table.total(column) == sum(values)
        for shard, item in enumerate(reports):
            assert table.spans(shard) == item.spans
            assert table.digest(shard) == item.written
        assert table.digest() == RecordsDigest.total(item.written for item in reports)

    def test_unknown_columns_survive(self):
        table = table_of(3)
        columns = table.columns | {"later": np.arange(9)}
        data = ShardTable(paths=table.paths, columns=columns).encode()
        again = decode(decode(data).encode())
        assert again.columns["later"].tolist() == list(range(9))

    def test_any_numpy_reads_it(self):
        with np.load(io.BytesIO(table_of(4).encode()), allow_pickle=False) as file:
            assert file["records"].tolist() == [10, 11, 12, 13]
            blob, ends = file["path_blob"], file["path_ends"]
            assert bytes(blob[: ends[0]]).decode() == report(0).path

    def test_what_was_read_is_not_written(self):
        table = table_of(3)
        assert table.numbers.tolist() == [0, 1, 2]
        assert table.read_digest(1) == report(1).read
        assert table.read_digest().records == 12 + 13 + 14
        assert table.total("changed_records") == 15
        again = decode(table.encode())
        lost = table.columns.keys() - again.columns.keys()
        assert lost == {
            *("shard_index", "read_records", "read_raw_bytes", "read_low"),
            *("read_high", "changed_records", "null_rows"),
        }


class TestCounts:
    """What was read for a shard is in it, or the first that differs is named."""

    WHOLE = report(1, read=report(1).written, dropped_records=1, added_records=1)

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"added_records": 2}, "11 read, 1 dropped, 2 added"),
            ({"dropped_records": 0}, "lost or added"),
            ({"written": dataclasses.replace(WHOLE.written, records=9)}, "got:      9"),
            ({"read": dataclasses.replace(WHOLE.read, raw_bytes=3)}, None),
            ({"written": dataclasses.replace(WHOLE.written, high=1)}, None),
            ({"written": dataclasses.replace(WHOLE.written, low=1)}, None),
        ],
    )
    def test_a_shard_that_differs(self, changes, says):
        wrong = dataclasses.replace(self.WHOLE, **changes, path="that")
        table = ShardTable.of([self.WHOLE, wrong])
        with pytest.raises(DataLossError) as caught:
            table.check_counts(mapped=False)
        assert caught.value.where == "that"
        assert (says or "records changed") in str(caught.value)
        if says is None:  # A function of the user's may change records.
            table.check_counts(mapped=True)
            return
        with pytest.raises(DataLossError, match="lost or added"):
            table.check_counts(mapped=True)

    def test_records_that_were_not_selected(self):
        left_out = RecordsDigest(records=2, raw_bytes=5, low=9, high=(1 << 64) - 1)
        read = self.WHOLE.written + left_out
        selected = dataclasses.replace(self.WHOLE, read=read, dropped_records=3)
        table = ShardTable.of([selected])
        table.check_counts(mapped=False, left_out=left_out)
        with pytest.raises(DataLossError, match="records changed"):
            table.check_counts(mapped=False)

    @pytest.mark.parametrize("documents", [10, 9])
    def test_of_packed_rows_documents_count(self, documents):
        packed = PackedCounts(documents=documents, empty_documents=1)
        table = ShardTable.of([dataclasses.replace(self.WHOLE, packed=packed)])
        if documents == 10:
            table.check_counts(mapped=False)
        else:
            with pytest.raises(DataLossError, match="got:      10 documents"):
                table.check_counts(mapped=False)


class TestPython:
    @pytest.mark.parametrize("failures", [1, 3, 1000])
    def test_an_error_of_its_parser_is_none_of_the_table(self, monkeypatch, failures):
        left = failures

        def load(*args, **options):
            nonlocal left
            left -= 1
            if left >= 0:
                raise SystemError("AST constructor recursion depth mismatch")

        data = table_of(3).encode()
        watched(monkeypatch, np, "load", load)
        if failures < 10:
            assert len(decode(data)) == 3
        else:
            with pytest.raises(InvalidDatasetError, match="depth mismatch"):
                decode(data)


class TestTexts:
    @pytest.mark.slow
    @given(st.lists(st.text(), max_size=30))
    def test_round_trip(self, texts):
        texts = [t.encode("utf-8", "replace").decode() for t in texts]
        got = Texts(*encode_texts(texts))
        assert list(got) == texts
        assert len(got) == len(texts)
        assert got[1:3] == texts[1:3]
        assert [got[-i] for i in range(1, len(texts) + 1)] == texts[::-1]
        with pytest.raises(IndexError):
            got[len(texts)]


def with_arrays(data: bytes, **changes) -> bytes:
    """Returns a table with other arrays; None takes one out."""
    with np.load(io.BytesIO(data)) as file:
        arrays = {name: file[name] for name in file.files} | changes
    out = io.BytesIO()
    np.savez_compressed(out, **{k: v for k, v in arrays.items() if v is not None})
    return out.getvalue()


def column(name: str, index: int, value: int) -> dict:
    values = (table_of(5).columns[name]).copy()
    values[index] = value
    return {name: values}


class TestRefused:
    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"records": None}, "records"),
            ({"span_whole": None}, "span_whole"),
            ({"path_ends": None}, "path_ends"),
            ({"version": None}, "version"),
            ({"records": np.arange(6)}, "records"),
            ({"records": np.arange(5, dtype=np.int32)}, "records"),
            ({"records": np.ones((5, 1), np.int64)}, "records"),
            (column("records", 2, -1), "records"),
            ({"raw_bytes": np.full(5, 1 << 61)}, "raw_bytes"),
            ({"span_file": np.zeros(3, "<i4")}, "span_begin_bytes"),
            (column("span_ends", 4, 1 << 40), "span"),
            (column("span_ends", 1, 5), "span"),
            ({"path_ends": np.array([9, 2, 3, 4, 5])}, "path"),
            ({"path_ends": np.array([1, 2, 3, 4, 1 << 40])}, "path"),
            ({"path_ends": np.arange(5.0)}, "path"),
            ({"path_blob": np.array(["a"])}, "path"),
        ],
    )
    def test_columns_that_do_not_add_up(self, changes: dict, says: str):
        data = with_arrays(table_of(5).encode(), **changes)
        with pytest.raises(InvalidDatasetError) as caught:
            decode(data)
        assert says in str(caught.value)
        assert "t.shards.npz" in str(caught.value)

    def test_pickles_are_never_loaded(self):
        # As object arrays would be: code of whoever made the file.
        evil = np.array([{}] * 5, object)
        with pytest.raises(InvalidDatasetError):
            decode(with_arrays(table_of(5).encode(), records=evil))

    def test_other_versions_with_the_reason(self):
        data = with_arrays(table_of(5).encode(), version=np.array(2))
        with pytest.raises(FormatVersionError, match="another version") as caught:
            decode(data)
        assert "convert again" in str(caught.value)

    @pytest.mark.parametrize(
        "path",
        ["../escape", "/etc/passwd", "a/../../b", "", "gs://bucket/a", "a\\b", "a\0b"],
    )
    def test_paths_that_leave_the_dataset(self, path: str):
        table = ShardTable.of([report(0), report(1, path=path)])
        with pytest.raises(InvalidDatasetError, match="outside") as caught:
            decode(table.encode()).check_paths(where="t")
        assert repr(path) in str(caught.value)

    def test_a_file_listed_twice(self):
        table = ShardTable.of([report(0), report(0)])
        with pytest.raises(InvalidDatasetError, match="twice"):
            table.check_paths(where="t")

    def test_truncation_at_every_length(self):
        data = table_of(2).encode()
        for length in range(len(data)):
            with pytest.raises(InvalidDatasetError):
                decode(data[:length])

    @pytest.mark.slow
    def test_arrays_that_decompress_to_far_more_than_is_stored(self):
        out = io.BytesIO()
        np.savez_compressed(out, version=1, zeros=np.zeros(1 << 28, np.uint8))
        assert len(out.getvalue()) < 1 << 20
        with (
            limited_memory(1 << 27),
            pytest.raises(InvalidDatasetError, match="cannot be read") as error,
        ):
            load_arrays(out.getvalue(), where="x", version=1)
        assert "decompress to 268," in str(error.value.got)


def test_a_column_that_is_there_only_where_indexes_have_places():
    with_places = [dataclasses.replace(report(0), index_bytes=7), report(1)]
    assert b"index_bytes" not in with_places[0].to_json()
    for reports, expected in ((with_places, [7, 0]), ([report(0), report(1)], [0, 0])):
        data = ShardTable.of(reports).encode()
        assert ("index_bytes" in load_arrays(data, where="t", version=1)) == any(
            expected
        )
        assert decode(data).index_bytes.tolist() == expected


def test_counts_of_packed_rows_end_with_the_shards():
    counts = [PackedCounts(documents=number + 1, tokens=9) for number in range(3)]
    reports = [
        report(number, packed=one, segments_bytes=1, segments_crc32c=2)
        for number, one in enumerate(counts)
    ]
    table = ShardTable.of(reports)
    assert "packed_user_tokens" not in table.columns  # No conversations.
    for begin, end in ((0, 3), (0, 9000), (1, 4), (3, 5)):
        assert list(table.packed(begin, end)) == counts[begin:end]
