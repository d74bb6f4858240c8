"""Plans of removals, beside a plan that looks at one record after the other."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.splits import Split
from gristmill.transforms.removal.removal_job import Removal, plan_removal


def edition(number: int, records: int) -> Split:
    return Split(
        shards=1,
        records=records,
        raw_bytes=0,
        file_bytes=0,
        records_digest=f"{number:032x}",
        shards_digest=f"sha256:{number:064x}",
        table=f"index/d-train.{number:016x}.shards.npz",
        table_bytes=0,
        table_crc32c=0,
        writer_options="",
        source={"job": f"{number:016x}"},
        edition=number,
        write=f"{number:016x}",
    )


def planned(
    split: Split, records: list[int], request: str = "r", spent: Iterable[str] = ()
) -> Removal:
    manifest = Manifest(name="d", splits={"train": split}, spent=frozenset(spent))
    return plan_removal("out", manifest, "train", records, request=request)


def id_of(removal: Removal) -> str:
    return removal.editions[0].write.id


@given(data=st.data())
def test_every_record_is_found_in_its_edition(data):
    counts = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    total = sum(counts)
    if not total:
        return
    numbers = data.draw(st.permutations(range(1, 9)))[: len(counts)]
    parts = [edition(n, count) for n, count in zip(numbers, counts, strict=True)]
    split = Split.of_editions(parts)
    wanted = data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=12))
    removal = planned(split, wanted)
    owners = [
        (part.edition, record) for part in parts for record in range(part.records)
    ]
    expected = sorted({record: owners[record] for record in wanted}.items())
    found = [
        (one.base.edition, record)
        for one in removal.editions
        for record in one.records.tolist()
    ]
    assert found == [owner for _, owner in expected]
    assert removal.records == len(expected)
    new = [one.write.id for one in removal.editions]
    assert len({*new}) == len(new)
    assert removal.editions[0].write.key == f"train.{new[0]}"


@pytest.mark.parametrize("records", [[], [-1], [10], [3, 1 << 40]])
def test_what_is_not_there_is_refused(records):
    with pytest.raises(InputError, match="record"):
        planned(edition(1, 10), records)


def test_the_fingerprint_tells_work_apart():
    base = edition(1, 10)
    same = id_of(planned(base, [3, 1]))
    assert id_of(planned(base, [1, 3, 3])) == same
    # What was given up has files that may be deleted at any moment.
    again = id_of(planned(base, [1, 3], spent=[same]))
    assert again != same
    assert id_of(planned(base, [1, 3], spent=[same])) == again
    assert id_of(planned(base, [1, 3], spent=[same, again])) not in {same, again}
    others = [
        planned(base, [1, 2]),
        planned(base, [1, 3], request="other"),
        planned(edition(2, 10), [1, 3]),
    ]
    assert len({same, *(id_of(other) for other in others)}) == 4
    assert np.array_equal(others[0].editions[0].records, [1, 2])
