"""Puts the page, its library and answers into one HTML file."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.resources
import json
import re
from collections.abc import Mapping
from typing import Any

_FOLDER = importlib.resources.files(__package__) / "page"
_STYLE = re.compile(r'<link rel="stylesheet" href="([\w./-]+)">')
_SCRIPT = re.compile(r'<script src="([\w./-]+)"></script>\n')
_POLICY = re.compile(r'(http-equiv="Content-Security-Policy" content=")[^"]*(")')
_LIBRARY = "echarts/echarts.common.min.js"


@functools.cache
def _parts() -> tuple[str, str]:
    """Returns the page before the answers and after them, with its files in it.

    Its policy names the hashes of its scripts and of its style: a browser runs nothing
    else, whatever a record holds.
    """
    text = _read("index.html")
    (style_name,) = _STYLE.findall(text)
    style = _read(style_name)
    names = _SCRIPT.findall(text)
    ours = "\n".join(_read(name) for name in names if name != _LIBRARY)
    library = _read(_LIBRARY)
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hash(library)} {_hash(ours)}",
            f"style-src {_hash(style)}",
            "img-src data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    text = _POLICY.sub(lambda found: found[1] + policy + found[2], text)
    text = _STYLE.sub(lambda _: f"<style>{style}</style>", text)
    before, _, rest = text.partition(f'<script src="{names[0]}"></script>\n')
    after = _SCRIPT.sub("", rest)
    return before, f"<script>{library}</script>\n<script>{ours}</script>\n{after}"


def _read(name: str) -> str:
    return _FOLDER.joinpath(*name.split("/")).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def page(
    answers: Mapping[str, Any] | None = None, about: Mapping[str, Any] | None = None
) -> bytes:
    """Returns the page: one HTML file that loads nothing else.

    Args:
        answers: By address, such as `/api/step?step=5`; without, the page asks the
            server that it came from.
        about: What the page says of the file: `made`, `command` and `left_out`.
    """
    before, after = _parts()
    if answers is None:
        return (before + after).encode()
    held = json_in_page({"answers": answers, "about": about or {}})
    holder = b'<script type="application/json" id="answers">' + held + b"</script>\n"
    return before.encode() + holder + after.encode()


def json_in_page(value: Any) -> bytes:
    """Returns JSON that cannot end the element which holds it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # Halves of characters, which UTF-8 does not have, become escapes of JSON.
    return text.replace("<", "\\u003c").encode("utf-8", "backslashreplace")
