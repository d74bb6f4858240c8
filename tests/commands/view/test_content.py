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
from gristmill.loader.data.batches import order_text
from gristmill.pipelines.view.sections import histogram
from gristmill.pipelines.view.write_html import (
    LIMIT_BYTES,
    Subject,
    page,
    write_html,
)
from tests.commands.view.conftest import DOCUMENTS, FILES, content_of, png
from tests.support.conversion import convert as converted
from tests.support.conversion import job_of
from tests.support.datasets import convert
from tests.support.examples import tf_example
from tests.support.packed_datasets import STRIDE, tokens_of
from tests.support.records import frames_of, write_array_records


def written(
    tmp_path: pathlib.Path, datasets: loader.Dataset | Mapping[str, Any], **more: Any
) -> dict[str, Any]:
    named = {"": datasets} if isinstance(datasets, loader.Dataset) else datasets
    write_html(Subject(datasets=named, **more), str(tmp_path / "page.html"))
    return content_of(tmp_path / "page.html")


def section(content: dict[str, Any], title: str) -> dict[str, Any]:
    (described, *_) = content["datasets"]
    return next(one for one in described["sections"] if one["title"] == title)


def chart_of(content: dict[str, Any], word: str) -> dict[str, Any]:
    """Returns the chart whose summary has a word."""
    charts = (one.get("chart") for one in content["datasets"][0]["sections"])
    (found,) = (one for one in charts if one and word in one["summary"])
    return found


def bars_of(chart: dict[str, Any]) -> list[int]:
    return [count for count, _ in chart["bars"]]


def place_of(text: str) -> int:
    found = re.search(r"byte offset ([\d,]+)", text)
    assert found is not None
    return int(found[1].replace(",", ""))


def test_records_have_their_fields_places_and_sources(
    dataset: str, records: list[bytes], tmp_path: pathlib.Path
) -> None:
    numbers = range(len(records))
    opened = loader.open(dataset)
    content = written(tmp_path, opened, records={"": numbers})
    for number, record in enumerate(records):
        found = content["records"][""][str(number)]
        assert found["bytes"] == len(record)
        fields = {one["name"]: one for one in found["fields"]}
        assert fields["id"]["shown"] == [number]
        assert fields["text"]["shown"] == ["word " * (number % 9)]
        assert fields["weights"]["shown"] == [0.5 * number, 1.0]
        head, _, data = fields["image"]["shown"][0].partition(",")
        assert head == "data:image/png;base64"
        assert base64.b64decode(data) == png(1 + number % 5)
        place = dict(one for one in found["place"] if one[0])
        assert place["shard"] == opened.shard(int(opened.find([number])[0][0])).path
        source = pathlib.Path(place["source"]).read_bytes()
        frame = encode_frame(record)
        begin = place_of(found["source"])
        assert source[begin : begin + len(frame)] == frame
    shards = section(content, "Shards")["rows"]
    assert [row[2] for row in shards] == [*FILES]
    assert [row[4] for row in shards] == [opened.shard(n).path for n in range(5)]
    assert sum(bars_of(chart_of(content, "all 100 records"))) == 100


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
            assert (piece["first"], piece["end"] - piece["begin"]) == (
                first,
                len(tokens),
            )
            (_, path), (_, place) = piece["source"]
            data = pathlib.Path(path).read_bytes()
            assert data[place_of(place) :].startswith(encode_frame(DOCUMENTS[document]))
            seen += len(tokens)
    counts = opened.packed_counts()
    assert counts is not None
    assert seen == counts.tokens
    # Those without a token are in no row.
    lengths = np.array([n for n in (len(tokens_of(one)) for one in DOCUMENTS) if n])
    chart = chart_of(content, f"all {len(lengths)} documents")
    expected = histogram(
        lengths, len(lengths), "document", chart["title"], "{:,.0f}".format
    )
    assert bars_of(chart) == bars_of(expected)


