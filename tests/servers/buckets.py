"""What tests do with objects of the test server."""

import concurrent.futures
import pathlib
import threading
import time


def upload(server, folder, prefix):
    """Stores every file below a folder in the server's bucket `bucket`."""
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if path.is_file():
            name = f"{prefix}/{path.relative_to(folder).as_posix()}"
            server.objects.put("bucket", name, path.read_bytes())


def overlapping(server, call):
    """Returns what a call gives that sends requests while one is not answered.

    The third read of an object waits until there was a fourth.
    """
    # What an earlier call read ahead and did not need may be on its way yet, and would
    # be counted as requests of this one.
    for thread in threading.enumerate():
        if thread.name == "gristmill-prefetch":
            thread.join(60)
    server.requests.clear()
    server.held.clear()
    server.release.clear()
    server.fail("hold", "media", skip=2)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        result = pool.submit(call)
        try:
            assert server.held.wait(60)
            begin = time.monotonic()
            while server.requests["media"] < 4 and time.monotonic() - begin < 20:
                time.sleep(0.005)
            assert server.requests["media"] >= 4
        finally:
            server.release.set()
        return result.result(60)
