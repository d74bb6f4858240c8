"""The order of records is that of `order.json`, in every release."""

import hashlib
import json
import pathlib

import pytest

from gristmill.loader.order.mixture import Mixture
from gristmill.loader.order.schedule import DatasetOrder
from gristmill.loader.order.shuffle import BlockShuffle, GlobalShuffle, NoShuffle
from tests.conformance import plain_order
from tests.order.schedules import schedule_of

DIGEST = "fa59f9dd6c753ecd56c9a343c1e57e41c718a976fc08b4e01c88b76cdb498ded"
SHUFFLES = {"none": NoShuffle, "global": GlobalShuffle, "block": BlockShuffle}


def table():
    """Returns the configurations with their rows, as they always were."""
    path = pathlib.Path(__file__).with_name("order.json")
    found = json.loads(path.read_text("utf-8"))
    data = json.dumps(found["configurations"], separators=(",", ":"), sort_keys=True)
    # Neither the file nor the code may change: runs would not resume where they were.
    assert hashlib.sha256(data.encode()).hexdigest() == found["sha256"] == DIGEST
    return enumerate(found["configurations"])


def rows_of(configuration):
    """Returns datasets and records of each host's rows in each listed step."""
    sizes = dict(configuration["shuffle"])
    order = {"shuffle": SHUFFLES[sizes.pop("kind")](**sizes)}
    order["seed"] = configuration["seed"]
    weights = configuration["weights"]
    schedule = schedule_of(
        orders=tuple(
            DatasetOrder(num_records=records, name=name, **order)
            for name, records in configuration["datasets"]
        ),
        mixture=Mixture.of(weights) if len(weights) > 1 else None,
        batch_size=configuration["batch_size"],
    )
    for step, hosts, host in configuration["steps"]:
        rows = schedule.host_rows(host=(host, hosts), step=step)
        batch = schedule.batch(step, rows)
        yield [batch.datasets.tolist(), batch.records.tolist()]


def test_an_implementation_without_source_gives_the_same():
    for number, each in [*table()][::5]:
        assert plain_order.rows_of(each) == each["rows"], f"configuration {number}"


@pytest.mark.slow
def test_no_release_changes_an_order():
    for number, each in table():
        assert [*rows_of(each)] == each["rows"], f"configuration {number}"
