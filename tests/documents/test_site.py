"""The site of docs/: its links, its navigation, and what Sphinx makes of it."""

import html
import importlib
import json
import re
import shutil
import urllib.parse

import pytest

from docs import build_site
from docs.conf import entries_of, version
from gristmill.pipelines.commands.main import COMMANDS
from tests.documents.test_docs import ROOT
from tests.support import shared
from tests.test_faces import FACES, public_names

BESIDE = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md"]
# What the site shows, and what links to it.
PAGES = sorted(
    [
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "deploy").glob("*.md"),
        *(ROOT / name for name in BESIDE),
    ]
)
HOME = ROOT / "README.md"

_NAMED_FILE = re.compile(r"`((?:[\w.-]+/)+[\w-]+\.(?:md|py|sh|toml|ya?ml))`")


def test_files_that_pages_name_exist():
    pages = {*PAGES, *ROOT.glob("*.md"), *(ROOT / ".github").rglob("*.md")}
    pages.remove(ROOT / "CHANGELOG.md")  # It also names what is gone.
    named = {
        (page.relative_to(ROOT).as_posix(), path)
        for page in pages
        for path in _NAMED_FILE.findall(page.read_text("utf-8"))
        if (ROOT / path.partition("/")[0]).is_dir() and "NAME" not in path
    }
    assert len(named) > 30
    assert [each for each in sorted(named) if not (ROOT / each[1]).exists()] == []


def test_tests_that_pages_name_exist():
    """Each clause of the order has some."""
    modules = (ROOT / "tests").rglob("*.py")
    sources = "".join(path.read_text("utf-8") for path in modules)
    named = {
        name
        for page in PAGES
        for name in re.findall(r"`(test_\w+)`", page.read_text("utf-8"))
    }
    assert len(named) > 15
    assert named <= {*re.findall(r"def (test_\w+)", sources)}


def navigation(page=HOME):
    """Returns the pages that can be reached by the lists of index pages."""
    found = [page]
    if page == HOME or page.name == "index.md":
        for _, target in entries_of(page.read_text("utf-8")):
            found += navigation((page.parent / target).resolve())
    return found


def test_every_page_is_in_the_navigation_once():
    found = sorted(navigation())
    missing = sorted({*PAGES} - {*found})
    assert not missing, "add `- [Title](page.md): what it is for` to an index.md"
    assert found == PAGES


# --- What is built.


# The links of a page, what it loads, and what links can point to.
PARTS_OF_PAGES = {
    "links": r'<a\b[^>]*?\shref="([^"]*)"',
    "sources": r'<(?:img|script|iframe|source)\b[^>]*?\ssrc="([^"]*)"',
    "files": r'<link\b(?![^>]*rel="(?:canonical|author)")[^>]*?\shref="([^"]*)"',
    "anchors": r'\sid="([^"]*)"',
}


def parts_of(page):
    text = page.read_text("utf-8")
    return {
        name: {*map(html.unescape, re.findall(pattern, text))}
        for name, pattern in PARTS_OF_PAGES.items()
    }


def build_once(folder):
    """Builds the site of two made-up versions, of which one is a copy."""
    assert build_site.main([str(folder), "--jobs", "1"]) == 0
    shutil.copytree(folder / version, folder / "0.0.1")
    build_site.link_versions(folder)


@pytest.mark.first
@pytest.mark.slow
def test_site_is_built_without_a_warning(capfd):
    folder = shared.made_once("documentation", build_once)
    assert capfd.readouterr().err == ""
    menu = json.loads((folder / "switcher.json").read_text())
    assert [entry["url"] for entry in menu] == [f"/{version}/", "/0.0.1/"]
    site = folder / version

    # Every page has a title, and all of its links lead somewhere, without a network.
    pages = {
        path: parts_of(path)
        for path in site.rglob("*.html")
        if not path.is_relative_to(site / "_static")  # The theme's.
    }
    title = re.compile(r"<title>\s*\w.*</title>", re.DOTALL)
    untitled = [path for path in pages if not title.search(path.read_text("utf-8"))]
    assert untitled == []
    wrong = []
    assert len(pages) > 50
    for path, found in pages.items():
        loaded = found["sources"] | found["files"]
        for link in found["links"] | loaded:
            url = urllib.parse.urlsplit(link)
            if url.scheme or url.netloc:
                if link in loaded and url.scheme != "data":
                    wrong.append(f"{path}: outside part {link}")
                continue
            target = (path.parent / urllib.parse.unquote(url.path)).resolve()
            target = target if url.path else path
            anchor = urllib.parse.unquote(url.fragment)
            anchors = pages[target]["anchors"] if target in pages else {anchor}
            if not target.exists() or (anchor and anchor not in anchors):
                wrong.append(f"{path}: {link}")
    assert wrong == []
    for name in [*site.rglob("*.css"), *site.rglob("*.html")]:
        text = name.read_text("utf-8")
        assert not re.search(r"url\(\W?https?:|@import\W+https?:", text), name

    # The menu of versions knows the version, and finds the list of all of them.
    options = (site / "README.html").read_text("utf-8")
    assert f"theme_switcher_version_match = '{version}'" in options
    assert "theme_switcher_json_url = '../switcher.json'" in options

    # Every public name is described, and a page of its package shows it.
    objects = (site / "docs" / "reference" / "api").glob("*.html")
    shown = {name for path in objects for name in pages[path]["anchors"]}
    for face in FACES:
        for name in public_names(face):
            value = getattr(importlib.import_module(face), name)
            own = getattr(value, "__name__", name)  # Of an alias.
            names = {f"{each}.{one}" for each in FACES for one in (name, own)}
            assert names & shown, f"{face}.{name}"
    api = (site / "docs/train/loader.html").read_text("utf-8")
    assert 'href="../reference/api/loader.html#gristmill.loader.global_batches"' in api

    # What is linked is ours: `tf.data.Dataset` is another.
    pattern = re.compile(
        r'<a class="reference internal" href="[^"]*#(gristmill\.[^"]+)"[^>]*>'
        r'<code[^>]*><span class="pre">([^<]+)</span>'
    )
    packages = re.compile(r"(gristmill\.)?((loader|order|dataset|transforms)\.)*")
    linked = 0
    for path in pages:
        text = path.read_text("utf-8")
        text = text.replace('</span><wbr><span class="pre">', "")  # Names may break.
        for anchor, name in pattern.findall(text):
            linked += 1
            name = packages.sub("", name.removesuffix("()"), count=1)
            assert f"{anchor}.".endswith(f".{name}."), (path, anchor, name)
    assert linked > 100

    # Every command has its options.
    commands = (site / "docs/reference/cli.html").read_text("utf-8")
    for command in COMMANDS:
        assert f'id="gristmill-{command}"' in commands

    # Language models get each page as text.
    listed = (site / "llms.txt").read_text("utf-8")
    whole = (site / "llms-full.txt").read_text("utf-8")
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix()
        assert f"](_sources/{name}.txt)" in listed
        assert (site / "_sources" / f"{name}.txt").is_file()
        assert page.read_text("utf-8").splitlines()[0] in whole
