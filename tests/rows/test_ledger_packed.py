"""Faults are put into every step of packing: none passes in silence.

The faults of `test_ledger`, and those that only packing can have: in the documents that
are packed, in the plan of rows, and in the segment index.
"""

from __future__ import annotations

import contextlib
import functools
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import numpy as np
import pytest

from gristmill.dataset.base.errors import GristmillError
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.pipelines.verify import verify
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.tokens import row_packer
from gristmill.transforms.tokens.best_fit import Packing
from gristmill.transforms.tokens.row_packer import RowPacker
from tests.support import conversion
from tests.support.ledger import FAULTS, SHARDS, Case, Fault, at_publishing


def letters(texts: Sequence[str]) -> list[list[int]]:
    """A tokenizer: every letter is a token."""
    return [list(text.encode()) for text in texts]


letters.vocabulary_size = 256  # type: ignore[attr-defined]
letters.special_ids = {}  # type: ignore[attr-defined]


class PackedCase(Case):
    """A conversion of three small files into packed rows."""

    def job(self, output: str) -> conversion.ConversionJob:
        tokenizer = f"{__name__}:letters"
        return conversion.job_of(
            self.inputs,
            self.folder / output,
            plan=("num_shards", SHARDS),
            pack=PackOptions(length=64, column="", tokenizer=tokenizer),
        )


@contextlib.contextmanager
def in_documents(case: Case, kind: str) -> Iterator[None]:
    """Faults in the documents that are packed, behind the tokenizer."""
    real = RowPacker.add

    def add(self: Any, documents: Any, places: Any) -> None:
        if len(places) > 1 and case.once():
            lengths, ids = documents.lengths, documents.ids
            if kind == "lose":
                documents = documents._replace(
                    lengths=lengths[:-1], ids=ids[: int(lengths[:-1].sum())]
                )
                places = places[:-1]
            else:
                documents = documents._replace(
                    lengths=np.append(lengths, lengths[-1]),
                    ids=np.append(ids, ids[len(ids) - int(lengths[-1]) :]),
                )
                places = [*places, places[-1]]
        real(self, documents, places)

    # Documents that are lost in memory.
    with mock.patch.object(RowPacker, "add", add):
        yield


def _changed_plan(plan: Packing, kind: str, at: int) -> Packing:
    columns = [column.copy() for column in plan]
    ends, documents, firsts, lengths = columns
    if kind == "other document":
        documents[at] = (documents[at] + 1) % (documents.max() + 1)
    elif kind == "shorter":
        at = int(np.argmax(lengths))
        lengths[at] -= 1
    elif kind == "later":
        at = int(np.argmax(lengths))
        firsts[at], lengths[at] = firsts[at] + 1, lengths[at] - 1
    else:  # A row is lost.
        size = int(ends[-1] - ends[-2])
        return Packing(ends[:-1], documents[:-size], firsts[:-size], lengths[:-size])
    return Packing(*columns)


@contextlib.contextmanager
def in_plan_of_rows(case: Case, kind: str) -> Iterator[None]:
    """Faults in the plan of which pieces share rows."""
    real = row_packer.plan_rows

    def plan_rows(lengths: Any, **options: Any) -> Packing:
        plan = real(lengths, **options)
        if len(plan.row_ends) > 1 and case.once():
            plan = _changed_plan(plan, kind, case.chance.randrange(len(plan.firsts)))
        return plan

    # Documents cannot give a plan that is wrong.
    with mock.patch.object(row_packer, "plan_rows", plan_rows):
        yield


def in_segments(case: Case, kind: str) -> AbstractContextManager[None]:
    """Faults in the segment index, between its making and its place."""

    def fault(_: str, given: dict[str, Any]) -> None:
        segments = given["segments"]
        at = case.chance.randrange(len(segments))
        bad = bytes([segments[at] ^ 1 << case.chance.randrange(8)])
        changed = segments[:at] + (bad + segments[at + 1 :]) * (kind == "flip")
        given["segments"] = changed

    return at_publishing(case, fault)


ALL: dict[str, Fault] = {
    **FAULTS,
    **{
        f"documents: {kind}": functools.partial(in_documents, kind=kind)
        for kind in ("lose", "double")
    },
    **{
        f"plan of rows: {kind}": functools.partial(in_plan_of_rows, kind=kind)
        for kind in ("other document", "shorter", "later", "lose")
    },
    **{
        f"segment index: {kind}": functools.partial(in_segments, kind=kind)
        for kind in ("flip", "cut")
    },
}


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield pathlib.Path(directory)


def outcome(case: Case, convert: Callable[[], Any]) -> str:
    """Returns what came of packing with a fault in it."""
    try:
        convert()
    except (GristmillError, ValueError):
        return "refused"
    if verify(str(case.folder / "out"), workers=1).findings:
        return "found by verify"
    clean, out = (
        open_manifest(str(case.folder / name)).splits["train"].packed
        for name in ("clean", "out")
    )
    assert clean is not None
    assert out is not None
    # Other shards can have other rows, of the same documents.
    for name in ("documents", "tokens"):
        assert clean[name] == out[name]
    return "right"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("fault", ALL)
def test_no_fault_passes(folder, fault, seed):
    case = PackedCase(folder, "tfrecord", seed)
    conversion.convert(case.job("clean"))
    assert not verify(str(folder / "clean"), workers=1).findings
    with ALL[fault](case):
        found = outcome(case, functools.partial(conversion.convert, case.job("out")))
    assert case.happened
    if fault.startswith("segment index"):
        assert found == "found by verify"
    elif not fault.startswith(("finished file", "plan:")):
        assert found == "refused"
