"""Commands of gristmill that are killed at one of their steps.

A step is a change of a name on a local disk, or a request to a server. Each command
runs in a process that is forked for it from one that has imported what most commands
need.
"""

import contextlib
import functools
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import namedtuple

_STEPS = ("link", "mkdir", "rename", "replace", "rmdir", "unlink")
_IMPORTED = (
    *("google.cloud.storage", "numpy.ma", "rich.progress", "urllib3.connectionpool"),
    *("zstandard", "pyarrow.parquet", "pyarrow.compute"),
    *("gristmill.dataset.storage.gcs", "gristmill.dataset.writer.writer"),
    *("gristmill.pipelines.commands.jobs", "gristmill.pipelines.convert"),
    *("gristmill.pipelines.options.conversion_jobs", "gristmill.pipelines.anywhere"),
    *("gristmill.pipelines.commands.changes", "gristmill.pipelines.removal"),
)


# How a command ended: its exit status, -9 if it was killed, and what it said.
Ended = namedtuple("Ended", "status error")


class Killer:
    """Runs commands and kills them; use it in a `with` statement.

    Args:
        folder: For temporary files.
    """

    def __init__(self, folder):
        self._errors = folder / "stderr"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.kills"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(folder)},
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._process.kill()
        self._process.communicate()

    def run(self, argv, *, kill_at=0, after=False, cwd=None):
        """Runs a command.

        Args:
            argv: Its arguments, those of `gristmill` or a Python file and its own.
            kill_at: The step at which it is killed, from 1; 0 for none. A command with
                fewer steps ends by itself.
            after: Whether the step is done before.
            cwd: The working directory.
        """
        order = {
            "argv": list(argv),
            "kill_at": kill_at,
            "after": after,
            "cwd": str(cwd or os.getcwd()),
            "stderr": str(self._errors),
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        return Ended(status, self._errors.read_text(errors="replace"))


def _main():
    # What most commands need: each process is forked with it.
    for name in _IMPORTED:
        importlib.import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _run(**json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(argv, *, kill_at, after, cwd, stderr):
    code = 70
    with contextlib.suppress(BaseException):
        output = os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 2)
        os.dup2(output, 1)
        os.chdir(cwd)
        signal.alarm(300)  # Whatever happens, it ends.
        _count_steps(kill_at, after)
        from gristmill.pipelines.commands.main import main

        try:
            if argv[0].endswith(".py"):
                sys.argv = argv
                runpy.run_path(argv[0], run_name="__main__")
                code = 0
            else:
                main(argv)
        except SystemExit as e:
            code = e.code
        except Exception:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _count_steps(kill_at, after):
    from urllib3.connectionpool import HTTPConnectionPool

    steps = 0
    lock = threading.Lock()

    def die():
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    def counted(function):
        @functools.wraps(function)
        def step(*args, **options):
            nonlocal steps
            with lock:
                steps += 1
                last = steps == kill_at
            if last and not after:
                die()
            try:
                return function(*args, **options)
            finally:  # Also where it fails, as `mkdir` does in a race.
                if last:
                    die()

        return step

    for name in _STEPS:
        setattr(os, name, counted(getattr(os, name)))
    HTTPConnectionPool.urlopen = counted(  # type: ignore[method-assign]
        HTTPConnectionPool.urlopen
    )


if __name__ == "__main__":
    _main()
