"""Files of a local directory as objects of the test server."""

from __future__ import annotations

import pathlib

from tests.support.gcs_server import GcsServer


def upload(server: GcsServer, folder: str | pathlib.Path, prefix: str) -> None:
    """Stores every file below a folder in the server's bucket `bucket`."""
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if path.is_file():
            name = f"{prefix}/{path.relative_to(folder).as_posix()}"
            server.objects.put("bucket", name, path.read_bytes())
