"""A last batch that is not full is filled up: every record once, on any hosts."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest

from gristmill import loader
from tests.support.datasets import convert
from tests.support.records import text_records

FILES = [text_records(40, seed=1), text_records(59, seed=2)]


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    return convert(tmp_path_factory.mktemp("data"), FILES)


def batches_of(path: str, batch_size: int = 24, **options: Any) -> loader.GlobalBatches:
    options = {"epochs": 1, "drop_remainder": False, "shuffle": "none"} | options
    return loader.global_batches(loader.open(path), batch_size=batch_size, **options)


def decode(records: list[bytes]) -> dict[str, Any]:
    """Arrays of each kind; it is never called without a record."""
    sizes = np.array([len(record) for record in records])
    return {
        "texts": np.array(records, object),
        "inner": {"sizes": sizes, "all": sizes[:, None].max(axis=0) + sizes[:, None]},
    }


# Of 99 records; one size divides them, and one is larger than all of them.
@pytest.mark.parametrize(
    ("batch_size", "hosts", "shuffle"),
    [(24, 1, "none"), (33, 3, "global"), (36, 12, "block"), (120, 2, "none")],
)
def test_every_record_is_once_on_some_host(path, batch_size, hosts, shuffle) -> None:
    batches = batches_of(path, batch_size, shuffle=shuffle)
    seen = collections.Counter[bytes]()
    for host in range(hosts):
        with batches.feed(decode=decode, host=(host, hosts), mask="mask") as feed:
            got = list(feed)
        assert len(got) == batches.steps
        assert feed.stats.records == sum(batch["mask"].sum() for batch in got)
        for batch in got:
            mask = batch["mask"]
            assert mask.dtype == bool
            assert mask.shape == batch["texts"].shape == (batch_size // hosts,)
            assert batch["inner"]["all"].shape == (batch_size // hosts, 1)
            seen.update(batch["texts"][mask])
            assert not any(batch["texts"][~mask])
            assert not batch["inner"]["sizes"][~mask].any()
            # Rows of padding are behind the others.
            assert (np.diff(mask.astype(int)) <= 0).all()
    assert seen == collections.Counter(FILES[0] + FILES[1])


def test_it_goes_on_at_a_step_and_where_sizes_change(path) -> None:
    batches = batches_of(path).then(batch_size=48, step=2)
    options = {"decode": decode, "host": (1, 2), "mask": "mask"}
    with batches.feed(**options) as feed:
        masks = [int(batch["mask"].sum()) for batch in feed]
        assert masks == [12, 12, 24, 24, 0]
        feed.set_state({**feed.get_state(), "step": 2})
        assert [len(batch["mask"]) for batch in feed] == [24, 24, 24]


def test_padding_of_packed_rows_counts_for_no_loss() -> None:
    from gristmill.loader.feed.step_reads import filled_up

    row = np.array([1, 2], "<u4").tobytes() + np.array([5, 6], "<u2").tobytes()
    batch = loader.PackedRows(length=4)([row])
    filled = filled_up(batch, np.array([True, False]), mask="mask")
    assert filled["targets_segmentation"].tolist() == [[1, 0, 0, 0], [0, 0, 0, 0]]
    assert {array.dtype.name for array in filled.values()} == {"int32", "bool"}


def test_a_record_that_does_not_fit_is_named_also_where_it_fills_up(path) -> None:
    tokens = loader.TokenDecoder(length=3)
    batches = batches_of(path, 120)
    for host in range(2):
        with (
            batches.feed(
                decode=as_dict(tokens),
                host=(host, 2),
                mask="mask",
            ) as feed,
            pytest.raises(loader.DecodeError, match=r"record \d+"),
        ):
            next(feed)
    # The second host has 39 rows of 60, and of a larger batch none.
    with (
        batches_of(path, 240).feed(
            decode=as_dict(tokens), host=(1, 2), mask="mask"
        ) as feed,
        pytest.raises(loader.DecodeError, match=r"record 0 .*row 0 of step 0"),
    ):
        next(feed)


def as_dict(decoder: Any) -> Any:
    return lambda records: {"tokens": decoder(records)}
