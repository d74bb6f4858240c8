"""The page in a browser: what it shows, where it leads, and what it must not do."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from gristmill import loader
from gristmill.pipelines.view.write_html import Subject, write_html
from tests.commands.conftest import run
from tests.commands.view.browser import LAPTOP, PHONE, Watched, chromium
from tests.commands.view.conftest import content_of, png
from tests.rows.packed_shards import conversations, supervised_dataset
from tests.support.datasets import convert
from tests.support.examples import tf_example

SCRIPT = '<script>window.hurt = 1</script><img src=x onerror="window.hurt = 2">'
HOSTILE = [
    tf_example({"text": [SCRIPT.encode()], f"<b>{SCRIPT}": [b"name"]}),
    b"\xff\xfe broken " + SCRIPT.encode() + b"\x80",
    tf_example({"text": ["\u05e9\u05dc\u05d5\u05dd \u202eevil\u202c".encode()]}),
    b"",
    tf_example(
        {"numbers": [float("nan"), -0.0, 1e-30], "big": [2**63 - 1], "none": []}
    ),
    tf_example(
        {
            "damaged": [png(3)[:40]],
            "gif": [b"GIF89a" + SCRIPT.encode()],
            "svg": [f"<svg onload='window.hurt = 3'>{SCRIPT}</svg>".encode()],
        }
    ),
    tf_example({"text": [b"\x1b[31mred\x07 \xe2\x80\xa8 javascript:alert(1)"]}),
]


class Words:
    """Shows tokens as text, some of it hostile."""

    name, digest = "words", "0" * 64

    def texts(self, ids: Sequence[int]) -> Sequence[str | None]:
        return [SCRIPT if each % 7 == 3 else "<tool_call>\n" for each in ids]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@contextlib.contextmanager
def watched(browser: Any, path: pathlib.Path, **more: Any) -> Iterator[Watched]:
    """A page that asks nobody and has no fault."""
    write_html(Subject(**more), str(path))
    context = browser.new_context(viewport=LAPTOP, offline=True)
    found = Watched(context.new_page(), path.as_uri())
    found.go("")
    yield found
    assert (found.faults, found.page.evaluate("window.hurt")) == ([], None)
    assert found.asked == [""]
    context.close()


@pytest.mark.slow
def test_every_view_renders_whatever_records_hold(
    browser: Any, dataset: str, tmp_path: pathlib.Path
) -> None:
    """On a laptop and a phone, light and dark."""
    hostile = convert(tmp_path / '<img src=x onerror="hurt=4">', [HOSTILE])
    datasets = {"web": loader.open(dataset), "<b>&x": loader.open(hostile)}
    batches = loader.global_batches(datasets, batch_size=8, epochs=4)
    records = {"<b>&x": range(len(HOSTILE))}
    subject = {"datasets": datasets, "batches": batches, "records": records}
    with watched(browser, tmp_path / "<b>page.html", **subject) as seen:
        for viewport, scheme in ((LAPTOP, "light"), (PHONE, "dark")):
            seen.page.set_viewport_size(viewport)
            seen.page.emulate_media(color_scheme=scheme)
            for place in ("#/dataset/web", "#/record/web/41", "#/step/0"):
                seen.go(place)
                wide = seen.page.evaluate("document.documentElement.scrollWidth")
                assert wide <= viewport["width"], place
                assert not seen.page.query_selector(".panel"), place
        assert "<b>&x" in seen.text()
        seen.go("#/dataset/%3Cb%3E%26x")
        assert "onerror" in seen.text()
        shown = []
        for number in range(len(HOSTILE)):
            seen.go(f"#/record/%3Cb%3E%26x/{number}")
            seen.page.wait_for_load_state()
            shown.append(seen.text(".content"))
        assert SCRIPT in shown[0]
        assert f"<b>{SCRIPT}" in shown[0]
        assert "ff fe 20 62" in shown[1]
        assert "no bytes" in shown[3]
        assert "9223372036854775807" in shown[4]
        assert "<svg onload" in shown[5]
        assert "\u241b[31mred" in shown[6] or "1b 5b 33 31" in shown[6]


@pytest.mark.slow
def test_from_a_step_to_a_record_and_what_is_not_there(
    browser: Any, dataset: str, tmp_path: pathlib.Path
) -> None:
    opened = loader.open(dataset)
    batches = loader.global_batches(opened, batch_size=8, seed=5)
    subject = {
        "datasets": {"": opened},
        "batches": batches,
        "command": "gristmill view d",
    }
    with watched(browser, tmp_path / "page.html", **subject) as seen:
        press, locator = seen.page.keyboard.press, seen.page.locator
        seen.go("#/step/6")
        press("ArrowRight")
        seen.arrive("**/*#/step/7")
        locator("main tbody tr").nth(5).locator("a").click()
        record = int(batches.indices(7)[5])
        seen.arrive(f"**/*#/record/{record}")
        assert "byte offset" in seen.text(".place")
        locator("input[type=number]").fill("99")
        press("Enter")
        seen.arrive("**/*#/record/99")
        seen.go("#/record/100")
        assert "no such record" in seen.text(".panel")
        seen.go("#/step/1000000")
        assert "gristmill view d --steps 1000000" in seen.text(".panel")
        # The numbers of a chart are there without a mouse.
        seen.go("#/dataset")
        seen.tab_to("Show as text")
        press("Enter")
        assert " bytes: 3 records" in seen.text("figure pre")


@pytest.mark.slow
def test_trained_tokens_have_a_background(browser: Any, tmp_path: pathlib.Path) -> None:
    """Their text is as readable as the others': no line hides a `_`."""
    path = supervised_dataset(tmp_path, [conversations(30, seed=1)])
    subject = {"datasets": {"": loader.open(path)}, "texts": Words()}
    with watched(browser, tmp_path / "page.html", **subject) as seen:
        seen.go("#/record/0")
        assert "<tool_call>" in seen.text(".tokens >> nth=0")
        styles = """(tokens) => [...document.querySelectorAll(tokens)].map(
            (each) => [getComputedStyle(each).backgroundColor,
                getComputedStyle(each).textDecorationLine])"""
        trained = seen.page.evaluate(styles, ".tokens .trained")
        others = seen.page.evaluate(styles, ".tokens :not(.trained)")
        assert trained
        assert others
        assert {tuple(one) for one in trained}.isdisjoint(map(tuple, others))
        assert {line for _, line in (*trained, *others)} == {"none"}


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
    done = run("view", path, "--open")
    assert done.stdout == "d.view.html\n"
    assert told.read_text().strip() == (tmp_path / "d.view.html").as_uri()
    content = content_of(tmp_path / "d.view.html")
    assert content["datasets"][0]["records"] == 3
    why = "records of your choice"
    assert done.stderr == f"next ({why}): gristmill view {path} --records 0:10\n"
