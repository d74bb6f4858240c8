"""The same rows as files of each format that can be converted."""

import csv
import io
import json
import random
import tarfile

from gristmill.dataset import encode_frame
from tests.support.records import write_array_records

Row = dict[str, str]


def rows_of(seed, count=40):
    """Returns rows of two columns, no two the same."""
    chance = random.Random(seed)
    return [
        {
            "key": f"{seed}-{number}",
            "text": chance.randbytes(chance.randrange(80)).hex(),
        }
        for number in range(count)
    ]


def _tfrecord(path, rows):
    path.write_bytes(b"".join(encode_frame(_line(row)) for row in rows))


def _arrayrecord(path, rows):
    write_array_records(path, [_line(row) for row in rows])


def _line(row):
    return json.dumps(row).encode()


def _jsonl(path, rows):
    path.write_bytes(b"".join(_line(row) + b"\n" for row in rows))


def _json(path, rows):
    path.write_text(json.dumps(rows, indent=1))


def _text(path, rows):
    text = "".join(f"The text of {row['key']} is {row['text']}.\n" for row in rows)
    path.write_text(text)


def _separated(separator):
    def write(path, rows):
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, ["key", "text"], delimiter=separator)
            writer.writeheader()
            writer.writerows(rows)

    return write


def _parquet(path, rows):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(
        pa.Table.from_pylist(rows), path, row_group_size=15, write_page_checksum=True
    )


def _webdataset(path, rows):
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for row in rows:
            for name in ("key", "text"):
                data = row[name].encode()
                member = tarfile.TarInfo(f"{row['key']}.{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


WRITERS = {
    "tfrecord": _tfrecord,
    "arrayrecord": _arrayrecord,
    "parquet": _parquet,
    "jsonl": _jsonl,
    "json": _json,
    "text": _text,
    "csv": _separated(","),
    "tsv": _separated("\t"),
    "tsv-unquoted": _separated("\t"),
    "webdataset": _webdataset,
}
"""By `--input-format`: writes rows to a file."""
