"""TFRecords to ArrayRecord: gristmill, its peers, and a bare loop."""

from __future__ import annotations

import functools
import multiprocessing
import os
import shutil
import sys

from benchmarks import c4_like
from benchmarks.contest import (
    Contest,
    Contestant,
    Option,
    Peer,
    expect,
    gristmill,
    main,
    size,
)
from benchmarks.frames import read_frames

WRITER_OPTIONS = "group_size:1,zstd:3"
_TEXT, _BINARY = "text of 2.2 KB", "token ids, 100 KB a record"
_BEAM = ("apache_beam", "array_record", "tensorflow")


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
    """See `about`."""

    name = "convert"
    title = "TFRecords to ArrayRecord"
    about = (
        "Whole processes convert the same eight files, start-up included, with one "
        f"record a chunk (`{WRITER_OPTIONS}`). gristmill compares every record with "
        "its source; the outputs of all are checked to hold every record."
    )
    reference = ("array_record_beam",)
    contestants = {
        "gristmill_1": Contestant("`gristmill convert --workers 1`"),
        "gristmill_2": Contestant("`gristmill convert --workers 2`"),
        "array_record_beam": Contestant("`array_record.beam`", _BEAM),
        "tfds": Contestant("`tfds convert_format`", ("tensorflow_datasets",)),
        "bare": Contestant("bare loop, no checks", bound=True),
        "bare_2": Contestant("two bare loops", bound=True),
    }
    columns = {"size": "output / input"}
    options = {
        "bytes": Option(size, 10**9, 400_000, "of text; half of it of token ids"),
        "files": Option(int, 8, 2, "of each input"),
    }
    packages = (
        *("apache-beam", "array-record", "tensorflow", "tensorflow-datasets"),
        *("zstandard", "numpy"),
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
        write = functools.partial(c4_like.write_dataset, files=self.args.files)
        self._input = self.work / "text"
        self._written = write(self._input, size_bytes=self.args.bytes)
        yield _TEXT, [*self.contestants]
        self._input = self.work / "binary"
        self._written = write(
            self._input, size_bytes=self.args.bytes // 2, records="binary"
        )
        yield _BINARY, ["gristmill_1", "gristmill_2", "bare", "bare_2"]

    def _command(self, key, output):
        paths = self._written.paths
        name, _, workers = key.rpartition("_")
        if name == "gristmill":
            how = ("--match-shards", "--group-size=1", "--compression=zstd:3")
            return gristmill("convert", *paths, output, f"--workers={workers}", *how)
        if key == "array_record_beam":
            pattern = f"{self._input}/*.tfrecord-*"
            return self.program(key, pattern, f"{output}/c4", len(paths))
        if key == "tfds":
            # The command `tfds` does not start where mlcroissant is not installed.
            module = "tensorflow_datasets.scripts.convert_format"
            folders = (f"--dataset_version_dir={self._input}", f"--out_dir={output}")
            how = ("--out_file_format=array_record",)
            return [sys.executable, "-m", module, *folders, *how]
        return self.program("bare", workers if name == "bare" else 1, output, *paths)

    def measure(self, case, key):
        """Converts once."""
        output = self.work / "out"
        shutil.rmtree(output, ignore_errors=True)
        run = self.run(self._command(key, output))
        expect(count_records(output), sum(self._written.records), "records")
        files = [path for path in output.rglob("*record*") if path.is_file()]
        written = sum(path.stat().st_size for path in files)
        work = self._written.size_bytes
        return {**run, "work": work / 1e6, "size": written / work}


def _convert_file(job):
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(job[1], WRITER_OPTIONS)
    write = writer.write
    for record in read_frames(job[0]):
        write(record)
    writer.close()


def run_bare(workers, output, *inputs):
    """Converts each input into one output with nothing around the loop."""
    os.makedirs(output, exist_ok=True)
    jobs = [(path, f"{output}/{n}.array_record") for n, path in enumerate(inputs)]
    if workers == "1":
        for job in jobs:
            _convert_file(job)
        return
    with multiprocessing.get_context("spawn").Pool(int(workers)) as pool:
        pool.map(_convert_file, jobs, chunksize=1)


def run_array_record_beam(pattern, prefix, num_shards):
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


PROGRAMS = {"bare": run_bare, "array_record_beam": run_array_record_beam}

if __name__ == "__main__":
    sys.exit(main(Convert, PROGRAMS))
