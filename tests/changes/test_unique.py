"""Duplicates by the command and by Beam: a column, left out, and removed."""

import json
import random

import pytest

from gristmill import loader
from gristmill.dataset import StorageChangedError, Writer, encode_example
from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.example import decode_example
from gristmill.pipelines.local.pool import run_job
from gristmill.transforms.beam.run_job import RunJob
from gristmill.transforms.columns.duplicates import DuplicatesJob
from tests.changes.changes import run
from tests.support.conversion import contents, read_output
from tests.support.pipelines import BUNDLE_BASED, BUNDLES_TWICE
from tests.support.pipelines import run as run_beam

WORDS = ("a", "A  a", "b b", "", "long " * 40)


def records_of(rng, count):
    """Returns records, many of them alike by a text and whole."""

    def one():
        text = rng.choice(WORDS) + rng.choice(["", "1", "2"])
        return {"text": text, "a:b": rng.choice("xy"), "id": rng.randrange(3)}

    return [encode_example(one()) for _ in range(count)]


def write(path, records, **options):
    with Writer(path, **{"shard_bytes": 1000, **options}) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def expected_of(records, by):
    """Returns the column, by a dict."""

    def key_of(record):
        feature = by.partition(":")[2] or "text"
        return record if by == "record" else [*decode_example(record)[feature]]

    first = {}
    kept = [first.setdefault(str(key_of(r)), n) for n, r in enumerate(records)]
    return [-1 if number == own else number for own, number in enumerate(kept)]


def column_of(dataset):
    return loader.open(dataset).column("duplicate_of")[:].tolist()


def check_random(folder, seed):
    rng = random.Random(seed)
    by = rng.choice(["text", "text:a:b", "record"])
    records = records_of(rng, rng.choice([1, 2, 30, 300]))
    shard_bytes = rng.choice([700, 3000, 1 << 20])
    path = write(folder / "data", records, shard_bytes=shard_bytes)
    job = DuplicatesJob(path, by, block_bits=rng.choice([2, 5, 21]))
    found = run_job(job, workers=1)
    expected = expected_of(records, by)
    assert column_of(path) == expected, seed
    assert found.duplicates == len(records) - expected.count(-1)
    assert not [*(folder / "data").glob("columns/*digests*")]


@pytest.mark.parametrize("seed", range(12))
def test_the_column_is_that_of_a_dict(tmp_path, seed):
    check_random(tmp_path, seed)


def test_workers_may_gather_apart_and_records_may_come_meanwhile(tmp_path):
    records = records_of(random.Random(1), 60)
    dataset = write(tmp_path / "data", records)
    job = DuplicatesJob(dataset)
    begun = job.begin()
    results = [*begun.known, *map(job.step, begun.tasks)]
    more = write(tmp_path / "more", records[:5])
    gathered, *apart = (Gathered.of([one]) for one in results)
    for part in apart:
        gathered.extend(part)
    run(f"append {dataset} {more}")
    with pytest.raises(StorageChangedError, match="run this command again"):
        job.commit(gathered)
    assert len(apart) > 2
    assert [one.rows for one in apart] == [
        Gathered.of([one]).rows for one in results[1:]
    ]


@pytest.mark.soak
@pytest.mark.parametrize("first", range(50, 1050, 100))
def test_the_columns_of_many_are(tmp_path, first):
    for seed in range(first, first + 100):
        check_random(tmp_path / str(seed), seed)


@pytest.fixture
def records():
    return records_of(random.Random(4), 300)


@pytest.fixture
def dataset(tmp_path, records):
    return write(tmp_path / "data", records)


def test_a_dataset_gets_a_column_and_loses_duplicates(tmp_path, dataset, records):
    assert "300 records = " in run(f"unique {dataset}")
    expected = expected_of(records, "text")
    assert column_of(dataset) == expected
    rest = [r for r, kept in zip(records, expected, strict=True) if kept < 0]
    run(f"convert {dataset} {tmp_path}/rest --select 'duplicate_of < 0'")
    assert read_output(tmp_path / "rest") == rest
    before = contents(dataset)
    again = json.loads(run(f"unique {dataset} --json"))
    assert again["done_before"]
    assert (again["kept"], again["duplicates"]) == (len(rest), 300 - len(rest))
    assert contents(dataset) == before
    other = f"unique {dataset} --by record"
    assert "there is a column 'duplicate_of' already" in run(other, code=2)
    run(f"{other} --overwrite")
    assert column_of(dataset) == expected_of(records, "record")
    run(f"unique {dataset} --overwrite")
    condition = f"remove {dataset} --where 'duplicate_of >= 0'"
    run(condition)
    assert read_output(dataset) == rest
    assert column_of(dataset) == [-1] * len(rest)
    assert "removed before" in run(condition)
    run(f"verify {dataset}")
    none = run(f"remove {dataset} --where 'duplicate_of > 999'", code=2)
    assert "no record fulfils the condition" in none
    both = f"remove {dataset} --where 'duplicate_of > 0' --records x"
    assert "exactly one option must name" in run(both, code=2)


def test_several_editions_and_workers(tmp_path, dataset, records):
    more = records_of(random.Random(5), 200)
    run(f"append {dataset} {write(tmp_path / 'more', more)}")
    run(f"unique {dataset} --workers 2")
    assert column_of(dataset) == expected_of(records + more, "text")


@pytest.mark.parametrize("argv", [BUNDLES_TWICE, BUNDLE_BASED], ids=["twice", "tries"])
def test_on_beam_it_has_the_same_files(tmp_path, dataset, records, argv):
    beam = write(tmp_path / "beam" / "data", records)
    (found,) = run_beam(RunJob(DuplicatesJob(beam, "text:a:b")), argv=argv)
    assert (found.by, found.records, found.kept) == ("text:a:b", 300, 2)
    run(f"unique {dataset} --by text:a:b")
    assert contents(beam) == contents(dataset)


def test_a_record_that_is_there_very_often(tmp_path):
    path = write(tmp_path / "data", [b"same"] * 3000)
    assert run_job(DuplicatesJob(path, "text:-", block_bits=4), workers=1).kept == 1
    assert column_of(path) == [-1] + [0] * 2999


def test_what_cannot_be_compared_is_refused(tmp_path, dataset):
    assert "compared by this" in run(f"unique {dataset} --by words", code=2)
    lines = write(tmp_path / "lines", [b"a text"])
    found = run(f"unique {lines}", code=2)
    assert "record 0" in found
    assert "not a tf.train.Example" in found


@pytest.mark.parametrize(
    ("texts", "same"),
    [
        (["Hello  World", "hello world", "\uff28ello\u3000world"], True),
        (["\ta\r\n\x0b b\x1c", "A B", "a\u00a0b", "a\u2009b"], True),
        (["\ufb01ne", "FINE"], True),
        (["e\u0301", "\u00c9"], True),
        (["", " \n"], True),
        (["\u00b2", "2"], True),
        (["\u039f\u0394\u039f\u03a3", "\u03bf\u03b4\u03bf\u03c2"], True),
        (["a b", "ab", "\u00e1 b", "ss", "\u00df"], False),
    ],
)
def test_normalised_texts(tmp_path, texts, same):
    path = write(tmp_path / "data", [text.encode() for text in texts])
    run_job(DuplicatesJob(path, "normalised:-"), workers=1)
    assert column_of(path) == [-1, *[0 if same else -1] * (len(texts) - 1)]
