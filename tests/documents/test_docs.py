"""Every bash and python block of the README and docs/ runs as a reader would run it.

The blocks of one document become one Python script with the document's own line
numbers: python blocks stay where they are, each bash block becomes one call. It runs in
an empty directory in a fresh interpreter, with this environment's commands on the PATH.

`<!-- no-run: REASON -->` on the line before a fence excludes the block; so does
`<!-- ci: NAME -->`, because .ci/run itself runs that block. The reason `from PATH` is
for a part of a file of the repository, which has tests of its own.
"""

import collections
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest
from markdown_it import MarkdownIt

from tests.support.distributions import ROOT

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TIMEOUT_SECONDS = 240

# A fence of another language that a reader could run would escape this test.
RUNNABLE = {"bash", "python"}
QUIET = {
    "",
    "text",
    "json",
    "toml",
    "yaml",
    "dockerfile",
    "java",
    "mermaid",
    "proto",
    "{eval-rst}",
}

_SKIP = re.compile(r"<!-- (no-run: (from (?P<source>\S+)|\S.*)|ci: \w+) -->\s*$")


# A fenced block: its language, first line number (from 1) and text. `source` is the
# file that it is a part of, if the document says so.
Block = collections.namedtuple("Block", "language line text skipped source")


def blocks_of(markdown):
    """Returns the blocks of a document, also those in lists."""
    lines, before, blocks = markdown.splitlines(), "", []
    for token in MarkdownIt().parse(markdown):
        if token.type == "fence":
            begin, end = token.map
            assert lines[end - 1].strip() == "```", f"line {begin + 1} is never closed"
            skip = _SKIP.match(before)
            block = Block(
                language=token.info,
                line=begin + 2,
                text=token.content.rstrip(),
                skipped=skip is not None,
                source=skip["source"] if skip else None,
            )
            blocks.append(block)
        before = token.content
    return blocks


def script_of(blocks):
    """Returns the script that runs the blocks, each at its own line."""
    script = []
    for block in blocks:
        if block.skipped or block.language not in RUNNABLE:
            continue
        script += [""] * (block.line - 1 - len(script))
        if block.language == "python":
            script += block.text.splitlines()
        else:
            command = ["bash", "-euo", "pipefail", "-c", block.text]
            # Worker processes may import the script again: bash runs once. -3 is
            # subprocess.DEVNULL.
            script.append(
                "if __name__ == '__main__': __import__('subprocess')"
                f".run({command!r}, check=True, stdin=-3)"
            )
    return "\n".join(script) + "\n"


def run(document, folder):
    script = folder / f"{document.stem}.py"
    script.write_text(script_of(blocks_of(document.read_text("utf-8"))))
    work = folder / "work"
    work.mkdir()
    commands = pathlib.Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        # A program that several blocks run is compiled once.
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    return subprocess.run(
        [sys.executable, script],
        cwd=work,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "document",
    [one for one in DOCUMENTS if script_of(blocks_of(one.read_text("utf-8"))).strip()],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_document_runs(document, tmp_path):
    done = run(document, tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT))
)
def test_blocks_are_of_known_languages_and_as_in_their_sources(document):
    for block in blocks_of(document.read_text("utf-8")):
        assert block.language in RUNNABLE | QUIET, f"line {block.line}"
        if block.source is not None:
            source = (ROOT / block.source).read_text("utf-8")
            found = [block.text, textwrap.indent(block.text, "    ")]
            assert any(text in source for text in found), f"line {block.line}"


DOCUMENT = """\
# Title
```python
x = 1
```

1. In a list:

   ```bash
   echo "from bash" > said.txt
   ```

<!-- no-run: needs a cluster -->
```bash
exit 3
```

```python
assert x == 1
print(open("said.txt").read())
```
"""


@pytest.mark.parametrize(
    ("block", "code", "expected"),
    [
        ("", 0, "from bash"),
        ("```python\n\nraise KeyError('x')\n```", 1, 'doc.py", line 24'),
        ("```bash\nfalse | true\necho not reached\n```", 1, "returned non-zero"),
        ("<!-- a comment -->\n```bash\nexit 3\n```", 1, "exit status 3"),
    ],
)
def test_blocks_share_names_and_one_that_fails_fails_the_document(
    block, code, expected, tmp_path
):
    document = tmp_path / "doc.md"
    document.write_text(f"{DOCUMENT}\n{block}\n")
    done = run(document, tmp_path)
    assert done.returncode == code
    assert expected in done.stdout
    assert "\nnot reached" not in done.stdout


def test_gristmill_is_installed_from_the_clone():
    """No index has it: pip finds nothing by its name, or a package of someone else."""
    wrong = re.compile(r"""gristmill|^\.(?!$)|^['"]\.(?!\[)""")
    found = [
        f"{document.name}: {match[0]}"
        for document in DOCUMENTS
        for match in re.finditer(
            r"pip install ((?:-\S+ +)*)([^`\n#&]*)", document.read_text("utf-8")
        )
        if any(map(wrong.search, match[2].split()))
    ]
    assert found == []
