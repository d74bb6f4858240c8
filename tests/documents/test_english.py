"""Docstrings, comments, messages and documents keep to the house's English.

A heading names its module, so it is a noun phrase. A docstring names the value that is
returned. Turns that only a translation has do not come back.
"""

import re

import pytest

from tests.support.distributions import ROOT

ALL = (
    "dataset",
    "loader",
    "pipelines",
    "transforms",
    "package",
    "benchmarks",
    "examples",
)
HEADING = re.compile(r'"""(What|Which|Whether|Where|How|When|Why)\b')

# A turn -> what to write instead.
TURNS = {
    r"(?<!--map )\b[Rr]eturns? what\b": 'name the value: "Returns the ..."',
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


def turns_in(text, turns):
    """Returns a line for each turn in a text that a native writer would not use."""
    flat = re.sub(r'" f?"', "", " ".join(text.split()))
    return [
        f"{flat[max(0, hit.start() - 30) : hit.end() + 30]!r}: write {instead}"
        for turn, instead in turns.items()
        for hit in re.finditer(turn, flat)
    ]


@pytest.mark.slow
def test_documents_and_helps_are_in_plain_english():
    bad = [
        f"{path.relative_to(ROOT)}: {fault}"
        for path in TEXTS
        for fault in turns_in(path.read_text("utf-8"), TURNS_OF_TEXTS)
    ]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("package", ALL)
def test_sources_are_in_plain_english(package):
    bad = []
    for path in sorted((ROOT / package).rglob("*.py")):
        text, name = path.read_text("utf-8"), path.relative_to(ROOT)
        if HEADING.match(text):
            bad.append(f"{name}: the heading asks, name the module's subject")
        bad += [f"{name}: {fault}" for fault in turns_in(text, TURNS)]
    assert not bad, "\n".join(bad)
