"""Packed rows in feeds: shares and runs of tokens, any number of hosts."""

from fractions import Fraction

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.packed.row_format import RowFormat, decode_rows
from tests.support.datasets import convert
from tests.support.packed import documents, pack
from tests.support.schedules import bounds_of

LENGTH = 32
# Ids without a tokenizer take 4 bytes.
ROWS = RowFormat(LENGTH, id_bytes=4)
HOST = {"host": (0, 1)}


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, str]:
    made = {
        "web": [documents(60, seed=1), documents(40, seed=2)],
        "week": [documents(50, seed=3, mean=5)],
        # Each shard ends with a row that is hardly filled.
        "code": [documents(3, seed=4 + number, mean=10) for number in range(30)],
    }
    found = {
        name: pack(tmp_path_factory.mktemp(name), shards, length=LENGTH)
        for name, shards in made.items()
    }
    plain = [np.arange(n, n + 16, dtype="<u2").tobytes() for n in range(37)]
    return found | {"plain": convert(tmp_path_factory.mktemp("plain"), [plain])}


@pytest.fixture(scope="module")
def opened(places) -> dict[str, loader.Dataset]:
    return {name: loader.open(place) for name, place in places.items()}


def tokens_of(records) -> np.ndarray:
    """Tokens of each row."""
    ends, lengths, *_ = decode_rows(ROWS, records)
    return np.add.reduceat(lengths, np.concatenate([[0], ends[:-1]]), dtype=np.int64)


def test_weights_are_shares_of_tokens(opened):
    datasets = {name: opened[name] for name in ("web", "code")}
    means = {
        name: Fraction(dataset.facts.packed.tokens, len(dataset))
        for name, dataset in datasets.items()
    }
    # A row of code holds far fewer tokens.
    assert means["web"] > 31
    assert means["code"] < 22
    weights = loader.token_weights(datasets, {"web": 0.7, "code": "3/10"})
    assert sum(weights.values()) == 1
    tokens = {name: weights[name] * means[name] for name in datasets}
    assert tokens["web"] / sum(tokens.values()) == Fraction(7, 10)
    # By tokens, code has far more than three rows of ten.
    assert weights["code"] > Fraction(38, 100)

    batches = loader.global_batches(datasets, batch_size=50, seed=3, weights=weights)
    share = f"{float(weights['web']):.2%}, code {float(weights['code']):.2%}"
    assert repr(batches).endswith(
        f"seed 3, of rows web {share}, of tokens web 70.00%, code 30.00%>"
    )
    by_rows = batches.then(weights={"web": 7, "code": 3}, step=0)
    assert "of tokens web 78.06%, code 21.94%" in repr(by_rows)


def test_tokens_of_a_mixture_are_as_its_weights_promise(opened):
    datasets = {name: opened[name] for name in ("web", "code")}
    shares = {"web": Fraction(7, 10), "code": Fraction(3, 10)}
    weights = loader.token_weights(datasets, shares)
    batches = loader.global_batches(datasets, batch_size=8, seed=3, weights=weights)
    each = {name: tokens_of(dataset[:]) for name, dataset in datasets.items()}
    bounds = bounds_of(batches.schedule.phases[0].mixture)
    assert max(bounds) <= Fraction(1, 2)
    seen = {"web": 0, "code": 0}
    for step in range(200):
        numbers, records = batches.indices(step)
        for number, name in enumerate(datasets):
            seen[name] += int(each[name][records[numbers == number]].sum())
        rows = 8 * (step + 1)
        for number, name in enumerate(datasets):
            # In rows, never more than the mixture's bound from the exact share.
            counted = batches.schedule.phases[0].mixture.counts(rows)[number]
            assert abs(counted - rows * weights[name]) <= bounds[number]
    run = loader.token_run(batches, steps=200)
    for number, name in enumerate(datasets):
        # Whole epochs have exactly their tokens, and the last one mean rows.
        counts = datasets[name].facts.packed
        assert run.epochs[number] >= 2
        assert abs(seen[name] - run.tokens_of[number]) <= counts.tokens * 0.05
        # The promise, of mean rows: the share of tokens, but for the bound of rows.
        off = abs(run.tokens_of[number] - shares[name] * run.tokens)
        assert off <= 2 * sum(bounds) * LENGTH + 2
    realised = seen["web"] / sum(seen.values())
    assert realised == pytest.approx(0.7, abs=0.005)
