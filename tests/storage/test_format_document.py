"""Numbers of docs/reference/format.md: digests, and rows as bytes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from examples import packed_reader
from gristmill.dataset.base.digest import RecordsDigest
from tests.support.records import checksums

MASK = (1 << 64) - 1


def mixed(word, key):
    """SplitMix64's finaliser in plain Python."""
    z = (word + key) & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def digest_of(records):
    lengths = np.array([len(record) for record in records], np.int64)
    return RecordsDigest.of(checksums(records), lengths)


@given(st.lists(st.binary(max_size=20), max_size=30), st.integers(0, 30))
def test_a_digest_is_a_sum_over_records(records, cut):
    """So order does not matter, and parts add up."""
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
    parts = [digest_of(records[cut:]), digest_of(records[:cut])]
    assert RecordsDigest.total(parts) == parts[0] + parts[1] == digest


def test_rows_as_bytes():
    row = bytes.fromhex("02000080 01000000 02000000 00000000 05000000 0100 0200 0300")
    (first, document), (position, rest) = packed_reader.read_row(row, id_bytes=2)
    assert (first, document.tolist()) == (0, [1])
    assert (position, rest.tolist()) == (5, [2, 3])
    row = bytes.fromhex("01000040 07000000" + "0100" * 7 + "02 02 03 32 3b")
    user, assistant = packed_reader.read_spans(row, id_bytes=2)[0]
    assert user == (1, 3, "user", 0, False, 1.0)
    assert assistant == (4, 7, "assistant", 1, True, 1.0)
