"""The search of the site: in Chromium, from files, with questions of users."""

import hashlib
import importlib
import re

import pytest
from docutils import nodes

from tests.support import shared
from tests.support.browser import LAPTOP, PHONE, chromium
from tests.test_docs import ROOT
from tests.test_site import build_once

# Of dist/umd/index.js in minisearch 7.2.0 as the npm registry has it.
MINISEARCH = "03c27931eb603af1d3358579e9885eafdb6a2f5fa9929557b3e77d7e99d06d03"
# What is typed, and the pages of which one is wanted among the first three.
QUESTIONS = {
    "resume": "tutorials/train train/loader",
    "out of memory": "reference/errors train/troubleshooting",
    "how many shards": "prepare/plan",
    "group size": "prepare/plan",
    "deterministic": "concepts/determinism",
    "determinsm": "concepts/determinism",
    "evaluatoin": "train/evaluation",
    "number of hosts": "concepts/determinism train/loader train/evaluation",
    "TFRecord": "prepare/inputs",
    "zstd": "prepare/plan",
    "429": "concepts/reliability train/storage train/waiting",
    "permission denied": "reference/errors deploy/iam train/troubleshooting",
    "MaxText": "train/maxtext",
    "slow": "train/troubleshooting",
    "why is my training slow?": "train/troubleshooting train/waiting",
    "shuffle quality": "prepare/plan concepts/determinism",
    "evaluation": "train/evaluation",
    "--group-size": "reference/cli",
    "--on-corrupt": "reference/cli",
    "GRISTMILL_": "reference/environment",
    "GRISTMILL_CACHE_DIR": "reference/environment",
    "GRISTMILL_CONVERT_GROUP_SIZE": "reference/cli",
    "global_batches": "reference/api/loader train/loader",
    "ExampleDecoder": "train/decoding reference/api/loader",
    "loader.open": "reference/api/loader train/loader",
    "StateMismatchError": "train/troubleshooting reference/errors",
    "checkpoint": "train/global_arrays tutorials/train train/loader",
    "loss spike": "train/troubleshooting reference/cli",
    "cost of dataflow": "deploy/cost",
    "hugging face": "prepare/hugging_face",
    "append records": "prepare/change reference/cli",
    "torchtitan": "train/frameworks",
    "prometheus": "train/waiting reference/metrics",
    "install": "README tutorials/install",
    "exit code": "reference/cli",
    "gristmill plan": "prepare/plan reference/cli",
    "/dev/shm": "train/troubleshooting reference/doctor",
    "tokenizer": "prepare/pack tutorials/own_documents",
    "orbax": "train/global_arrays",
    "glossary": "concepts/glossary",
    "s3": "reference/errors train/storage",
}
ASK = """async (questions) => {
    const found = [];
    for (const question of questions) {
        const { pages } = await SiteSearch.ask(question);
        found.push(pages.slice(0, 3).map(({ parts }) => {
            const { part } = parts[0];
            return [SiteSearch.placeOf(part), part.title];
        }));
    }
    return found;
}"""
WIDER = """() => [...document.querySelectorAll("main *")]
    .filter((each) => !each.closest("pre, .pst-scrollable-table-container"))
    .filter((each) => each.getBoundingClientRect().right > innerWidth + 1)
    .map((each) => each.textContent.trim())"""
# The first block of code, and tables, that cannot be read without scrolling.
CUT = """() => [document.querySelector("article pre"),
        ...document.querySelectorAll("article table")]
    .filter((each) => each)
    .map((each) => [each, each.tagName == "PRE" ? each : each.parentElement])
    .filter(([each, box]) => each.scrollWidth > box.clientWidth + 8)
    .map(([each]) => each.innerText.slice(0, 80))"""
SMALL_LAPTOP = {"width": 1300, "height": 850}
# An entry of the catalogue: its heading, and what the error said.
_ENTRY = re.compile(r"^### (.+)\n\n.+\n\n```text\n((?:.+\n)+)```", re.MULTILINE)


def messages() -> dict[str, tuple[str, str]]:
    """Returns class and text of the messages of docs/reference/errors.md by heading."""
    text = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    found = {}
    for section in text.split("\n## ")[1:]:
        kind = section.partition("\n")[0]
        for heading, message in _ENTRY.findall(section):
            heading = re.sub(r"\\(.)", r"\1", heading).replace("`", "")
            found[heading] = kind, message
    return found


def elsewhere(message: str) -> str:
    """Returns a message as another user has it: numbers, paths and names differ."""
    message = re.sub(r"0x[0-9a-f]{8}", "0x5eed0f1e", message)
    message = re.sub(r"(?<!\w)\d", "7", message)
    message = re.sub(r"(?<=\d)\d", "3", message)
    message = message.replace("'label'", "'caption'").replace("prometheus", "tiktoken")
    return message.replace("/data/", "gs://acme-eu/2031-04/").replace("c4", "pajama")


