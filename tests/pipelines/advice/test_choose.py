"""What is advised follows from what was measured, and says why."""

from __future__ import annotations

import pytest

from gristmill.pipelines.advice import choose
from gristmill.pipelines.advice.encoded_sizes import Encoded, Estimate
from gristmill.pipelines.advice.epoch_requests import EpochRequests


def candidates(sizes: dict[tuple[str, int], float]) -> choose.Candidates:
    return {
        (compression, group_size): Encoded(
            compression=compression,
            group_size=group_size,
            shard_bytes=Estimate(size * 1e6),
            index_bytes=Estimate(1.0),
            chunk_bytes=1000.0 * group_size,
            encode_seconds=3.0 if compression == "zstd:9" else 1.0,
        )
        for (compression, group_size), size in sizes.items()
    }


def sized(plain: float, fast: float, small: float, *, grouped: float = 0.9):
    found = {}
    for group_size, factor in ((1, 1.0), (16, grouped)):
        names = ("uncompressed", "zstd:3", "zstd:9")
        for name, size in zip(names, (plain, fast, small), strict=True):
            found[name, group_size] = size * factor
    return candidates(found)


@pytest.mark.parametrize(
    ("found", "value", "reason"),
    [
        (sized(100, 50, 48), "zstd:3", "50% smaller than uncompressed; zstd:9 would "),
        (sized(100, 50, 40), "zstd:9", "20% smaller than zstd:3, for 3.0 times the"),
        (sized(100, 99, 98), "uncompressed", "zstd:3 would save 1.0%"),
        (sized(100, 120, 120), "uncompressed", "zstd:3 would save 0.0%"),
    ],
)
def test_compression(found: choose.Candidates, value: str, reason: str) -> None:
    choice = choose.choose_compression(found, 1)
    assert choice.value == value
    assert reason in choice.reason
    assert "\n" not in choice.reason


def test_group_size() -> None:
    choice = choose.choose_group_size(sized(100, 50, 48, grouped=0.8))
    assert choice.value == 1
    assert "16 would save 20% of the size, and fetch 15.6 KiB" in choice.reason
    choice = choose.choose_group_size(sized(100, 50, 48, grouped=0.4))
    assert choice.value == 16
    assert "60% smaller than 1" in choice.reason


@pytest.mark.parametrize(
    ("input_bytes", "workers", "one_cut", "option", "value", "reason"),
    [
        (100 << 30, 16, True, None, "", "400 shards: the default"),
        (1 << 30, 16, True, "--num-shards", "32", "2 for each of 16 workers"),
        (64 << 20, 16, True, "--num-shards", "4", "4 shards"),
        (1 << 20, 16, True, None, "", "1 shard: the default"),
        (1 << 30, 16, False, None, "", "4 shards"),
        (32 << 40, 16, True, "--shard-size", "2GiB", "default would make 131,072"),
    ],
)
def test_shards(
    input_bytes: int,
    workers: int,
    one_cut: bool,
    option: str | None,
    value: str,
    reason: str,
) -> None:
    choice = choose.choose_shards(
        input_bytes,
        workers=workers,
        one_cut=one_cut,
        shards_of=lambda size: -(-input_bytes // size),
    )
    assert (choice.option, choice.value) == (option, value)
    assert reason in choice.reason


def epochs(anywhere: float, block: float) -> list[EpochRequests]:
    return [
        EpochRequests(
            shuffle=name,
            by_window=True,
            requests=requests,
            read_bytes=1.0,
            first_requests=1.0,
            listings=1.0,
        )
        for name, requests in (("global", anywhere), ("block", block))
    ]


@pytest.mark.parametrize(
    ("anywhere", "block", "file_bytes", "value", "reason", "copies"),
    [
        (1e6, 1e4, 1e9, "global", "under a dollar", False),
        (1e9, 1e7, 1e12, "block", "100 times fewer requests", True),
        (1e9, 9e8, 1e12, "global", "one record in 8 of a block", True),
        (1e9, 9e8, 1e14, "global", "one record in 8 of a block", False),
    ],
)
def test_shuffle(
    anywhere: float,
    block: float,
    file_bytes: float,
    value: str,
    reason: str,
    copies: bool,
) -> None:
    price = 4e-7
    choice, about = choose.choose_shuffle(
        epochs(anywhere, block),
        [anywhere * price, block * price],
        hosts=8,
        file_bytes=file_bytes,
        class_b_dollars=price,
    )
    assert choice.value == value
    assert reason in choice.reason
    assert (about is not None) == copies
