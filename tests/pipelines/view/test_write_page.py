"""The page as one file, without a browser; test_page.py opens it in one."""

from __future__ import annotations

import base64
import hashlib
import json
import pathlib
import re
from typing import Any

import pytest

from gristmill import loader
from gristmill.pipelines.view import write_page
from gristmill.pipelines.view.answers.opened import Opened
from gristmill.pipelines.view.write_page import LIMIT_BYTES, page, write_html
from tests.support.datasets import convert
from tests.support.examples import tf_example

FOLDER = pathlib.Path(write_page.__file__).resolve().parent / "page"
OURS = sorted(FOLDER.glob("*.js"))
# Of dist/echarts.common.min.js in echarts 6.1.0 as the npm registry has it.
ECHARTS = "61f13280aba3161f77fc801bf5f9c786f55f10432153a0683fc5cc0700b013d5"


def answers_in(data: bytes) -> dict[str, Any]:
    found = re.search(rb' id="answers">(.*?)</script>', data, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_library_is_the_release_unchanged() -> None:
    library = (FOLDER / "echarts" / "echarts.common.min.js").read_bytes()
    assert hashlib.sha256(library).hexdigest() == ECHARTS
    for name in ("LICENSE", "LICENSE-d3", "NOTICE"):
        assert (FOLDER / "echarts" / name).stat().st_size > 100


def test_the_page_is_one_file_that_runs_only_what_is_in_it() -> None:
    text = page().decode()
    assert len(page()) < 900_000
    markup = re.sub(r"<(script|style)>.*?</\1>", "", text, flags=re.DOTALL)
    assert len(markup) < 5_000
    assert re.findall(r"(?:src|href)=\"([^#][^\"]*)\"", markup) == ["data:,"]
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in policy[1].split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == "'self'"
    assert "unsafe" not in policy[1]
    for kind, tag in (("script", "script"), ("style", "style")):
        bodies = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        hashes = [hashlib.sha256(body.encode()).digest() for body in bodies]
        wanted = [f"'sha256-{base64.b64encode(each).decode()}'" for each in hashes]
        assert rules[f"{kind}-src"].split() == wanted


def test_the_scripts_put_nothing_into_the_page_as_markup() -> None:
    for path in OURS:
        code = path.read_text(encoding="utf-8")
        for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write"):
            assert word not in code, path
        assert not re.search(r"\beval\b|new Function|setTimeout\(\"", code), path
        assert "</script" not in code


def test_the_scripts_share_no_name() -> None:
    # They are joined into one: a second function of a name would replace the first.
    declared = r"^(?:async )?(?:function|const|let|class) (\w+)"
    code = "\n".join(path.read_text(encoding="utf-8") for path in OURS)
    names = re.findall(declared, code, re.MULTILINE)
    assert len(names) > 100
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_every_script_is_in_the_page() -> None:
    listed = re.findall(r'<script src="([^"]+)"', (FOLDER / "index.html").read_text())
    assert sorted(listed[1:]) == [path.name for path in OURS]
    assert listed[0] == "echarts/echarts.common.min.js"


def test_the_pictures_are_small_and_made_by_the_script() -> None:
    folder = pathlib.Path(__file__).parents[3] / "docs" / "prepare"
    text = (folder / "view.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^\]]+\]\((view_\w+\.png)\)", text)
    assert sorted(shown) == sorted(path.name for path in folder.glob("view_*.png"))
    script = (folder.parent / "screenshots.py").read_text(encoding="utf-8")
    for name in shown:
        assert (folder / name).stat().st_size < 150_000
        assert f'Shot("{name[5:-4]}"' in script


def test_what_an_answer_holds_cannot_end_its_element() -> None:
    hostile = "</script><script>alert(1)</script><!-- \u2028 \ud83d and \U0001f600"
    data = page({"api/record?record=0": {"text": hostile}}, {"made": "now"})
    held = answers_in(data)
    assert held["answers"]["api/record?record=0"] == {"text": hostile}
    assert held["about"] == {"made": "now"}
    assert data.count(b"<script") == page().count(b"<script") + 1


def test_a_file_holds_steps_of_the_whole_run_and_their_records(
    opened: Opened, tmp_path: pathlib.Path
) -> None:
    write_html(opened, str(tmp_path / "out.html"))
    data = (tmp_path / "out.html").read_bytes()
    held = answers_in(data)
    answers = held["answers"]
    assert answers["api/overview"]["records"] == 100
    # Step 12 has the last 4 records of the first epoch.
    assert [n for n in range(20) if f"api/step?step={n}&previews=1" in answers] == [
        *range(13)
    ]
    for row in answers["api/step?step=11&previews=1"]["rows"]:
        assert answers[f"api/record?record={row['record']}"]["fields"]
        assert f"api/source?record={row['record']}" in answers
        seen = answers[f"api/seen?record={row['record']}"]["sightings"]
        assert {"epoch": 0, "step": 11, "row": row["row"]} in seen
    assert "13 steps" in held["about"]["left_out"]
    assert "100 of 100 records" in held["about"]["left_out"]
    assert str(opened.dataset().path) in held["about"]["command"]


def test_a_file_has_a_limit(tmp_path: pathlib.Path) -> None:
    # 6 MB of text; one record would take a large part of the room.
    texts = [f"{number} " + "x" * 19_000 for number in range(300)]
    texts[1] = "y" * 300_000
    records = [tf_example({"text": [text.encode()]}) for text in texts]
    dataset = loader.open(convert(tmp_path, [records]))
    opened = Opened({"": dataset})
    path = tmp_path / "out.html"
    write_html(opened, str(path))
    data = path.read_bytes()
    assert 1_900_000 < len(data) <= LIMIT_BYTES
    held = answers_in(data)
    numbers = [n for n in range(300) if f"api/record?record={n}" in held["answers"]]
    assert numbers[:20] == list(range(20))
    assert 30 < len(numbers) < 100
    assert f"{len(numbers)} of 300 records" in held["about"]["left_out"]


def test_an_unwritable_file_is_an_error(opened: Opened, tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_html(opened, str(tmp_path / "missing" / "out.html"))


def test_a_mixture_in_which_a_dataset_loses_its_weight(tmp_path) -> None:
    opened = Opened({"": loader.open(convert(tmp_path, [[b"a"] * 40]))})
    parts = dict.fromkeys(("web", "code"), opened.datasets[""])
    batches = loader.global_batches(parts, batch_size=4)
    batches = batches.with_weights({"web": 1, "code": 0}, step=3)
    write_html(Opened(parts, batches), str(tmp_path / "page.html"))
    answers = answers_in((tmp_path / "page.html").read_bytes())["answers"]
    steps = batches.schedule.steps_until(0, epoch=1)
    assert answers["api/overview"]["order"]["epoch_steps"] == steps
    mixture = answers["api/mixture"]
    assert mixture["steps"] == list(range(steps + 1))
    assert mixture["shares"]["code"][3:] == [0] * (steps - 3)
