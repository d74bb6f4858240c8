"""What users import: the faces, and what documents use of them."""

import ast
import collections
import importlib
import inspect
import pathlib
import pydoc
import re

import pytest

from gristmill.dataset.base import errors
from tests.documents.test_docs import blocks_of
from tests.support.distributions import ROOT

FACES = (
    "gristmill.dataset",
    "gristmill.loader",
    "gristmill.loader.maxtext",
    "gristmill.pipelines",
    "gristmill.transforms",
)
# Public, but not for `from face import *`: it would replace a builtin.
NOT_STARRED = {"gristmill.loader": {"open"}}

# They measure one part of gristmill by itself, which users do not call.
MEASURE_ONE_PART = {
    "benchmarks/gcs.py": "the client of the feed's reads, without the feed",
    "benchmarks/scale.py": "the plan and the commit of shards that were never made",
}


def public_names(face):
    listed = set(importlib.import_module(face).__all__)
    return listed | NOT_STARRED.get(face, set())


def face_source(face):
    path = importlib.import_module(face).__file__
    assert path is not None
    return ast.parse(pathlib.Path(path).read_text("utf-8"))


@pytest.mark.parametrize("face", FACES)
def test_public_names_are_sorted_and_exist(face):
    module = importlib.import_module(face)
    assert list(module.__all__) == sorted(module.__all__)
    for name in public_names(face):
        assert getattr(module, name) is not None


@pytest.mark.parametrize("face", FACES)
def test_type_checkers_see_the_same_names(face):
    homes = {
        alias.name: str(node.module)
        for branch in face_source(face).body
        if isinstance(branch, ast.If)
        for node in ast.walk(branch)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(homes) == public_names(face)
    for name, home in homes.items():
        assert defined_in(home, name), f"{home} imports {name} from elsewhere"
        value = getattr(importlib.import_module(face), name)
        assert value is getattr(importlib.import_module(home), name)


@pytest.mark.parametrize("face", FACES)
def test_a_name_that_is_not_there_is_an_attribute_error(face):
    with pytest.raises(AttributeError, match=f"'{face}' has no attribute 'Nothing'"):
        importlib.import_module(face).Nothing  # noqa: B018


def defined_in(module, name):
    path = importlib.import_module(module).__file__
    assert path is not None
    body = ast.parse(pathlib.Path(path).read_text("utf-8")).body
    return any(
        name == getattr(node, "name", None)
        or (isinstance(node, ast.Assign) and name == ast.unparse(node.targets[0]))
        or (isinstance(node, ast.AnnAssign) and name == ast.unparse(node.target))
        for node in body
    )


@pytest.mark.parametrize("face", FACES)
def test_no_public_name_is_that_of_a_module(face):
    # Importing the module would replace the name in the package.
    folder = pathlib.Path(str(importlib.import_module(face).__file__)).parent
    modules = {path.stem for path in folder.iterdir()}
    assert public_names(face) & modules == set()


def test_the_loader_has_few_names():
    assert len(public_names("gristmill.loader")) <= 30


@pytest.mark.parametrize(("kind", "most"), [("Dataset", 12), ("GlobalBatches", 14)])
def test_what_a_trainer_holds_has_few_names(kind, most):
    """Each of them is explained on a screen."""
    face = getattr(importlib.import_module("gristmill.loader"), kind)
    bases = (base for base in face.__mro__ if base.__module__.startswith("gristmill"))
    attributes = {name for base in bases for name in base.__annotations__}
    attributes |= {*inspect.signature(face).parameters}
    names = {name for name in {*dir(face)} | attributes if not name.startswith("_")}
    assert len(names) <= most
    for name in names - attributes:
        lines = pydoc.render_doc(getattr(face, name)).splitlines()
        assert len(lines) <= 40, f"help({kind}.{name})"


def test_every_error_is_public():
    found = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type)
        and value.__module__ == errors.__name__
        and not name.startswith("_")
    }
    assert all(issubclass(getattr(errors, n), errors.GristmillError) for n in found)
    assert found <= public_names("gristmill.dataset")


