import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gristmill.dataset.arrayrecord.chunks import EncodedChunks, decode_lone_record
from tests.support.chunks import chunk
from tests.support.memory import peak_memory


@given(at=st.integers(0, 79), value=st.integers(0, 255), cut=st.integers(0, 90))
@example(at=39, value=255, cut=90)
def test_damage_gives_no_more_than_the_general_decoder_does(at, value, cut) -> None:
    data = bytearray(chunk([b"some words, some words, more words"], compression="z"))
    data[at % len(data)] = value
    damaged = bytes(data[:cut])
    with peak_memory() as peak:
        found = decode_lone_record(damaged, max_decoded_bytes=1000)
    assert peak.bytes < 100_000
    if found is None:
        return
    general = EncodedChunks(damaged, np.array([0]), path="test", max_decoded_bytes=1000)
    assert [found] == general.decode()


@given(
    records=st.lists(st.binary(max_size=300), min_size=2, max_size=40), data=st.data()
)
def test_record_among_others(records: list[bytes], data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(records) - 1))
    packed = chunk(records, compression="z")
    size = len(b"".join(records))
    wanted = {"row": row, "max_decoded_bytes": size}
    found = decode_lone_record(packed, count=len(records), **wanted)
    assert found == (records[row] if size else None)
    assert decode_lone_record(packed, count=len(records) + 1, **wanted) is None


@pytest.mark.parametrize("count", [1, 3])
def test_hashes_are_compared_if_asked(count: int) -> None:
    pytest.importorskip("gristmill.dataset.arrayrecord._chunk_hash")
    records = [b"some words, more words %d" % number for number in range(count)]
    good = chunk(records, compression="z")
    wanted = {"row": count - 1, "count": count, "max_decoded_bytes": 1000}
    assert decode_lone_record(good, hashed=True, **wanted) == records[-1]
    unnoticed = 0
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1 << at % 8
        unnoticed += decode_lone_record(bytes(bad), **wanted) is not None
        assert decode_lone_record(bytes(bad), hashed=True, **wanted) is None, at
    assert unnoticed > 16  # The hashes themselves, and literal bytes.
