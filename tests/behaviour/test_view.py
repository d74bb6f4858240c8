"""The page's answers of every kind of dataset, by the command line and in buckets."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from click.testing import CliRunner

from gristmill import loader
from gristmill.dataset.base.errors import CorruptShardError
from gristmill.dataset.metadata import layout
from gristmill.pipelines.commands.main import cli
from gristmill.pipelines.view.answers.addresses import ask
from gristmill.pipelines.view.answers.opened_datasets import Opened
from gristmill.pipelines.view.serve import answered
from tests.support.conversion import convert, job_of
from tests.support.examples import tf_example
from tests.support.records import frames_of, write_array_records
from tests.support.tokenizer_files import END, tokenizer_json

RECORDS = [
    tf_example({"id": [number], "text": [b"x" * number]}) for number in range(30)
]


def run(*arguments: object) -> str:
    done = CliRunner().invoke(cli, [*map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.stdout


def id_of(opened: Opened, record: int, **where: str) -> Any:
    query = "".join(f"&{name}={value}" for name, value in where.items())
    found = ask(opened, f"api/record?record={record}{query}")
    (number,) = (one["shown"][0] for one in found["fields"] if one["name"] == "id")
    return number


def all_answers(opened: Opened, **where: str) -> dict[str, Any]:
    """Asks everything about a dataset."""
    query = "&".join(f"{name}={value}" for name, value in where.items())
    record, shard = f"record=3&{query}", f"shard=0&{query}"
    addresses = (
        *(f"overview?{query}", f"sizes?{query}", f"lineage?{query}"),
        *(f"record?{record}", f"source?{record}&read=1", f"shard?{shard}"),
    )
    found = {one: answered(opened, f"api/{one}") for one in addresses}
    assert {status for status, _ in found.values()} == {200}, found
    return {one.partition("?")[0]: answer for one, (_, answer) in found.items()}


def test_a_dataset_here_or_in_a_bucket(tmp_path: pathlib.Path, output: str) -> None:
    (tmp_path / "in").write_bytes(frames_of(RECORDS))
    convert(job_of(tmp_path / "in", output, plan=("num_shards", 3)))
    opened = Opened({"": loader.open(output)})
    found = all_answers(opened)
    assert found["overview"]["records"] == found["sizes"]["record_bytes"]["of"] == 30
    assert found["source"]["source"]["offset_bytes"] == len(frames_of(RECORDS[:3]))
    assert found["shard"]["sources"][0]["path"] == str(tmp_path / "in")
    assert [id_of(opened, number) for number in (0, 29)] == [0, 29]


def test_files_of_others_indexed_or_plain(tmp_path: pathlib.Path) -> None:
    for number in range(2):
        path = tmp_path / f"data-train.array_record-{number:05d}-of-00002"
        write_array_records(path, RECORDS[15 * number : 15 * number + 15])
    plain = Opened({"": loader.open(f"{tmp_path}/*.array_record*")})
    found = all_answers(plain)
    assert (found["overview"]["splits"], found["overview"]["raw_bytes"]) == ([], None)
    assert "list of their sources" in found["source"]["source"]["note"]
    run("index", tmp_path)
    indexed = Opened({"": loader.open(tmp_path)})
    found = all_answers(indexed)
    assert found["overview"]["raw_bytes"] == sum(map(len, RECORDS))
    for opened in (plain, indexed):
        assert [id_of(opened, number) for number in (0, 15, 29)] == [0, 15, 29]


def test_splits_and_editions(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "out"
    for split, records in (("test", RECORDS[:4]), ("train", RECORDS), ("void", [])):
        (tmp_path / split).write_bytes(frames_of(records))
        job = job_of(tmp_path / split, out, split=split, allow_empty_files=True)
        convert(job)
    (tmp_path / "more").write_bytes(frames_of(RECORDS[:7]))
    convert(job_of(tmp_path / "more", out, split=layout.edition_key("train", 2)))
    opened = Opened({"": loader.open(out, split="train")})
    found = all_answers(opened)["overview"]
    assert [(one["name"], one["records"]) for one in found["splits"]] == [
        *(("test", 4), ("train", 37), ("void", 0)),
    ]
    assert [one["records"] for one in found["editions"]] == [30, 7]
    sources = ask(opened, "api/lineage")["editions"]
    assert [one["files"][0]["path"] for one in sources] == [
        str(tmp_path / "train"),
        str(tmp_path / "more"),
    ]
    assert sources[1]["files"][0]["records"] == 7
    assert id_of(opened, 33) == 3
    assert all_answers(opened, split="test")["overview"]["records"] == 4
    empty = ask(opened, "api/overview?split=void")
    assert (empty["records"], empty["order"]) == (0, None)
    assert ask(opened, "api/sizes?split=void")["record_bytes"] is None
    first = Opened({"": loader.open(out, split="train", edition=1)})
    assert ask(first, "api/overview")["records"] == 30
    # The command begins with train.
    run("view", out, "--html", tmp_path / "page.html", "--batch-size", 4)
    assert (tmp_path / "page.html").stat().st_size > 1000


def test_joined_datasets(tmp_path: pathlib.Path) -> None:
    for name, records in (("a", RECORDS[:10]), ("b", RECORDS[10:])):
        (tmp_path / name).write_bytes(frames_of(records))
        convert(job_of(tmp_path / name, tmp_path / f"{name}-out"))
    opened = Opened({"": loader.open([tmp_path / "a-out", tmp_path / "b-out"])})
    found = all_answers(opened)
    assert found["overview"]["records"] == 30
    assert [one["path"] for one in found["lineage"]["editions"]] == [
        str(tmp_path / "a-out"),
        str(tmp_path / "b-out"),
    ]
    assert [id_of(opened, number) for number in (9, 10, 29)] == [9, 10, 29]
    source = ask(opened, "api/source?record=12")["source"]
    assert source["path"] == str(tmp_path / "b")


def test_a_damaged_shard_is_told_and_the_others_are_read(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "in").write_bytes(frames_of(RECORDS))
    convert(job_of(tmp_path / "in", tmp_path / "out", plan=("num_shards", 3)))
    dataset = loader.open(tmp_path / "out")
    shard = pathlib.Path(dataset.shard(1).path)
    data = bytearray(shard.read_bytes())
    at = dataset.offset_bytes(dataset.shard(1).first_record)
    data[at + 60] ^= 1
    shard.write_bytes(data)
    opened = Opened({"": loader.open(tmp_path / "out")})
    number = dataset.shard(1).first_record
    status, answer = answered(opened, f"api/record?record={number}")
    assert status == 500
    assert answer["error"]["type"] == CorruptShardError.__name__
    assert answer["error"]["where"]
    assert answer["error"]["cure"]
    assert id_of(opened, 0) == 0
    pathlib.Path(dataset.shard(2).path).unlink()
    status, answer = answered(opened, "api/record?record=29")
    assert (status, answer["error"]["where"]) == (500, dataset.shard(2).path)
    assert id_of(opened, 0) == 0


@pytest.mark.slow
def test_tokens_are_shown_as_text(tmp_path: pathlib.Path) -> None:
    texts = ["The quick brown fox.", "日本語 😀 end", "don't"]
    lines = (json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "in.jsonl").write_text("".join(lines))
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json())
    packing = ("--tokenizer", tmp_path / "tokenizer.json", "--length", 64)
    run("pack", tmp_path / "in.jsonl", tmp_path / "out", *packing, "--eos", END)
    from gristmill.transforms.tokens.tokenizers.token_texts import load_token_texts

    dataset = loader.open(tmp_path / "out")
    tokens = load_token_texts(str(tmp_path / "tokenizer.json"))
    opened = Opened({"": dataset}, tokens=tokens)
    segments = [
        segment
        for number in range(len(dataset))
        for segment in ask(opened, f"api/record?record={number}")["segments"]
    ]
    found = ["".join(text for _, text in segment["tokens"]) for segment in segments]
    assert sorted(found) == sorted(text + END for text in texts)
    overview = ask(opened, "api/overview")
    assert overview["kind"] == "packed"
    assert overview["tokenizer"] == str(tmp_path / "tokenizer.json")
    assert not any("tokenizer" in warning for warning in overview["warnings"])
    (tmp_path / "other.json").write_bytes(tokenizer_json(4_000))
    other = load_token_texts(str(tmp_path / "other.json"))
    warned = ask(Opened({"": dataset}, tokens=other), "api/overview")["warnings"]
    assert any("is not the tokenizer" in warning for warning in warned)
    page = tmp_path / "page.html"
    run("view", tmp_path / "out", *packing[:2], "--html", page, "--batch-size", 1)
    assert page.exists()
