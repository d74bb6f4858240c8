"""`gristmill view`, run as a user does."""

from __future__ import annotations

import os
import pathlib

import pytest
from click.testing import CliRunner, Result

from gristmill.pipelines.commands.main import cli
from tests.commands.view.conftest import content_of
from tests.support.datasets import convert


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["view", *map(str, arguments)])


def test_a_page_is_written_and_opened(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = convert(tmp_path, [[b"a", b"b"], [b"c"]])
    monkeypatch.chdir(tmp_path)
    told = tmp_path / "told"
    os.mkfifo(told)
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" > {told}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s &")
    done = run(path, "--open")
    assert (done.exit_code, done.stdout) == (0, "d.view.html\n")
    assert told.read_text().strip() == (tmp_path / "d.view.html").as_uri()
    content = content_of(tmp_path / "d.view.html")
    assert content["datasets"][0]["records"] == 3
    why = "records of your choice"
    assert done.stderr == f"next ({why}): gristmill view {path} --records 0:10\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--seed", 3), "the batch size is missing"),
        (("--steps", 3), "needs the order of the records"),
        (("--records", "1:x"), "cannot be read"),
        (("--records", "1:2:3"), "cannot be read"),
        (("--records", "0:9999999999999"), "lists too many at once"),
        (("--records", "3"), "has a number that is too large"),
        (("--records", "web=1"), "names no dataset of the mixture"),
        (("--steps", "0:9", "--batch-size", 2, "--epochs", 1), "that is too large"),
        (("--html", "none/x.html"), "the page cannot be written"),
    ],
)
def test_wrong_options_are_told(
    tmp_path: pathlib.Path, options: tuple[object, ...], message: str
) -> None:
    done = run(convert(tmp_path, [[b"a", b"b"], [b"c"]]), *options)
    assert done.exit_code in (1, 2)
    assert message in done.output
