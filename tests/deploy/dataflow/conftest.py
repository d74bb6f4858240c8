"""The services of Google Cloud that submissions meet, as stand-ins."""

from __future__ import annotations

import pytest

from tests.deploy.cloud import running


@pytest.fixture(scope="module")
def services():
    """All services, for the tests of a module, which put back what they change."""
    with running() as cloud:
        yield cloud
