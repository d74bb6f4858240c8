"""The reports of docs/performance, made again of the runs that are kept beside them.

python -m benchmarks.reports
"""

from __future__ import annotations

import importlib
import json
import pathlib
from collections.abc import Iterator

from benchmarks.contest import replace_between

FOLDER = pathlib.Path(__file__).parents[1] / "docs" / "performance"
_RENDERERS = {
    "convert": "convert_report.render_markdown",
    "convert_binary": "convert_report.render_markdown",
    "feed_packed": "feed_packed.render",
    "formats": "formats.render",
    "gcs": "gcs.report",
    "load": "load_report.render_markdown",
    "maxtext": "maxtext.render",
    "plan": "plan.render",
    "streaming": "streaming.render",
    "view": "view.render",
}


def render_all(folder: pathlib.Path = FOLDER) -> Iterator[tuple[str, str]]:
    """Yields the name of each file of a folder that is made of runs, and its text."""
    from benchmarks import figures, overview, pack_report

    for name, renderer in _RENDERERS.items():
        if not (folder / f"{name}.json").exists():
            continue  # Not measured yet.
        module, function = renderer.split(".")
        render = getattr(importlib.import_module(f"benchmarks.{module}"), function)
        results = json.loads((folder / f"{name}.json").read_text())
        yield f"{name}.md", render(results)
        yield from figures.files(name, results)
    yield "pack.md", pack_report.render_document(folder)
    results = json.loads((folder / "pack.json").read_text())
    yield from figures.files("pack", results)
    yield "peers.md", overview.Overview(folder).peer_page()


def list_parts(folder: pathlib.Path = FOLDER) -> Iterator[tuple[pathlib.Path, str]]:
    """Yields pages with parts that are made of runs, and their texts with these."""
    from benchmarks import overview

    made, index = overview.Overview(folder), folder / "index.md"
    yield index, replace_between(index, overview.REPORT_MARKS, made.reports())
    readme = folder.parents[1] / "README.md"
    if readme.exists() and overview.PEER_MARKS[0] in readme.read_text("utf-8"):
        table = made.peers_in_short("docs/performance/")
        yield readme, replace_between(readme, overview.PEER_MARKS, table)


def write_all(folder: pathlib.Path = FOLDER) -> None:
    """Writes all of them."""
    for name, text in render_all(folder):
        (folder / name).write_text(text, encoding="utf-8")
    for path, text in list_parts(folder):
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_all()
