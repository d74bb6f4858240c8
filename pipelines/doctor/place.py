"""The place of a dataset, shared by checks: accessed once, with a time limit."""

from __future__ import annotations

import contextlib
import subprocess
import sys

from gristmill.dataset.base.daemon_call import daemon_call
from gristmill.dataset.base.errors import GristmillError
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.read_manifest import read_manifest
from gristmill.dataset.storage.paths import path_text
from gristmill.pipelines.doctor.mount_table import mount_of

_SECONDS, _MOUNT_SECONDS = 5.0, 3.0


class Place:
    """A dataset's directory: local, or in a bucket.

    Attributes:
        path: The directory, without a slash at the end.
        remote: Whether it is in a bucket.
    """

    def __init__(self, dataset: str):
        text = path_text(dataset, "dataset")
        self.path = text.rstrip("/") or text
        self.remote = "://" in text
        self._manifest = daemon_call(
            self._read, thread_name="gristmill-doctor-manifest"
        )

    def manifest(self) -> Manifest | None:
        """Returns the content of `dataset.json`, None if there is none.

        Raises TimeoutError if the place does not answer, GristmillError if it cannot be
        read.
        """
        return self._manifest.result(_SECONDS)

    def _read(self) -> Manifest | None:
        mount = None if self.remote else mount_of(self.path)
        if mount is not None and mount.kind.startswith("fuse"):
            _wait_for_mount(self.path)
        return read_manifest(self.path)

    def known(self) -> Manifest | None:
        """Returns the same; None also if it cannot be read, which one check reports."""
        with contextlib.suppress(GristmillError, TimeoutError):
            return self.manifest()
        return None


def _wait_for_mount(path: str) -> None:
    """Raises TimeoutError if a mount of FUSE does not answer.

    A process that accesses a stuck mount cannot even be killed, so another process does
    it.
    """
    quiet = subprocess.DEVNULL
    code = "import os, sys; os.path.exists(sys.argv[1])"
    asking = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, path],
        stdin=quiet,
        stdout=quiet,
        stderr=quiet,
        start_new_session=True,
    )
    try:
        asking.wait(_MOUNT_SECONDS)
    except subprocess.TimeoutExpired as e:
        asking.kill()  # It ends as soon as the mount does.
        raise TimeoutError(path) from e
