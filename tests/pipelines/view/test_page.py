"""The page in a browser: what it shows, where it leads, and what it must not do."""

from __future__ import annotations

import contextlib
import pathlib
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from gristmill import loader
from gristmill.dataset.base.errors import GristmillError
from gristmill.pipelines.view.answers.addresses import ask
from gristmill.pipelines.view.answers.opened_datasets import Opened
from gristmill.pipelines.view.serve import PageServer
from gristmill.pipelines.view.write_html import write_html
from gristmill.pipelines.view.write_page import page
from tests.pipelines.view.conftest import png
from tests.support.browser import LAPTOP, PHONE, Watched, chromium
from tests.support.datasets import convert
from tests.support.examples import tf_example

SCRIPT = '<script>window.hurt = 1</script><img src=x onerror="window.hurt = 2">'
HEBREW = "\u05e9\u05dc\u05d5\u05dd \u202eevil\u202c \u05e2\u05d5\u05dc\u05dd"


def hostile() -> list[bytes]:
    """Records that a page may not obey, one of 10 MB."""
    return [
        tf_example({"text": [SCRIPT.encode()], f"<b>{SCRIPT}": [b"name"]}),
        b"\xff\xfe broken " + SCRIPT.encode() + b"\x80",
        tf_example({"text": [b"A<b>" * 2_500_000]}),
        tf_example({"text": [HEBREW.encode()]}),
        b"",
        tf_example({"numbers": [float("nan"), float("inf"), -0.0, 1e-30, 1e30]}),
        tf_example({"big": [2**63 - 1, -(2**63)], "none": []}),
        tf_example(
            {
                "damaged": [png(3)[:40]],
                "gif": [b"GIF89a" + SCRIPT.encode()],
                "svg": [f"<svg onload='window.hurt = 3'>{SCRIPT}</svg>".encode()],
            }
        ),
        tf_example({"text": [b"\x1b[31mred\x07 \xe2\x80\xa8 javascript:alert(1)"]}),
        SCRIPT.encode(),
    ]


class Words:
    """Shows tokens as text, some of it hostile."""

    name, digest = "words", "0" * 64

    def texts(self, ids: Sequence[int]) -> Sequence[str | None]:
        return [SCRIPT if each % 7 == 3 else f" w{each}\n" for each in ids]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


def test_a_missing_browser_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"CONTRIBUTING\.md"):
        chromium().__enter__()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=r"CONTRIBUTING\.md"):
        chromium().__enter__()


