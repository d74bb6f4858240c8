"""What a page holds, compared with the dataset; test_page.py opens it in a browser."""

from __future__ import annotations

import base64
import itertools
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.formats.tfrecord_frames import encode_frame
from gristmill.pipelines.view.sections import histogram
from gristmill.pipelines.view.write_html import (
    LIMIT_BYTES,
    Subject,
    page,
    write_html,
)
from tests.commands.conftest import run
from tests.commands.view.conftest import DOCUMENTS, FILES, content_of, png
from tests.order.packed_datasets import STRIDE, tokens_of
from tests.support.datasets import convert
from tests.support.examples import tf_example
from tests.support.records import frames_of, write_array_records


def written(
    tmp_path: pathlib.Path, datasets: loader.Dataset | Mapping[str, Any], **more: Any
) -> dict[str, Any]:
    named = {"": datasets} if isinstance(datasets, loader.Dataset) else datasets
    write_html(Subject(datasets=named, **more), str(tmp_path / "page.html"))
    return content_of(tmp_path / "page.html")


def sections(content: dict[str, Any]) -> dict[str, Any]:
    """Returns the sections by their titles, or by the summaries of charts."""
    return {
        one["title"] or one["chart"]["summary"]: one.get("rows") or one.get("chart")
        for one in content["datasets"][0]["sections"]
    }


def chart_of(content: dict[str, Any], words: str) -> list[int]:
    """Returns the bars of the chart whose summary ends with some words."""
    found = sections(content)
    (summary,) = (title for title in found if title.endswith(f"{words}."))
    return [count for count, _ in found[summary]["bars"]]


def check_source(text: str, record: bytes) -> None:
    """Checks that a source names the file and the place of a record."""
    path, at = re.fullmatch(r"(.*), \w+ at byte offset ([\d,]+)", text).groups()
    data = pathlib.Path(path).read_bytes()
    assert data[int(at.replace(",", "")) :].startswith(encode_frame(record))


def test_records_have_their_fields_places_and_sources(
    dataset: str, records: list[bytes], tmp_path: pathlib.Path
) -> None:
    opened = loader.open(dataset)
    content = written(tmp_path, opened, records={"": range(len(records))})
    for number, record in enumerate(records):
        found = content["records"][""][str(number)]
        assert found["bytes"] == len(record)
        fields = {one["name"]: one["shown"] for one in found["fields"]}
        (image,) = fields.pop("image")
        assert fields == {
            "id": [number],
            "text": ["word " * (number % 9)],
            "weights": [0.5 * number, 1.0],
        }
        head, _, data = image.partition(",")
        assert head == "data:image/png;base64"
        assert base64.b64decode(data) == png(1 + number % 5)
        place = dict(one for one in found["place"] if one[0])
        assert place["shard"] == opened.shard(int(opened.find([number])[0][0])).path
        check_source(found["source"], record)
    shards = sections(content)["Shards"]
    assert [row[2] for row in shards] == [*FILES]
    assert [row[4] for row in shards] == [opened.shard(n).path for n in range(5)]
    assert sum(chart_of(content, "all 100 records")) == 100


def test_a_row_has_its_pieces_with_their_sources(
    packed: str, tmp_path: pathlib.Path
) -> None:
    opened = loader.open(packed)
    content = written(tmp_path, opened, records={"": range(len(opened))})
    seen = 0
    for row in content["records"][""].values():
        for piece in row["pieces"]:
            tokens = [token for token, _ in piece["tokens"]]
            document, first = divmod(tokens[0], STRIDE)
            assert tokens == [*range(tokens[0], tokens[0] + len(tokens))]
            size = piece["end"] - piece["begin"]
            assert (piece["first"], size) == (first, len(tokens))
            source = ", ".join(line for _, line in piece["source"])
            check_source(source, DOCUMENTS[document])
            seen += len(tokens)
    counts = opened.facts.packed
    assert counts is not None
    assert seen == counts.tokens
    # Those without a token are in no row.
    lengths = np.array([n for n in (len(tokens_of(one)) for one in DOCUMENTS) if n])
    chart = histogram(lengths, len(lengths), "document", "", "{:,.0f}".format)
    bars = [count for count, _ in chart["bars"]]
    assert chart_of(content, f"all {len(lengths)} documents") == bars


