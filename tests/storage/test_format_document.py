"""docs/reference/format.md names every field that is on disk, and no other."""

from __future__ import annotations

import numpy as np

from examples import packed_reader
from gristmill.dataset.packed.row_format import RowBatch, RowFormat, encode_rows
from gristmill.pipelines.text.supervision import spans_of_piece
from gristmill.transforms.tokens.best_fit import plan_rows
from tests.support.conversation_rows import spans_of
from tests.support.packed_shards import conversations


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
        spans = spans_of([made[d].said for d in plan.documents])
        if not weights:
            spans = spans._replace(weights=np.ones(len(spans.roles), np.float32))
        ids = np.array([token for each in made for token in each.ids], np.uint32)
        begins = (np.cumsum(lengths) - lengths)[plan.documents] + plan.firsts
        tokens = [
            ids[a : a + n] for a, n in zip(begins, plan.lengths.tolist(), strict=True)
        ]
        batch = RowBatch(
            *(plan.row_ends, plan.lengths, plan.firsts, np.concatenate(tokens)),
            spans.cut(plan.firsts, plan.lengths),
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
