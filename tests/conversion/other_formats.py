"""Files of other formats, as their own writers make them."""

import bz2
import csv
import gzip
import io
import json
import lzma
import pathlib
import sqlite3
import tarfile
import tempfile
import zipfile
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet
import zstandard

TEXTS = [f"text {number}, with a comma" for number in range(200)]
JSON_LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()


TABLE = pa.table({"text": TEXTS})


def _at_a_path(write, *given):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "file")
        write(*given, str(path))
        return path.read_bytes()


def _in_memory(write, *given):
    sink = io.BytesIO()
    write(sink, *given)
    return sink.getvalue()


def arrow_stream():
    """Returns what the package `datasets` keeps its rows in."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return sink.getvalue()


def _avro():
    import fastavro

    fields = [{"name": "text", "type": "string"}]
    schema = {"type": "record", "name": "Row", "fields": fields}
    return _in_memory(fastavro.writer, schema, [{"text": text} for text in TEXTS])


def _hdf5():
    import h5py

    def write(path):
        with h5py.File(path, "w") as file:
            file["text"] = TEXTS

    return _at_a_path(write)


def _sqlite():
    def write(path):
        database = sqlite3.connect(path)
        database.execute("CREATE TABLE texts (text)")
        database.commit()
        database.close()

    return _at_a_path(write)


def _tar(mode="w"):
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode=mode) as file:  # type: ignore[call-overload]
        for number, text in enumerate(TEXTS):
            member = tarfile.TarInfo(f"{number:05d}.txt")
            member.size = len(text)
            file.addfile(member, io.BytesIO(text.encode()))
    return sink.getvalue()


def _zip():
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as file:
        file.writestr("texts.jsonl", JSON_LINES)
    return sink.getvalue()


def _table(separator):
    sink = io.StringIO()
    csv.writer(sink, delimiter=separator).writerows(enumerate(TEXTS))
    return sink.getvalue().encode()


def _cramjam(codec):
    import cramjam

    return bytes(getattr(cramjam, codec).compress(JSON_LINES))


# What makes a file of each, by the name that errors give to its format.
MAKERS = {
    "Parquet": lambda: _at_a_path(pa.parquet.write_table, TABLE),
    "Arrow": lambda: _at_a_path(pa.feather.write_feather, TABLE),
    "ORC": lambda: _at_a_path(pa.orc.write_table, TABLE),
    "Avro": _avro,
    "HDF5": _hdf5,
    "NumPy": lambda: _in_memory(np.save, np.arange(10)),
    "SQLite": _sqlite,
    "JSON lines": lambda: JSON_LINES,
    "JSON": lambda: json.dumps({"texts": TEXTS}, indent=2).encode(),
    "JSON array": lambda: json.dumps([{"text": one} for one in TEXTS]).encode(),
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
    "tar": _tar,
    "ZIP": _zip,
    "bzip2": lambda: bz2.compress(JSON_LINES),
    "xz": lambda: lzma.compress(JSON_LINES),
    "zstd-compressed JSON lines": lambda: zstandard.compress(JSON_LINES),
    "LZ4": lambda: _cramjam("lz4"),
    "Snappy": lambda: _cramjam("snappy"),
    "gzip-compressed JSON lines": lambda: gzip.compress(JSON_LINES),
    "gzip-compressed tar": lambda: _tar("w:gz"),
    "zlib-compressed CSV": lambda: zlib.compress(_table(",")),
}
# Others that have the same names.
MORE = [
    ("Arrow", arrow_stream),
    ("ZIP", lambda: _in_memory(np.savez, np.arange(10))),
    ("JSON lines", lambda: "\ufeff".encode() + JSON_LINES),
    ("JSON array", lambda: json.dumps(TEXTS * 100).encode()),
    ("JSON array", lambda: b"[" * 5000),
    ("text", lambda: b"x text that goes on"),  # As a header of zlib begins.
    ("text", lambda: ("a" + "ü" * 5000).encode()),  # Cut within a character.
    ("bzip2", lambda: bz2.compress(b"")),
    ("gzip-compressed HTML", lambda: gzip.compress(b"<html>" + b" " * 9000)),
]
