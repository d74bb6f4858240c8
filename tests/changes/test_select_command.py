"""Datasets made of some records of a dataset, with their columns."""

import pathlib

import pytest

from gristmill import loader
from gristmill.dataset import open_manifest
from gristmill.pipelines.columns.row_store import JoinBy
from tests.changes.changes import run
from tests.support.columns import attach, attach_numbers, example, examples
from tests.support.conversion import contents
from tests.support.records import flip, frames_of
from tests.support.removals import remove_from

PLACE = JoinBy(feature=None, key="place")


def rows_of(output):
    """Returns each record with its columns."""
    opened = loader.open(str(output))
    columns = {name: opened.column(name)[:].tolist() for name in opened.columns}
    return [
        {"record": record, **{name: values[row] for name, values in columns.items()}}
        for row, record in enumerate(opened)
    ]


# How shards are made of the records that fulfil a condition.
SELECTED = """\
--match-shards                 | score > 0.25
--num-shards 3 --group-size 7  | language == 'de' or flag
--shard-size 100000            | vector_sum < 0
--num-shards 4 --group-size 2  |
"""


@pytest.mark.parametrize("of", ["records", "groups", "editions", "a removal"])
def test_as_python_selects(tmp_path, of):
    output, total = examples(tmp_path, [17, 0, 40]), 57
    if of == "groups":
        run(f"convert {output} {tmp_path}/groups --group-size 7 --workers=1")
        output = f"{tmp_path}/groups"
    elif of == "editions":
        more = tmp_path / "more.tfrecord"
        more.write_bytes(frames_of(map(example, range(total, total + 9))))
        run(f"append {output} {more} --workers=1")
        total += 9
    numbers = range(total)
    values = {
        "score": [number % 4 / 4 for number in numbers],
        "language": [("de", "en", "fr\0")[number % 3] for number in numbers],
        "flag": [number % 5 == 0 for number in numbers],
        "vector": [[float(number), 0.5] for number in numbers],
        "vector_sum": [number + 0.5 for number in numbers],
        "place": [*numbers],
    }
    attach(output, tmp_path, values, PLACE)
    if of == "a removal":
        remove_from(output, [3, 20, 56])
    before = rows_of(output)
    for number, line in enumerate(SELECTED.splitlines()):
        options, condition = map(str.strip, line.split("|"))
        place, wanted = f"{tmp_path}/new-{number}", before
        line = f"convert {output} {place} {options} --workers=1"
        if condition:
            wanted = [row for row in before if eval(condition, {}, dict(row))]
            left_out = len(before) - len(wanted)
            said = run(line, "--select", condition)
            counts = f"{len(wanted)} of {len(before)} records; {left_out} left out"
            assert counts in said
        else:
            run(line)
        assert rows_of(place) == wanted
        run(f"verify {place} --workers=1")


@pytest.fixture
def output(tmp_path):
    found = examples(tmp_path, [50, 0, 61])
    attach_numbers(found, tmp_path, 111)
    return found


@pytest.mark.parametrize(
    "how", ["--workers=1", pytest.param("--runner=FnApiRunner", marks=pytest.mark.slow)]
)
def test_runs_again_and_beam_make_the_same_bytes(tmp_path, output, how):
    def convert(place, options, score, code=0):
        line = f"convert {output} {tmp_path}/{place} --num-shards=3 --name=d {options}"
        return run(f"{line} --select 'score >= {score}'", code=code)

    convert("a", "--workers=1", 0.5)
    convert("b", how, 0.5)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert "nothing to do" in convert("b", how, 0.5)
    assert "select" in convert("b", how, 0.6, code=2)


def test_a_packed_dataset_has_only_the_selected_documents(tmp_path, output):
    options = "--column n --length 16 --select 'score < 0.1' --workers=1"
    said = run(f"pack {output} {tmp_path}/rows {options}")
    assert "selected score < 0.1: 12 of 111 records; 99 left out" in said
    assert "the columns language, score" in said
    assert "not carried along: select by them with --select" in said
    mapped = run(f"convert {output} {tmp_path}/mapped --map=builtins:bytes --workers=1")
    assert "the columns language, score" in mapped
    assert "attach them to this dataset" in mapped
    packed = open_manifest(str(tmp_path / "rows")).splits["train"].packed
    assert packed is not None
    assert packed["documents"] == 12


def test_what_cannot_be_selected_is_said(tmp_path, output):
    file = tmp_path / "more.tfrecord"
    file.write_bytes(frames_of([example(1)]))
    for given, options in ((file, ""), (output, "--map=json:loads")):
        line = f"convert {given} {tmp_path}/new {options} --select 'score > 0.1'"
        assert "records are selected from a dataset" in run(line, code=2)
    (values,) = pathlib.Path(output).glob("columns/*00000-of-*.score-*")
    flip(values, -1)
    line = f"convert {output} {tmp_path}/new --workers=1 --select 'score > 0.1'"
    assert "values of a column are damaged" in run(line, code=3)


def test_appending_carries_columns_along(tmp_path, output):
    more = examples(tmp_path / "more", [30, 1])
    attach_numbers(more, tmp_path, 31)
    run(f"append {output} {more} --workers=1 --select 'score > 0.9'")
    rows = rows_of(more)
    chosen = [row for row in rows if row["score"] > 0.9]
    assert rows_of(output)[111:] == chosen
    run(f"verify {output}")
    appended = open_manifest(output).splits["train"].parts[-1]
    assert appended.source["selected"] == "score > 0.9"
    assert appended.dropped_records == len(rows) - len(chosen)
