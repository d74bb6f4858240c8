"""docs/reference/format.md names every field that is on disk, and no other."""

from __future__ import annotations

import dataclasses
import io
import json
import pathlib
import re
import struct

import numpy as np

from examples import packed_reader
from gristmill.dataset.metadata import shard_index
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.packed.counts import OPTIONAL, PackedCounts
from gristmill.dataset.packed.row_format import RowBatch, RowFormat, encode_rows
from gristmill.pipelines.text.supervision import spans_of_piece
from gristmill.transforms.tokens.best_fit import plan_rows
from tests.support.conversation_rows import spans_of
from tests.support.shards import report
from tests.support.supervised import conversations

TEXT = (
    pathlib.Path(__file__)
    .parents[2]
    .joinpath("docs", "reference", "format.md")
    .read_text()
)


def section(title: str) -> str:
    found = re.search(
        rf"^##+ {title}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL
    )
    assert found, title
    return found.group(1)


def first_cells(text: str) -> set[str]:
    """Returns what stands in backticks in the first cells of a section's tables."""
    rows = re.findall(r"^\| (.*?) \|", text, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_fields_of_dataset_json():
    manifest = Manifest(name="c4", splits={})
    split_fields = {field.name for field in dataclasses.fields(Split)} - {"extra"}
    document = json.loads(manifest.encode())
    assert first_cells(section(r"dataset\.json")) == document.keys() | split_fields


def test_the_example_of_dataset_json_has_all_fields():
    (example,) = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    document = json.loads(example)
    assert document.keys() == json.loads(Manifest(name="c4", splits={}).encode()).keys()
    split_fields = {field.name for field in dataclasses.fields(Split)} - {"extra"}
    optional = {"columns", "editions", "features", "packed"}
    optional |= {"edition", "last_edition", "replaced", "removed"}
    assert document["splits"]["train"].keys() == split_fields - optional
    # Totals and digest are right too.
    assert Manifest.decode(example.encode(), where="docs").name == "c4"


def test_columns_of_the_table():
    data = ShardTable.of([report(packed=PackedCounts())]).encode()
    with np.load(io.BytesIO(data)) as arrays:
        text = section("Table of shards")
        columns = {name: array.dtype.name for name, array in arrays.items()}
        # After a removal alone.
        columns["span_skipped_records"] = "int64"
        for name in OPTIONAL:
            kind = "uint64" if "digest" in name else "int64"
            columns[f"packed_{name}"] = kind
        assert first_cells(text) == columns.keys()
        rows = re.findall(r"^\| (`.*?) \| (\w+) \|", text, re.MULTILINE)
        types = {
            name: kind for cell, kind in rows for name in first_cells(f"| {cell} |")
        }
        assert types == columns


def test_header_of_the_index():
    rows = re.findall(r"^\| (\d+) \| (\d+) \|", section("Shard index"), re.MULTILINE)
    sizes = [int(size) for _, size in rows]
    assert sizes == [
        struct.calcsize(code)
        for code in re.findall(r"\d*\w", shard_index.HEADER.format)
    ]
    offsets = [int(offset) for offset, _ in rows]
    assert offsets == (np.cumsum(sizes) - sizes).tolist()
    assert sum(sizes) == shard_index.HEADER_BYTES
    assert offsets[11] == shard_index.CRC_AT


def test_fields_of_the_report():
    text = section("Shard index")
    for field in dataclasses.fields(ShardReport):
        assert f"`{field.name}`" in text


def test_rows_as_bytes():
    row = bytes.fromhex("02000080 01000000 02000000 00000000 05000000 0100 0200 0300")
    (first, document), (position, rest) = packed_reader.read_row(row, id_bytes=2)
    assert (first, document.tolist()) == (0, [1])
    assert (position, rest.tolist()) == (5, [2, 3])
    row = bytes.fromhex("01000040 07000000" + "0100" * 7 + "02 02 03 32 3b")
    user, assistant = packed_reader.read_spans(row, id_bytes=2)[0]
    assert user == (1, 3, "user", 0, False, 1.0)
    assert assistant == (4, 7, "assistant", 1, True, 1.0)


def test_the_example_reads_spans_of_messages():
    made = conversations(200, seed=9, vocabulary=60_000)
    for number, each in enumerate(made):
        each.said[:] = [
            said and said._replace(weight=number % 3 / 2 if said.trained else 1.0)
            for said in each.said
        ]
    lengths = np.array([len(each.ids) for each in made])
    for row_length, weights in ((64, True), (5, False)):
        plan = plan_rows(lengths.astype("u4"), length=row_length, method="best-fit")
        spans = spans_of([each.said for each in made])
        if not weights:
            spans = spans._replace(weights=np.ones(len(spans.roles), np.float32))
        ids = np.array([token for each in made for token in each.ids], np.uint32)
        begins = (np.cumsum(lengths) - lengths)[plan.documents] + plan.firsts
        tokens = [
            ids[a : a + n] for a, n in zip(begins, plan.lengths.tolist(), strict=True)
        ]
        batch = RowBatch(
            *(plan.row_ends, plan.lengths, plan.firsts, np.concatenate(tokens)),
            spans.of_pieces(plan.documents, plan.firsts, plan.lengths),
        )
        found = []
        for record in encode_rows(RowFormat(row_length), batch):
            found += packed_reader.read_spans(record, 2)
        expected = [
            [
                (
                    *(each["begin"], each["end"], each["role"], each["message"]),
                    *(each["trained"], each.get("weight", 1.0)),
                )
                for each in spans_of_piece(batch.spans, piece)
            ]
            for piece in range(len(plan.documents))
        ]
        assert found == expected
