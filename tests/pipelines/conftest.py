"""What tests of several modules need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.gcs_server import GcsServer


@pytest.fixture(scope="module")
def no_cloud() -> Iterator[None]:
    """No option may need the network to be judged: here is a storage with buckets."""
    with (
        GcsServer("a", "b", "other_bucket") as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield
