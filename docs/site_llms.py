"""The pages as text for language models: `llms.txt`, `llms-full.txt`, a `.md` of each.

`llms.txt` (https://llmstxt.org) lists the pages in the order of the navigation, each
with a line that says what it is for; `llms-full.txt` has all of their text.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from site_api import MARK, as_text
from site_pages import entries_of
from sphinx.application import Sphinx


class Page(NamedTuple):
    """A page, and what the page that lists it says of it."""

    docname: str
    title: str
    description: str


def pages_in_order(app: Sphinx) -> Iterator[Page]:
    """Yields all pages, in the order of the navigation."""
    yield Page(app.config.root_doc, "Start here", "install, convert, feed")
    yield from pages_below(app, app.config.root_doc)


def pages_below(app: Sphinx, docname: str) -> Iterator[Page]:
    """Yields the pages that an index page lists, and those below them, in order."""
    for title, target, description in entries_of(source_of(app, docname)):
        path = pathlib.Path(app.srcdir, docname).parent / target
        name = path.resolve().relative_to(app.srcdir).with_suffix("").as_posix()
        yield Page(name, title, description)
        if path.name == "index.md":
            yield from pages_below(app, name)


def source_of(app: Sphinx, docname: str) -> str:
    """Returns the Markdown of a page."""
    return pathlib.Path(app.srcdir, f"{docname}.md").read_text(encoding="utf-8")


def text_of(app: Sphinx, docname: str) -> str:
    """Returns a page as text: its Markdown, or what was made of the code."""
    source = source_of(app, docname)
    return MARK.sub(lambda match: as_text(match[1]), source)


def write_texts(app: Sphinx, error: Exception | None) -> None:
    """Writes the files when the site has been built."""
    if error is not None or app.builder.name != "html":
        return
    out = pathlib.Path(app.outdir)
    home = source_of(app, app.config.root_doc)
    title, summary, _ = home.split("\n\n", 2)
    listed = [title, "", *(f"> {line}" for line in summary.splitlines()), ""]
    whole = []
    folders = 0
    for page in pages_in_order(app):
        if page.docname == app.config.root_doc or re.fullmatch(
            r"docs/\w+/index", page.docname
        ):
            folders += 1
            listed += ["", f"## {page.title}", ""]
        elif "/" not in page.docname and folders > 1:
            # By the convention, what may be left out where there is little room.
            folders = 0
            listed += ["", "## Optional", ""]
        note = f": {page.description}" if page.description else ""
        listed.append(f"- [{page.title}]({page.docname}.md){note}")
        text = text_of(app, page.docname).strip() + "\n"
        path = out / f"{page.docname}.md"
        path.write_text(text, encoding="utf-8")
        whole.append(f"<!-- {page.docname}.md -->\n\n{text}")
    (out / "llms.txt").write_text("\n".join(listed) + "\n", encoding="utf-8")
    (out / "llms-full.txt").write_text("\n\n".join(whole), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("build-finished", write_texts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
