"""Files of every format, whole or damaged, and ranges of them as a conversion reads."""

import collections
import dataclasses
import functools
import gzip
import io
import itertools
import json
import os
import pathlib
import tempfile
import types
import zlib
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from gristmill.dataset import ShardTable
from gristmill.dataset.formats.streams import StreamReader
from gristmill.transforms import RecordOptions
from gristmill.transforms.conversion.commit_shards import check_spans
from gristmill.transforms.conversion.shard_records import ShardSource
from gristmill.transforms.planning.shard_plan import ShardPlan
from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.formats import FORMATS
from gristmill.transforms.sources.source import SkippedRegions, first_records, source_of
from tests.order import input_files
from tests.order.input_files import WRITERS
from tests.support.examples import parsed, tf_example
from tests.support.records import footer_of
from tests.support.shards import report

NAMES = [*WRITERS]
GROUP_ROWS = 15
"""Rows of a row group of Parquet, as `WRITERS` makes them."""
_TEXTS = ["", "é\u2028", 'He said: "no",\nand\n"yes"\n', "a,b\tc", "\n\n,\n"]
_SEPARATORS = {"csv": b",", "tsv": b"\t", "tsv-unquoted": b"\t"}


def _zstd(data):
    """Returns data in blocks, of which those can be read that are whole."""
    compressor = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    pieces = [
        compressor.compress(data[at : at + 1024])
        + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        for at in range(0, len(data), 1024)
    ]
    return b"".join(pieces) + compressor.flush()


COMPRESS = {
    "none": bytes,
    "gzip": functools.partial(gzip.compress, mtime=0),
    "zlib": zlib.compress,
    "zstd": _zstd,
}
COMPRESSED = [name for name in NAMES if FORMATS[name].compressed]


def rows_of(name, seed, count=40):
    """Returns rows with all that a format quotes."""
    rows = input_files.rows_of(seed, count)
    if name not in ("text", "tsv-unquoted"):
        for row, text in zip(rows[::3], itertools.cycle(_TEXTS), strict=False):
            row["text"] = text
    return rows


def records_of(name, rows):
    """Returns the records of rows, by other hands."""
    if name in ("tfrecord", "arrayrecord"):
        return [json.dumps(row).encode() for row in rows]
    if name == "text":
        return [f"The text of {row['key']} is {row['text']}.".encode() for row in rows]
    more = ["__key__"] if name == "webdataset" else []
    values = ({n: row["key"] for n in more} | row for row in rows)
    return [tf_example({k: [v.encode()] for k, v in row.items()}) for row in values]


