"""How Sphinx makes the site of docs/: `python docs/build_site.py`.

The pages are Markdown that reads well on GitHub too: they link each other, and files of
the repository, by relative paths. So the source folder of Sphinx is the repository, and
what it takes from there is listed here.
"""

import pathlib
import re
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))

project = "gristmill"
author = "the authors of gristmill"
project_copyright = author
_text = (HERE.parent / "package" / "__init__.py").read_text(encoding="utf-8")
version = release = re.search(r'^__version__ = "(.+)"$', _text, re.MULTILINE)[1]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "site_pages",
    "site_api",
    "site_llms",
    "site_search",
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
nitpicky = True

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
templates_path = ["site_templates"]
html_css_files = ["site.css"]
html_js_files = ["search_index.js", "search.js"]
# They have no pages beside them.
html_sidebars = {name: [] for name in ("README", "CHANGELOG", "CONTRIBUTING")}
html_favicon = "site_style/favicon.svg"
html_copy_source = False
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
    "switcher": {"json_url": "../switcher.json"},
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
