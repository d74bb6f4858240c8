"""`gristmill inspect`: what is in a dataset, and how far unfinished work is."""

import hashlib

import numpy as np
import pytest

from gristmill.dataset import ColumnWriter, FeatureSpec, open_manifest, read_table
from gristmill.dataset.metadata.features import encode_features
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.make_shards import make_shard, shard_tasks
from gristmill.transforms.removal.cut_shard import cut_shard
from gristmill.transforms.removal.removal_job import begin_removal
from tests.commands.conftest import json_of, refused, run
from tests.support.conversion import convert, job_of, prepared_of
from tests.support.datasets import convert as converted
from tests.support.datasets import describe
from tests.support.packed import pack
from tests.support.records import text_records, write_tfrecords


@pytest.mark.slow
def test_what_was_packed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_words.py").write_text(
        "def words(texts):\n    return [[*text.encode()] for text in texts]\n"
        "words.vocabulary_size = 256\n"
    )
    (tmp_path / "in.txt").write_text("a\n" + "long" * 20 + "\n\nb\n")
    run("pack in.txt rows --tokenizer my_words:words --column=- --length=32")
    lines = run("inspect rows").stdout.splitlines()
    digest = hashlib.sha256((tmp_path / "my_words.py").read_bytes()).hexdigest()
    assert {
        "  packed    rows of 32 tokens (best-fit)",
        "  tokens    82; targets 77 = tokens - 5 pieces; 14.58 % padding",
        "  documents 3, cut at 2 places",
        "  empty     1 document without a token",
        f"  tokenizer function, 256 ids, my_words:words, sha256:{digest[:16]}",
    } <= {*lines}
    given = pack(tmp_path / "given", [[[1, 2]]])
    text = run(f"inspect {given}").stdout
    assert "  tokenizer none: the documents were tokens\n" in text
    assert "128.0 KiB on storage, in blocks of 64 KiB\n" in text


FEATURES = """
  features  text: string, or none
            label: class_label as int64, 2 names
            tokens: uint16 [any]
            box: double as float32 [2, 4]
            plain: bytes"""


def test_what_records_hold(tmp_path):
    def spec(kind, dtype, **more):
        return FeatureSpec(kind=kind, dtype=dtype, **more)

    plain = spec("bytes", "bytes")
    features = {
        "text": spec("bytes", "bytes", type="string", optional=True),
        "label": spec("int64", "int64", type="class_label", names=("a", "b")),
        "tokens": spec("int64", "uint16", type="uint16", shape=(None,)),
        "box": spec("float", "float32", type="double", shape=(2, 4)),
        "plain": plain,
    }
    dataset = converted(tmp_path, [[b"a"]])
    for described, said in (
        (encode_features(features), FEATURES),
        (
            encode_features({f"c{n}": plain for n in range(23)}),
            "            c19: bytes\n            and 3 more: --json has all",
        ),
        ({"x": {}}, "  features  feature 'x' is badly described"),
    ):
        describe(dataset, described)
        assert said in run(f"inspect {dataset}").stdout


@pytest.fixture
def source(tmp_path):
    (tmp_path / "in").mkdir()
    for file in range(3):
        records = text_records(100, seed=file)
        write_tfrecords(tmp_path / "in" / f"{file}.tfrecord", records)
    return tmp_path / "in"


def test_progress_grows_shard_by_shard(source, tmp_path):
    line, results = f"inspect {tmp_path}/out", []
    refused(line, code=3)
    job = job_of(source, f"{tmp_path}/out", plan=("num_shards", 4), name="texts")
    begin = f"{tmp_path}/out: NOT committed\nsplit train: "
    for done, task in enumerate(shard_tasks(prepared_of(job))):
        (found,) = json_of(line)["unfinished"]
        assert (found["finished"], found["total"]) == (done, 4)
        said = run(line).stdout
        assert said.startswith(f"{begin}{done} of 4 shards finished")
        results.append(make_shard(task))
    # All shards are there: still it is no dataset.
    assert run(line).stdout.startswith(f"{begin}4 of 4 shards")
    commit_shards([job], results)
    assert json_of(line)["unfinished"] == []
    assert "NOT committed" not in run(line).stdout


def test_work_beside_a_split_that_is_committed(source, tmp_path):
    """A conversion, columns that are attached, and a removal."""
    output = str(tmp_path / "out")
    line = f"inspect {output}"
    convert(job_of(source, output, split="test", plan=("num_shards", 3)))
    prepared_of(job_of(source, output, split="train", plan=("num_shards", 3)))
    last = run(line).stdout.splitlines()[-1]
    assert last.startswith("NOT committed: split train: 0 of 3 shards finished")
    found = json_of(line)
    assert [one["split"] for one in found["unfinished"]] == ["train"]
    assert found["splits"].keys() == {"test"}
    assert "NOT committed" not in run(f"{line} --edition 1").stdout
    count = int(read_table(output, open_manifest(output).splits["test"]).records[0])
    options = {"split": "test", "part": 0, "parts": 3}
    with ColumnWriter(output, {"a": "int64"}, **options) as writer:
        writer.write({"a": np.zeros(count, np.int64)})
    cut_shard(next(iter(begin_removal(output, [0, 299]).tasks())))
    said = run(line).stdout
    assert "NOT committed: split test: 1 of 3 shards attached" in said
    assert ": a removal, 1 shard finished" in said


def test_half_a_beginning(source, tmp_path):
    prepared_of(job_of(source, tmp_path / "out"))
    next((tmp_path / "out").rglob("*.inputs.npz")).unlink()
    (found,) = json_of(f"inspect {tmp_path}/out")["unfinished"]
    assert [found[n] for n in ("split", "finished", "total")] == ["train", 0, 0]
    damaged = next((tmp_path / "out").rglob("*.job.json"))
    for text in ("", "[]", "{}", '{"job": {"name": "train"}}'):
        damaged.write_text(text)
        assert str(damaged) in refused(f"inspect {tmp_path}/out", code=3)