@functools.cache
def file_of(name, seed):
    """Returns a file of these rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "in")
        WRITERS[name](path, rows_of(name, seed))
        return path.read_bytes()


def begin_of(name, data, key):
    """Returns the byte offset of a row."""
    find = f'"{key}"'.encode()
    if name == "tfrecord":
        return data.index(b'{"key": ' + find) - 12
    if name == "webdataset":
        return data.index(f"{key}.key".encode())
    if name in _SEPARATORS:
        return data.index(b"\n" + key.encode() + _SEPARATORS[name]) + 1
    find = f" {key} ".encode() if name == "text" else find
    return data.rindex(b"," if name == "json" else b"\n", 0, data.index(find)) + 1


# A file with a damaged row, and what is lost: rows, and bytes where those tell.
Damaged = collections.namedtuple("Damaged", "data lost region place")


def damaged(name, data, rows, row):
    """Damages a row, but not the first or the last, in one byte."""
    key, after = (rows[number]["key"] for number in (row, row + 1))

    def changed(at, byte=b""):
        return data[:at] + (byte or bytes([data[at] ^ 1])) + data[at + 1 :]

    if name == "arrayrecord":
        edges = footer_of(data).chunk_offsets[row : row + 2].tolist()
        one, region = range(row, row + 1), (edges[0], edges[1])
        return Damaged(changed(sum(edges) // 2), one, region, f"chunk {row}")
    if name == "parquet":
        group = row // GROUP_ROWS
        chunk = pq.read_metadata(io.BytesIO(data)).row_group(group).column(1)
        begin = chunk.dictionary_page_offset or chunk.data_page_offset
        first = group * GROUP_ROWS
        lost = range(first, min(first + GROUP_ROWS, len(rows)))
        at = begin + chunk.total_compressed_size * 9 // 10
        return Damaged(changed(at), lost, (lost.start, lost.stop), f"row {first}")
    begin, end = (begin_of(name, data, each) for each in (key, after))
    one, place = range(row, row + 1), f"byte offset {begin:,}"
    if name == "tfrecord":
        return Damaged(changed(begin + 20), one, (begin, end), place)
    if name == "webdataset":  # All is lost from a header on.
        bad = changed(data.index(f"{key}.text".encode()) + 265)
        rest = range(row, len(rows))
        return Damaged(bad, rest, (begin, len(data)), f"{place}, sample '{key}'")
    if name == "json":
        place = f"element {row + 1}, {place}"
    else:
        place = f"line {data.count(10, 0, begin) + 1}, {place}"
    dash = data.index(key.encode(), begin) + key.index("-")
    bad = changed(dash, _SEPARATORS.get(name, b"\xff"))
    return Damaged(bad, one, (begin, end), place)


class Read(collections.namedtuple("Read", "records skipped spans places")):
    """Records of ranges, what was left out, the spans of each range, and places."""

    @property
    def regions(self):
        """The bytes that were left out, or the rows where no bytes tell."""
        ends = (("begin_bytes", "end_bytes"), ("begin_row", "end_row"))
        return [
            next((one[a], one[b]) for a, b in ends if one[a] < one[b])
            for one in self.skipped
        ]


def put(folder, files):
    """Writes files: bytes, a text, a table as Parquet, or lines, some of them JSON."""
    folder = pathlib.Path(folder)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, pa.Table):
            pq.write_table(content, path)
        elif isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, str):
            path.write_text(content)
        else:
            lines = (
                one if isinstance(one, str) else json.dumps(one) for one in content
            )
            path.write_text("".join(f"{line}\n" for line in lines))
    return folder


def put_in(folder, content):
    """Writes a file `in` of such content, and returns its path."""
    return put(folder, {"in": content}) / "in"


def write_in_place(path, data):
    """Writes a file, and then what it says of that: its time."""
    before = path.stat()
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # The clock has coarse ticks.
        with open(path, "r+b") as file:
            file.write(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def in_blocks(size_bytes):
    """Lets streams be read so few bytes at a time, which is for a `with` statement."""
    defaults = StreamReader.__init__.__kwdefaults__
    return mock.patch.dict(defaults, block_bytes=size_bytes)


def listed(*paths, **options):
    """Lists input files."""
    return find_inputs([*map(str, paths)], options=RecordOptions(**options))


def features_of(*paths, **options):
    """Returns the features that input files have together."""
    return source_of(listed(*paths, **options).spec).features()


def read_rows(*paths, **options):
    """Returns the features of each record of input files."""
    return [parsed(one.record) for one in first_records(listed(*paths, **options))]


def read_cut(files, cuts=(), *, keep=False, kept=None):
    """Reads the ranges between cuts as the shards of a conversion.

    Args:
        files: The files.
        cuts: Positions in the line of all their bytes.
        keep: Whether damage is left out.
        kept: Holds the pass over a file between ranges.
    """
    edges = sorted({0, *cuts, int(files.sizes.sum())})
    plan = ShardPlan(
        sizes=files.sizes, splittable=files.splittable, cut_bytes=np.array(edges)
    )
    found = Read([], [], [], [])
    for shard in range(plan.shards):
        skipped = SkippedRegions() if keep else None
        prepared = types.SimpleNamespace(plan=plan, files=files)
        source = ShardSource(prepared, shard, skipped=skipped, kept=kept)
        for batch in source.batches():
            batch.check()
            found.records.extend(batch.batch.records)
            found.places.extend(batch.batch.places)
        found.skipped.extend(skipped.found if skipped else [])
        found.spans.extend(source.tally.spans)
    return found


def check_meets(spans, files):
    """Raises DataLossError unless ranges meet, from begin to end of each file."""
    reports = [
        dataclasses.replace(report(number, spans=0), spans=(span,))
        for number, span in enumerate(spans)
    ]
    check_spans(ShardTable.of(reports).columns, files)
