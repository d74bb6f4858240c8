"""Plans of real files: what is predicted of a sample, beside what is true."""

from __future__ import annotations

import gzip
import json
import os
import pathlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.advice.make_plan import (
    Plan,
    SampleSize,
    make_plan,
    sampled_parts,
)
from gristmill.pipelines.options.job_options import ConvertOptions
from gristmill.pipelines.text.printer import text_of
from tests.support.records import frames_of, text_records

SMALL = 64 << 10


def plan_of(
    path: pathlib.Path | str, size: SampleSize | None = None, **more: str
) -> Plan:
    options = ConvertOptions(input=(str(path),), output="out", **more)
    return make_plan(options, workers=1, sample_size=size)


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Files whose records become longer: the first ones tell nothing of the last."""
    folder = tmp_path_factory.mktemp("changing")
    for number in range(6):
        texts = text_records(3000, seed=number)
        rows = ({"text": text.decode() * (1 + 2 * number)} for text in texts)
        lines = "\n".join(map(json.dumps, rows))
        (folder / f"{number}.jsonl").write_text(lines)
    return folder


@pytest.mark.slow
def test_a_sample_tells_of_all_of_it(changing):
    plan = plan_of(changing, SampleSize(part_bytes=SMALL, seconds=60))
    assert plan.sampled_bytes < 0.3 * plan.input_bytes
    assert plan.records == pytest.approx(18_000, rel=0.4)
    assert len(text_of(plan).splitlines()) <= 15


def test_time_ends_it_early_but_not_at_once(changing):
    plan = plan_of(changing, SampleSize(part_bytes=SMALL, seconds=0))
    assert 0 < plan.sampled_bytes <= SMALL


@pytest.mark.slow
def test_of_compressed_files_only_heads_are_read(tmp_path) -> None:
    lines = [json.dumps({"text": text.hex()}) for text in text_records(30_000)]
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode(), 1))
    plan = plan_of(path, SampleSize(part_bytes=SMALL))
    assert plan.sampled_bytes == SMALL
    assert plan.records == pytest.approx(30_000, rel=0.1)
    assert any("the first bytes" in note for note in plan.notes)


def test_a_function_changes_what_is_measured(tmp_path, monkeypatch) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.tfrecord").write_bytes(frames_of([b"ab", b"", b"cd"]))
    (tmp_path / "functions.py").write_text(
        "def twice(record):\n    return [record, record] if record else None\n"
        "def none(record):\n    return None\n"
    )
    monkeypatch.chdir(tmp_path)
    plan = plan_of(tmp_path / "in", map="functions:twice")
    assert (plan.records, plan.raw_bytes) == (4, 8)
    with pytest.raises(InputError, match="holds no records"):
        plan_of(tmp_path / "in", map="functions:none")


def test_damage_is_noted_and_does_not_end_it(tmp_path) -> None:
    data = bytearray(frames_of(text_records(3000)))
    data[len(data) // 2] ^= 1
    (tmp_path / "a.tfrecord").write_bytes(data)
    plan = plan_of(tmp_path)
    assert 2900 < plan.records < 3001
    assert any("1 damaged region" in note for note in plan.notes)


def test_records_that_are_compressed_already_stay_so(tmp_path) -> None:
    records = [os.urandom(10_000) for _ in range(40)]
    (tmp_path / "a.tfrecord").write_bytes(frames_of(records))
    assert "--compression uncompressed" in plan_of(tmp_path).command


def test_it_leaves_nothing(
    tmp_path: pathlib.Path, temporary_in: Callable[[object], None]
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    temporary_in(scratch)
    (tmp_path / "a.tfrecord").write_bytes(frames_of(text_records(400)))
    plan = plan_of(tmp_path / "a.tfrecord")
    assert plan.seconds > 0
    assert [*scratch.iterdir()] == []


@given(
    files=st.lists(st.tuples(st.integers(0, 300), st.booleans()), min_size=1).filter(
        lambda files: any(size for size, _ in files)
    ),
    parts=st.integers(1, 9),
    part_bytes=st.integers(1, 90),
)
def test_parts_lie_apart_and_begin_where_files_can_be_read(files, parts, part_bytes):
    sizes = np.array([size for size, _ in files])
    splittable = np.array([plain for _, plain in files])
    plan, shards = sampled_parts(sizes, splittable, parts=parts, part_bytes=part_bytes)
    cuts = plan.cut_bytes.tolist()
    edges = np.concatenate(([0], np.cumsum(sizes))).tolist()
    found = [(cuts[shard], cuts[shard + 1]) for shard in shards]
    assert len({*found}) == len(found) > 0
    assert all(0 < end - begin <= part_bytes for begin, end in found)
    for begin, end in found:
        for file in range(len(sizes)):
            if edges[file] < end and begin < edges[file + 1] and not splittable[file]:
                assert begin == edges[file]
                assert end <= edges[file + 1]
    total, taken = sum(sizes), sum(end - begin for begin, end in found)
    if splittable.all() and total <= parts * part_bytes:
        assert taken == total
