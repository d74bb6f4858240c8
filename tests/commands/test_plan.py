"""`gristmill plan`: what is predicted of a sample, beside what is true."""

import gzip
import json
import os
import pathlib
import shlex

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.pipelines.advice.make_plan import (
    SampleSize,
    make_plan,
    sampled_parts,
)
from gristmill.pipelines.options.job_options import ConvertOptions
from gristmill.pipelines.text.printer import text_of
from tests.commands.conftest import json_of, refused, run
from tests.servers.gcs_server import GcsServer
from tests.support.records import frames_of, text_records

SMALL = 64 << 10


def plan_of(path, size):
    options = ConvertOptions(input=(str(path),), output="out")
    return make_plan(options, workers=1, sample_size=size)


@pytest.mark.slow
def test_a_sample_of_some_seconds_tells_of_all_of_it(tmp_path):
    """Records become longer: the first ones tell nothing of the last."""
    for number in range(6):
        texts = text_records(3000, seed=number)
        rows = ({"text": text.decode() * (1 + 2 * number)} for text in texts)
        (tmp_path / f"{number}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    plan = plan_of(tmp_path, SampleSize(part_bytes=SMALL, seconds=60))
    assert plan.sampled_bytes < 0.3 * plan.input_bytes
    assert plan.records == pytest.approx(18_000, rel=0.4)
    assert len(text_of(plan).splitlines()) <= 15
    plan = plan_of(tmp_path, SampleSize(part_bytes=SMALL, seconds=0))
    assert 0 < plan.sampled_bytes <= SMALL
    # Of compressed files only heads are read.
    lines = [json.dumps({"text": text.hex()}) for text in text_records(30_000)]
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode(), 1))
    plan = plan_of(path, SampleSize(part_bytes=SMALL))
    assert 0.5 * SMALL < plan.sampled_bytes <= SMALL
    assert plan.records == pytest.approx(30_000, rel=0.1)
    assert any("the first bytes" in note for note in plan.notes)


def test_functions_damage_and_records_that_are_compressed_already(
    tmp_path, monkeypatch, temporary_in
):
    (tmp_path / "functions.py").write_text(
        "def twice(record):\n    return [record, record] if record else None\n"
        "def none(record):\n    return None\n"
    )
    (tmp_path / "scratch").mkdir()
    temporary_in(tmp_path / "scratch")
    monkeypatch.chdir(tmp_path)
    plan = ("plan", "a.tfrecord", "--workers", 1)
    path = tmp_path / "a.tfrecord"
    path.write_bytes(frames_of([b"ab", b"", b"cd"]))
    found = json_of(*plan, "--map", "functions:twice")
    assert (found["records"], found["raw_bytes"]) == (4, 8)
    assert "holds no records" in refused(*plan, "--map", "functions:none")
    path.write_bytes(frames_of(os.urandom(10_000) for _ in range(40)))
    assert "--compression uncompressed" in json_of(*plan)["command"]
    data = bytearray(frames_of(text_records(3000)))
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    found = json_of(*plan)
    assert 2900 < found["records"] < 3001
    assert any("1 damaged region" in note for note in found["notes"])
    assert [*(tmp_path / "scratch").iterdir()] == []


@given(
    sizes=st.lists(st.integers(0, 300), min_size=1).filter(any),
    parts=st.integers(1, 9),
    part_bytes=st.integers(1, 90),
)
def test_parts_lie_apart(sizes, parts, part_bytes):
    """Parts of a compressed file begin with it."""
    for is_plain in (True, False):
        plan, shards = sampled_parts(
            np.array(sizes),
            np.full(len(sizes), is_plain),
            parts=parts,
            part_bytes=part_bytes,
        )
        cuts, total = plan.cut_bytes.tolist(), sum(sizes)
        found = [(cuts[shard], cuts[shard + 1]) for shard in shards]
        assert 0 < len({*found}) == len(found) <= parts or total <= parts * part_bytes
        limit = part_bytes if is_plain else total
        assert all(0 < end - begin <= limit for begin, end in found)
        if is_plain and total <= parts * part_bytes:
            assert sum(end - begin for begin, end in found) == total
        if not is_plain:
            edges = np.cumsum([0, *sizes])
            begins = np.array([begin for begin, _ in found])
            files = np.searchsorted(edges, begins, side="right") - 1
            assert (begins - edges[files] < 2 * part_bytes).all()


@pytest.mark.slow
def test_the_command_makes_what_was_predicted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = {
        f"{number}.tfrecord": frames_of(text_records(1500, seed=number))
        for number in range(3)
    }
    os.mkdir("texts")
    for name, content in data.items():
        pathlib.Path("texts", name).write_bytes(content)
    found = json_of("plan", "texts", "--workers", "1")
    words = shlex.split(found["command"])
    assert words[:4] == ["gristmill", "convert", "texts", "texts-arrayrecord"]
    assert words[-2:] == ["--workers", "1"]
    run(*words[1:])
    output = pathlib.Path("texts-arrayrecord")
    made = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    assert found["file_bytes"] == pytest.approx(made, rel=0.03)
    split = open_manifest(str(output)).splits["train"]
    assert found["records"] == pytest.approx(split.records, rel=0.02)
    assert found["shards"] == split.shards
    assert found["seconds"] > 0
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        for name, content in data.items():
            server.objects.put("bucket", f"raw/texts/{name}", content)
        before = set(server.objects.buckets["bucket"])
        inputs = "gs://bucket/raw/texts/*.tfrecord"
        out = run("plan", inputs, "--workers", 1, "--group-size", 16).stdout
        assert set(server.objects.buckets["bucket"]) == before
    assert "  files     3\n" in out
    assert (
        "gristmill convert 'gs://bucket/raw/texts/*.tfrecord' "
        "gs://bucket/raw/texts-arrayrecord --group-size 16 --compression zstd:3"
    ) in out
