"""How Sphinx makes the site of docs/: `python docs/build_site.py`.

The pages are Markdown that reads well on GitHub too: they link each other, and files of
the repository, by relative paths. So the source folder of Sphinx is the repository, and
what it takes from there is listed here.
"""

import pathlib
import re
from importlib import import_module

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx import addnodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

HERE = pathlib.Path(__file__).parent

project = "gristmill"
author = "the authors of gristmill"
project_copyright = author
_text = (HERE.parent / "package" / "__init__.py").read_text(encoding="utf-8")
version = release = re.search(r'^__version__ = "(.+)"$', _text, re.MULTILINE)[1]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_llms_txt",
]

# --- The pages.

root_doc = "README"
source_suffix = {".md": "markdown"}
include_patterns = [
    "docs/**",
    "deploy/*.md",
    "deploy/kubernetes/*.md",
    "benchmarks/README.md",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
]
# Sphinx reads no folder that is named here.
exclude_patterns = [".*", "**/.*", "build", "dist", "site", "tests", "**/__pycache__"]

# Headings have the names that GitHub gives them.
myst_heading_anchors = 4
myst_enable_extensions = ["tasklist"]
suppress_warnings = [
    # Reports may begin with smaller headings.
    "myst.header",
]
smartquotes = False
# An output with `$ command` or a message is no Python.
highlight_language = "text"

# --- The API, from the code.

default_role = "literal"
autoclass_content = "class"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 72
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

# --- The site.

html_theme = "pydata_sphinx_theme"
html_title = "gristmill"
html_static_path = ["site_style"]
html_css_files = ["site.css"]
# They have no pages beside them.
html_sidebars = {name: [] for name in ("README", "CHANGELOG", "CONTRIBUTING")}
html_favicon = "site_style/favicon.svg"
html_copy_source = True  # llms-full.txt is made of it.
html_show_sourcelink = False
html_show_sphinx = False
html_baseurl = ""
html_last_updated_fmt = None
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {"text": "gristmill"},
    "navbar_align": "left",
    "navbar_persistent": ["search-button-field"],
    "navbar_end": ["version-switcher", "theme-switcher"],
    # Beside the folders of all versions; build_site.py writes it.
    "switcher": {"json_url": "../switcher.json", "version_match": version},
    "check_switcher": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "use_edit_page_button": False,
    "header_links_before_dropdown": 5,
    "back_to_top_button": False,
    "pygments_light_style": "tango",
    "pygments_dark_style": "github-dark",
}
copybutton_prompt_text = "$ "
llms_txt_uri_template = "_sources/{docname}{suffix}{sourcelink_suffix}"

# --- What the pages need beside Markdown as GitHub has it.

FACES = (
    "gristmill.dataset",
    "gristmill.loader",
    "gristmill.loader.maxtext",
    "gristmill.transforms",
    "gristmill.pipelines",
)
# An item of a list that begins with a link, such as `- [Packing](pack.md): rows`.
_ENTRY = re.compile(r"^- \[([^\]]*)\]\(([^)#:]+\.md)\)", re.MULTILINE)
# Code that can only be ours: `loader.open`, `ReadRecords`, `global_batches`.
_OURS = re.compile(
    r"(?:gristmill\.)?(?:(loader|dataset|transforms|pipelines|maxtext)\.)?([\w.]+)(?:\(\))?"
)
_SURE = re.compile(r"[A-Z][a-z]+[A-Z]|\w+_\w")


def entries_of(markdown):
    """Returns what an index page lists: titles and pages."""
    return [(t.replace("`", ""), page) for t, page in _ENTRY.findall(markdown)]


def add_navigation(app, docname, source):
    """Makes the navigation of what the index pages list."""
    if docname == app.config.root_doc or docname.endswith("/index"):
        pages = "\n".join(f"{title} <{page}>" for title, page in entries_of(source[0]))
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n\n{pages}\n```\n" if pages else ""


def leave_folders(app, doctree):
    """Makes text of links to folders of the repository: the site has no such pages."""
    for link in list(doctree.findall(addnodes.pending_xref)):
        if link["reftype"] == "myst":
            page = pathlib.Path(app.srcdir, link["refdoc"])
            if (page.parent / link["reftarget"]).is_dir():
                link.replace_self(link.children)


def link_to(app, env, docname, name, content, faces=FACES):
    """Returns a link to a public name, None if no page describes it."""
    objects = env.domains.python_domain.objects
    for full in (f"{face}.{name}" for face in faces):
        if full in objects:
            place = objects[full]
            where = place.docname, place.node_id
            return make_refnode(app.builder, docname, *where, content, full)
    return None


def skip_again(app, what, name, value, skip, options):
    """Leaves out what the page of an earlier package describes."""
    page = pathlib.Path(app.env.docname).name
    home = next((face for face in FACES if name in dir(import_module(face))), page)
    return True if what == "module" and not home.endswith(page) else None


class LinkNames(SphinxPostTransform):
    """Links code in a sentence that is a public name, such as `loader.open`."""

    default_priority = 12

    def run(self):
        """Called by Sphinx for each page."""
        for node in list(self.document.findall(nodes.literal)):
            match = _OURS.fullmatch(node.astext())
            if not match or not ("." in match[0] or _SURE.match(match[2])):
                continue
            parent = node.parent
            while parent and not isinstance(parent, nodes.reference | nodes.title):
                parent = parent.parent
            faces = [face for face in FACES if face.endswith(match[1] or "")]
            where = self.app, self.env, self.env.docname, match[2]
            link = None if parent else link_to(*where, node.deepcopy(), faces)
            if link:
                node.replace_self(link)


def setup(app):
    """Called by Sphinx."""
    app.connect("source-read", add_navigation)
    app.connect("doctree-read", leave_folders)
    app.connect("autodoc-skip-member", skip_again)
    app.add_post_transform(LinkNames)
    for language in ("mermaid", "proto", "promql"):
        app.add_lexer(language, TextLexer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
