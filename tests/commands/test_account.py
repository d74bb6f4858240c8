"""`gristmill account`: its table, JSON, CSV and the summary of training content."""

import csv
import json

from gristmill import loader
from gristmill.loader.accounting.account import account as accounted
from gristmill.loader.feed.state import state_of
from tests.commands.conftest import json_of, run
from tests.support.columns import attach_numbers, examples
from tests.support.packed import documents, pack

RECORDS = 30


def test_a_mixture_in_all_forms(tmp_path):
    """Of a dataset `a` of two files with columns, and packed rows `b`."""
    places = {"a": examples(tmp_path / "a", [RECORDS - 10, 10])}
    attach_numbers(places["a"], tmp_path, RECORDS)
    places["b"] = pack(tmp_path / "b", [documents(20, seed=1), documents(9, seed=2)])
    named = {name: loader.open(path) for name, path in places.items()}
    batches = loader.global_batches(named, batch_size=8)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(state_of(batches, 11)))
    line = f"account a={places['a']} b={places['b']} --state {state}"
    found = json_of(f"{line} --csv {tmp_path}/t.csv")
    expected = [
        {"dataset": part.dataset, "value": part.value, "note": part.note}
        | part.counts._asdict()
        for part in accounted(batches, 11)
    ]
    assert found["parts"] == expected
    assert len(expected) == 4
    assert found["total"]["documents"] == sum(one["documents"] for one in expected)
    assert found["total"]["tokens"] is None  # Those of `a` are not known.
    with open(tmp_path / "t.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [
        {name: "" if value is None else str(value) for name, value in one.items()}
        for one in expected
    ]
    found = json_of(f"{line} --by dataset")
    assert [part["dataset"] for part in found["parts"]] == ["a", "b"]
    assert run(line).stdout.splitlines()[-1].endswith("in 11 steps")
    few = json_of(f"{line} --documents-only --steps 2")
    assert {one["tokens"] for one in few["parts"]} == {None}
    assert few["total"]["documents"] < found["total"]["documents"]