@pytest.mark.slow
def test_rows_of_steps_are_those_of_the_feed(tmp_path: pathlib.Path) -> None:
    datasets = {}
    for name, shards in {"web": (20, 11), "code": (9, 0, 8)}.items():
        files = [
            [b"%b %d.%d" % (name.encode(), n, i) for i in range(records)]
            for n, records in enumerate(shards)
        ]
        datasets[name] = loader.open(convert(tmp_path / name, files, name=name))
    weights = {"web": 3, "code": 1}
    batches = loader.global_batches(datasets, batch_size=4, seed=3, weights=weights)
    batches = batches.then(weights={"web": 1, "code": 1}, step=6).then(
        batch_size=6, step=9
    )
    content = written(tmp_path, datasets, batches=batches, steps=range(14))
    assert content["order"] == order_text(batches)
    assert [one["title"] for one in content["datasets"]] == ["web", "code"]
    with batches.feed(host=(0, 1)) as feed:
        for step in range(14):
            found, rows = content["steps"][str(step)], list(next(feed))
            assert found["count"] == len(rows) == (6 if step >= 9 else 4)
            for row, data in zip(found["rows"], rows, strict=True):
                assert datasets[row["of"]][row["record"]] == data
                assert (row["bytes"], row["preview"]) == (len(data), data.decode())
                place = pathlib.Path(row["source"].partition(",")[0]).read_bytes()
                assert place[place_of(row["source"]) :].startswith(encode_frame(data))
    epochs = {
        row["epoch"] for step in content["steps"].values() for row in step["rows"]
    }
    assert epochs >= {0, 1}


def test_splits_editions_and_earlier_datasets(
    tmp_path: pathlib.Path, output: str
) -> None:
    records = [b"%d" % number * 9 for number in range(30)]
    for split, count in (("test", 4), ("train", 30)):
        (tmp_path / split).write_bytes(frames_of(records[:count]))
        converted(job_of(tmp_path / split, output, split=split))
    (tmp_path / "more").write_bytes(frames_of(records[:7]))
    converted(job_of(tmp_path / "more", output, appends=True))
    content = written(tmp_path, loader.open(output, split="train"))
    splits = section(content, "Splits")["rows"]
    assert [row[:2] for row in splits] == [["test", 4], ["train", 37]]
    editions = section(content, "Editions")["rows"]
    assert [row[:2] for row in editions] == [[1, 30], [2, 7]]
    files = section(content, "Source files")["rows"]
    assert [row[0] for row in files] == [
        str(tmp_path / "train"),
        str(tmp_path / "more"),
    ]
    again = tmp_path / "again"
    converted(job_of(output, again, split="train"))
    content = written(tmp_path, loader.open(again))
    assert section(content, "Source files")["rows"] == files


def test_files_without_a_description(tmp_path: pathlib.Path) -> None:
    records = [b"%d" % number for number in range(9)]
    write_array_records(tmp_path / "x.array_record", records)
    content = written(tmp_path, loader.open([str(tmp_path / "x.array_record")]))
    held = content["records"][""]
    assert [one["fields"][0]["shown"] for one in held.values()] == [
        [f"{n}"] for n in range(9)
    ]
    assert "were not stored" in held["0"]["source"]


def test_what_is_damaged_is_told_and_the_rest_is_shown(tmp_path: pathlib.Path) -> None:
    (tmp_path / "in").write_bytes(frames_of([b"%d" % n for n in range(30)]))
    converted(job_of(tmp_path / "in", tmp_path / "out", plan=("num_shards", 3)))
    opened = loader.open(tmp_path / "out")
    damaged, gone = opened.shard(1), opened.shard(2)
    data = bytearray(pathlib.Path(damaged.path).read_bytes())
    data[opened.offset_bytes(damaged.first_record) + 60] ^= 1
    pathlib.Path(damaged.path).write_bytes(data)
    pathlib.Path(gone.path).unlink()
    content = written(tmp_path, loader.open(tmp_path / "out"))
    held = content["records"][""]
    assert held["0"]["fields"]
    assert {"what", "where"} <= dict(held[str(damaged.first_record)]["error"]).keys()
    assert dict(held[str(gone.first_record)]["error"])["where"] == gone.path


