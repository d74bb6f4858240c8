"""Docstrings, comments, messages and documents keep to the house's English.

A heading names its module, so it is a noun phrase. A docstring names the value that is
returned. Turns that only a translation has do not come back.
"""

import ast
import io
import pathlib
import re
import tokenize

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = ("dataset", "loader", "pipelines", "transforms")
ALL = (*PACKAGES, "package", "benchmarks", "examples")
HEADING = re.compile(r"(What|Which|Whether|Where|How|When|Why)\b")

# A turn -> what to write instead.
TURNS = {
    r"\b[Rr]eturns? what\b": 'name the value: "Returns the ..."',
    r"\bTells whether\b": '"Returns whether ..."',
    r"\b(the|its|their) begin\b": '"the start" or "the beginning"',
    r"\bfor ever\b": '"forever"',
    r"\bis no UTF-8\b": '"is not UTF-8"',
}

# In documents, and in the texts of options and commands.
_A_SENTENCE = r"(?:^|(?<=[.:;|] )|(?<=\*\* ))"
TURNS_OF_TEXTS = {
    rf"{_A_SENTENCE}Of (?!course\b)[a-z]": "begin with the subject, or with For or In",
    r"\bMost (tokens|bytes|damaged|documents|pieces|rows) (of|to|that|in)\b": (
        '"Maximum number of ..."'
    ),
    r"\bwhat of (a|an|the)\b": '"the part of the ... that"',
    r"\bthe other way round\b": '"and back", "the reverse"',
    r"(?<!here )\b(is|are) no (text|number|integer|UTF-8|part of)\b": "is not",
    r"\bgo(es)? on (exactly|without|where|reading|from its)\b": "continues",
    r"\b[Bb]ehind (the last|all|a packer|each|them)\b": "after",
    r"\b(last|next) (line|step|one)? ?but one\b": '"second to last"',
    r"\b(are|is) to be others\b": '"change"',
    r"\bby (yours|others)\b": '"with yours", name who',
    r"\b[Ww]here others are\b": "name them",
    r"\bmakes (what is|the rest|global arrays|a dataset of)\b": '"writes", "creates"',
    r"(?<!says )(?<!in )\bwhat is (usual|left of|committed)\b": "use a noun",
    r"\b(are|is) not it\b": "name it",
    r"\bsay nothing on\b": '"print nothing to"',
}
TEXTS = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md")),
    *sorted((ROOT / "deploy").glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "pipelines" / "options").glob("*.py")),
    *sorted((ROOT / "pipelines" / "commands").glob("*.py")),
)


def turns_in(text):
    """Returns a line for each turn in a document, or in the strings of a module."""
    flat = re.sub(r'" f?"', "", " ".join(text.split()))
    return [
        f"{flat[max(0, hit.start() - 30) : hit.end() + 30]!r}: write {instead}"
        for turn, instead in TURNS_OF_TEXTS.items()
        for hit in re.finditer(turn, flat)
    ]


@pytest.mark.slow
def test_documents_and_helps_are_in_plain_english():
    bad = [
        f"{path.relative_to(ROOT)}: {fault}"
        for path in TEXTS
        for fault in turns_in(path.read_text(encoding="utf-8"))
    ]
    assert not bad, "\n".join(bad)


def prose(source):
    """Yields the line and the text of docstrings and comments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(
            node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        ):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, " ".join(text.split())
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def faults(source):
    """Returns a line for each turn in a source that a native writer would not use."""
    flat = " ".join(source.split())
    heading = flat.removeprefix('"""')
    found = []
    if HEADING.match(heading):
        found.append(f"1: the heading asks, name the module's subject: {heading[:60]}")
    if not any(re.search(turn, flat) for turn in TURNS):
        return found  # Parsing takes a hundred times as long as this look.
    for line, text in prose(source):
        for turn, instead in TURNS.items():
            if hit := re.search(turn, text):
                found.append(f"{line}: {hit.group()!r}: write {instead}")
    return found


@pytest.mark.parametrize("package", ALL)
def test_sources_are_in_plain_english(package):
    bad = [
        f"{path.relative_to(ROOT)}:{fault}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for fault in faults(path.read_text(encoding="utf-8"))
    ]
    assert not bad, "\n".join(bad)
