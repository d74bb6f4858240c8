"""CSV, TSV and lines of text against Python's csv, and all that is refused."""

import codecs
import csv
import dataclasses
import gzip
import io

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gristmill.dataset import CorruptRecordError, InputError
from gristmill.transforms.sources.source import first_records
from tests.conversion.format_files import (
    check_meets,
    features_of,
    in_blocks,
    listed,
    put,
    put_in,
    read_cut,
    read_rows,
)
from tests.support.examples import parsed
from tests.support.told import told

MARK = b"\xef\xbb\xbf"
LINE = st.text(st.characters(exclude_characters="\n\0", codec="utf-8"), max_size=12)
LINES = st.lists(st.tuples(LINE, st.sampled_from(["\n", "\r\n"])), max_size=12)
ASKED = {"input_format": "csv"}


@given(
    lines=LINES,
    mark=st.sampled_from([b"", MARK]),
    last=LINE,
    block_bytes=st.integers(1, 40),
    cuts=st.lists(st.floats(0, 1)),
)
@example(lines=[], mark=b"", last="\n\r\n\ra\r\r\n\n", block_bytes=7, cuts=[])
def test_ranges_own_the_lines_that_begin_in_them(
    folder, lines, mark, last, block_bytes, cuts
):
    text = ("".join(map("".join, lines)) + last).encode()
    assume(text)
    files = listed(put_in(folder, mark + text), input_format="text")
    with in_blocks(block_bytes):
        read = read_cut(files, [int(cut * len(mark + text)) for cut in cuts])
    # Bare returns are content, empty lines are records.
    *ended, rest = text.removeprefix(MARK if not mark else b"").split(b"\n")
    expected = [line.removesuffix(b"\r") for line in ended] + [rest] * bool(rest)
    assert read.records == expected
    check_meets(read.spans, files)


def read(folder, data):
    """Reads rows of a file beside another one, by which their types are known."""
    put(folder, {"0": b"n,s,f\n1,a,0.5\n", "1": b"n,s,f\n" + data})
    spec = listed(folder / "0", **ASKED).spec
    files = listed(folder / "1", record="line", **ASKED)
    read = read_cut(dataclasses.replace(files, spec=spec))
    return [parsed(record) for record in read.records]


def test_values_of_cells(tmp_path):
    assert read(tmp_path, b'123456789.0,x"y,\n2e2,z",0.5\n,"c\n",\n') == [
        {"n": [123456789], "s": [b'x"y']},
        {"n": [200], "s": [b'z"'], "f": [0.5]},
        {"s": [b"c\n"]},
    ]


# A row, what is wrong with it, and what the error shows of it.
BAD = r"""
1,a\n                     | number of fields | 2
1,a,2,\n                  | number of fields | 4
1,"a"b,2\n                | quotes           | after the quote
1,"a,2\n"5,6"             | quotes           | after the quote
1,\xff,2\n                | UTF-8            | 0xff
1,a\0,2\n                 | zero bytes       | 1 of them
1,a\rb,2\n                | carriage return  | alone
1,a,2\r\r\n               | carriage return  | alone
007,a,2\n                 | types            | '007'
1.5,a,2\n                 | types            | '1.5'
\x201,a,2\n               | types            | ' 1'
1\xd9\xa3,a,2\n           | types            | '1
9223372036854775808,a,2\n | types            | '9223372036854775808'
1,a,x\n                   | types            | 'x'
1,a,1_0\n                 | types            | '1_0'
1,a,1e400\n               | types            | '1e400'
1,a,nan\n                 | types            | 'nan'
1,a,-9007199254740993.0\n | types            | '-9007199254740993.0'
1,"a,2\n3,b,4\n           | never closed     |
1,"a""                    | never closed     |
"                         | never closed     |
1,"a""\n                  | never closed     |
"""


@pytest.mark.parametrize("case", BAD.strip().splitlines())
@pytest.mark.parametrize("before", [0, 5])
def test_a_bad_row_is_named(tmp_path, case, before):
    row, what, got = map(str.strip, case.split("|"))
    row = codecs.escape_decode(row)[0]
    after = b"" if what == "never closed" else b"3,c,4\n" * 3
    with told(CorruptRecordError, f"/1, line {2 * before + 2}, byte", got, match=what):
        read(tmp_path, b'1,"a\n""b""",2.5\n' * before + row + after)


