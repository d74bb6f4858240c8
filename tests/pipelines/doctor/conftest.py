"""Settings of these tests."""

import google.auth.compute_engine  # noqa: F401, reads the environment now.
import pytest


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets no test ask for a metadata server that is not its own."""
    monkeypatch.setenv("NO_GCE_CHECK", "true")
