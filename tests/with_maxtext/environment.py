"""The environment with MaxText and gristmill, as it is documented."""

import fcntl
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys

VERSION = "0.2.5"
ROOT = pathlib.Path(__file__).parents[2]
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1  # Of Linux.


def install(venv, python, *wanted):
    """Makes or renews an environment with gristmill, and returns its Python.

    Args:
        venv: Its folder; what is there already is kept, and gristmill installed anew.
        python: Version or path of the Python to use.
        wanted: What else to install; by default what MaxText and gristmill need.
    """
    uv = [shutil.which("uv")] if shutil.which("uv") else [sys.executable, "-m", "uv"]
    inside = venv.absolute() / "bin" / "python"
    if not inside.exists():
        subprocess.run([*uv, "venv", "-q", "--python", python, str(venv)], check=True)
    command = [*uv, "pip", "install", "-q", "--python", str(inside)]
    command += ["--reinstall-package", "gristmill"]
    wanted = wanted or (f"maxtext[tpu]=={VERSION}", ".[gcs,loader,tokenizers]")
    subprocess.run([*command, *wanted], cwd=ROOT, check=True)
    return inside


def in_namespace(command):
    """Returns a command in namespaces of processes and of networks of its own.

    MaxText 0.2.5 ends orphaned multiprocessing processes that it sees, of any program,
    and its processes meet at port 1234. They end with the command.
    """
    alone = ["unshare", "--pid", "--net", "--fork", "--mount-proc", "--kill-child"]
    if os.geteuid():
        alone.append("--map-root-user")
    return [*alone, *command]


def bring_up_loopback():
    """Gives a new network namespace `localhost`, as `ip link set lo up` does."""
    request = struct.pack("16sH22x", b"lo", _IFF_UP)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)
