import random

import pyarrow.parquet as pq
import pytest

from gristmill.dataset.formats.parquet.stored_group import stored_group
from tests.support.parquet_files import some_table, write_parquet


def footer_of(path):
    data = path.read_bytes()
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


@pytest.mark.parametrize(
    "options",
    [{}, {"use_dictionary": False}, {"compression": "gzip", "write_page_index": True}],
)
def test_the_range_is_the_one_that_pyarrow_says(tmp_path, options):
    path = write_parquet(
        tmp_path / "a.parquet", some_table(300), row_group_size=70, **options
    )
    metadata = pq.read_metadata(path)
    assert metadata.num_row_groups == 5
    for number in range(5):
        group = metadata.row_group(number)
        ranges = []
        for column in map(group.column, range(group.num_columns)):
            begin = column.dictionary_page_offset or column.data_page_offset
            ranges.append((begin, begin + column.total_compressed_size))
        expected = min(ranges)[0], max(end for _, end in ranges)
        assert stored_group(footer_of(path), number) == expected
    assert stored_group(footer_of(path), 5) is None


def test_a_damaged_footer_gives_a_range_or_none_and_never_an_error(tmp_path):
    footer = footer_of(write_parquet(tmp_path / "a.parquet", some_table(50)))
    chosen = random.Random(3)
    for _ in range(300):
        damaged = bytearray(footer)
        damaged[chosen.randrange(len(footer))] ^= 1 << chosen.randrange(8)
        cut = chosen.choice([len(footer), chosen.randrange(len(footer))])
        found = stored_group(bytes(damaged[:cut]), 0)
        assert found is None or 0 <= found[0] < found[1]
    assert stored_group(b"\x1c" * 1000, 0) is None  # Structs within structs.
