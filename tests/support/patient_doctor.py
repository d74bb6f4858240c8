"""Checks of `gristmill doctor` that wait for whom a busy machine makes late."""

from __future__ import annotations

from types import ModuleType

import pytest

from gristmill.pipelines.doctor import bucket, checks, dataset_place

_PATIENCE_SECONDS = 60.0


def make_patient(patch: pytest.MonkeyPatch) -> None:
    """Lets checks wait long, and ask for no metadata server but those of tests."""
    patch.setenv("NO_GCE_CHECK", "true")
    modules: tuple[ModuleType, ...] = (bucket, checks, dataset_place)
    for module in modules:
        patch.setattr(module, "_SECONDS", _PATIENCE_SECONDS)
