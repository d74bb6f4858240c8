"""`gristmill view`, run as a user does."""

from __future__ import annotations

import json
import os
import pathlib

import pytest
from click.testing import CliRunner, Result

from gristmill import loader
from gristmill.pipelines.commands.main import cli
from tests.pipelines.view.conftest import content_of
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


@pytest.mark.slow
def test_the_order_of_a_state_and_of_a_mixture(tmp_path: pathlib.Path) -> None:
    records = [b"%d" % number for number in range(400)]
    paths = {
        name: convert(tmp_path / name, [records], name=name) for name in ("web", "code")
    }
    datasets = {name: loader.open(path) for name, path in paths.items()}
    weights = {"web": 3, "code": 1}
    batches = loader.global_batches(datasets, batch_size=4, seed=9, weights=weights)
    with batches.feed(host=(0, 1)) as feed:
        for _ in range(3):
            next(feed)
        (tmp_path / "state.json").write_text(json.dumps(feed.get_state()))
    named = [f"{name}={path}" for name, path in paths.items()]
    order = ["--batch-size", 4, "--seed", 9, "--weights", "web=3,code=1"]
    for options in (
        ["--state", tmp_path / "state.json"],
        [*order, "--steps", "3", "--records", "code=7:9"],
    ):
        page = tmp_path / "page.html"
        done = run(*named, *options, "--html", page)
        assert done.exit_code == 0, done.output
        content = content_of(page)
        seen = batches.indices(3)
        rows = content["steps"]["3"]["rows"]
        assert [row["record"] for row in rows] == seen.records.tolist()
        names = [batches.names[number] for number in seen.datasets.tolist()]
        assert [row["of"] for row in rows] == names
    assert {"7", "8"} <= content["records"]["code"].keys()