# --- What documents, examples and benchmarks use.


# A piece of Python: where it begins, and its source.
Code = collections.namedtuple("Code", "place source")
_HEREDOC = re.compile(r"cat > \S+\.py <<'(\w+)'\n(.*?)\n\1$", re.DOTALL | re.MULTILINE)
_DOTTED = re.compile(r"gristmill(?:\.\w+)+")


def code_of_document(path):
    """Yields the Python of a document: blocks, scripts in bash blocks, added lines."""
    for block in blocks_of(path.read_text("utf-8")):
        place = f"{path.relative_to(ROOT)}:{block.line}"
        if block.language == "python":
            yield Code(place, block.text)
        elif block.language == "bash":
            for script in _HEREDOC.finditer(block.text):
                yield Code(place, script[2])
        elif block.language == "diff":
            for line in block.text.splitlines():
                if re.match(r"\+\s*(from|import) ", line):
                    yield Code(place, line[1:].strip())


def wrong_names(pieces):
    """Returns the names of gristmill that the pieces use and no face lists.

    The pieces are of one document: a later one uses what an earlier one has imported.
    """
    wrong = []
    aliases = {}
    for piece in pieces:
        tree = ast.parse(piece.source)
        used = [*imported(tree, aliases), *attributes(tree, aliases)]
        texts = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        used += [name for text in texts for name in _DOTTED.findall(text)]
        wrong += [f"{piece.place}: {name}" for name in used if not is_public(name)]
    return wrong


def imported(tree, aliases):
    """Yields what is imported of gristmill, and notes the names of its modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "gristmill":
                    aliases[alias.asname or "gristmill"] = (
                        alias.name if alias.asname else "gristmill"
                    )
                    yield alias.name
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if module.partition(".")[0] == "gristmill":
                for alias in node.names:
                    name = f"{module}.{alias.name}"
                    if name in FACES:
                        aliases[alias.asname or alias.name] = name
                    yield name


def attributes(tree, aliases):
    """Yields what is used of a module of gristmill, and private attributes."""
    for node in ast.iter_child_nodes(tree):
        name = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        first, _, rest = name.partition(".")
        if first in aliases and re.fullmatch(r"[\w.]+", rest):
            yield f"{aliases[first]}.{rest}"
            continue
        if (
            isinstance(node, ast.Attribute)
            and re.match(r"_[a-z]", node.attr)
            and ast.unparse(node.value) not in {"cls", "os", "self"}
        ):
            yield name
        yield from attributes(node, aliases)


def is_public(name):
    """Whether a dotted name is a face, something in one, or an attribute of that."""
    if name in ("gristmill", "gristmill.__version__", *FACES):
        return True
    inside = [face for face in FACES if name.startswith(f"{face}.")]
    if not inside:
        return False
    face = max(inside, key=len)
    return name[len(face) + 1 :].partition(".")[0] in public_names(face)


@pytest.mark.parametrize(
    "document",
    [
        ROOT / "README.md",
        ROOT / "deploy" / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_documents_use_the_faces_only(document):
    assert wrong_names([*code_of_document(document)]) == []
    if document.name == "architecture.md":
        return  # It describes the modules behind the faces.
    text = document.read_text("utf-8")
    text = text.replace("gristmill.feed.", "")  # Names of metrics.
    # In traces of JAX; a label of images; what the site shows of click.
    directive = ".. click:: gristmill.pipelines.commands.main"
    for name in ("gristmill.wait", "gristmill.send", "gristmill.sources", directive):
        text = text.replace(name, "")
    assert [name for name in _DOTTED.findall(text) if not is_public(name)] == []


@pytest.mark.parametrize(
    "path",
    [*sorted((ROOT / "examples").glob("*.py")), *(ROOT / "benchmarks").glob("*.py")],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_examples_and_benchmarks_use_the_faces_only(path):
    place = path.relative_to(ROOT).as_posix()
    found = wrong_names([Code(place, path.read_text("utf-8"))])
    if place in MEASURE_ONE_PART:
        assert found, f"{place} needs no exception"
    else:
        assert found == []
