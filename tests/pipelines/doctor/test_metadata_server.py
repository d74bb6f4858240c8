"""What a machine is told of itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gristmill.pipelines.doctor import metadata_server
from gristmill.pipelines.doctor.metadata_server import this_machine
from tests.support.metadata_server import MetadataServer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetadataServer]:
    with MetadataServer() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def test_a_machine_knows_its_region(server: MetadataServer) -> None:
    server.zone, server.scopes = "europe-west4-a", ["devstorage.read_only"]
    found = this_machine()
    assert found is not None
    assert (found.name, found.zone, found.region) == (
        *("trainer-7", "europe-west4-a"),
        "europe-west4",
    )
    assert found.scopes == {"https://www.googleapis.com/auth/devstorage.read_only"}


def test_other_machines_know_none(
    server: MetadataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.flavor = "of a proxy"
    assert this_machine() is None
    server.flavor = "Google"
    server.released.clear()  # It does not answer, as behind a firewall.
    monkeypatch.setattr(metadata_server, "_REQUEST_SECONDS", 0.1)
    assert this_machine() is None
    monkeypatch.setattr(metadata_server, "_REQUEST_SECONDS", 60.0)
    monkeypatch.setattr(metadata_server, "_SECONDS", 0.1)
    assert this_machine() is None
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")  # Nothing listens.
    assert this_machine() is None
    monkeypatch.setenv("GCE_METADATA_HOST", server.host)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    assert this_machine() is None
