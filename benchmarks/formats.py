"""Inputs of other formats than TFRecord: gristmill, plain loops, Google's template."""

import itertools
import json
import os
import sys
import urllib.request

from benchmarks import c4_like
from benchmarks.contest import (
    Contest,
    Contestant,
    Peer,
    expect,
    gristmill,
    main,
    said_by,
)
from benchmarks.convert import WRITER_OPTIONS, count_records
from tests.servers.gcs_process import GcsProcess

_FILES = 8
_BUCKET = "bench"


class Formats(Contest):
    """Other formats.

    The same rows of C4-like text lie in files of each format; gristmill has two
    workers. The loops parse each row by itself, make a `tf.train.Example` with
    TensorFlow's own class, write it with the official writer, and check nothing.
    Google's template (`--converter`, the folder of a checkout of DataflowTemplates)
    keeps lines as they are, on Beam's in-memory runner, and writes to a bucket on
    loopback.
    """

    name = "formats"
    reference = ("google_text",)
    contestants = {
        "gristmill_tfrecord": Contestant("`gristmill convert`, TFRecord"),
        "gristmill_jsonl": Contestant("`gristmill convert`, JSON lines"),
        "gristmill_parquet": Contestant("`gristmill convert`, Parquet"),
        "jsonl_loop": Contestant("plain loop, JSON lines", bound=True),
        "parquet_loop": Contestant("plain loop, Parquet", bound=True),
        "google_text": Contestant(
            "Google's `arrayrecord-converter`, lines of text", option="converter"
        ),
    }
    options = {
        "bytes": (500_000_000, 200_000, "of records"),
        "converter": (None, None, "Google's template"),
    }
    packages = ("apache-beam", "array-record", "pyarrow", "tensorflow", "zstandard")
    peers = (
        Peer(
            "Google's `arrayrecord-converter`",
            "arrayrecord-converter",
            "JSON lines to shards; the template keeps the lines as they are",
            "gristmill_jsonl",
            "google_text",
        ),
    )

    def environment(self):
        """Returns the version of Google's template, too: a Git hash."""
        found = super().environment()
        if self.args.converter:
            version = said_by("git", "hash-object", f"{self.args.converter}/main.py")
            found["packages"]["arrayrecord-converter"] = f"main.py {version[:12]}"
        return found

    def cases(self):
        """Writes the same rows as TFRecord, JSON lines and Parquet."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        _, counts, self._bytes = c4_like.write_tfrecords(
            self.work / "tfrecord", size_bytes=self.args.bytes, files=_FILES
        )
        self._records = sum(counts)
        for kind in ("jsonl", "parquet"):
            (self.work / kind).mkdir()
        for number, count in enumerate(counts):
            rows = [
                {name: value.decode() for name, value in row.items()}
                for row in itertools.islice(c4_like.generate_rows(seed=number), count)
            ]
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (self.work / "jsonl" / f"{number}.jsonl").write_text(lines)
            path = self.work / "parquet" / f"{number}.parquet"
            pq.write_table(pa.Table.from_pylist(rows), path)
        yield "", [*self.contestants]

    def measure(self, case, key):
        """Converts once."""
        if key == "google_text":
            return self._google()
        output = self.fresh()
        if key.endswith("loop"):
            source = self.work / key.removesuffix("_loop")
            run = self.run(self.program(key, output, *sorted(source.iterdir())))
        else:
            source = self.work / key.removeprefix("gristmill_")
            how = (f"--num-shards={_FILES}", "--group-size=1", "--compression=zstd:3")
            command = gristmill("convert", source, output, "--workers=2", *how)
            run = self.run(command)
        expect(count_records(output), self._records, "records")
        return {**run, "work": self._bytes / 1e6}

    def _google(self):
        pattern = f"{self.work}/jsonl/*.jsonl"
        command = self.program("google_text", self.args.converter, pattern)
        with GcsProcess(_BUCKET) as server:
            run = self.run(command, variables={"STORAGE_EMULATOR_HOST": server.url})
            # What is in the bucket is listed, and not read again.
            listing = f"{server.url}/storage/v1/b/{_BUCKET}/o?prefix=out/"
            with urllib.request.urlopen(listing) as reply:
                expect(len(json.load(reply).get("items", [])), _FILES, "files")
        return {**run, "work": self._bytes / 1e6}


def _write_rows(path, output, rows):
    import tensorflow as tf
    from array_record.python.array_record_module import ArrayRecordWriter

    train = tf.train
    name = f"{output}/{os.path.basename(path)}.array_record"
    writer = ArrayRecordWriter(name, WRITER_OPTIONS)
    for row in rows:
        features = {
            name: train.Feature(bytes_list=train.BytesList(value=[value.encode()]))
            for name, value in row.items()
        }
        example = train.Example(features=train.Features(feature=features))
        writer.write(example.SerializeToString())
    writer.close()


def jsonl_loop(output, *inputs):
    """Converts lines one by one, with nothing around the loop."""
    os.makedirs(output, exist_ok=True)
    for path in inputs:
        with open(path, encoding="utf-8") as lines:
            _write_rows(path, output, map(json.loads, lines))


def parquet_loop(output, *inputs):
    """Converts rows one by one, with nothing around the loop."""
    import pyarrow.parquet as pq

    os.makedirs(output, exist_ok=True)
    for path in inputs:
        batches = pq.ParquetFile(path).iter_batches()
        _write_rows(path, output, (row for each in batches for row in each.to_pylist()))


def google_text(checkout, pattern):
    """Runs Google's template, as it is, over lines of text."""
    sys.path.insert(0, checkout)
    import main as template

    template.run(
        [
            f"--input_path={pattern}",
            "--input_format=text",
            f"--output_destination=gs://{_BUCKET}/out/",
            "--runner=FnApiRunner",
        ],
        save_main_session=False,
    )


if __name__ == "__main__":
    sys.exit(main(Formats))
