"""The page of `gristmill view`: what it holds, and what it shows in a browser."""

import base64
import contextlib
import itertools
import json
import os
import pathlib
import re

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset import encode_frame
from gristmill.pipelines.view.write_html import LIMIT_BYTES, Subject, page, write_html
from tests.commands.browser import LAPTOP, PHONE, Watched, chromium
from tests.commands.conftest import run
from tests.order.packed_datasets import (
    STRIDE,
    documents,
    packing,
    tokens_of,
    write_frames,
)
from tests.rows.packed_shards import conversations, supervised_dataset
from tests.support import conversion
from tests.support.datasets import convert
from tests.support.examples import tf_example
from tests.support.records import flip, frames_of, write_array_records

FILES = (40, 1, 25, 0, 34)
"""Records of each input file, which becomes a shard."""


PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgSD4BAAGSASx51M7q"
    "AAAAAElFTkSuQmCC"
)


def example(number):
    """Returns a record with values of each kind."""
    text = b"word " * (number % 9)
    image = PNG + bytes([number])
    values = {"id": [number], "image": [image], "text": [text], "weights": [0.5, 1.0]}
    return tf_example(values)


RECORDS = [*map(example, range(sum(FILES)))]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """A dataset of examples, three records in a chunk, one shard for each file."""
    left = iter(RECORDS)
    files = [[*itertools.islice(left, count)] for count in FILES]
    return convert(tmp_path_factory.mktemp("view"), files, group_size=3)


def content_of(path):
    """Returns what a page holds."""
    found = re.search(rb' id="content">(.*?)</script>', path.read_bytes(), re.DOTALL)
    return json.loads(found[1])


@pytest.fixture
def page_of(tmp_path):
    """Writes the page of a dataset, and returns what it holds."""

    def write(opened, **more):
        write_html(Subject(datasets={"": opened}, **more), str(tmp_path / "page.html"))
        return content_of(tmp_path / "page.html")

    return write


@pytest.fixture
def records_of(page_of):
    """Returns the records that the page of a dataset holds, by their numbers."""

    def records(opened, *numbers):
        found = page_of(opened, records={"": numbers})["records"][""]
        return {int(number): record for number, record in found.items()}

    return records


def tables_of(content):
    """Returns the rows of tables, by their titles."""
    sections = content["datasets"][0]["sections"]
    return {one["title"]: one["rows"] for one in sections if "rows" in one}


def chart_of(content, words):
    """Returns the bars of the chart whose summary ends with some words."""
    sections = content["datasets"][0]["sections"]
    charts = [one["chart"] for one in sections if "chart" in one]
    (bars,) = (one["bars"] for one in charts if one["summary"].endswith(f"{words}."))
    return [count for count, _ in bars]


def check_source(text, record):
    """Checks that a source names the file and the place of a record."""
    path, at = re.fullmatch(r"(.*), \w+ at byte offset ([\d,]+)", text).groups()
    data = pathlib.Path(path).read_bytes()
    assert data[int(at.replace(",", "")) :].startswith(encode_frame(record))


# --- What it holds.


def test_records_have_their_fields_places_and_sources(dataset, page_of):
    opened = loader.open(dataset)
    content = page_of(opened, records={"": range(len(RECORDS))})
    for number, record in enumerate(RECORDS):
        found = content["records"][""][str(number)]
        assert found["bytes"] == len(record)
        image = base64.b64encode(PNG + bytes([number])).decode()
        assert {one["name"]: one["shown"] for one in found["fields"]} == {
            "id": [number],
            "image": [f"data:image/png;base64,{image}"],
            "text": ["word " * (number % 9)],
            "weights": [0.5, 1.0],
        }
        place = dict(one for one in found["place"] if one[0])
        assert place["shard"] == opened.shard(int(opened.find([number])[0][0])).path
        check_source(found["source"], record)
    shards = [(row[2], row[4]) for row in tables_of(content)["Shards"]]
    paths = [opened.shard(number).path for number in range(len(FILES))]
    assert shards == [*zip(FILES, paths, strict=True)]
    assert sum(chart_of(content, "all 100 records")) == 100


def test_a_row_has_its_pieces_with_their_sources(tmp_path, page_of):
    texts = documents(90, seed=1)
    write_frames(tmp_path / "in", texts)
    options = {"plan": ("num_shards", 3), "pack": packing()}
    conversion.convert(conversion.job_of(tmp_path / "in", tmp_path / "out", **options))
    opened = loader.open(tmp_path / "out")
    content = page_of(opened, records={"": range(len(opened))})
    seen = 0
    for row in content["records"][""].values():
        for piece in row["pieces"]:
            tokens = [token for token, _ in piece["tokens"]]
            document, first = divmod(tokens[0], STRIDE)
            assert tokens == [*range(tokens[0], tokens[0] + len(tokens))]
            size = piece["end"] - piece["begin"]
            assert (piece["first"], size) == (first, len(tokens))
            source = ", ".join(line for _, line in piece["source"])
            check_source(source, texts[document])
            seen += len(tokens)
    lengths = [*filter(None, (len(tokens_of(one)) for one in texts))]
    assert seen == sum(lengths)
    # Those without a token are in no row.
    assert sum(chart_of(content, f"all {len(lengths)} documents")) == len(lengths)


