"""`gristmill plan`: what is predicted of a sample, beside what is true."""

import gzip
import json
import os
import pathlib

import pytest

from gristmill.dataset import open_manifest
from gristmill.pipelines.advice.make_plan import SampleSize, make_plan
from gristmill.pipelines.options.job_options import ConvertOptions
from gristmill.pipelines.text.printer import text_of
from tests.commands.conftest import json_of, refused, run
from tests.servers.gcs_server import GcsServer
from tests.support.records import flip, frames_of, text_records

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
    plan, path = "plan a.tfrecord --workers 1", tmp_path / "a.tfrecord"
    path.write_bytes(frames_of([b"ab", b"", b"cd"]))
    found = json_of(f"{plan} --map functions:twice")
    assert (found["records"], found["raw_bytes"]) == (4, 8)
    assert "holds no records" in refused(f"{plan} --map functions:none")
    path.write_bytes(frames_of(os.urandom(10_000) for _ in range(40)))
    assert "--compression uncompressed" in json_of(plan)["command"]
    path.write_bytes(frames_of(text_records(3000)))
    flip(path, 500_000)
    found = json_of(plan)
    assert 2900 < found["records"] < 3001
    assert any("1 damaged region" in note for note in found["notes"])
    assert [*(tmp_path / "scratch").iterdir()] == []


@pytest.mark.slow
def test_the_command_makes_what_was_predicted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("texts")
    data = {
        f"{number}.tfrecord": frames_of(text_records(1500, seed=number))
        for number in range(3)
    }
    for name, content in data.items():
        pathlib.Path("texts", name).write_bytes(content)
    found = json_of("plan texts --workers 1")
    command = found["command"].removeprefix("gristmill ")
    assert command.startswith("convert texts texts-arrayrecord ")
    assert command.endswith(" --workers 1")
    run(command)
    made = [path for path in pathlib.Path("texts-arrayrecord").rglob("*.*")]
    file_bytes = sum(path.stat().st_size for path in made if path.is_file())
    assert found["file_bytes"] == pytest.approx(file_bytes, rel=0.03)
    split = open_manifest("texts-arrayrecord").splits["train"]
    assert found["records"] == pytest.approx(split.records, rel=0.02)
    assert found["shards"] == split.shards
    assert found["seconds"] > 0
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        for name, content in data.items():
            server.objects.put("bucket", f"raw/texts/{name}", content)
        before = set(server.objects.buckets["bucket"])
        inputs = "'gs://bucket/raw/texts/*.tfrecord'"
        out = run(f"plan {inputs} --workers 1 --group-size 16").stdout
        assert set(server.objects.buckets["bucket"]) == before
    assert "  files     3\n" in out
    options = "gs://bucket/raw/texts-arrayrecord --group-size 16 --compression zstd:3"
    assert f"gristmill convert {inputs} {options}" in out