def test_splits_editions_and_earlier_datasets(tmp_path: pathlib.Path) -> None:
    records = [b"%d" % number * 9 for number in range(30)]
    output, again = tmp_path / "out", tmp_path / "again"
    for split, count in (("test", 4), ("train", 30), ("more", 7)):
        (tmp_path / split).write_bytes(frames_of(records[:count]))
    for split in ("test", "train"):
        run("convert", tmp_path / split, output, "--split", split, "--workers=1")
    run("append", output, tmp_path / "more", "--split=train", "--workers=1")
    found = sections(written(tmp_path, loader.open(output, split="train")))
    assert [row[:2] for row in found["Splits"]] == [["test", 4], ["train", 37]]
    assert [row[:2] for row in found["Editions"]] == [[1, 30], [2, 7]]
    files = found["Source files"]
    assert [row[0] for row in files] == [f"{tmp_path}/train", f"{tmp_path}/more"]
    run("convert", output, again, "--split=train", "--workers=1")
    found = sections(written(tmp_path, loader.open(again)))
    assert found["Source files"] == files


def test_files_without_a_description(tmp_path: pathlib.Path) -> None:
    records = [b"%d" % number for number in range(9)]
    write_array_records(tmp_path / "x.array_record", records)
    content = written(tmp_path, loader.open([str(tmp_path / "x.array_record")]))
    held = content["records"][""]
    shown = [one["fields"][0]["shown"] for one in held.values()]
    assert shown == [[f"{n}"] for n in range(9)]
    assert "were not stored" in held["0"]["source"]


def test_what_is_damaged_is_told_and_the_rest_is_shown(tmp_path: pathlib.Path) -> None:
    path = convert(tmp_path, [[b"%d" % n for n in range(10)] for _ in range(3)])
    opened = loader.open(path)
    damaged, gone = opened.shard(1), opened.shard(2)
    data = bytearray(pathlib.Path(damaged.path).read_bytes())
    data[opened.stored.offset_bytes(damaged.first_record) + 60] ^= 1
    pathlib.Path(damaged.path).write_bytes(data)
    pathlib.Path(gone.path).unlink()
    held = written(tmp_path, loader.open(path))["records"][""]
    assert held["0"]["fields"]
    assert {"what", "where"} <= dict(held[str(damaged.first_record)]["error"]).keys()
    assert dict(held[str(gone.first_record)]["error"])["where"] == gone.path


def test_a_page_has_a_limit_but_for_what_is_asked_for(tmp_path: pathlib.Path) -> None:
    texts = [f"{number} " + "x" * 19_000 for number in range(300)]
    images = [png(1) + bytes([n]) * 150_000 for n in range(2)]
    records = [tf_example({"text": [text.encode()]}) for text in texts]
    records += [tf_example({"image": [image]}) for image in images]
    opened = loader.open(convert(tmp_path, [records]))
    numbers = [*map(int, written(tmp_path, opened)["records"][""])]
    assert 1_900_000 < (tmp_path / "page.html").stat().st_size <= LIMIT_BYTES
    assert numbers[:32] == [*range(32)]
    assert 40 < len(numbers) < 110
    asked = [*range(150, 300), 301]
    held = written(tmp_path, opened, records={"": asked})["records"][""]
    assert {*asked} <= {*map(int, held)}
    assert held["301"]["fields"][0]["shown"][0].startswith("data:image/png")
    few = written(tmp_path, opened.select(np.arange(302) >= 298))["records"][""]
    (image,) = few["2"]["fields"]
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
def test_long_values_are_cut_and_say_so(
    tmp_path: pathlib.Path, record: bytes, shown: list[Any], cut: str | None
) -> None:
    held = written(tmp_path, loader.open(convert(tmp_path, [[record]])))["records"]
    (field,) = held[""]["0"]["fields"]
    assert (field["shown"], field["cut"]) == (shown, cut)


@pytest.mark.slow
def test_charts_of_many_shards_and_of_edge_cases(tmp_path: pathlib.Path) -> None:
    files = [[b"x" * 40_000 * (number % 3)] for number in range(101)]
    opened = loader.open(convert(tmp_path, files, compression="uncompressed"))
    assert sum(chart_of(written(tmp_path, opened), "all 101 shards")) == 101
    for numbers in ([7, 7], [0, 0, 5, 1000], [0]):
        chart = histogram(np.array(numbers), 9, "record", "x", str)
        assert sum(count for count, _ in chart["bars"]) == len(numbers)
        assert f"sample of {len(numbers)} of 9 records" in chart["summary"]


def test_a_page_runs_only_its_own_script() -> None:
    hostile = "</script><script>alert(1)</script><!-- \u2028 \ud83d and \U0001f600"
    text = page({"x": hostile}).decode()
    assert text.count("<script") == page({}).count(b"<script") == 2
    assert len(page({})) < 60_000
    markup = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", text, flags=re.DOTALL)
    assert re.findall(r"(?:src|href)=\"([^#][^\"]*)\"", markup) == ["data:,"]
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("):
        assert word not in text
    # Scripts are joined: a second function of a name would replace the first.
    names = sorted(re.findall(r"^(?:function|const|let) (\w+)", text, re.MULTILINE))
    assert all(one != other for one, other in itertools.pairwise(names))