def test_a_page_has_a_limit_but_for_what_is_asked_for(tmp_path: pathlib.Path) -> None:
    texts = [f"{number} " + "x" * 19_000 for number in range(300)]
    images = [png(1) + bytes([n]) * 150_000 for n in range(2)]
    records = [tf_example({"text": [text.encode()]}) for text in texts]
    records += [tf_example({"image": [image]}) for image in images]
    opened = loader.open(convert(tmp_path, [records]))
    held = written(tmp_path, opened)["records"][""]
    assert 1_900_000 < (tmp_path / "page.html").stat().st_size <= LIMIT_BYTES
    numbers = [*map(int, held)]
    assert numbers[:32] == [*range(32)]
    assert 40 < len(numbers) < 110
    asked = [*range(150, 300), 301]
    held = written(tmp_path, opened, records={"": asked})["records"][""]
    assert {*asked} <= {*map(int, held)}
    assert held["301"]["fields"][0]["shown"][0].startswith("data:image/png")
    few = written(tmp_path, opened.select(np.arange(302) >= 298))["records"][""]
    assert (few["2"]["fields"][0]["shown"], few["2"]["fields"][0]["cut"]) == (
        [None],
        "large images; --records has them",
    )


def test_long_values_are_cut_and_say_so(tmp_path: pathlib.Path) -> None:
    records = [
        b"x" * 30_000,
        bytes(1000),
        tf_example({"a": list(range(300))}),
        tf_example({"b": [2**63 - 1, 1], "c": [float("nan")]}),
    ]
    held = written(tmp_path, loader.open(convert(tmp_path, [records])))["records"][""]
    text, data, numbers, large = (held[str(n)]["fields"] for n in range(4))
    assert (len(text[0]["shown"][0]), text[0]["cut"]) == (
        20_000,
        "10,000 more characters",
    )
    assert (data[0]["shown"], data[0]["cut"]) == (
        [bytes(512).hex(" ")],
        "488 more bytes",
    )
    assert (numbers[0]["shown"], numbers[0]["cut"]) == ([*range(256)], "44 more values")
    # JavaScript would round the one, and JSON has not the other.
    assert [one["shown"] for one in large] == [[str(2**63 - 1), 1], ["nan"]]


@pytest.mark.slow
def test_charts_of_many_shards_and_of_edge_cases(tmp_path: pathlib.Path) -> None:
    files = [[b"x" * 40_000 * (number % 3)] for number in range(101)]
    opened = loader.open(convert(tmp_path, files, compression="uncompressed"))
    content = written(tmp_path, opened)
    assert sum(bars_of(chart_of(content, "all 101 shards"))) == 101
    for numbers in ([7, 7], [0, 0, 5, 1000], [0]):
        chart = histogram(np.array(numbers), 9, "record", "x", str)
        assert sum(bars_of(chart)) == len(numbers)
        assert f"sample of {len(numbers)} of 9 records" in chart["summary"]


def test_a_page_runs_only_its_own_script() -> None:
    hostile = "</script><script>alert(1)</script><!-- \u2028 \ud83d and \U0001f600"
    text = page({"x": hostile}).decode()
    assert text.count("<script") == page({}).count(b"<script") == 2
    assert len(page({})) < 60_000
    markup = re.sub(r"<(script|style)[^>]*>.*?</\1>", "", text, flags=re.DOTALL)
    assert re.findall(r"(?:src|href)=\"([^#][^\"]*)\"", markup) == ["data:,"]
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("):
        assert word not in text
    # Scripts are joined: a second function of a name would replace the first.
    names = re.findall(r"^(?:function|const|let) (\w+)", text, re.MULTILINE)
    assert [
        name for name, some in itertools.groupby(sorted(names)) if len([*some]) > 1
    ] == []
