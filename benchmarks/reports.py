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
