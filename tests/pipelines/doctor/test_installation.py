"""Versions of packages that are installed, missing, or known to nobody."""

from __future__ import annotations

import importlib.metadata
import platform

import gristmill
from gristmill.pipelines.doctor.installation import installed_versions, look_at_versions


def test_what_is_installed_is_listed() -> None:
    found = installed_versions()
    assert found["python"] == platform.python_version()
    assert found["gristmill"] == gristmill.__version__
    assert found["numpy"] == importlib.metadata.version("numpy")
    assert found["array_record"] == importlib.metadata.version("array_record")
    assert "pytest" not in found  # For who works on gristmill.
    (one,) = look_at_versions(None)
    assert one.level == "ok"
    assert one.seen.endswith(f"with {len(found) - 2} of the packages that it can use")


def test_what_is_missing_is_left_out() -> None:
    asked = ["numpy>=2", 'no_such>=1; extra == "gcs"', 'pytest>=8; extra == "dev"']
    found = installed_versions(lambda name: asked)
    assert found.keys() == {"python", "gristmill", "numpy"}


def test_sources_that_are_not_installed_have_their_own_version() -> None:
    def unknown(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    assert installed_versions(unknown).keys() == {"python", "gristmill"}
