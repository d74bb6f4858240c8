"""The versions of gristmill, of Python, and of the packages that gristmill can use."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections.abc import Iterator

import gristmill
from gristmill.pipelines.doctor.finding import Finding, ok
from gristmill.pipelines.doctor.place import Place

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_DEVELOPERS = re.compile(r"extra *== *[\"']dev[\"']")


def installed_versions() -> dict[str, str]:
    """Returns the versions of installed packages by name, without importing them.

    These are Python, gristmill, and the packages that its extras name.
    """
    found = {"python": platform.python_version(), "gristmill": gristmill.__version__}
    try:
        requirements = importlib.metadata.requires("gristmill") or []
    except importlib.metadata.PackageNotFoundError:  # It runs from its sources.
        return found
    for requirement in sorted(requirements, key=str.lower):
        named = _NAME.match(requirement)
        if named is not None and not _DEVELOPERS.search(requirement):
            try:
                found[named[0]] = importlib.metadata.version(named[0])
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def look_at_versions(place: Place | None) -> Iterator[Finding]:
    """Yields the versions of gristmill and Python, and the number of packages."""
    del place
    found = installed_versions()
    yield ok(
        f"gristmill {found['gristmill']} on Python {found['python']}, with "
        f"{len(found) - 2} of the packages that it can use"
    )
