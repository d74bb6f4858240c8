"""The reports of docs/performance, made again of the runs that are kept beside them.

python -m benchmarks.reports
"""

from __future__ import annotations

import importlib
import json
import pathlib
from collections.abc import Iterator

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
}


def render_all(folder: pathlib.Path = FOLDER) -> Iterator[tuple[str, str]]:
    """Yields the name of each file of a folder that is made of runs, and its text."""
    from benchmarks import figures, pack_report

    for name, renderer in _RENDERERS.items():
        module, function = renderer.split(".")
        render = getattr(importlib.import_module(f"benchmarks.{module}"), function)
        results = json.loads((folder / f"{name}.json").read_text())
        yield f"{name}.md", render(results)
        yield from figures.files(name, results)
    yield "pack.md", pack_report.render_document(folder)
    results = json.loads((folder / "pack.json").read_text())
    yield from figures.files("pack", results)


def main() -> None:
    """Writes all of them."""
    for name, text in render_all():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
