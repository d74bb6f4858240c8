"""The server that replaces Cloud Storage, as named by the environment."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from gristmill.dataset.base.errors import InputError

_VARIABLE = "STORAGE_EMULATOR_HOST"


def emulator_url() -> str | None:
    """Returns the address in `STORAGE_EMULATOR_HOST`, None if there is none.

    It has a scheme, http by default, and no slash at its end. The server takes no
    credentials.

    Raises:
        InputError: The variable is not the address of a server.
    """
    text = os.environ.get(_VARIABLE, "").strip()
    if not text:
        return None
    url = (text if "://" in text else f"http://{text}").rstrip("/")
    if not _is_address(url):
        raise InputError(
            f"{_VARIABLE} is not an address of a server",
            expected="http://HOST:PORT, such as http://localhost:4443",
            got=repr(text),
            cure=f"set it to one, or unset {_VARIABLE} to reach Cloud Storage",
        )
    return url


def _is_address(url: str) -> bool:
    try:
        scheme, _, _, query, fragment = parts = urlsplit(url)
        known = bool(parts.hostname) and parts.port != 0
    except ValueError:  # Errors of brackets and ports.
        return False
    return known and scheme in ("http", "https") and not query and not fragment
