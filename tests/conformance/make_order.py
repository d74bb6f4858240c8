"""Makes `order.json`: which records which host reads in which step, for 10,000 cases.

    python -m tests.conformance.make_order

The numbers of a version of the order never change: run it for a new version alone.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from typing import Any

import numpy as np

from gristmill.loader.order.mixture import Mixture
from gristmill.loader.order.schedule import DatasetOrder
from gristmill.loader.order.shuffle import (
    BlockShuffle,
    GlobalShuffle,
    NoShuffle,
    Shuffle,
)
from tests.order.schedules import schedule_of

PATH = pathlib.Path(__file__).parent / "order.json"
CONFIGURATIONS, STEPS = 250, 40
SEEDS = (0, 1, -1, 42, 2**31, 2**53, -(2**53))
BATCH_SIZES = (1, 2, 4, 6, 8, 12, 24)


def shuffle_of(shuffle: dict[str, Any]) -> Shuffle:
    """Returns the shuffle that a configuration names."""
    kinds = {"none": NoShuffle, "global": GlobalShuffle, "block": BlockShuffle}
    sizes = {name: value for name, value in shuffle.items() if name != "kind"}
    return kinds[shuffle["kind"]](**sizes)


def rows_of(configuration: dict[str, Any]) -> list[list[Any]]:
    """Returns datasets and records of each host's rows in each listed step."""
    shuffle = shuffle_of(configuration["shuffle"])
    orders = tuple(
        DatasetOrder(
            num_records=records,
            seed=configuration["seed"],
            name=name,
            shuffle=shuffle,
        )
        for name, records in configuration["datasets"]
    )
    weights = configuration["weights"]
    schedule = schedule_of(
        orders=orders,
        mixture=Mixture.of(weights) if len(weights) > 1 else None,
        batch_size=configuration["batch_size"],
    )
    found = []
    for step, hosts, host in configuration["steps"]:
        rows = schedule.host_rows(host=(host, hosts), step=step)
        batch = schedule.batch(step, rows)
        found.append([batch.datasets.tolist(), batch.records.tolist()])
    return found


def configurations() -> list[dict[str, Any]]:
    """Returns sizes, seeds, shuffles, batch sizes, steps and hosts of all kinds."""
    random = np.random.default_rng(0)

    def drawn(values: Any) -> Any:
        return values[int(random.integers(len(values)))]

    found = []
    for number in range(CONFIGURATIONS):
        count = 1 if number % 3 else int(random.integers(2, 6))
        sizes = [int(2 ** random.uniform(0, 50)) + int(random.integers(3))]
        sizes += [int(2 ** random.uniform(4, 30)) for _ in range(count - 1)]
        block = {
            "kind": "block",
            "block_records": int(2 ** random.uniform(0, 10)),
            "window_blocks": int(2 ** random.uniform(0, 11)),
        }
        batch_size = drawn(BATCH_SIZES)
        steps = []
        for _ in range(STEPS):
            hosts = drawn([n for n in range(1, 25) if batch_size % n == 0])
            step = int(2 ** random.uniform(0, 30)) - 1
            steps.append([step, hosts, int(random.integers(hosts))])
        found.append(
            {
                "datasets": [
                    ["" if count == 1 else f"data-{n}", size]
                    for n, size in enumerate(sizes)
                ],
                "weights": [int(random.integers(1, 100)) for _ in sizes],
                "seed": drawn(SEEDS),
                "shuffle": drawn([{"kind": "none"}, {"kind": "global"}, block, block]),
                "batch_size": batch_size,
                "steps": steps,
            }
        )
    return found


def digest_of(configured: list[dict[str, Any]]) -> str:
    """Returns the SHA-256 of configurations with their rows, as compact JSON."""
    data = json.dumps(configured, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(data.encode()).hexdigest()


def main() -> None:
    """Writes the file."""
    table = [{**each, "rows": rows_of(each)} for each in configurations()]
    lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in table)
    head = f'"sha256":"{digest_of(table)}"'
    PATH.write_text(f'{{{head},"configurations":[\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
