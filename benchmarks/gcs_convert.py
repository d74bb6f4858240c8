"""Conversion from and to a bucket beside the same conversion on the local disk."""

import sys
import time
import urllib.request

from benchmarks import c4_like
from benchmarks.contest import Contest, Contestant, gristmill, main
from tests.servers.gcs_process import GcsProcess

_LATENCY_MS = {"gristmill_local": 0, "gristmill_20_ms": 20, "gristmill_50_ms": 50}


class GcsConvert(Contest):
    """Conversion from and to a bucket.

    `gristmill convert` of C4-like text with one worker, whole processes. The bucket
    is the server of the tests, in a process of its own on the same machine: it
    takes part of the processors that the local conversion has for itself.
    """

    name = "gcs_convert"
    reference = ("gristmill_local",)
    contestants = {
        "gristmill_local": Contestant("local disk"),
        "gristmill_20_ms": Contestant("bucket, 20 ms"),
        "gristmill_50_ms": Contestant("bucket, 50 ms"),
    }
    columns = {"requests": "requests a shard"}
    packages = ("google-cloud-storage", "numpy", "zstandard")
    options = {
        "bytes": (400_000_000, 200_000, "of text"),
        "files": (16, 2, "and shards"),
    }

    def cases(self):
        """Writes the inputs to the disk and to the bucket."""
        folder = self.work / "in"
        size_bytes, files = self.args.bytes, self.args.files
        paths, *_ = c4_like.write_tfrecords(folder, size_bytes=size_bytes, files=files)
        with GcsProcess("in", "out") as self._server:
            for path in paths:
                query = f"uploadType=media&name={path.name}"
                url = f"{self._server.url}/upload/storage/v1/b/in/o?{query}"
                urllib.request.urlopen(url, path.read_bytes()).close()
            yield "", [*self.contestants]

    def measure(self, case, key):
        """Converts once."""
        latency_ms = _LATENCY_MS[key]
        source, output = "gs://in", f"gs://out/{time.time_ns()}"
        if not latency_ms:
            source, output = self.work / "in", self.fresh()
        self._server.control(set={"latency_seconds": latency_ms / 1e3}, clear=True)
        inputs = f"{source}/*.tfrecord*"
        options = ("--name=c4", "--workers=1", "--match-shards")
        command = gristmill("convert", inputs, output, *options)
        run = self.run(command, {"STORAGE_EMULATOR_HOST": self._server.url})
        counted = self._server.control(set={"latency_seconds": 0}, clear=True)
        requests = sum(counted["requests"].values()) / self.args.files
        return {**run, "work": self.args.bytes / 1e6, "requests": requests or None}


if __name__ == "__main__":
    sys.exit(main(GcsConvert))
