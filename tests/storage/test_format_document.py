"""The reader of examples and the bytes of docs/reference/format.md."""

from examples import packed_reader


def test_rows_as_bytes():
    row = bytes.fromhex("02000080 01000000 02000000 00000000 05000000 0100 0200 0300")
    (first, document), (position, rest) = packed_reader.read_row(row, id_bytes=2)
    assert (first, document.tolist()) == (0, [1])
    assert (position, rest.tolist()) == (5, [2, 3])
    row = bytes.fromhex("01000040 07000000" + "0100" * 7 + "02 02 03 32 3b")
    user, assistant = packed_reader.read_spans(row, id_bytes=2)[0]
    assert user == (1, 3, "user", 0, False, 1.0)
    assert assistant == (4, 7, "assistant", 1, True, 1.0)
