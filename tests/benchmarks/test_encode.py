"""The benchmark of encoding examples, with one call each."""

from benchmarks import encode


def test_it_measures_what_encodes_alike(tmp_path, capsys):
    path = tmp_path / "encode.md"
    encode.main(["--quick", "--markdown", str(path)])
    assert capsys.readouterr().out.strip() in path.read_text()
    assert len(path.read_text().splitlines()) == 7 + len(encode.cases())
