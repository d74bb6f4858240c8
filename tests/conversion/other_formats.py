"""Files of other formats, as their own writers make them."""

import bz2
import contextlib
import csv
import gzip
import io
import json
import lzma
import sqlite3
import zlib

import cramjam
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet
import zstandard

from tests.conversion.tars import tar_of

TEXTS = [f"text {number}, with a comma" for number in range(200)]
JSON_LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
TABLE = pa.table({"text": TEXTS})
TAR = tar_of(
    [(f"{number:05d}.txt", text.encode()) for number, text in enumerate(TEXTS)]
)


def _written(write):
    """Returns what a function writes into a file."""
    sink = io.BytesIO()
    write(sink)
    return sink.getvalue()


def arrow_stream():
    """Returns what the package `datasets` keeps its rows in."""

    def write(sink):
        with pa.ipc.new_stream(sink, TABLE.schema) as writer:
            writer.write_table(TABLE)

    return _written(write)


def _avro():
    import fastavro

    fields = [{"name": "text", "type": "string"}]
    schema = {"type": "record", "name": "Row", "fields": fields}
    rows = TABLE.to_pylist()
    return _written(lambda sink: fastavro.writer(sink, schema, rows))


def _hdf5():
    import h5py

    def write(sink):
        with h5py.File(sink, "w") as file:
            file["text"] = TEXTS

    return _written(write)


def _sqlite():
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE texts (text)")
        return database.serialize()


def _table(separator):
    sink = io.StringIO()
    csv.writer(sink, delimiter=separator).writerows(enumerate(TEXTS))
    return sink.getvalue().encode()


# What makes a file of each, by the name that errors give to its format.
MAKERS = {
    "Parquet": lambda: _written(lambda sink: pa.parquet.write_table(TABLE, sink)),
    "Arrow": lambda: _written(lambda sink: pa.feather.write_feather(TABLE, sink)),
    "ORC": lambda: _written(lambda sink: pa.orc.write_table(TABLE, sink)),
    "Avro": _avro,
    "HDF5": _hdf5,
    "NumPy": lambda: _written(lambda sink: np.save(sink, np.arange(10))),
    "SQLite": _sqlite,
    "JSON lines": lambda: JSON_LINES,
    "JSON": lambda: json.dumps({"texts": TEXTS}, indent=2).encode(),
    "JSON array": lambda: json.dumps(TABLE.to_pylist()).encode(),
    "CSV": lambda: _table(","),
    "TSV": lambda: _table("\t"),
    "text": lambda: b"A title, and\na line.\n\n" + "\n".join(TEXTS).encode(),
    "XML": lambda: b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>",
    "HTML": lambda: b"<!DOCTYPE html>\n<html><body>Sign in</body></html>",
    "Git LFS pointer": lambda: (
        b"version https://git-lfs.github.com/spec/v1\n"
        b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
        b"size 12345\n"
    ),
    "git-annex pointer": lambda: b"/annex/objects/MD5E-s10--d41d8cd98f.tfrecord\n",
    "tar": lambda: TAR,
    "ZIP": lambda: _written(lambda sink: np.savez(sink, np.arange(10))),
    "bzip2": lambda: bz2.compress(JSON_LINES),
    "xz": lambda: lzma.compress(JSON_LINES),
    "zstd-compressed JSON lines": lambda: zstandard.compress(JSON_LINES),
    "LZ4": lambda: bytes(cramjam.lz4.compress(JSON_LINES)),
    "Snappy": lambda: bytes(cramjam.snappy.compress(JSON_LINES)),
    "gzip-compressed JSON lines": lambda: gzip.compress(JSON_LINES),
    "gzip-compressed tar": lambda: gzip.compress(TAR),
    "zlib-compressed CSV": lambda: zlib.compress(_table(",")),
}
# Others that have the same names.
MORE = [
    ("Arrow", arrow_stream),
    ("JSON lines", lambda: "\ufeff".encode() + JSON_LINES),
    ("JSON array", lambda: json.dumps(TEXTS * 100).encode()),
    ("JSON array", lambda: b"[" * 5000),
    ("text", lambda: b"x text that goes on"),  # As a header of zlib begins.
    ("text", lambda: ("a" + "ü" * 5000).encode()),  # Cut within a character.
    ("bzip2", lambda: bz2.compress(b"")),
    ("gzip-compressed HTML", lambda: gzip.compress(b"<html>" + b" " * 9000)),
]
