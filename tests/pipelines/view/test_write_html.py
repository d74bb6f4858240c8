"""What the file of `--html` holds, without a browser; test_page.py opens it in one."""

from __future__ import annotations

import pathlib
import re

import numpy as np
import pytest

from gristmill import loader
from gristmill.pipelines.view import write_html as write_html_module
from gristmill.pipelines.view.answers.opened_datasets import Opened
from gristmill.pipelines.view.write_html import LIMIT_BYTES, write_html
from tests.pipelines.view.conftest import answers_in, png
from tests.support.datasets import convert
from tests.support.examples import tf_example

COMMAND = "gristmill view there"


@pytest.mark.slow
def test_a_file_holds_steps_of_the_whole_run_and_their_records(
    opened: Opened, tmp_path: pathlib.Path
) -> None:
    write_html(opened, str(tmp_path / "out.html"), command=COMMAND)
    data = (tmp_path / "out.html").read_bytes()
    held = answers_in(data)
    answers = held["answers"]
    assert answers["api/overview"]["records"] == 100
    # Step 12 has the last 4 records of the first epoch.
    assert [n for n in range(20) if f"api/step?step={n}" in answers] == [*range(13)]
    for row in answers["api/step?step=11"]["rows"]:
        assert answers[f"api/record?record={row['record']}"]["fields"]
        assert f"api/source?record={row['record']}" in answers
        seen = answers[f"api/seen?record={row['record']}"]["sightings"]
        assert {"epoch": 0, "step": 11, "row": row["row"]} in seen
    assert "13 steps" in held["about"]["left_out"]
    assert held["about"]["left_out"] == (
        "It holds 13 steps, 100 of 100 records, and 5 of 5 shards."
    )
    assert held["about"]["command"] == COMMAND


def counted_reads(
    dataset: loader.Dataset, monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """Returns a list that gets the sizes of the records which are read."""
    read, sizes = dataset.read, []

    def counted(indices: object) -> list[bytes]:
        found = read(indices)
        sizes.extend(map(len, found))
        return found

    monkeypatch.setattr(dataset, "read", counted)
    return sizes


def test_a_file_has_a_limit(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 6 MB of text; one record would take a large part of the room.
    texts = [f"{number} " + "x" * 19_000 for number in range(300)]
    texts[1] = "y" * 300_000
    records = [tf_example({"text": [text.encode()]}) for text in texts]
    dataset = loader.open(convert(tmp_path, [records]))
    read = counted_reads(dataset, monkeypatch)
    opened = Opened({"": dataset})
    path = tmp_path / "out.html"
    write_html(opened, str(path), command=COMMAND)
    data = path.read_bytes()
    assert 1_900_000 < len(data) <= LIMIT_BYTES
    held = answers_in(data)
    numbers = [n for n in range(300) if f"api/record?record={n}" in held["answers"]]
    assert numbers[:20] == list(range(20))
    assert 30 < len(numbers) < 100
    # All are in the histogram. Once the file is full, no others are tried.
    assert len(read) - 300 < len(numbers) + 60
    assert f"{len(numbers)} of 300 records" in held["about"]["left_out"]


@pytest.mark.slow
def test_an_unwritable_file_is_an_error(opened: Opened, tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_html(opened, str(tmp_path / "missing" / "out.html"), command=COMMAND)


@pytest.mark.slow
def test_a_mixture_in_which_a_dataset_loses_its_weight(tmp_path) -> None:
    opened = Opened({"": loader.open(convert(tmp_path, [[b"a"] * 40]))})
    parts = dict.fromkeys(("web", "code"), opened.datasets[""])
    batches = loader.global_batches(parts, batch_size=4)
    batches = batches.with_weights({"web": 1, "code": 0}, step=3)
    write_html(Opened(parts, batches), str(tmp_path / "page.html"), command=COMMAND)
    answers = answers_in((tmp_path / "page.html").read_bytes())["answers"]
    steps = batches.schedule.steps_until(0, epoch=1)
    assert answers["api/overview"]["order"]["epoch_steps"] == steps
    mixture = answers["api/mixture"]
    assert mixture["steps"] == list(range(steps + 1))
    assert mixture["shares"]["code"][3:] == [0] * (steps - 3)


def test_large_images_are_not_all_read_and_not_all_in_the_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_bytes = 2 << 20
    monkeypatch.setattr(write_html_module, "_READ_BYTES", limit_bytes)
    chance = np.random.default_rng(0)
    records = [
        tf_example({"label": [n], "image": [png(1) + chance.bytes(size)]})
        for n, size in enumerate(([150_000] * 4 + [20_000] * 4) * 13)
    ]
    dataset = loader.open(convert(tmp_path, [records]))
    batches = loader.global_batches(dataset, batch_size=4, shuffle="none")
    sizes = counted_reads(dataset, monkeypatch)
    write_html(Opened({"": dataset}, batches), str(tmp_path / "o"), command=COMMAND)
    data = (tmp_path / "o").read_bytes()
    held = answers_in(data)
    # Histograms are of all records, and the last record is read before it counts.
    rest = sum(sizes) - sum(map(len, records))
    assert limit_bytes < rest < 2 * limit_bytes + 200_000
    assert len(data) <= LIMIT_BYTES
    answers = held["answers"]
    about = held["about"]["left_out"]
    steps = [answers[f"api/step?step={n}"]["rows"] for n in range(26)]
    unread = [all(row["size_bytes"] is None for row in rows) for rows in steps]
    assert unread == [False] * (26 - sum(unread)) + [True] * sum(unread)
    assert 10 < sum(unread) < 26
    assert f"left out of {sum(unread)} steps, whose records" in about
    large, small = answers["api/record?record=0"], answers["api/record?record=4"]
    image, label = large["fields"]
    assert (image["shown"], label["shown"]) == ([None], [0])
    assert "no room" in image["cut"]
    assert small["fields"][0]["shown"][0].startswith("data:image/png")
    found = re.search(r"Images are left out of ([\d,]+) record", about)
    assert found is not None
    numbers = [n for n in range(104) if f"api/record?record={n}" in answers]
    assert int(found[1]) == sum(n % 8 < 4 for n in numbers) > 5


@pytest.mark.slow
def test_a_mixture_of_many_datasets_has_a_file(
    opened: Opened, tmp_path: pathlib.Path
) -> None:
    parts = {f"part {n}": opened.dataset() for n in range(120)}
    batches = loader.global_batches(parts, batch_size=64)
    write_html(Opened(parts, batches), str(tmp_path / "out.html"), command=COMMAND)
    data = (tmp_path / "out.html").read_bytes()
    assert len(data) <= LIMIT_BYTES
    answers = answers_in(data)["answers"]
    of = {
        name: [one.partition("of=")[2] for one in answers if f"api/{name}?" in one]
        for name in ("overview", "shard", "record")
    }
    assert 20 < len(of["overview"]) < 120
    assert 20 < len(of["shard"]) <= 200
    assert len(of["record"]) > 20
    # A record is shown below what is said of its dataset.
    assert {*of["record"], *of["shard"]} <= {*of["overview"]}
