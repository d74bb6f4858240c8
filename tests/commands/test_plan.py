"""`gristmill plan`, and whether the command that it prints does what it says."""

from __future__ import annotations

import json
import pathlib
import shlex

import pytest

from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.pipelines.commands.main import main
from tests.support.gcs_server import GcsServer
from tests.support.records import frames_of, text_records


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Runs a command line; returns its exit code and what it printed."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.fixture
def source(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(3):
        records = text_records(1500, seed=number)
        (folder / f"{number}.tfrecord").write_bytes(frames_of(records))
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.slow
def test_the_command_makes_what_was_predicted(
    source: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "plan", "texts", "--workers", "1", "--json")
    assert code == 0
    found = json.loads(out)
    words = shlex.split(found["command"])
    assert words[:4] == ["gristmill", "convert", "texts", "texts-arrayrecord"]
    assert words[-2:] == ["--workers", "1"]
    code, _, _ = run(capsys, *words[1:])
    assert code == 0
    output = pathlib.Path("texts-arrayrecord")
    made = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    assert found["file_bytes"] == pytest.approx(made, rel=0.03)
    split = open_manifest(str(output)).splits["train"]
    assert found["records"] == pytest.approx(split.records, rel=0.02)
    assert found["shards"] == split.shards
    assert found["seconds"] > 0


@pytest.mark.slow
def test_inputs_in_a_bucket(
    source: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        for path in source.iterdir():
            server.objects.put("bucket", f"raw/texts/{path.name}", path.read_bytes())
        before = set(server.objects.buckets["bucket"])
        code, out, err = run(
            capsys,
            *("plan", "gs://bucket/raw/texts/*.tfrecord", "--workers", "1"),
            *("--group-size", "16"),
        )
        assert code == 0, err
        assert set(server.objects.buckets["bucket"]) == before
    assert "  files     3\n" in out
    assert (
        "gristmill convert 'gs://bucket/raw/texts/*.tfrecord' "
        "gs://bucket/raw/texts-arrayrecord --group-size 16 --compression zstd:3"
    ) in out
