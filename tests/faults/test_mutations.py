"""Damaged plain ArrayRecord files: every record given is one that was written."""

from __future__ import annotations

import collections
import pathlib

import pytest

from tests.support import damaged_files as mutations
from tests.support.damaged_files import ENCODINGS, READERS

OTHERS = READERS[1:]
every_encoding = pytest.mark.parametrize("encoding", ENCODINGS)


def run(encoding: str, seeds: range, folder: pathlib.Path) -> collections.Counter:
    """Returns how often each reader had each outcome."""
    found: collections.Counter = collections.Counter()
    for seed, kind, outcomes in mutations.run_mutations(encoding, seeds, folder):
        for reader, (what, error) in outcomes.items():
            assert reader == READERS[0] or what in ("same", "refused"), (
                f"{reader}: {what}, seed {seed}, {kind}: {error}"
            )
            found[reader, what] += 1
    return found


@pytest.mark.one_in(7)
@every_encoding
def test_no_wrong_byte_and_no_raw_error(
    encoding: str, tmp_path: pathlib.Path, decoding: str
) -> None:
    count = 6 if decoding == "compiled" else 3
    found = run(encoding, range(count), tmp_path)
    assert all(found[reader, "refused"] > count / 2 for reader in OTHERS)


@pytest.mark.one_in(3)
@every_encoding
def test_good_files_are_read(
    encoding: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in mutations.KINDS:
        monkeypatch.setitem(mutations.KINDS, kind, lambda *args: None)
    found = run(encoding, range(1), tmp_path)
    assert found == {(reader, "same"): 1 for reader in READERS}


def test_wrong_bytes_would_be_noticed(tmp_path: pathlib.Path) -> None:
    records = mutations.make_records()
    others = [*records[:9], b"wrong", *records[10:]], records[:-1]
    for number, other in enumerate(others):
        path = tmp_path / str(number)
        mutations.write_file(path, other, ENCODINGS[0])
        for read in mutations.READS.values():
            assert mutations.outcome(read, str(path), records)[0] == "wrong"

    def raises(path: str):
        raise KeyError(path)

    assert mutations.outcome(raises, str(path), records)[0] == "other"


@pytest.mark.soak
@every_encoding
def test_thousands_of_files(encoding: str, tmp_path: pathlib.Path) -> None:
    run(encoding, range(700), tmp_path)
