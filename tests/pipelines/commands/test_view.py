"""`gristmill view`, run as a user does."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import urllib.request

from click.testing import CliRunner

from gristmill.pipelines.commands.main import cli
from tests.support.datasets import convert


def test_it_serves_until_ctrl_c(tmp_path: pathlib.Path) -> None:
    dataset = convert(tmp_path, [[b"a", b"b"], [b"c"]])
    command = [sys.executable, "-m", "gristmill", "view", dataset, "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(f"{url}api/overview", timeout=60) as answer:
            assert json.load(answer)["records"] == 3
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stdout.read() == ""


def test_options_that_do_not_go_together(tmp_path: pathlib.Path) -> None:
    dataset = convert(tmp_path, [[b"a", b"b"], [b"c"]])
    done = CliRunner().invoke(cli, ["view", dataset, "--seed", "3"])
    assert done.exit_code == 2
    assert "the batch size is missing" in done.output
    nowhere = tmp_path / "none" / "page.html"
    done = CliRunner().invoke(cli, ["view", dataset, "--html", str(nowhere)])
    assert done.exit_code == 1
    assert "the page cannot be written" in done.output
