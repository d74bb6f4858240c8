"""Inputs, parents and quarantine; shards."""

from __future__ import annotations

import os
import pathlib

import pytest

from gristmill import loader
from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.view.answers import lineage as lineage_module
from gristmill.pipelines.view.answers.addresses import ask
from gristmill.pipelines.view.answers.opened_datasets import Opened
from tests.pipelines.view.conftest import FILES, input_path
from tests.support.conversion import convert, job_of
from tests.support.records import frames_of


def test_files_have_their_records(opened, dataset) -> None:
    found = ask(opened, "api/lineage")
    assert found["quarantine"] is None
    (edition,) = found["editions"]
    assert edition["num_files"] == len(FILES)
    for number, file in enumerate(edition["files"]):
        path = input_path(dataset, number)
        assert file == {
            "path": path,
            "format": "tfrecord",
            "compression": "none",
            "bytes": os.path.getsize(path) or None,
            "records": FILES[number],
        }
    assert edition["parents"] == []


def test_a_shard_has_its_sources(opened, dataset) -> None:
    for number, records in enumerate(FILES):
        found = ask(opened, f"api/shard?shard={number}")
        assert found["first_record"] == sum(FILES[:number])
        assert found["records"] == records
        assert found["chunks"] == -(-records // 3)
        assert found["bytes"] == os.path.getsize(found["file"])
        if records:
            (source,) = found["sources"]
            assert source["path"] == input_path(dataset, number)
            assert source["records"] == records
    with pytest.raises(InputError, match="no such shard"):
        ask(opened, f"api/shard?shard={len(FILES)}")


def test_what_was_set_aside_and_what_was_before(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [b"record %d" % number * 9 for number in range(60)]
    data = bytearray(frames_of(records))
    damaged = [len(frames_of(records[:at])) for at in (7, 31)]
    for at in damaged:
        data[at] ^= 1
    (tmp_path / "in").write_bytes(bytes(data))
    first, second = tmp_path / "first", tmp_path / "second"
    convert(
        job_of(tmp_path / "in", first, plan=("num_shards", 3), on_corrupt="quarantine")
    )
    convert(job_of(str(first), second, plan=("num_shards", 2)))
    found = ask(Opened({"": loader.open(first)}), "api/lineage")["quarantine"]
    assert found["regions"] == len(found["shown"]) == 2
    assert [one["begin_bytes"] for one in found["shown"]] == damaged
    assert found["bytes"] == sum(
        one["end_bytes"] - one["begin_bytes"] for one in found["shown"]
    )
    assert {one["file"] for one in found["shown"]} == {str(tmp_path / "in")}
    assert found["note"] is None
    (edition,) = ask(Opened({"": loader.open(second)}), "api/lineage")["editions"]
    (parent,) = edition["parents"]
    assert (parent["dataset"], parent["records"]) == (str(first), 58)
    assert parent["files"] == [str(tmp_path / "in")]
    joined = Opened({"": loader.open([first, second])})
    editions = ask(joined, "api/lineage")["editions"]
    assert [(one["path"], one["records"], one["shards"]) for one in editions] == [
        (str(first), 58, 3),
        (str(second), 58, 2),
    ]
    assert [one["split"] for one in editions] == ["train", "train"]
    assert ask(joined, "api/overview")["path"] == f"{first}, {second}"
    for path in (first / "quarantine").glob("*.jsonl"):
        path.write_text("{")
    found = ask(Opened({"": loader.open(first)}), "api/lineage")["quarantine"]
    assert (found["regions"], found["shown"]) == (2, [])
    assert found["note"].count(".jsonl") == 2
    # Of very many, not all are tried.
    monkeypatch.setattr(lineage_module, "_UNREADABLE", 1)
    found = ask(Opened({"": loader.open(first)}), "api/lineage")["quarantine"]
    assert found["note"].startswith("cannot be read: ")
    assert found["note"].count(".jsonl") == 1
