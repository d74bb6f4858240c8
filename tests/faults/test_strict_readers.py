"""Mutated files of each format give the records of a strict reader, or an error."""

import codecs
import csv
import functools
import gzip
import io
import json
import random
import struct
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from gristmill.dataset.base.errors import GristmillError
from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.formats import RecordOptions
from gristmill.transforms.sources.source import first_records
from tests.conversion.line_files import example_of

ROWS = [
    {"i": n - 3, "s": text, "f": n / 4}
    for n, text in enumerate(
        ["a", "", 'say "hi"', "x,y\tz", "é\u2028", "two\nlines", "7", "-0.0", "null"]
    )
]
PIECES = [
    *(b'"', b'""', b",", b"\t", b"\n", b"\r\n", b"\r", b"\0", b" ", b"\\", b"{", b"}"),
    *(b"[", b"]", b":", b"null", b"NaN", b"1e400", b"-0.0", b"-0", b"007", b"+1"),
    *(b"16777217", b"9007199254740993", b"99999999999999999999", b"1e3", b"2.0"),
    *(b"\\ud800", b"\\u0000", b"\xff", b"\xc3", b'"i":1,', b'"x":1,', b"true", b"/**/"),
    *(codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE),
]


def mutated(data, chance):
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        at = chance.randrange(len(data) + 1)
        before, after, piece = data[:at], data[at:], chance.choice(PIECES)
        flipped = bytes(byte ^ 1 << chance.randrange(8) for byte in after[:1])
        data = before + chance.choice(
            [
                *[piece + after] * 3,
                piece + after[len(piece) :],
                b"",
                after[chance.choice((1, 2, 9)) :],
                data[max(0, at - chance.choice((1, 9, 40))) :],
                flipped + after[1:],
            ]
        )
    return chance.choice((b"", b"", b"", b"", codecs.BOM_UTF8)) + data


def table_text(delimiter):
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    writer.writerows([["i", "s", "f"], *(row.values() for row in ROWS)])
    return file.getvalue().encode()


def text_of(data):
    text = data.removeprefix(codecs.BOM_UTF8).decode()
    if "\0" in text:
        raise ValueError("zero bytes")
    return text


def strict_table(delimiter, data):
    text = io.StringIO(text_of(data), newline="")
    header, *rows = filter(None, csv.reader(text, delimiter=delimiter, strict=True))
    if any(len(row) != len(header) for row in rows):
        raise ValueError("ragged rows")
    return [dict(zip(header, row, strict=True)) for row in rows]


def no_twice(pairs):
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a field twice")
    return dict(pairs)


def refuse(name):
    raise ValueError(name)


def strict_value(text):
    return json.loads(text, object_pairs_hook=no_twice, parse_constant=refuse)


def objects(values):
    if not all(isinstance(one, dict) for one in values):
        raise ValueError("no object")
    json.dumps(values, ensure_ascii=False).encode()  # No half of a surrogate.
    return [{name: v for name, v in one.items() if v is not None} for one in values]


def strict_json(data):
    lines = text_of(data).split("\n")
    return objects([strict_value(line) for line in lines if line.strip(" \t\r")])


def strict_array(data):
    found = strict_value(text_of(data))
    if not isinstance(found, list):
        raise TypeError("no array")
    return objects(found)


def strict_text(data):
    lines = text_of(data).replace("\r\n", "\n").split("\n")
    return [line.encode() for line in (lines if lines[-1] else lines[:-1])]


def strict_tar(data):
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        members = tar.getmembers()
        names = [member.name for member in members]
        if any(not m.isreg() for m in members) or len({*names}) < len(names):
            raise ValueError("other members")
        return [tar.extractfile(member).read() for member in members]  # type: ignore


def strict_parquet(data):
    table = pq.read_table(io.BytesIO(data), page_checksum_verification=True)
    return [
        {k: v for k, v in row.items() if v is not None} for row in table.to_pylist()
    ]


def tar_of():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for n in range(4):
            info = tarfile.TarInfo(f"{n}.txt")
            info.size = 40 * n
            tar.addfile(info, io.BytesIO(b"content " * (5 * n)))
    return file.getvalue()


def parquet_of():
    file = io.BytesIO()
    table = pa.Table.from_pylist(ROWS)
    pq.write_table(table, file, write_page_checksum=True, compression="gzip")
    return file.getvalue()


JSON = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
LINES = "".join(f"{row['s']}\n" for row in ROWS).encode()
TYPED = ("i:string", "s:string", "f:string")
strict_csv, strict_tsv = (functools.partial(strict_table, one) for one in ",\t")
# What is mutated, how it is read strictly, and how it is read here.
FORMATS = {
    "csv": (table_text(","), strict_csv, {"columns": TYPED}),
    "tsv": (table_text("\t"), strict_tsv, {"columns": TYPED}),
    "jsonl": (JSON, strict_json, {}),
    "json": (json.dumps(ROWS, indent=1).encode(), strict_array, {}),
    "text": (LINES, strict_text, {}),
    "webdataset": (tar_of(), strict_tar, {"record": "column:txt"}),
    "parquet": (parquet_of(), strict_parquet, {}),
    "csv.gz": (
        gzip.compress(table_text(","), mtime=0),
        lambda data: strict_csv(gzip.decompress(data)),
        {"columns": TYPED},
    ),
    "jsonl.zst": (
        zstandard.ZstdCompressor(write_checksum=True).compress(JSON),
        lambda data: strict_json(zstandard.decompress(data)),
        {},
    ),
}


def value_of(found):
    """Returns a value with floats as 32 bits hold them, which are not refused."""
    if isinstance(found, float):
        return struct.unpack("<f", struct.pack("<f", found))[0]
    return found


@pytest.mark.parametrize("seed", [0, *(pytest.param(1, marks=pytest.mark.soak),)])
@pytest.mark.parametrize("name", FORMATS)
def test_the_same_records_or_an_error(tmp_path, name, seed):
    data, strict, asked = FORMATS[name]
    kind = name.partition(".")[0]
    options = RecordOptions(input_format=kind, **asked)
    chance = random.Random(f"{name} {seed}")
    same = 0
    for number in range(2000 if seed else 33):
        changed = mutated(data, chance) if number else data
        path = tmp_path / str(number)
        path.write_bytes(changed)
        try:
            files = find_inputs([str(path)], options=options)
            found = [one.record for one in first_records(files)]
        except GristmillError:
            continue
        try:
            wanted = strict(changed)
        except Exception as error:
            # What a strict reader refuses gave records.
            raise AssertionError((changed, found)) from error
        if kind not in ("text", "webdataset"):
            found = [dict(sorted(example_of(record).items())) for record in found]
            wanted = [
                {key: value_of(one[key]) for key in sorted(one)} for one in wanted
            ]
        assert found == wanted, changed
        same += 1
    assert same > 0