def test_the_library_is_the_release_unchanged() -> None:
    folder = ROOT / "docs" / "site_style" / "minisearch"
    library = (folder / "minisearch.js").read_bytes()
    assert hashlib.sha256(library).hexdigest() == MINISEARCH
    assert "Copyright" in (folder / "LICENSE.txt").read_text(encoding="utf-8")


def test_parts_of_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    site_search = importlib.import_module("site_search")
    cells = [nodes.entry("", nodes.paragraph(text=text)) for text in ("--n", "how", "")]
    row = nodes.row("", *cells, ids=["row-1-1"])
    inner = nodes.section("", nodes.title(text="Run"), row, ids=["run"])
    code = nodes.paragraph("", "", nodes.Text("all "), nodes.literal(text="x"))
    outer = nodes.section("", nodes.title(text="More"), code, inner, ids=["more"])
    page = nodes.section("", nodes.title(text="Page"), outer, ids=["page"])
    document = nodes.document(None, None, "", page)
    assert list(site_search.parts_of(document)) == [
        ("", "", ""),
        ("page", "Page", ""),
        ("more", "More", "all x"),
        ("run", "More: Run", ""),
        ("row-1-1", "Run: --n", "how"),
    ]
    assert site_search.weights_of("docs/train/loader") == (1, 1)
    question, message = site_search.weights_of("docs/reference/errors")
    assert question < 1 < message


@pytest.mark.first
@pytest.mark.slow
def test_pages_that_users_want_are_found_first() -> None:
    site = shared.made_once("documentation", build_once) / "7.0"
    known = messages()
    assert len(known) > 40
    pasted = [f"{kind}: {elsewhere(text)}" for kind, text in known.values()]
    lines = [elsewhere(text).partition("\n")[0] for _, text in known.values()]
    asked: list[str] = []
    with chromium() as browser:
        page = browser.new_context(viewport=LAPTOP).new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{(site / 'search.html').as_uri()}?q=group+size")
        page.wait_for_selector("#search-results li")
        found = page.evaluate(ASK, [*QUESTIONS, *pasted, *lines])
        # The list of versions cannot be read from files.
        assert not page.locator(".version-switcher__button").first.is_visible()
        page.fill("main input[name=q]", "qqqq")
        page.wait_for_selector("text=Nothing is found")

        # By keys, from a page within: the dialog, a result, its place on the page.
        page = browser.new_context(viewport=PHONE).new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "docs/train/loader.html").as_uri())
        page.keyboard.press("Control+k")
        page.keyboard.insert_text(pasted[0])
        page.wait_for_selector("#pst-search-dialog li")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_url("**/reference/errors.html#no-input-file-matches")
        assert page.locator("#no-input-file-matches").is_visible()

        # But code and tables, which scroll, nothing is wider than the phone; names in
        # tables stay whole.
        names = ("reference/api/loader", "reference/cli", "train/maxtext")
        for name in names:
            page.goto((site / f"docs/{name}.html").as_uri())
            assert page.evaluate(WIDER) == [], name
        page.goto((site / "docs/reference/api/loader.html").as_uri())
        longest = page.locator("table code", has_text="ArrayRecordDataSource").first
        assert longest.evaluate("code => code.getClientRects().length") == 1
    ours = (site.parent.as_uri(), "data:")
    assert [url for url in asked if not url.startswith(ours)] == []

    wrong = []
    answers = iter(found)
    for question, wanted in QUESTIONS.items():
        places = [place for place, _ in next(answers)]
        names = [each.removeprefix("docs/") for each in places]
        if not any(name.startswith(tuple(wanted.split())) for name in names):
            wrong.append(f"{question}: {places}")
    # A whole message leads to its entry; its first line may be a row of a table, too.
    for heading, question in zip(known, pasted, strict=True):
        place, title = next(answers)[0]
        if not (place.startswith("docs/reference/errors.html") and heading in title):
            wrong.append(f"{question}: {place} {title}")
    pages = ("docs/reference/errors.html", "docs/train/troubleshooting.html")
    for question in lines:
        place, title = next(answers)[0]
        if not place.startswith(pages):
            wrong.append(f"{question}: {place} {title}")
    assert wrong == []


@pytest.mark.first
@pytest.mark.slow
def test_first_commands_and_tables_fit_a_small_laptop() -> None:
    """Measurements are left out: their tables have as many columns as they need."""
    site = shared.made_once("documentation", build_once) / "7.0"
    cut = {}
    with chromium() as browser:
        page = browser.new_context(viewport=SMALL_LAPTOP).new_page()
        for path in sorted([site / "README.html", *site.glob("d*/**/*.html")]):
            name = path.relative_to(site).as_posix()
            if "/performance/" in name or "/api/" in name:
                continue
            page.goto(path.as_uri())
            found = page.evaluate(CUT)
            if found:
                cut[name] = found
    assert cut == {}
