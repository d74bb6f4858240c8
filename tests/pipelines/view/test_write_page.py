"""The page as one file, without a browser; test_page.py opens it in one."""

from __future__ import annotations

import base64
import hashlib
import pathlib
import re

from gristmill.pipelines.view import write_page
from gristmill.pipelines.view.write_page import page
from tests.pipelines.view.conftest import answers_in

FOLDER = pathlib.Path(write_page.__file__).resolve().parent / "page"
OURS = sorted(FOLDER.glob("*.js"))
# Of dist/echarts.common.min.js in echarts 6.1.0 as the npm registry has it.
ECHARTS = "61f13280aba3161f77fc801bf5f9c786f55f10432153a0683fc5cc0700b013d5"


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
