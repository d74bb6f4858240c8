"""Faults are put into every step of packing: none passes in silence.

The faults of `test_ledger`, and those that only packing can have: in the documents that
are packed, in the plan of rows, and in the segment index.
"""

import contextlib
import functools
from unittest import mock

import numpy as np
import pytest

from gristmill.dataset.base.errors import GristmillError
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.pipelines.anywhere import verify
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.tokens import row_packer
from gristmill.transforms.tokens.best_fit import Packing
from gristmill.transforms.tokens.row_packer import RowPacker
from tests.order.ledger import FAULTS, SHARDS, Case, at_publishing
from tests.support import conversion


def letters(texts):
    """A tokenizer: every letter is a token."""
    return [list(text.encode()) for text in texts]


letters.vocabulary_size = 256
letters.special_ids = {}


class PackedCase(Case):
    """A conversion of three small files into packed rows."""

    def job(self, output):
        pack = PackOptions(length=64, column="", tokenizer=f"{__name__}:letters")
        plan = ("num_shards", SHARDS)
        return conversion.job_of(
            self.inputs, self.folder / output, plan=plan, pack=pack
        )


@contextlib.contextmanager
def in_documents(case, kind):
    """Faults in the documents that are packed, behind the tokenizer."""
    real = RowPacker.add

    def add(self, documents, places):
        if len(places) > 1 and case.once():
            lengths, ids = documents.lengths, documents.ids
            last = int(lengths[-1])
            if kind == "lose":
                lengths, ids, places = lengths[:-1], ids[: len(ids) - last], places[:-1]
            else:
                lengths = np.append(lengths, last)
                ids = np.append(ids, ids[len(ids) - last :])
                places = [*places, places[-1]]
            documents = documents._replace(lengths=lengths, ids=ids)
        real(self, documents, places)

    # Documents that are lost in memory.
    with mock.patch.object(RowPacker, "add", add):
        yield


@contextlib.contextmanager
def in_plan_of_rows(case, kind):
    """Faults in the plan of which pieces share rows."""
    real = row_packer.plan_rows

    def plan_rows(lengths, **options):
        plan = real(lengths, **options)
        if len(plan.row_ends) < 2 or not case.once():
            return plan
        ends, documents, firsts, lengths = (column.copy() for column in plan)
        longest, last = int(np.argmax(lengths)), int(ends[-2])
        if kind == "lose":
            return Packing(ends[:-1], documents[:last], firsts[:last], lengths[:last])
        if kind == "other document":
            at = case.chance.randrange(len(documents))
            documents[at] = (documents[at] + 1) % (documents.max() + 1)
        else:
            lengths[longest] -= 1
            firsts[longest] += kind == "later"
        return Packing(ends, documents, firsts, lengths)

    # Documents cannot give a plan that is wrong.
    with mock.patch.object(row_packer, "plan_rows", plan_rows):
        yield


def in_segments(case, kind):
    """Faults in the segment index, between its making and its place."""

    def fault(_, given):
        segments = given["segments"]
        at = case.chance.randrange(len(segments))
        bad = bytes([segments[at] ^ 1 << case.chance.randrange(8)])
        end = bad + segments[at + 1 :] if kind == "flip" else b""
        given["segments"] = segments[:at] + end

    return at_publishing(case, fault)


OWN = {
    "documents": (in_documents, ("lose", "double")),
    "plan of rows": (in_plan_of_rows, ("other document", "shorter", "later", "lose")),
    "segment index": (in_segments, ("flip", "cut")),
}
ALL = FAULTS | {
    f"{place}: {kind}": functools.partial(fault, kind=kind)
    for place, (fault, kinds) in OWN.items()
    for kind in kinds
}


def outcome(case):
    """Returns what came of packing with a fault in it."""
    try:
        conversion.convert(case.job("out"))
    except (GristmillError, ValueError):
        return "refused"
    if verify(str(case.folder / "out"), workers=1).findings:
        return "found by verify"
    clean, out = (
        open_manifest(str(case.folder / name)).splits["train"].packed
        for name in ("clean", "out")
    )
    # Other shards can have other rows, of the same documents.
    for name in ("documents", "tokens"):
        assert clean[name] == out[name]
    return "right"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("fault", ALL)
def test_no_fault_passes(tmp_path, fault, seed):
    case = PackedCase(tmp_path, "tfrecord", seed)
    conversion.convert(case.job("clean"))
    assert not verify(str(tmp_path / "clean"), workers=1).findings
    with ALL[fault](case):
        found = outcome(case)
    assert case.happened
    if fault.startswith("segment index"):
        assert found == "found by verify"
    elif not fault.startswith(("finished file", "plan:")):
        assert found == "refused"
