"""The benchmark of decoding: what it compares is the same, and the table is whole."""

import pytest

from benchmarks import decode


@pytest.mark.slow
def test_it_measures_what_decodes_alike(tmp_path, capsys):
    path = tmp_path / "decode.md"
    decode.main(["--quick", "--markdown", str(path)])
    rows = path.read_text().splitlines()[-7:]
    assert rows == capsys.readouterr().out.splitlines()[-7:]
    for row in rows:
        name, *numbers = row.strip("| ").split(" | ")
        assert name
        assert all(float(number.replace(",", "")) > 0 for number in numbers)
