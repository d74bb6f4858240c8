"""Calls in daemon threads."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from gristmill.dataset.base.system import daemon_call


def test_results_and_errors_come_back() -> None:
    def name() -> str:
        return threading.current_thread().name

    def fail() -> None:
        raise KeyboardInterrupt("no")

    assert daemon_call(name, thread_name="gristmill-x").result(30) == "gristmill-x"
    with pytest.raises(KeyboardInterrupt, match="no"):
        daemon_call(fail, thread_name="x").result(30)


def test_the_process_ends_without_waiting() -> None:
    script = (
        "import threading\n"
        "from gristmill.dataset.base.system import daemon_call\n"
        "daemon_call(threading.Event().wait, thread_name='x')\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
