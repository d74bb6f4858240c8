"""Records that are erased: no file holds them, whatever was killed before."""

import json
import shutil

import pytest

from gristmill import loader
from gristmill.dataset import JobChangedError
from gristmill.dataset.commit.clean import clean
from tests.changes.changes import (
    attach,
    convert,
    files_with,
    found_by_verify,
    remove,
    write_inputs,
)
from tests.faults.kills import Killer
from tests.support.watched import at_storage

KILLED = -9
# No compression: where they are, a search of the bytes finds them.
RECORD = b"a record that has to go"
VALUE = "a value that has to go"
WORDS = (RECORD, VALUE.encode())
RECORDS = [RECORD if n == 17 else b"record %03d of a dataset" % n for n in range(40)]
OPTIONS = "--num-shards=2 --compression=uncompressed --workers=1"
CONVERT = f"convert in out --name=d {OPTIONS}"
COMMANDS = {
    "attach": "attach out values.jsonl --number=n --workers=1",
    "overwrite": f"{CONVERT} --overwrite",
    "kept": f"{CONVERT} --overwrite --keep-replaced",
    "append": f"append out more {OPTIONS}",
    "unique": "unique out --by=record --workers=1",
    "remove": "remove out --records=others --workers=1",
    "erase": "remove out --records=others --erase --workers=1",
}


def test_values_of_columns_whose_work_was_given_up(tmp_path, output, monkeypatch):
    """Its process still runs, and writes a file."""
    convert(output, write_inputs(tmp_path, "in", RECORDS))
    at_storage(
        monkeypatch,
        "write",
        "/columns/",
        lambda: remove(output, [17], erase=True, give_up=True),
    )
    with pytest.raises(JobChangedError):
        attach(output, [VALUE] * 40)
    findings, leftovers = found_by_verify(output)
    assert findings == []
    assert any("columns/" in path for path in leftovers)
    assert files_with(output, WORDS)
    clean(output)
    assert found_by_verify(output) == ([], [])
    assert files_with(output, WORDS) == []


@pytest.fixture(scope="module")
def killer(tmp_path_factory):
    with Killer(tmp_path_factory.mktemp("killer")) as killer:
        yield killer


@pytest.fixture(scope="module")
def folder(killer, tmp_path_factory):
    """A folder with what commands take, and the datasets `plain` and `values`."""
    folder = tmp_path_factory.mktemp("erase")
    write_inputs(folder, "in", RECORDS)
    write_inputs(folder, "more", RECORDS[15:20])
    rows = ({"n": n, "text": VALUE if n == 17 else f"value {n}"} for n in range(40))
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "values.jsonl").write_text(lines)
    (folder / "others").write_text("3\n30\n")
    for name, line in (("plain", CONVERT), ("values", COMMANDS["attach"])):
        assert killer.run(line.split(), cwd=folder).status == 0
        shutil.copytree(folder / "out", folder / name)
    return folder


def erase_wherever(killer, folder, output):
    """Erases the record wherever it is; returns whether that was refused at first."""
    records = loader.open(output, cache_dir="")[:]
    numbers = [n for n, record in enumerate(records) if record == RECORD]
    (folder / "gone").write_text("".join(f"{n}\n" for n in numbers))

    def erase(options=""):
        line = f"remove {output} --records=gone --erase --workers=1 {options}"
        return killer.run(line.split(), cwd=folder)

    ended = erase()
    if ended.status == 0:
        return False
    assert "unfinished" in ended.error, ended.error
    assert "--give-up" in ended.error, ended.error
    ended = erase("--give-up")
    assert ended.status == 0, ended.error
    return True


@pytest.mark.parametrize(
    "stride",
    [pytest.param(5, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.soak)],
)
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("command", COMMANDS)
def test_after_a_kill_at_any_change_of_the_disk(killer, folder, command, stride):
    kill_at, refusals, status = stride // 2 + 1, set(), KILLED
    output, line = str(folder / "out"), COMMANDS[command].split()
    while status == KILLED:
        shutil.rmtree(output, ignore_errors=True)
        before = "plain" if command == "attach" else "values"
        shutil.copytree(folder / before, output)
        status = killer.run(line, cwd=folder, kill_at=kill_at).status
        refusals.add(erase_wherever(killer, folder, output))
        assert files_with(output, WORDS) == [], kill_at
        assert found_by_verify(output) == ([], []), kill_at
        assert RECORD not in loader.open(output, cache_dir="")[:]
        kill_at += stride
    assert status == 0
    assert refusals == {False, True}