@contextlib.contextmanager
def served(opened: Opened) -> Iterator[PageServer]:
    with PageServer(opened, page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def watched(browser: Any, home: str, **options: Any) -> Iterator[Watched]:
    """A page that asks nobody else and has no fault."""
    context = browser.new_context(**{"viewport": LAPTOP, **options})
    found = Watched(context.new_page(), home)
    yield found
    assert (found.faults, found.page.evaluate("window.hurt")) == ([], None)
    context.close()


@pytest.fixture(scope="module")
def mixture(dataset: str, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """Two datasets in one order; names, paths and records of one are hostile."""
    folder = tmp_path_factory.mktemp("hostile") / '<img src=x onerror="hurt=4">'
    other = loader.open(convert(folder, [hostile()]))
    datasets = {"web": loader.open(dataset), "<b>&x": other}
    batches = loader.global_batches(
        datasets, batch_size=8, weights={"web": 0.75, "<b>&x": 0.25}, epochs=4
    )
    return Opened(datasets, batches, state_step=5)


def charts(watched: Watched) -> dict[str, Any]:
    """Returns the numbers of each chart, and what it says in words."""
    return watched.page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll(".chart")].map(
        (place) => [place.dataset.chart, {
            label: place.getAttribute("aria-label"),
            height: place.querySelector("canvas").clientHeight,
            names: [["xAxis", "name"], ["title", "text"]].map(([of, name]) =>
                echarts.getInstanceByDom(place).getOption()[of][0][name]),
            series: echarts.getInstanceByDom(place).getOption().series.map(
                (each) => each.data),
            colour: echarts.getInstanceByDom(place).getOption().textStyle.color,
        }]))"""
    )


@pytest.mark.slow
def test_every_view_renders(browser, mixture: Opened) -> None:
    """On a laptop and a phone, light and dark; all answers are shown."""
    backs = set()
    with served(mixture) as server, watched(browser, server.url) as seen:
        for viewport, scheme in (
            (LAPTOP, "light"),
            (PHONE, "dark"),
            (LAPTOP, "dark"),
            (PHONE, "light"),
        ):
            seen.page.set_viewport_size(viewport)
            seen.page.emulate_media(color_scheme=scheme)
            for place in (
                *("#/dataset/web", "#/shard/web/2", "#/record/web/41"),
                *("#/record/web/3?step=1&row=2", "#/step/9?row=3", "#/order"),
            ):
                seen.go(place)
                wide = seen.page.evaluate("document.documentElement.scrollWidth")
                assert wide <= viewport["width"], place
                assert not seen.page.query_selector(".panel.bad"), place
                assert seen.page.title()
            back = "getComputedStyle(document.body).backgroundColor"
            backs.add((scheme, seen.page.evaluate(back)))
    assert len(backs) == 2


@pytest.mark.slow
def test_charts_have_their_numbers_units_and_words(
    browser, opened: Opened, mixture: Opened
) -> None:
    overview = ask(opened, "api/overview")
    sizes = ask(opened, "api/sizes")["record_bytes"]
    with served(opened) as server, watched(browser, server.url) as seen:
        seen.go("#/dataset")
        found = charts(seen)
        shards = overview["shards_chart"]
        assert found["shard-records"]["series"] == [shards["records"]["median"]]
        assert found["shard-bytes"]["series"] == [shards["bytes"]["median"]]
        assert found["shard-bytes"]["names"] == ["shard", "stored size"]
        steps = found["record-bytes"]["series"][0]
        assert [y for _, y in steps] == [*sizes["counts"], sizes["counts"][-1]]
        assert [x for x, _ in steps] == sizes["edges"]
        assert "all 100 records" in found["record-bytes"]["label"]
        assert found["shard-records"]["label"].startswith(
            "Records of each shard. From 0 records to 40 records: the smallest is"
        )
        # The numbers are there as a table, also for keyboards and screen readers.
        figure = seen.page.locator("figure").first
        told = figure.aria_snapshot()
        assert 'img "Records of each shard. From 0 records' in told
        assert re.search("Show as table ?: Records of each shard", told)
        seen.page.locator(".tiles").click()
        seen.tab_to("Show as table")
        seen.page.keyboard.press("Enter")
        rows = figure.locator("tbody tr")
        rows.first.wait_for()
        assert 'region "Records of each shard: numbers"' in figure.aria_snapshot()
        assert rows.all_inner_texts() == ["0\t40", "1\t1", "2\t25", "3\t0", "4\t34"]
        # The colours follow the system while the page is open.
        seen.page.emulate_media(color_scheme="dark")
        seen.page.wait_for_function(
            """(before) => echarts.getInstanceByDom(document.querySelector(".chart"))
            .getOption().textStyle.color !== before""",
            arg=found["shard-records"]["colour"],
        )
        seen.tab_to("3")
        seen.page.keyboard.press("Enter")
        seen.arrive("**/#/shard/3")
        seen.page.go_back()
        seen.arrive("**/#/dataset")
        # A click on a bar opens its shard.
        box = seen.page.locator("[data-chart=shard-records] canvas").bounding_box()
        assert box is not None
        seen.page.mouse.click(
            box["x"] + box["width"] - 60, box["y"] + box["height"] / 2
        )
        seen.arrive("**/#/shard/4")
        seen.go("#/order")
        assert "A uniform order" in seen.text()
    answer = ask(mixture, "api/mixture")
    with served(mixture) as server, watched(browser, server.url) as seen:
        seen.go("#/order")
        share, weight, *_ = charts(seen)["mixture"]["series"]
        assert [y for _, y in share[:-1]] == answer["shares"]["web"]
        assert [y for _, y in weight[:-1]] == answer["weights"]["web"]
        assert [x for x, _ in share] == answer["steps"]


@pytest.mark.slow
def test_from_a_step_to_the_byte_in_the_source_and_back(
    browser, opened: Opened
) -> None:
    row = ask(opened, "api/step?step=7")["rows"][5]
    source = ask(opened, f"api/source?record={row['record']}")["source"]
    with served(opened) as server, watched(browser, server.url) as seen:
        press, locator = seen.page.keyboard.press, seen.page.locator
        seen.go("#/dataset")
        press("3")  # The views have keys.
        seen.arrive("**/#/step")
        # The slider, moved by the keyboard.
        locator("input[type=range]").focus()
        for _ in range(7):
            press("ArrowRight")
        seen.arrive("**/#/step/7")
        assert locator("input[type=range]").get_attribute("aria-valuetext") == "step 7"
        rows = locator("main tbody tr")
        assert rows.count() == 8
        # Which host gets each row: it stays until another number is given.
        locator(".hosts input").fill("4")
        press("Enter")
        seen.arrive("**/#/step/7?hosts=4")
        hosts = rows.locator("td:nth-child(2)").all_inner_texts()
        assert hosts == ["0", "0", "1", "1", "2", "2", "3", "3"]
        press("Escape")
        press("n")
        seen.arrive("**/#/step/8")
        assert locator("main th").all_inner_texts()[1] == "Host"
        locator(".hosts input").fill("3")
        press("Enter")
        seen.arrive("**/#/step/8?hosts=3")
        assert "does not divide among the hosts" in seen.text(".bad")
        assert len(seen.faults) == 1
        seen.faults.clear()
        locator(".hosts input").fill("")
        press("Enter")
        seen.arrive("**/#/step/8?hosts=0")
        press("Escape")
        press("p")
        seen.arrive("**/#/step/7")
        # What the rows begin with comes after their numbers.
        previews = ask(opened, "api/step?step=7&previews=1")["rows"]
        locator("[data-previews='7']").wait_for()
        cells = rows.locator("td:last-child").all_inner_texts()
        assert cells == [(each["preview"] or "").strip() for each in previews]
        assert any(cells)
        assert locator(".strip line").count() == 8
        rows.nth(5).locator("a").nth(1).click()
        at = f"#/record/{row['record']}"
        seen.arrive(f"**/{at}?step=7&row=5")
        assert source["path"] in seen.text(".place")
        assert f"byte {source['offset_bytes']:,}" in seen.text(".source-place")
        assert re.match(r"Step 7 . row 5", seen.text(".trail"))
        # Where it is seen leads back to the row, and so does the history.
        locator(".seen a").first.click()
        seen.arrive("**/#/step/7?row=5")
        assert locator("tr[aria-current]").inner_text().startswith("5\t")
        seen.page.go_back()
        seen.arrive(f"**/{at}?step=7&row=5")
        seen.page.go_back()
        seen.arrive("**/#/step/7")
        # A link of one record, opened anew, and the records beside it.
        seen.page.goto(f"{server.url}#/record/41")
        seen.page.reload()
        seen.settle()
        press("n")
        seen.arrive("**/#/record/42")
        press("ArrowLeft")
        seen.arrive("**/#/record/41")
        press("g")
        seen.page.keyboard.type("99")
        press("Enter")
        seen.arrive("**/#/record/99")
        assert locator("a[data-key=next]").count() == 0
        locator(".place a").first.click()
        seen.arrive("**/#/shard/4")
        assert "in-train" in seen.text()
        press("?")
        locator("dialog[open]").wait_for()
        press("Escape")
        locator("dialog[open]").wait_for(state="detached")
        # All of it can be reached with Tab, and where one is can be seen.
        seen.page.reload()
        seen.settle()
        press("Tab")
        press("Enter")  # Skips to the content, and stays at this shard.
        assert seen.page.evaluate("document.activeElement.id") == "main"
        seen.page.reload()
        seen.settle()
        assert "Shard 4" in seen.text("h1")
        names = set()
        for _ in range(12):
            press("Tab")
            names.add(seen.page.evaluate("document.activeElement.textContent"))
        assert {"Dataset", "Records", "Steps", "Order", "← Previous"} <= names


@pytest.mark.slow
def test_errors_say_what_to_do(browser, opened: Opened, empty: Opened) -> None:
    with served(opened) as server, watched(browser, server.url) as seen:
        seen.go("#/record/1000000")
        shown = seen.text(".bad")
        with pytest.raises(GristmillError) as caught:
            ask(opened, "api/record?record=1000000")
        facts = caught.value.facts()
        assert {"what", "expected", "got", "cure"} <= set(facts)
        assert [text for text in facts.values() if text not in shown] == []
        seen.go("#/nowhere")
        assert "Shards" in seen.text()
        seen.go("#/record/nobody/1")
        assert "there is no such dataset" in seen.text(".bad")
        seen.go("#/record/nonsense")
        assert not seen.page.query_selector(".bad")
        assert seen.page.input_value("#number") == "0"
        # What was answered stays; what is asked for now is not.
        seen.page.context.set_offline(True)
        seen.go("#/record/5")
        assert "does not answer" in seen.text(".bad")
        assert len(seen.faults) >= 2
        assert all("Failed to load resource" in each for each in seen.faults)
        seen.faults.clear()
    with served(empty) as server, watched(browser, server.url) as seen:
        for place, says in (
            ("#/dataset", "no record to measure"),
            ("#/record", "the split is empty"),
            ("#/step", "--batch-size"),
            ("#/order", "--batch-size"),
        ):
            seen.go(place)
            assert says in seen.text()


@pytest.mark.slow
def test_hostile_records_do_nothing(browser, mixture: Opened, packed: Opened) -> None:
    with served(mixture) as server, watched(browser, server.url) as seen:
        shown = []
        for record in range(len(hostile())):
            seen.go(f"#/record/%3Cb%3E%26x/{record}")
            assert not seen.page.query_selector(".bad"), record
            shown.append(seen.text(".content"))
            assert seen.page.locator("main script, main svg").count() == 0
        assert SCRIPT in shown[0]
        assert f"<b>{SCRIPT}" in shown[0]
        assert "ff fe 20 62" in shown[1]
        assert "A<b>A<b>" in shown[2]
        assert len(shown[2]) < 100_000
        assert "9,980,000 more characters" in shown[2]
        assert HEBREW in shown[3]
        assert "no bytes" in shown[4]
        assert "9223372036854775807" in shown[6]
        assert "can't be decoded" in shown[7]
        assert "<svg onload" in shown[7]
        assert "\u241b[31mred" in shown[8] or "1b 5b 33 31" in shown[8]
        assert SCRIPT in shown[9]
        names = "[...document.querySelectorAll('bdi')].map((e) => e.textContent)"
        for place in ("#/dataset/%3Cb%3E%26x", "#/step/0", "#/order", "#/shard/web/0"):
            seen.go(place)
            assert not seen.page.query_selector(".bad"), place
            if "shard" not in place:
                assert any("<b>" in each for each in seen.page.evaluate(names)), place
    tokens = Opened(packed.datasets, packed.batches, tokens=Words())
    answer = ask(tokens, "api/record?record=2")
    with served(tokens) as server, watched(browser, server.url) as seen:
        seen.go("#/record/2")
        texts = seen.page.evaluate(
            "[...document.querySelectorAll('.token')].map((each) => each.textContent)"
        )
        wanted = [t for each in answer["segments"] for _, t in each["tokens"]]
        assert [each.replace("↵", "") for each in texts] == wanted
        pieces = len(answer["segments"])
        assert seen.page.locator(".segment").count() == pieces
        assert seen.page.locator(".rowmap span").count() == pieces
        assert seen.page.locator(".legend tbody tr").count() == pieces
        colours = """[...document.querySelectorAll(".segment")].map((each) =>
            getComputedStyle(each).backgroundColor)"""
        assert len(set(seen.page.evaluate(colours))) == min(pieces, 8)
        pieces_of = ask(tokens, "api/source?record=2")["pieces"]
        legend = seen.page.locator(".legend tbody tr").all_inner_texts()
        for piece, row in zip(pieces_of, legend, strict=True):
            assert f"\t{piece['document']:,}\t" in row
            assert pathlib.Path(piece["path"]).name in row


@pytest.mark.slow
def test_the_file_works_without_a_server(
    browser, opened: Opened, mixture: Opened, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "out.html"
    write_html(opened, str(path), command="gristmill view it")
    assert path.stat().st_size <= 2_000_000
    with watched(browser, path.as_uri(), offline=True, viewport=PHONE) as seen:
        for place in ("", "#/order", "#/step/7?row=5", "#/record/41", "#/shard/2"):
            seen.go(place)
            assert not seen.page.query_selector(".bad"), place
        assert seen.asked == [""]  # The file itself.
        seen.go("#/step/7")
        seen.page.locator("main tbody tr").nth(5).locator("a").nth(1).click()
        seen.arrive("**?step=7&row=5")
        assert re.search(r"byte [\d,]+", seen.text(".source-place"))
        seen.go("#/step/1000000")
        assert "not in the file" in seen.text(".bad")
        assert "gristmill view" in seen.text(".bad")
        assert "100 of 100 records" in seen.text("#foot")
    hostile = tmp_path / "<b>out.html"
    write_html(mixture, str(hostile), command="gristmill view it")
    assert hostile.stat().st_size <= 2_000_000
    with watched(browser, hostile.as_uri(), offline=True) as seen:
        for place in ("", "#/order", "#/step/5", "#/record/web/3"):
            seen.go(place)
            assert not seen.page.query_selector(".bad"), place
        seen.go("#/record/%3Cb%3E%26x/0")
        assert SCRIPT in seen.text(".content")
