"""The same rows as files of each format that can be converted."""

from __future__ import annotations

import csv
import io
import json
import pathlib
import random
import tarfile
from collections.abc import Callable, Sequence

from gristmill.dataset.formats.tfrecord_frames import encode_frame
from tests.support.records import write_array_records

Row = dict[str, str]


def rows_of(seed: int, count: int = 40) -> list[Row]:
    """Returns rows of two columns, no two the same."""
    chance = random.Random(seed)
    return [
        {
            "key": f"{seed}-{number}",
            "text": chance.randbytes(chance.randrange(80)).hex(),
        }
        for number in range(count)
    ]


def _tfrecord(path: pathlib.Path, rows: Sequence[Row]) -> None:
    path.write_bytes(b"".join(encode_frame(_line(row)) for row in rows))


def _arrayrecord(path: pathlib.Path, rows: Sequence[Row]) -> None:
    write_array_records(path, [_line(row) for row in rows])


def _line(row: Row) -> bytes:
    return json.dumps(row).encode()


def _jsonl(path: pathlib.Path, rows: Sequence[Row]) -> None:
    path.write_bytes(b"".join(_line(row) + b"\n" for row in rows))


def _json(path: pathlib.Path, rows: Sequence[Row]) -> None:
    path.write_text(json.dumps(rows, indent=1))


def _text(path: pathlib.Path, rows: Sequence[Row]) -> None:
    text = "".join(f"The text of {row['key']} is {row['text']}.\n" for row in rows)
    path.write_text(text)


def _separated(separator: str) -> Callable[[pathlib.Path, Sequence[Row]], None]:
    def write(path: pathlib.Path, rows: Sequence[Row]) -> None:
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, ["key", "text"], delimiter=separator)
            writer.writeheader()
            writer.writerows(rows)

    return write


def _parquet(path: pathlib.Path, rows: Sequence[Row]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(
        pa.Table.from_pylist(rows), path, row_group_size=15, write_page_checksum=True
    )


def _webdataset(path: pathlib.Path, rows: Sequence[Row]) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for row in rows:
            for name in ("key", "text"):
                data = row[name].encode()
                member = tarfile.TarInfo(f"{row['key']}.{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


WRITERS: dict[str, Callable[[pathlib.Path, Sequence[Row]], None]] = {
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
