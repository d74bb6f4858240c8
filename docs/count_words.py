"""Counts the words that somebody has to read: `python -m docs.count_words`.

Tables and code count; what has no letter or digit, such as the bar of a table, is no
word. Measurements, generated parts, and tables that a test compares with the code do
not count.
"""

from __future__ import annotations

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]

# Words of all pages together.
MOST = 40_000
_BESIDE = ("README.md", "CONTRIBUTING.md")
_TABLES = {"environment.md", "metrics.md"}
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
# What a script writes into a page stands between such marks.
_WRITTEN = re.compile(r"<!-- (.+): begin -->.*?<!-- \1: end -->", re.DOTALL)


def words_of(markdown: str) -> int:
    """Returns the number of words in a page that a person wrote."""
    text = _COMMENT.sub("", _WRITTEN.sub("", markdown))
    return sum(any(map(str.isalnum, word)) for word in text.split())


def pages() -> list[pathlib.Path]:
    """Returns the pages that are counted."""
    docs = ROOT / "docs"
    return [
        *(ROOT / name for name in _BESIDE),
        *(
            path
            for path in sorted(docs.rglob("*.md"))
            if not path.is_relative_to(docs / "performance")
            and not path.is_relative_to(docs / "reference" / "api")
            and not (path.parent == docs / "reference" and path.name in _TABLES)
        ),
    ]


def counts() -> dict[str, int]:
    """Returns the words of each page, by its path in the repository."""
    return {
        path.relative_to(ROOT).as_posix(): words_of(path.read_text(encoding="utf-8"))
        for path in pages()
    }


def main() -> int:
    """Prints the words of each page and of all; returns 1 if these are too many."""
    found = counts()
    for name, words in sorted(found.items(), key=lambda each: -each[1]):
        print(f"{words:>7,}  {name}")
    total = sum(found.values())
    print(f"{total:>7,}  of at most {MOST:,}")
    return int(total > MOST)


if __name__ == "__main__":
    raise SystemExit(main())
