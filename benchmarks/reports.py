"""The reports of docs/performance, made again of the runs in benchmarks/results.

python -m benchmarks.reports
"""

from __future__ import annotations

import importlib
import json
import pathlib
from collections.abc import Iterator

from benchmarks.contest import replace_between

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = pathlib.Path("benchmarks", "results")
PAGES = pathlib.Path("docs", "performance")
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
    "unique": "unique.render",
}


def render_all(root: pathlib.Path = ROOT) -> Iterator[tuple[str, str]]:
    """Yields the name of each file of PAGES that is made of runs, and its text."""
    from benchmarks import figures, overview, pack_report

    folder = root / RESULTS
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
    yield "peers.md", overview.Overview(folder, root / PAGES).peer_page()


def list_parts(root: pathlib.Path = ROOT) -> Iterator[tuple[pathlib.Path, str]]:
    """Yields pages with parts that are made of runs, and their texts with these."""
    from benchmarks import overview
    from benchmarks.resume import report

    resume = root / RESULTS / "resume.json"
    if resume.exists():
        page = root / PAGES / "resume.md"
        results = json.loads(resume.read_text(encoding="utf-8"))
        yield page, report.fill(page.read_text(encoding="utf-8"), results)
    made = overview.Overview(root / RESULTS, root / PAGES)
    index = root / PAGES / "index.md"
    yield index, replace_between(index, overview.REPORT_MARKS, made.reports())
    readme = root / "README.md"
    if readme.exists() and overview.PEER_MARKS[0] in readme.read_text("utf-8"):
        table = made.peers_in_short("docs/performance/")
        yield readme, replace_between(readme, overview.PEER_MARKS, table)


def write_all(root: pathlib.Path = ROOT) -> None:
    """Writes all of them."""
    for name, text in render_all(root):
        (root / PAGES / name).write_text(text, encoding="utf-8")
    for path, text in list_parts(root):
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_all()