def test_splits_editions_and_earlier_datasets(tmp_path, monkeypatch, page_of):
    monkeypatch.chdir(tmp_path)
    for split, count in (("test", 4), ("train", 30), ("more", 7)):
        pathlib.Path(split).write_bytes(frames_of(RECORDS[:count]))
    for split in ("test", "train"):
        run(f"convert {split} out --split {split} --workers=1")
    run("append out more --split=train --workers=1")
    run("convert out again --split=train --workers=1")
    found = tables_of(page_of(loader.open("out", split="train")))
    assert [row[:2] for row in found["Splits"]] == [["test", 4], ["train", 37]]
    assert [row[:2] for row in found["Editions"]] == [[1, 30], [2, 7]]
    files = found["Source files"]
    assert [row[0] for row in files] == ["train", "more"]
    assert tables_of(page_of(loader.open("again")))["Source files"] == files


def test_files_without_a_description(tmp_path, records_of):
    path = tmp_path / "x.array_record"
    write_array_records(path, [b"%d" % number for number in range(9)])
    held = records_of(loader.open([str(path)]))
    shown = [one["fields"][0]["shown"] for one in held.values()]
    assert shown == [[f"{n}"] for n in range(9)]
    assert "were not stored" in held[0]["source"]


def test_what_is_damaged_is_told_and_the_rest_is_shown(tmp_path, records_of):
    path = convert(tmp_path, [[b"%d" % n for n in range(10)] for _ in range(3)])
    opened = loader.open(path)
    damaged, gone = opened.shard(1), opened.shard(2)
    flip(damaged.path, opened.stored.offset_bytes(damaged.first_record) + 60)
    pathlib.Path(gone.path).unlink()
    held = records_of(loader.open(path))
    assert held[0]["fields"]
    assert {"what", "where"} <= dict(held[damaged.first_record]["error"]).keys()
    assert dict(held[gone.first_record]["error"])["where"] == gone.path


def test_a_page_has_a_limit_but_for_what_is_asked_for(tmp_path, records_of):
    texts = [f"{number} " + "x" * 19_000 for number in range(300)]
    images = [PNG + bytes([n]) * 150_000 for n in range(2)]
    records = [tf_example({"text": [text.encode()]}) for text in texts]
    records += [tf_example({"image": [image]}) for image in images]
    opened = loader.open(convert(tmp_path, [records]))
    numbers = [*records_of(opened)]
    assert 1_900_000 < (tmp_path / "page.html").stat().st_size <= LIMIT_BYTES
    assert numbers[:32] == [*range(32)]
    assert 40 < len(numbers) < 110
    asked = [*range(150, 300), 301]
    held = records_of(opened, *asked)
    assert {*asked} <= {*held}
    assert held[301]["fields"][0]["shown"][0].startswith("data:image/png")
    (image,) = records_of(opened.select(np.arange(302) >= 298))[2]["fields"]
    assert image["shown"] == [None]
    assert image["cut"] == "large images; --records has them"


@pytest.mark.parametrize(
    ("record", "shown", "cut"),
    [
        (b"x" * 30_000, ["x" * 20_000], "10,000 more characters"),
        (bytes(1000), [bytes(512).hex(" ")], "488 more bytes"),
        (tf_example({"a": list(range(300))}), [*range(256)], "44 more values"),
        # JavaScript would round the one, and JSON has not the other.
        (tf_example({"b": [2**63 - 1, 1]}), [str(2**63 - 1), 1], None),
        (tf_example({"c": [float("nan")]}), ["nan"], None),
    ],
    ids=["text", "bytes", "values", "large", "nan"],
)
def test_long_values_are_cut_and_say_so(tmp_path, records_of, record, shown, cut):
    (field,) = records_of(loader.open(convert(tmp_path, [[record]])))[0]["fields"]
    assert (field["shown"], field["cut"]) == (shown, cut)


@pytest.mark.slow
def test_sizes_of_many_shards_are_a_chart(tmp_path, page_of):
    files = [[b"x" * 40_000 * (number % 3)] for number in range(101)]
    opened = loader.open(convert(tmp_path, files, compression="uncompressed"))
    assert sum(chart_of(page_of(opened), "all 101 shards")) == 101


