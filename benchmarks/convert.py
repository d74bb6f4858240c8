"""TFRecords to ArrayRecord: gristmill, its peers, and a bare loop."""

import multiprocessing
import os
import sys

from benchmarks import c4_like
from benchmarks.contest import (
    Contest,
    Contestant,
    Peer,
    bytes_below,
    expect,
    gristmill,
    main,
)
from benchmarks.frames import read_frames

WRITER_OPTIONS = "group_size:1,zstd:3"
_TEXT, _BINARY = "text of 2.2 KB", "token ids, 100 KB a record"


def count_records(output):
    """Returns the records of the ArrayRecord files below a directory."""
    from array_record.python.array_record_module import ArrayRecordReader

    records = 0
    for path in output.rglob("*record*"):
        if path.is_file() and path.suffix != ".index":
            reader = ArrayRecordReader(str(path))
            records += reader.num_records()
            reader.close()
    return records


class Convert(Contest):
    """TFRecords to ArrayRecord.

    Whole processes convert the same eight files, start-up included, with one record
    a chunk (`group_size:1,zstd:3`). gristmill compares every record with its
    source; the outputs of all are checked to hold every record.
    """

    name = "convert"
    reference = ("array_record_beam",)
    contestants = {
        "gristmill_1": Contestant("`gristmill convert --workers 1`"),
        "gristmill_2": Contestant("`gristmill convert --workers 2`"),
        "array_record_beam": Contestant("`array_record.beam`"),
        "tfds": Contestant("`tfds convert_format`"),
        "bare": Contestant("bare loop, no checks", bound=True),
        "bare_2": Contestant("two bare loops", bound=True),
    }
    columns = {"size": "output / input"}
    options = {
        "bytes": (10**9, 400_000, "of text; half of it of token ids"),
        "files": (8, 2, "of each input"),
    }
    packages = (
        "apache-beam",
        "array-record",
        "tensorflow",
        "tensorflow-datasets",
        "zstandard",
        "numpy",
    )
    peers = (
        Peer(
            "`array_record.beam`",
            "array-record",
            "TFRecords to shards; 2 workers",
            "gristmill_2",
            "array_record_beam",
            _TEXT,
            True,
        ),
        Peer(
            "`tfds convert_format`",
            "tensorflow-datasets",
            "the same",
            "gristmill_2",
            "tfds",
            _TEXT,
        ),
    )

    def cases(self):
        """Writes the inputs."""
        self._input = self.work / "text"
        self._write(size_bytes=self.args.bytes)
        c4_like.write_tfds_metadata(self._input, self._counts, self._bytes)
        yield _TEXT, [*self.contestants]
        self._input = self.work / "binary"
        self._write(size_bytes=self.args.bytes // 2, records="binary")
        yield _BINARY, ["gristmill_1", "gristmill_2", "bare", "bare_2"]

    def _write(self, **how):
        self._paths, self._counts, self._bytes = c4_like.write_tfrecords(
            self._input, files=self.args.files, **how
        )

    def _command(self, key, output):
        paths = self._paths
        name, _, workers = key.rpartition("_")
        if name == "gristmill":
            how = ("--match-shards", "--group-size=1", "--compression=zstd:3")
            return gristmill("convert", *paths, output, f"--workers={workers}", *how)
        if key == "array_record_beam":
            pattern = f"{self._input}/*.tfrecord-*"
            return self.program(key, pattern, f"{output}/c4", len(paths))
        if key == "tfds":
            # The command `tfds` does not start where mlcroissant is not installed.
            return [
                sys.executable,
                "-m",
                "tensorflow_datasets.scripts.convert_format",
                f"--dataset_version_dir={self._input}",
                f"--out_dir={output}",
                "--out_file_format=array_record",
            ]
        return self.program("bare", workers if name == "bare" else 1, output, *paths)

    def measure(self, case, key):
        """Converts once."""
        output = self.fresh()
        run = self.run(self._command(key, output))
        expect(count_records(output), sum(self._counts), "records")
        size = bytes_below(output) / self._bytes
        return {**run, "work": self._bytes / 1e6, "size": size}


def _convert_file(job):
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(job[1], WRITER_OPTIONS)
    write = writer.write
    for record in read_frames(job[0]):
        write(record)
    writer.close()


def bare(workers, output, *inputs):
    """Converts each input into one output with nothing around the loop."""
    os.makedirs(output, exist_ok=True)
    jobs = [(path, f"{output}/{n}.array_record") for n, path in enumerate(inputs)]
    if workers == "1":
        for job in jobs:
            _convert_file(job)
        return
    with multiprocessing.get_context("spawn").Pool(int(workers)) as pool:
        pool.map(_convert_file, jobs, chunksize=1)


def array_record_beam(pattern, prefix, num_shards):
    """Runs the pipeline of array_record.beam on Beam's own runner."""
    # It reads the command line when it is imported.
    sys.argv = sys.argv[:1]
    from apache_beam.options.pipeline_options import PipelineOptions
    from array_record.beam import pipelines

    pipelines.convert_tf_to_arrayrecord_disk(
        num_shards=int(num_shards),
        args={"input": pattern, "output": prefix},
        pipeline_options=PipelineOptions(["--runner=FnApiRunner"]),
    ).run().wait_until_finish()


if __name__ == "__main__":
    sys.exit(main(Convert))
