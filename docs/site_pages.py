"""What the pages need beside Markdown as GitHub has it: navigation, plain links."""

from __future__ import annotations

import html
import pathlib
import re
import textwrap
from typing import Any

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.config import Config

# An item of a list that begins with a link, such as `- [Packing](pack.md): rows`.
_ENTRY = re.compile(
    r"^- \[([^\]]*)\]\(([^)#:]+\.md)\)(?:: (.*(?:\n  .*)*))?", re.MULTILINE
)
# In HTML: tables, names in them, long names anywhere, and where these may break.
_TABLE = re.compile(r"<table.*?</table>", re.DOTALL)
_NAME = re.compile(r'(?<=<span class="pre">)[^<]+')
_LONG_NAME = re.compile(r'(?<=<span class="pre">)[^<]{25,}')
_BETWEEN = re.compile(r"([_./=,:;|](?=\w)|\w(?=\[))")
# Letters that search engines show of a description, about.
_DESCRIPTION = 200


def entries_of(markdown: str) -> list[tuple[str, str, str]]:
    """Returns what an index page lists: titles, pages and what they are for."""
    return [
        (title.replace("`", ""), page, " ".join(text.split()))
        for title, page, text in _ENTRY.findall(markdown)
    ]


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Makes the navigation of what the index pages list."""
    if docname != app.config.root_doc and not docname.endswith("/index"):
        return
    pages = "\n".join(f"{title} <{page}>" for title, page, _ in entries_of(source[0]))
    if pages:
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n\n{pages}\n```\n"


def leave_folders(app: Sphinx, doctree: nodes.document) -> None:
    """Makes text of links to folders of the repository: the site has no such pages."""
    for link in list(doctree.findall(addnodes.pending_xref)):
        if link["reftype"] != "myst":
            continue
        page = pathlib.Path(app.srcdir, link["refdoc"])
        if (page.parent / link["reftarget"]).is_dir():
            link.replace_self(link.children)


def describe_page(
    app: Sphinx,
    pagename: str,
    templatename: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Gives a page its first sentences as description, which search engines show."""
    del app, pagename, templatename
    found = doctree.findall(nodes.paragraph) if doctree else ()
    first = next(
        (each for each in found if isinstance(each.parent, nodes.section)), None
    )
    if first is not None:
        text = textwrap.shorten(first.astext(), _DESCRIPTION, placeholder=" …")
        content = html.escape(text)
        context["metatags"] += f'<meta name="description" content="{content}" />\n'


def break_names(
    app: Sphinx,
    pagename: str,
    templatename: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Lets names break between words: those in tables, and long ones elsewhere."""
    del app, pagename, templatename, doctree

    def broken(name: re.Match[str]) -> str:
        return _BETWEEN.sub(r'\1</span><wbr><span class="pre">', name[0])

    if "body" in context:
        body = _LONG_NAME.sub(broken, context["body"])
        context["body"] = _TABLE.sub(lambda table: _NAME.sub(broken, table[0]), body)


def name_version(app: Sphinx, config: Config) -> None:
    """Tells the menu of versions which of them this is."""
    del app
    config.html_theme_options["switcher"]["version_match"] = config.version


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("config-inited", name_version)
    app.connect("source-read", add_navigation)
    app.connect("doctree-read", leave_folders)
    app.connect("html-page-context", describe_page)
    app.connect("html-page-context", break_names)
    for language in ("mermaid", "proto", "promql"):
        app.add_lexer(language, TextLexer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
