"""Faults are put into every step of packing: none passes in silence.

The faults of conversions, and those that only packing can have: in the documents that
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
        given = {"plan": ("num_shards", SHARDS), "pack": pack}
        return conversion.job_of(self.inputs, self.folder / output, **given)


@contextlib.contextmanager
def in_documents(case, kind):
    """Loses or doubles a document behind the tokenizer."""
    real = RowPacker.add

    def add(self, documents, places):
        if len(places) > 1 and case.once():
            last = len(places) - 1
            kept = [*range(last), *([last] * 2 if kind == "double" else ())]
            parts = np.split(documents.ids, documents.lengths.cumsum()[:-1])
            ids = np.concatenate([parts[number] for number in kept])
            documents = documents._replace(lengths=documents.lengths[kept], ids=ids)
            places = [places[number] for number in kept]
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


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("fault", ALL)
def test_no_fault_passes(tmp_path, fault, seed):
    case = PackedCase(tmp_path, "tfrecord", seed)
    conversion.convert(case.job("clean"))
    with ALL[fault](case):
        try:
            conversion.convert(case.job("out"))
            refused = False
        except (GristmillError, ValueError):
            refused = True
    assert case.happened
    if fault.startswith("segment index"):
        assert verify(str(tmp_path / "out"), workers=1).findings
    elif not fault.startswith(("finished file", "plan:")):
        assert refused
    elif not (refused or verify(str(tmp_path / "out"), workers=1).findings):
        # Other shards can have other rows, of the same documents.
        clean, out = (
            open_manifest(str(tmp_path / name)).splits["train"].packed
            for name in ("clean", "out")
        )
        for name in ("documents", "tokens"):
            assert clean[name] == out[name]
