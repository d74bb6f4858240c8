"""What the search of the site looks through: the sections of all pages, as text.

`searchindex.js` of Sphinx says which words a page has, and its search wants all words
of a question on one page: it finds no message with the names and numbers of a user.
Here the file gets the text of each section, of each name of the API, and of each row of
tables in which one looks something up; docs/site_style/search_index.js ranks them.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from site_llms import pages_in_order
from sphinx import addnodes
from sphinx.application import Sphinx

# What pages count whose names begin so: who searches rarely wants them. Others: 1.
_WEIGHTS = {
    "CHANGELOG": 0.4,
    "CONTRIBUTING": 0.5,
    "benchmarks/": 0.4,
    "docs/concepts/architecture": 0.5,
    "docs/performance/": 0.6,
    "docs/reference/api/": 0.7,
    "docs/reference/c": 0.9,
    "docs/reference/environment": 1.4,
    "docs/reference/errors": 0.8,
}
# And if a message is pasted into the search.
_OF_MESSAGES = {"docs/reference/errors": 1.2, "docs/train/troubleshooting": 1.2}
# Pages whose tables one looks something up in: each row is found by itself.
_TABLES = re.compile(r"docs/reference/(?!api/|format)|docs/train/troubleshooting")
# A part of a page with a place of its own.
_PARTS = (nodes.section, nodes.row, addnodes.desc)
_LEFT_OUT = (nodes.title, nodes.comment, nodes.raw, addnodes.index, addnodes.toctree)


def weights_of(docname: str) -> tuple[float, float]:
    """Returns what a page counts for a question, and for a message."""
    found = (each for page, each in _WEIGHTS.items() if docname.startswith(page))
    weight = next(found, 1.0)
    return weight, _OF_MESSAGES.get(docname, weight)


def parts_of(
    node: nodes.Element, anchor: str = "", above: str = "", depth: int = 0
) -> Iterator[tuple[str, str, str]]:
    """Yields anchor, title and text of a part of a page, then of the parts in it.

    Args:
        node: The part; at first, the page.
        anchor: Of the part around it.
        above: The title of that, if it says more than the page's.
        depth: How many parts are around it.
    """
    title, cells = above, [node]
    if isinstance(node, nodes.section):
        anchor = node["ids"][0]
        title = text_of(node[node.first_child_matching_class(nodes.title)])
    elif isinstance(node, addnodes.desc):
        above = ""
        signature = node[node.first_child_matching_class(addnodes.desc_signature)]
        if signature["ids"]:
            anchor = title = signature["ids"][0]
    elif isinstance(node, nodes.row):
        anchor = node["ids"][0]
        title, cells = text_of(node[0]) or text_of(node), node.children[1:]
    inner: list[nodes.Element] = []
    text = " · ".join(filter(None, (text_of(cell, inner) for cell in cells)))
    yield anchor, f"{above}: {title}" if above else title, text
    for part in inner:
        yield from parts_of(part, anchor, title if depth > 1 else "", depth + 1)


def text_of(node: nodes.Element, inner: list[nodes.Element] | None = None) -> str:
    """Returns the text of a node; appends the parts in it, whose text is theirs."""
    text = "".join(texts_of(node, [] if inner is None else inner))
    return " ".join(text.split())


def texts_of(node: nodes.Node, inner: list[nodes.Element]) -> Iterator[str]:
    """Yields what `text_of` joins."""
    if isinstance(node, nodes.Text):
        yield ": " if node == " -- " else node.astext()
    elif isinstance(node, addnodes.desc_returns):
        yield " -> "
    elif isinstance(node, addnodes.desc_parameterlist):
        yield f"({', '.join(map(text_of, node))})"
        return
    for child in node.children:
        if isinstance(child, _LEFT_OUT):
            continue
        if isinstance(child, _PARTS) and (
            child["ids"] or not isinstance(child, nodes.row)
        ):
            inner.append(child)
        elif not isinstance(child, addnodes.pending_xref_condition) or (
            child["condition"] != "*"
        ):  # Of a type's two names, the short one.
            yield from texts_of(child, inner)
    if isinstance(node, addnodes.desc_signature) or not isinstance(
        node, (nodes.Inline, nodes.Text)
    ):
        yield " "


def name_rows(app: Sphinx, doctree: nodes.document) -> None:
    """Gives the rows of tables a place that a result can lead to."""
    if not _TABLES.match(app.env.docname):
        return
    for number, body in enumerate(doctree.findall(nodes.tbody), 1):
        for row, node in enumerate(body.findall(nodes.row), 1):
            node["ids"].append(f"row-{number}-{row}")


def write_index(app: Sphinx, error: Exception | None) -> None:
    """Writes the texts in the place of Sphinx's index."""
    if error is not None or app.builder.name != "html":
        return
    pages, parts = [], []
    for number, page in enumerate(pages_in_order(app)):
        link = app.builder.get_target_uri(page.docname)
        weights = weights_of(page.docname)
        pages.append([link, page.title, page.description, *weights])
        doctree = app.env.get_doctree(page.docname)
        parts += [[number, *part] for part in parts_of(doctree) if part[1]]
    data = {"pages": pages, "parts": parts}
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    path = pathlib.Path(app.outdir, "searchindex.js")
    path.write_text(f"SiteSearch.data = {text};\n", encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("doctree-read", name_rows)
    app.connect("build-finished", write_index)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
