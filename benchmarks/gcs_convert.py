"""Conversion from and to a bucket beside the same conversion on the local disk."""

from __future__ import annotations

import pathlib
import shutil
import sys
import urllib.request

from benchmarks import c4_like
from benchmarks.contest import Contest, Contestant, Option, gristmill, main, size
from tests.servers.gcs_process import GcsProcess

_LATENCY_MS = {"gristmill_local": None, "gristmill_20_ms": 20, "gristmill_50_ms": 50}


class GcsConvert(Contest):
    """See `about`."""

    name = "gcs_convert"
    title = "Conversion from and to a bucket"
    about = (
        "`gristmill convert` of C4-like text with one worker, whole processes. The "
        "bucket is the server of the tests, in a process of its own on the same "
        "machine: it takes part of the processors that the local conversion has for "
        "itself."
    )
    reference = ("gristmill_local",)
    contestants = {
        "gristmill_local": Contestant("local disk"),
        "gristmill_20_ms": Contestant("bucket, 20 ms"),
        "gristmill_50_ms": Contestant("bucket, 50 ms"),
    }
    columns = {"requests": "requests a shard"}
    packages = ("google-cloud-storage", "numpy", "zstandard")
    options = {
        "bytes": Option(size, 400_000_000, 200_000, "of text"),
        "files": Option(int, 16, 2, "and shards"),
    }

    def cases(self):
        """Writes the inputs to the disk and to the bucket."""
        folder = self.work / "in"
        written = c4_like.write_dataset(
            folder, size_bytes=self.args.bytes, files=self.args.files
        )
        with GcsProcess("in", "out") as self._server:
            for path in written.paths:
                name = pathlib.Path(path).name
                query = f"uploadType=media&name={name}"
                url = f"{self._server.url}/upload/storage/v1/b/in/o?{query}"
                urllib.request.urlopen(url, pathlib.Path(path).read_bytes()).close()
            yield "", [*self.contestants]

    def measure(self, case, key):
        """Converts once."""
        latency_ms = _LATENCY_MS[key]
        self._runs = getattr(self, "_runs", 0) + 1
        output = f"gs://out/{self._runs}"
        source = "gs://in"
        if latency_ms is None:
            output, source = self.work / "out", str(self.work / "in")
        self._server.control(set={"latency_seconds": (latency_ms or 0) / 1e3})
        self._server.control(clear=True)
        run = self.run(
            gristmill(
                *("convert", f"{source}/*.tfrecord*", output, "--name=c4"),
                *("--workers=1", "--match-shards"),
            ),
            variables={"STORAGE_EMULATOR_HOST": self._server.url},
        )
        counted = self._server.control(set={"latency_seconds": 0}, clear=True)
        shutil.rmtree(self.work / "out", ignore_errors=True)
        requests = sum(counted["requests"].values()) / self.args.files
        return {**run, "work": self.args.bytes / 1e6, "requests": requests or None}


if __name__ == "__main__":
    sys.exit(main(GcsConvert, {}))
