"""Settings of these tests."""

import google.auth.compute_engine  # noqa: F401, reads the environment now.
import pytest

from tests.support.patient_doctor import make_patient


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    make_patient(monkeypatch)
