"""The pages of the API: every public name, from the code; and links to them.

A page ends with a comment `<!-- api: PACKAGE -->` and a note; in their place it gets
the package's public names. A name that two packages export is described in the first of
`FACES`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.inspect import stringify_signature
from sphinx.util.nodes import make_refnode

FACES = (
    "gristmill.dataset",
    "gristmill.loader",
    "gristmill.loader.maxtext",
    "gristmill.transforms",
    "gristmill.pipelines",
)
# What follows the comment is for those who read the page without the site.
MARK = re.compile(r"^<!-- api: ([\w.]+) -->$.*\Z", re.MULTILINE | re.DOTALL)
# How code names a package that it has imported.
_OF_PACKAGE = re.compile(
    r"^(?:(?:loader\.)?maxtext|loader|dataset|transforms|pipelines)\."
)
# Grain has one, too: only with its package is it known to be ours.
_OTHERS_TOO = {"ArrayRecordDataSource"}
# Names that can be no other word: `ReadRecords`, `global_batches`.
_SURE = re.compile(r"[A-Z][a-z]+[A-Z]|\w+_\w")
# What Beam calls.
_BEAMS = ("display_data", "expand")
# Methods by which a class is used, though their names are Python's.
_USED = ("__call__", "__getitem__", "__len__", "__iter__", "__next__", "__enter__")


def names_of(face: str) -> list[str]:
    """Returns the public names of a package, lazy ones too."""
    return sorted(dir(importlib.import_module(face)), key=str.lower)


@functools.cache
def homes() -> dict[str, str]:
    """Returns for each public name, `package.name`, the one it is described as."""
    known: list[tuple[Any, str]] = []
    found = {}
    for face in FACES:
        named = {
            name: getattr(importlib.import_module(face), name)
            for name in names_of(face)
        }
        # A class is described by its own name, and not by an alias.
        for name in sorted(
            named, key=lambda name: getattr(named[name], "__name__", name) != name
        ):
            value = named[name]
            full = f"{face}.{name}"
            home = next((at for seen, at in known if seen is value), full)
            found[full] = home
            if home == full:
                known.append((value, full))
    return found


def is_ours(value: Any) -> bool:
    """Whether a value is defined in a module of gristmill."""
    return str(getattr(value, "__module__", "")).partition(".")[0] == "gristmill"


def members_of(owner: type) -> Iterator[str]:
    """Yields the public methods and properties that a class has from gristmill."""
    for name, value in inspect.getmembers_static(owner):
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        value = getattr(value, "func", value)  # functools.cached_property
        if (name.startswith("_") and name not in _USED) or name in _BEAMS:
            continue
        if inspect.isfunction(value) and is_ours(value) and is_told(owner, name):
            yield name


def is_told(owner: type, name: str) -> bool:
    """Whether a method has a docstring, in gristmill: Beam's tell nothing to users."""
    bases = (vars(base).get(name) for base in owner.__mro__ if is_ours(base))
    return any(getattr(each, "__doc__", None) for each in bases)


def first_sentence(value: Any) -> str:
    """Returns the first line of a docstring, none for what is no class or function."""
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return ""
    return (
        (inspect.getdoc(value) or "")
        .partition("\n\n")[0]
        .replace("\n", " ")
        .replace("|", r"\|")
    )


def describe(face: str) -> str:
    """Returns the Markdown of a package: a table of its names, then each of them."""
    module = importlib.import_module(face)
    rows = ["| name | what it is |", "| --- | --- |"]
    rst = []
    for name in names_of(face):
        value, home = getattr(module, name), homes()[f"{face}.{name}"]
        if home != f"{face}.{name}":
            rows.append(f"| `{name}` | The same as `{home}`. |")
            continue
        rows.append(f"| `{name}` | {first_sentence(value)} |")
        if inspect.isclass(value):
            rst.append(f".. autoclass:: {home}")
            if value.__bases__ != (object,):
                rst.append("   :show-inheritance:")
            if members := list(members_of(value)):
                rst.append(f"   :members: {', '.join(members)}")
                special = [each for each in members if each.startswith("__")]
                if special:
                    rst.append(f"   :special-members: {', '.join(special)}")
        elif inspect.isroutine(value):
            rst.append(f".. autofunction:: {home}")
        else:
            rst += [f".. autodata:: {home}", "   :no-value:"]
        rst.append("")
    table, text = "\n".join(rows), "\n".join(rst)
    return f"{table}\n\n## Each of them\n\n```{{eval-rst}}\n{text}\n```\n"


