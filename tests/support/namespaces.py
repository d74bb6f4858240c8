"""Code that runs as root in namespaces of its own: mounts and processes end with it."""

from __future__ import annotations

import pathlib

ROOT = pathlib.Path(__file__).parents[2]
_UNSHARE = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork"]
_UNSHARE += ["--kill-child", "--mount-proc"]