def test_a_page_runs_only_its_own_script():
    hostile = "</script><script>alert(1)</script><!-- \u2028 \ud83d and \U0001f600"
    text = page({"x": hostile}).decode()
    assert text.count("<script") == page({}).count(b"<script") == 2
    assert len(page({})) < 60_000
    markup = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", text, flags=re.DOTALL)
    assert re.findall(r"(?:src|href)=\"([^#][^\"]*)\"", markup) == ["data:,"]
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    unsafe = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\("
    assert not re.search(unsafe, text)
    # Scripts are joined: a second function of a name would replace the first.
    names = re.findall(r"^(?:function|const|let) (\w+)", text, re.MULTILINE)
    assert len(names) == len({*names})


# --- In a browser.

SCRIPT = '<script>window.hurt = 1</script><img src=x onerror="window.hurt = 2">'
# A record, and what is shown of it.
HOSTILE = [
    (tf_example({"text": [SCRIPT.encode()], f"<b>{SCRIPT}": [b"name"]}), SCRIPT),
    (b"\xff\xfe broken " + SCRIPT.encode() + b"\x80", "ff fe 20 62"),
    (tf_example({"text": ["\u05e9\u05dc\u05d5 \u202eevil\u202c".encode()]}), "evil"),
    (b"", "no bytes"),
    (
        tf_example(
            {"numbers": [float("nan"), -0.0, 1e-30], "big": [2**63 - 1], "none": []}
        ),
        "9223372036854775807",
    ),
    (
        tf_example(
            {
                "damaged": [PNG[:40]],
                "gif": [b"GIF89a" + SCRIPT.encode()],
                "svg": [f"<svg onload='window.hurt = 3'>{SCRIPT}</svg>".encode()],
            }
        ),
        "<svg onload",
    ),
    (tf_example({"text": [b"\x1b[31mred\x07 \xe2\x80\xa8 javascript:alert(1)"]}), "31"),
]


class Words:
    """Shows tokens as text, some of it hostile."""

    name, digest = "words", "0" * 64

    def texts(self, ids):
        return [SCRIPT if each % 7 == 3 else "<tool_call>\n" for each in ids]


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@contextlib.contextmanager
def watched(browser, path, **more):
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
def test_every_view_renders_whatever_records_hold(browser, dataset, tmp_path):
    """On a laptop and a phone, light and dark."""
    records = [record for record, _ in HOSTILE]
    hostile = convert(tmp_path / '<img src=x onerror="hurt=4">', [records])
    datasets = {"web": loader.open(dataset), "<b>&x": loader.open(hostile)}
    batches = loader.global_batches(datasets, batch_size=8, epochs=4)
    asked = {"<b>&x": range(len(HOSTILE))}
    subject = {"datasets": datasets, "batches": batches, "records": asked}
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
        for number, (_, expected) in enumerate(HOSTILE):
            seen.go(f"#/record/%3Cb%3E%26x/{number}")
            seen.page.wait_for_load_state()
            assert expected in seen.text(".content")


@pytest.mark.slow
def test_from_a_step_to_a_record_and_what_is_not_there(browser, dataset, tmp_path):
    opened = loader.open(dataset)
    batches = loader.global_batches(opened, batch_size=8, seed=5)
    subject = {"datasets": {"": opened}, "batches": batches, "command": "again"}
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
        assert "again --steps 1000000" in seen.text(".panel")
        # The numbers of a chart are there without a mouse.
        seen.go("#/dataset")
        seen.tab_to("Show as text")
        press("Enter")
        counts = re.findall(r"bytes: (\d+) record", seen.text("figure pre"))
        assert sum(map(int, counts)) == len(opened)


@pytest.mark.slow
def test_trained_tokens_have_a_background(browser, tmp_path):
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


def test_a_page_is_written_and_opened(tmp_path, monkeypatch):
    path = convert(tmp_path, [[b"a", b"b"], [b"c"]])
    monkeypatch.chdir(tmp_path)
    told = tmp_path / "told"
    os.mkfifo(told)
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" > {told}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s &")
    done = run(f"view {path} --open")
    assert done.stdout == "d.view.html\n"
    assert told.read_text().strip() == (tmp_path / "d.view.html").as_uri()
    content = content_of(tmp_path / "d.view.html")
    assert content["datasets"][0]["records"] == 3
    run(f"view {path} --batch-size 2 --seed 5 --steps 7")
    steps = content_of(tmp_path / "d.view.html")["steps"]
    batches = loader.global_batches(loader.open(path), batch_size=2, seed=5)
    shown = [row["record"] for row in steps["7"]["rows"]]
    assert shown == batches.indices(7).tolist()
    why = "records of your choice"
    assert done.stderr == f"next ({why}): gristmill view {path} --records 0:10\n"
