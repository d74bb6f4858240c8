"""Duplicates by the commands: found, made a column, left out and removed."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import random
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from gristmill import loader
from gristmill.dataset.base.errors import (
    DataLossError,
    GristmillError,
    InputError,
    JobChangedError,
)
from gristmill.dataset.duplicates.certificate import open_certificate
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.pipelines.commands.main import cli
from gristmill.pipelines.convert import convert
from gristmill.transforms import ConvertFiles
from gristmill.transforms.jobs.pack_options import ChatOptions, PackOptions
from tests.support.conversion import contents, job_of, prepared_of, read_output
from tests.support.duplicates import (
    FORMATS,
    expected_of,
    key_of,
    options_of,
    removals_in,
    rows_of,
    write_inputs,
)
from tests.support.kills import Killer
from tests.support.line_files import jsonl_of

IN_MEMORY = ("--runner=FnApiRunner",)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [*map(str, arguments)])


def first_of_each(records: list[bytes], kind: str, *, whole: bool) -> list[bytes]:
    found: dict[bytes, bytes] = {}
    for record in records:
        found.setdefault(key_of(kind, record, whole=whole), record)
    return [*found.values()]


def written(folder: pathlib.Path, count: int = 300) -> pathlib.Path:
    path = folder / "in.jsonl"
    path.write_bytes(jsonl_of(rows_of(random.Random(4), count)))
    return path


PLANS = [("num_shards", 4), ("records_per_shard", 37), ("match_shards", None)]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan[0])
@pytest.mark.parametrize("kind", [*FORMATS, "parquet"])
def test_a_conversion_leaves_duplicates_out(tmp_path, kind, plan) -> None:
    by = random.Random(f"{kind}{plan}").choice(["text", "record", "normalised"])
    pattern = write_inputs(tmp_path / "in", random.Random(6), kind)
    whole = kind in ("tar", "txt")
    options = {"records": options_of(kind), "plan": plan, "name": "data"}
    if kind == "tar":
        by = "record"
    convert([job_of(pattern, tmp_path / "all", **options)])
    job = job_of(pattern, tmp_path / "out", unique=by, **options)
    outcome = convert([job])
    records = read_output(tmp_path / "all")
    assert read_output(tmp_path / "out") == first_of_each(records, by, whole=whole)
    split = outcome.manifest.splits["train"]
    found = split.source["duplicates"]
    assert split.source["records"] == len(records)
    assert split.records + found["records"] == len(records)
    assert f"{found['records']} records left out, by {found['by']}" in outcome.text()
    certificate = open_certificate(str(tmp_path / "out" / found["certificate"]))
    assert (certificate.records.records, certificate.removed) == (
        len(records),
        found["records"],
    )
    result = run("verify", "--certificate", certificate.path, "--pairs", 0)
    assert result.exit_code == 0, result.output
    assert run("verify", tmp_path / "out").exit_code == 0
    assert convert([job]).committed_before == ("train",)


def test_on_beam_it_makes_the_same_files(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path)
    for name, options in (("here", None), ("beam", [*IN_MEMORY])):
        job = job_of(path, tmp_path / name, plan=("num_shards", 3), unique="text")
        convert([job], beam_options=options)
    assert contents(tmp_path / "here") == contents(tmp_path / "beam")
    job = job_of(path, tmp_path / "graph", unique="text")
    with pytest.raises(InputError, match="before the pipeline runs"):
        ConvertFiles(jobs=(job,))


def test_packed_rows_hold_each_text_once(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path)
    pack = PackOptions(length=16, tokenizer="tests.behaviour.test_unique:tokens")
    job = job_of(path, tmp_path / "out", pack=pack, unique="normalised")
    split = convert([job]).manifest.splits["train"]
    found = split.source["duplicates"]
    assert split.packed is not None
    documents = split.packed["documents"] + split.packed["empty_documents"]
    assert documents + found["records"] == 300
    chat = dataclasses.replace(pack, chat=ChatOptions(template="t.jinja"))
    with pytest.raises(InputError, match="conversations"):
        job_of(path, tmp_path / "chat", pack=chat, unique="text")


def tokens(texts: list[str]) -> list[list[int]]:
    return [[*text.encode()] for text in texts]


tokens.vocabulary_size = 256  # type: ignore[attr-defined]


def test_another_certificate_is_refused(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path)
    job = job_of(path, tmp_path / "out", unique="text")
    other = job_of(written(tmp_path, 200), tmp_path / "other", unique="text")
    convert([other])
    written(tmp_path)
    prepared = prepared_of(job)
    assert prepared.certificate is not None
    (there,) = (tmp_path / "other" / "index").glob("*.duplicates")
    pathlib.Path(prepared.certificate).write_bytes(there.read_bytes())
    with pytest.raises(DataLossError, match="not those of the certificate"):
        convert([job])
    convert([job], overwrite=True)
    with pytest.raises(JobChangedError):
        convert([job_of(path, tmp_path / "out", unique="record")])


@pytest.fixture
def dataset(tmp_path: pathlib.Path) -> str:
    plan = ("num_shards", 4)
    convert([job_of(written(tmp_path), tmp_path / "data", plan=plan)])
    return str(tmp_path / "data")


def test_a_dataset_gets_a_column_and_loses_duplicates(tmp_path, dataset) -> None:
    records = read_output(dataset)
    result = run("unique", dataset, "--certificate", tmp_path / "c")
    assert result.exit_code == 0, result.output
    opened, expected = loader.open(dataset), []
    first: dict[bytes, int] = {}
    for number, record in enumerate(records):
        key = key_of("text", record, whole=False)
        expected.append(first.get(key, -1))
        first.setdefault(key, number)
    assert opened.column("duplicate_of")[:].tolist() == expected
    kept = opened.select("duplicate_of < 0")
    assert [*kept] == first_of_each(records, "text", whole=False)
    again = run("unique", dataset, "--certificate", tmp_path / "c", "--json")
    assert json.loads(again.stdout)["column"]["done_before"]
    other = ("unique", dataset, "--by", "record", "--certificate", tmp_path / "d")
    assert "there is a column 'duplicate_of' already" in run(*other).output
    assert run(*other, "--overwrite").exit_code == 0
    assert (
        run(*other[:2], "--certificate", tmp_path / "c", "--overwrite").exit_code == 0
    )
    assert run("verify", "--certificate", tmp_path / "c").exit_code == 0
    condition = ("remove", dataset, "--where", "duplicate_of >= 0")
    result = run(*condition)
    assert result.exit_code == 0, result.output
    assert read_output(dataset) == first_of_each(records, "text", whole=False)
    assert (loader.open(dataset).column("duplicate_of")[:] == -1).all()
    assert "removed before" in run(*condition).output
    assert run("verify", dataset).exit_code == 0
    none = run("remove", dataset, "--where", "duplicate_of > 999")
    assert "no record fulfils the condition" in none.output
    both = run("remove", dataset, "--where", "duplicate_of > 0", "--records", "x")
    assert "exactly one option must name" in both.output


def test_removal_of_a_record_keeps_the_others_known(tmp_path: pathlib.Path) -> None:
    job = job_of(written(tmp_path), tmp_path / "out", unique="text", name="data")
    convert([job])
    records = read_output(tmp_path / "out")
    assert (
        "duplicates were left out"
        in run("trace", tmp_path / "out", "--record", 3).output
    )
    (tmp_path / "list").write_text("0\n")
    result = run("remove", tmp_path / "out", "--records", tmp_path / "list")
    assert result.exit_code == 0, result.output
    assert read_output(tmp_path / "out") == records[1:]
    assert run("clean", tmp_path / "out").exit_code == 0
    found = open_manifest(str(tmp_path / "out")).splits["train"].source["duplicates"]
    assert (tmp_path / "out" / found["certificate"]).exists()
    assert run("verify", tmp_path / "out").exit_code == 0


def test_a_certificate_that_is_not_named_goes(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path)
    convert([job_of(path, tmp_path / "out", unique="text")])
    convert([job_of(path, tmp_path / "out", unique="record")], overwrite=True)
    (there,) = (tmp_path / "out" / "index").glob("*.duplicates")
    assert ".e00002." in there.name
    convert([job_of(path, tmp_path / "out")], overwrite=True)
    assert not [*(tmp_path / "out" / "index").glob("*.duplicates")]


def test_no_mutation_is_silent(tmp_path: pathlib.Path, dataset: str) -> None:
    path = tmp_path / "c"
    run("unique", dataset, "--certificate", path)
    data, rng = path.read_bytes(), random.Random(2)
    for _ in range(100):
        at = rng.randrange(len(data))
        other = bytearray(data)
        other[at] ^= 1 << rng.randrange(8)
        path.write_bytes(rng.choice([bytes(other), data[:at], data + data[at:]]))
        with pytest.raises(GristmillError):
            removals_in(path)


@pytest.fixture(scope="module")
def killer(tmp_path_factory) -> Iterator[Killer]:
    folder = tmp_path_factory.mktemp("killer")
    with Killer(folder) as killer:
        yield killer
    # What a killed search leaves there, the next one deletes.
    assert not [*folder.glob("gristmill-scratch-*")]


@pytest.mark.slow
@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.soak)])
def test_what_is_killed_and_run_again_is_the_same(tmp_path, killer, stride) -> None:
    path = written(tmp_path)
    files = prepared_of(job_of(path, tmp_path / "other")).files
    folder, rest = tmp_path / "run", ["--unique", "text", "--workers", "1"]
    folder.mkdir()
    unique = ["unique", str(path), "--certificate", str(folder / "c"), *rest[2:]]
    command = ["convert", str(path), str(folder / "data"), *rest]
    assert killer.run([*command[:2], str(tmp_path / "data"), *rest]).status == 0
    for argv in (unique, command):
        killed = 0
        for kill_at in range(1 + stride // 2, 60, stride):
            ended = killer.run(argv, kill_at=kill_at, after=bool(kill_at % 2))
            assert ended.status in (0, -9), ended.error
            if ended.status == 0:
                break
            killed += 1
            assert killer.run(argv).status == 0
            assert removals_in(folder / "c") == expected_of(files, "text")
            if argv is command:
                found = contents(folder / "data")
                theirs = contents(tmp_path / "data")
                assert {n for n in found if "tmp" in n} == set()
                for name in theirs:
                    if name != "dataset.json":  # It has the time.
                        assert found[name] == theirs[name], name
                for one in sorted((folder / "data").rglob("*"), reverse=True):
                    one.rmdir() if one.is_dir() else one.unlink()
            else:
                (folder / "c").unlink()
        else:
            pytest.fail("it has more steps")
        assert killed
        killer.run(unique)