def as_text(face: str) -> str:
    """Returns signatures and docstrings of a package's names, without any markup."""
    module = importlib.import_module(face)
    parts = []
    for name in names_of(face):
        value, home = getattr(module, name), homes()[f"{face}.{name}"]
        if home != f"{face}.{name}":
            parts.append(f"## {name}\n\nThe same as {home}.")
            continue
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            parts.append(f"## {name}\n\nA type: {value}.")
            continue
        parts.append(f"## {name}\n\n{told(name, value)}")
        for member in members_of(value) if inspect.isclass(value) else ():
            found = getattr(value, member)
            parts.append(f"### {name}.{member}\n\n{told(member, found)}")
    return "\n\n".join(parts)


def told(name: str, value: Any) -> str:
    """Returns the signature of a class or function, if any, and its docstring."""
    try:
        written = stringify_signature(inspect.signature(value))
        signature = f"`{name}{written}`\n\n"
    except (TypeError, ValueError):  # A property, or a class without one.
        signature = ""
    return signature + (inspect.getdoc(value) or "")


def add_names(app: Sphinx, docname: str, source: list[str]) -> None:
    """Puts the names of a package in the place of its comment."""
    del app, docname
    source[0] = MARK.sub(lambda match: describe(match[1]), source[0])


# --- Links to the names.


def described_as(
    target: str, env: BuildEnvironment, *, in_modules: bool = False
) -> str | None:
    """Returns the full name under which a target is described, None if it is not.

    Args:
        target: As texts write it: `Feed`, `loader.Feed`, `Feed.close`.
        env: Knows what has been described.
        in_modules: Whether it may be in a module of its package, as types are:
            `gristmill.loader.feed.feed.Feed`.
    """
    target = target.removesuffix("()")
    objects = env.domains.python_domain.objects
    if target in objects:
        return target
    parts = target.split(".")
    if parts[0] == "gristmill" and in_modules:
        names = [".".join(parts[first:]) for first in range(1, len(parts))]
    else:
        names = [_OF_PACKAGE.sub("", target.removeprefix("gristmill."))]
    for name in names:
        first, _, rest = name.partition(".")
        for face in FACES:
            home = homes().get(f"{face}.{first}")
            full = f"{home}.{rest}".rstrip(".")
            if home and full in objects:
                return full
    return None


def resolve(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, content: nodes.Node
) -> nodes.Node | None:
    """Links a type to where it is described; leaves those of other projects as text."""
    if node.get("refdomain") != "py":
        return None
    full = described_as(node["reftarget"], env, in_modules=True)
    short = nodes.literal if isinstance(content, nodes.literal) else nodes.inline
    content = short("", node["reftarget"].rpartition(".")[2])
    if full is None:
        # Types of libraries, variables of types, and what users never call.
        return content
    place = env.domains.python_domain.objects[full]
    return make_refnode(
        app.builder, node["refdoc"], place.docname, place.node_id, content, full
    )


class LinkNames(SphinxPostTransform):
    """Links code in a sentence that is a public name, such as `loader.global_batches`.

    Beside the API, names that may be another word, such as `open`, are not linked.
    """

    default_priority = 12

    def run(self, **kwargs: Any) -> None:
        """Called by Sphinx for each page."""
        del kwargs
        in_api = self.env.docname.startswith("docs/reference/api/")
        for text in list(self.document.findall(nodes.Text)) if in_api else ():
            if text == " -- ":  # Between an argument and what it is.
                text.parent.replace(text, nodes.Text(": "))
        for node in list(self.document.findall(nodes.literal)):
            text = node.astext()
            if not re.fullmatch(r"[A-Za-z_.]+(\(\))?", text) or self.is_linked(node):
                continue
            if "." not in text and not (in_api or re.match(_SURE, text)):
                continue
            if text in _OTHERS_TOO and not in_api:
                continue
            full = described_as(text, self.env)
            if full is None:
                continue
            place = self.env.domains.python_domain.objects[full]
            node.replace_self(
                make_refnode(
                    self.app.builder,
                    self.env.docname,
                    place.docname,
                    place.node_id,
                    node.deepcopy(),
                    full,
                )
            )

    @staticmethod
    def is_linked(node: nodes.Node) -> bool:
        """Whether a node lies in a link, a heading or a signature."""
        around = (nodes.reference, nodes.title, addnodes.desc_signature)
        while node is not None:
            if isinstance(node, around):
                return True
            node = node.parent
        return False


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", add_names)
    app.connect("missing-reference", resolve)
    app.add_post_transform(LinkNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
