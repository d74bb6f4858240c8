"""The digest: the same in any order, the sum of its parts, unlike all others."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.digest import RecordsDigest
from tests.support.records import checksums

MASK = (1 << 64) - 1


def digest_of(records: list[bytes]) -> RecordsDigest:
    lengths = np.array([len(record) for record in records], np.int64)
    return RecordsDigest.of(checksums(records), lengths)


def mixed(word: int, key: int) -> int:
    """SplitMix64's finaliser in plain Python."""
    z = (word + key) & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


records_lists = st.lists(st.binary(max_size=20), max_size=30)


@given(records_lists)
def test_is_the_sum_that_the_format_says(records):
    words = [
        crc | len(record) << 32
        for crc, record in zip(checksums(records).tolist(), records, strict=True)
    ]
    digest = digest_of(records)
    assert digest.records == len(records)
    assert digest.raw_bytes == sum(map(len, records))
    assert digest.low == sum(mixed(w, 0x6A09E667F3BCC908) for w in words) & MASK
    assert digest.high == sum(mixed(w, 0xBB67AE8584CAA73B) for w in words) & MASK
    assert digest.hex == f"{digest.high << 64 | digest.low:032x}"


@given(records_lists, st.randoms(use_true_random=False))
def test_order_does_not_matter(records, chance):
    shuffled = list(records)
    chance.shuffle(shuffled)
    assert digest_of(shuffled) == digest_of(records)


@given(records_lists, st.lists(st.integers(0, 30), max_size=4))
def test_parts_add_up(records, cuts):
    bounds = [0, *sorted(min(cut, len(records)) for cut in cuts), len(records)]
    parts = [digest_of(records[begin:end]) for begin, end in itertools.pairwise(bounds)]
    assert RecordsDigest.total(parts) == digest_of(records)
    assert sum(parts, RecordsDigest()) == digest_of(records)
    assert RecordsDigest.total(reversed(parts)) == digest_of(records)


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=20), st.data())
def test_loss_duplication_and_change_show(records, data):
    at = data.draw(st.integers(0, len(records) - 1))
    other = data.draw(st.binary(max_size=20).filter(lambda r: r != records[at]))
    good = digest_of(records)
    assert digest_of(records[:at] + records[at + 1 :]).hex != good.hex
    assert digest_of([*records, records[at]]).hex != good.hex
    assert digest_of([*records[:at], other, *records[at + 1 :]]).hex != good.hex


def test_length_counts_besides_the_checksum():
    crcs = np.array([5, 5], np.uint32)
    digests = {
        RecordsDigest.of(crcs, np.array(lengths)).hex
        for lengths in ([1, 2], [1, 3], [1, 1 << 31], [1, 0])
    }
    assert len(digests) == 4


def test_checksums_and_lengths_come_in_pairs():
    with pytest.raises(ValueError, match="2 checksums but 1 lengths"):
        RecordsDigest.of(np.zeros(2, np.uint32), np.zeros(1, np.int64))
