"""`gristmill view`, run as a user does."""

from __future__ import annotations

import json
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request

import pytest
from click.testing import CliRunner

from gristmill import loader
from gristmill.pipelines.commands.main import cli
from gristmill.pipelines.commands.view import tunnel_command
from tests.support.datasets import convert


@pytest.mark.slow
def test_it_serves_until_ctrl_c(tmp_path: pathlib.Path) -> None:
    """Also what a user of another machine is told, and how a browser is started."""
    dataset = convert(tmp_path, [[b"a", b"b"], [b"c"]])
    told, browser = tmp_path / "told", tmp_path / "browser"
    os.mkfifo(told)
    browser.write_text(f'#!/bin/sh\necho "$@" > {told}\n')
    browser.chmod(0o755)
    environ = {**os.environ, "SSH_CONNECTION": "1", "BROWSER": f"{browser} %s"}
    environ |= {"USER": "ada"}
    environ.pop("KUBERNETES_SERVICE_HOST", None)
    command = [sys.executable, "-m", "gristmill", "view", dataset]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environ, **pipes) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            url = process.stdout.readline().strip()
            with urllib.request.urlopen(f"{url}api/overview", timeout=60) as answer:
                assert json.load(answer)["records"] == 3
            # All users see command lines of processes: the address is good for once.
            (once,) = told.read_text().split()
            port = urllib.parse.urlsplit(url).port
            assert once.startswith(f"http://127.0.0.1:{port}/")
            assert url.split("/")[3] not in once
            with urllib.request.urlopen(once, timeout=60) as answer:
                assert answer.url == url
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(once, timeout=60)
            os.kill(process.pid, signal.SIGINT)
            assert process.wait(60) == 0
            assert process.stdout.read() == ""
            tunnel = f"  ssh -N -L {port}:127.0.0.1:{port} ada@{platform.node()}"
            assert tunnel in process.stderr.read().splitlines()
        finally:
            process.kill()  # Else the end of the block waits for it.


def test_how_to_look_from_another_machine() -> None:
    ssh = "ssh -N -L 8080:127.0.0.1:8080"
    for environ, command in (
        ({"DISPLAY": ":0", "USER": "ada"}, None),
        ({"WAYLAND_DISPLAY": "wayland-0"}, None),
        (
            {"DISPLAY": ":0", "SSH_CONNECTION": "1", "USER": "ada"},
            f"{ssh} ada@worker-7",
        ),
        ({}, f"{ssh} worker-7"),
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
            "kubectl port-forward pod/worker-7 8080",
        ),
    ):
        found = tunnel_command(environ, 8080, host="worker-7", system="linux")
        assert found == command
    assert tunnel_command({}, 8080, host="worker-7", system="darwin") is None


def test_options_that_do_not_go_together(tmp_path: pathlib.Path) -> None:
    dataset = convert(tmp_path, [[b"a", b"b"], [b"c"]])
    done = CliRunner().invoke(cli, ["view", dataset, "--seed", "3"])
    assert done.exit_code == 2
    assert "the batch size is missing" in done.output
    page = tmp_path / "page.html"
    done = CliRunner().invoke(cli, ["view", dataset, "--html", str(page)])
    assert done.stdout == f"{page}\n"
    why = "all records and steps, in a browser"
    assert done.stderr == f"next ({why}): gristmill view {dataset}\n"
    nowhere = tmp_path / "none" / "page.html"
    done = CliRunner().invoke(cli, ["view", dataset, "--html", str(nowhere)])
    assert done.exit_code == 1
    assert "the page cannot be written" in done.output


@pytest.mark.slow
def test_the_order_of_a_state_and_of_a_mixture(tmp_path: pathlib.Path) -> None:
    records = [b"%d" % number for number in range(20)]
    paths = {
        name: convert(tmp_path / name, [records], name=name) for name in ("web", "code")
    }
    datasets = {name: loader.open(path) for name, path in paths.items()}
    weights = {"web": 3, "code": 1}
    batches = loader.global_batches(datasets, batch_size=4, seed=9, weights=weights)
    with batches.feed(process_index=0, process_count=1) as feed:
        for _ in range(3):
            next(feed)
        (tmp_path / "state.json").write_text(json.dumps(feed.get_state()))
    named = [f"{name}={path}" for name, path in paths.items()]
    for order, step in (
        (["--state", tmp_path / "state.json"], 3),
        (["--batch-size", 4, "--seed", 9, "--weights", "web=3,code=1"], None),
    ):
        page = tmp_path / "page.html"
        arguments = ["view", *named, *order, "--html", page]
        done = CliRunner().invoke(cli, [*map(str, arguments)])
        assert done.exit_code == 0, done.output
        found = re.search(r'id="answers">(.*?)</script>', page.read_text())
        assert found is not None
        answers = json.loads(found[1])["answers"]
        about = answers["api/overview"]["order"]
        assert about["state_step"] == step
        assert (about["mixture"], about["batch_size"], about["seed"]) == (True, 4, 9)
        address = re.compile(r"api/step\?(.*&)?step=3(&.*)?")
        rows = next(answers[key]["rows"] for key in answers if address.fullmatch(key))
        seen = batches.indices(3)
        assert [row["record"] for row in rows] == seen.records.tolist()
        assert [row["of"] for row in rows] == [
            batches.names[number] for number in seen.datasets.tolist()
        ]
