"""The command line, as a shell calls it."""

import os
import pty
import re
import subprocess
import sys

from tests.support.records import read_array_records


def gristmill(*arguments, cwd, **options):
    return subprocess.run(
        [sys.executable, "-m", "gristmill", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


def succeeded(*arguments, cwd):
    done = gristmill(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def on_terminal(*arguments, cwd, columns=120):
    """Runs a command that succeeds, and returns what a terminal of that width shows."""
    seen = sent_to_terminal(*arguments, cwd=cwd, COLUMNS=str(columns))
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)


def sent_to_terminal(*arguments, cwd, **environment):
    """Runs a command that succeeds, and returns what a terminal gets."""
    main, child = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "gristmill", *map(str, arguments)],
        cwd=cwd,
        stderr=child,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm-256color", **environment},
    )
    os.close(child)
    seen = b""
    try:
        while block := os.read(main, 4096):
            seen += block
    except OSError:
        pass  # The other end is closed: that is how a terminal ends.
    finally:
        os.close(main)
    assert process.wait(timeout=60) == 0
    return seen.decode("utf-8", "replace")


def records_of(output, split="train"):
    shards = sorted(output.glob(f"*-{split}.array_record-*"))
    return [record for shard in shards for record in read_array_records(shard)]