PIECES = [b'"', b",", b"\n", b"\r", b"x", b"", b"\xff", b"\0", b'""', b'",']
TEXT = st.text('ab",\n\ré 1', max_size=4)
CHANGE = st.tuples(st.floats(0, 1), st.integers(0, 2), st.sampled_from(PIECES))


@given(
    st.lists(st.tuples(TEXT, TEXT, TEXT), min_size=1, max_size=8),
    st.lists(CHANGE, max_size=2),
    st.sampled_from([3, 17, 1000]),
)
def test_what_is_left_out_of_damaged_files_leaves_rows_of_csv(
    folder, rows, changes, block_bytes
):
    file = io.StringIO()
    csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
    data = file.getvalue().encode()
    for at, length, piece in changes:
        begin = int(at * len(data))
        data = data[:begin] + piece + data[begin + length :]
    data = b"n,s,f\n" + data
    put_in(folder, data)
    columns = ("n:string", "s:string", "f:string")
    with in_blocks(block_bytes):
        read = read_cut(listed(folder / "in", columns=columns, **ASKED), keep=True)
    for begin, end in reversed(read.regions):
        data = data[:begin] + data[end:]
    _, *kept = csv.reader(io.StringIO(data.decode(), newline=""), strict=True)
    found = map(parsed, read.records)
    assert [[row[name][0].decode() for name in "nsf"] for row in found] == [
        row for row in kept if row
    ]


def test_types_are_those_of_all_files(tmp_path):
    head = MARK + b'id,"zip code",x\r\n1,00501,\r\n,"a\nb",2\r\n'
    put(tmp_path, {"0": head, "1": b"id,zip code,x\n3,,2.5"})
    features = features_of(f"{tmp_path}/*", **ASKED)
    types = {name: spec["dtype"] for name, spec in features.items()}
    assert types == {"id": "int64", "zip code": "bytes", "x": "float32"}
    assert read_rows(f"{tmp_path}/*", **ASKED) == [
        {"id": [1], "zip code": [b"00501"]},
        {"zip code": [b"a\nb"], "x": [2.0]},
        {"id": [3], "zip code": [b""], "x": [2.5]},
    ]


@pytest.mark.parametrize("other", [b"b,a\n1,2\n", b"a\n1\n", b"a,b,c\n1,2,3\n"])
def test_files_of_another_header(tmp_path, other):
    put(tmp_path, {"0": b"a,b\n1,2\n", "1": other})
    with told(InputError, "header of an input file", where=f"{tmp_path}/1"):
        listed(f"{tmp_path}/*", **ASKED)
    # Found when it is read, where it is not part of the sample.
    first, second = (listed(tmp_path / name, **ASKED) for name in "01")
    with told(InputError, "header of an input file"):
        [*first_records(dataclasses.replace(second, spec=first.spec))]


@pytest.mark.parametrize(
    "data", [b"a,a\n1,2\n", b",unnamed_0\n1,2\n", b"\xff,b\n1,2\n", b'"a"x,b\n1,2\n']
)
def test_files_without_a_header(tmp_path, data):
    with told(InputError, "does not name its columns"):
        listed(put_in(tmp_path, data), **ASKED)


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize("end", [b',"abc\n1,d\n2,e\n', b'3,"the last cell,\ncut'])
def test_what_is_behind_a_quote_that_is_never_closed_is_no_row(tmp_path, end, compress):
    good = b"n,t\n" + b"".join(b"%d,x\n" % number for number in range(39))
    path = put_in(tmp_path, compress(good + end))
    with told(
        CorruptRecordError,
        "never closed",
        where=f"{path}, line 41, byte offset {len(good)}",
    ):
        read_cut(listed(path, **ASKED))
    found = read_cut(listed(path, **ASKED), [20, 30], keep=True)
    assert found.regions == [(len(good), len(good + end))]
    assert [parsed(record)["n"] for record in found.records] == [[n] for n in range(39)]
