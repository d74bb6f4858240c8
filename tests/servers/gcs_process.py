"""The small Google Cloud Storage in a process of its own, so that it takes no GIL."""

import json
import subprocess
import sys
import urllib.request

from tests.servers.gcs_server import CONTROL_PATH, GcsServer


class GcsProcess:
    """The server in another process; use it in a `with` statement.

    Attributes:
        url: Where it listens.
    """

    def __init__(self, *buckets):
        self._buckets = buckets

    def __enter__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.servers.gcs_process", *self._buckets],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        return self

    def __exit__(self, *error):
        # It ends with its input: also when this process is killed.
        self._process.communicate()

    def control(self, **orders):
        """Gives orders, and returns what was counted before; see `GcsServer.control`.

        Args:
            **orders: `set={"latency_seconds": 0.02}`, `clear=True`.
        """
        data = json.dumps(orders).encode()
        with urllib.request.urlopen(self.url + CONTROL_PATH, data) as reply:
            return json.load(reply)


if __name__ == "__main__":
    with GcsServer(*sys.argv[1:]) as server:
        print(server.url, flush=True)
        sys.stdin.read()
