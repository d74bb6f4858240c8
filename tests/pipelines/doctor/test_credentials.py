"""Credentials of every kind, given by a metadata and token server on loopback.

google-auth reads its environment when it is imported, so it is in another process.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from gristmill.pipelines.doctor import credentials
from gristmill.pipelines.doctor.credentials import look_at_credentials
from gristmill.pipelines.doctor.dataset_place import DatasetPlace
from gristmill.pipelines.doctor.finding import error
from tests.support.gcs_server import GcsServer
from tests.support.namespaces import run_json

LOOK = """
import dataclasses, json, os, pathlib, sys, tempfile
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.support.metadata_server import MetadataServer

found = {}
with MetadataServer() as server, tempfile.TemporaryDirectory() as folder:
    os.environ |= server.environment
    from gristmill.pipelines.doctor import credentials

    class DatasetPlace:
        remote = True

    def look(name, place=DatasetPlace):
        findings = credentials.look_at_credentials(place)
        found[name] = [dataclasses.asdict(finding) for finding in findings]

    credentials._SECONDS = 60.0  # It may be a busy machine.
    look("machine")

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file = pathlib.Path(folder, "key.json")
    file.write_text(json.dumps({
        "type": "service_account",
        "client_email": "robot@p.iam.gserviceaccount.com",
        "private_key": key.decode(),
        "private_key_id": "1",
        "token_uri": f"http://{server.host}/token",
        "project_id": "p",
    }))
    os.environ["GOOGLE_APPLICATION_CREDENTIALS"] = str(file)
    look("key")
    server.refusal = "Invalid JWT Signature."
    look("revoked key")
    look("revoked key of a machine that is looked at alone", None)
    file.write_text("{}")
    look("broken key")
    os.environ["GOOGLE_APPLICATION_CREDENTIALS"] = f"{folder}/none.json"
    look("missing key")
    del os.environ["GOOGLE_APPLICATION_CREDENTIALS"]

    server.released.clear()
    credentials._SECONDS = 0.5
    look("silence")
    look("silence on a machine that is looked at alone", None)
print(json.dumps(found))
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture(scope="module")
def found() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = run_json(
        [sys.executable, "-c", LOOK],
        STORAGE_EMULATOR_HOST="",
        GOOGLE_APPLICATION_CREDENTIALS="",
    )
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "level", "seen", "cure"),
    [
        (
            "machine",
            "ok",
            "the service account of this machine, pod@p.iam.gserviceaccount.com; they "
            "gave a token",
            "",
        ),
        ("key", "ok", "the key of a service account, robot@p.iam.gservice", ""),
        (
            "revoked key",
            "error",
            "expired or revoked: invalid_grant: Invalid JWT Signature.",
            "gcloud iam service-accounts keys create KEY_FILE --iam-account=robot@p.",
        ),
        ("revoked key of a machine that is looked at alone", "warning", "revoked", ""),
        (
            "broken key",
            "error",
            "none that can be used: The file",
            "gcloud auth application-default",
        ),
        ("missing key", "error", "not there: ", "unset GOOGLE_APPLICATION_CREDENTIALS"),
        (
            "silence",
            "error",
            "none found in 0.5 seconds",
            "gcloud auth application-default",
        ),
        (
            "silence on a machine that is looked at alone",
            "ok",
            "none found in 0.5 seconds; gs:// paths need them",
            "",
        ),
    ],
)
def test_credentials_are_named_and_tried(
    found: dict[str, list[dict[str, Any]]], name: str, level: str, seen: str, cure: str
) -> None:
    (one,) = found[name]
    assert one["level"] == level, one
    assert seen in one["seen"]
    assert cure in one["cure"]


@pytest.mark.parametrize(
    ("scope", "level", "seen"),
    [
        ("devstorage.read_write", "ok", "they gave a token"),
        ("devstorage.read_only", "warning", "reading alone: devstorage.read_only"),
        ("userinfo.email", "error", "not include Cloud Storage: userinfo.email"),
    ],
)
def test_scopes_of_a_user_are_those_that_were_granted(
    scope: str, level: str, seen: str
) -> None:
    from google.oauth2.credentials import Credentials

    user = Credentials(  # type: ignore[no-untyped-call]
        "t",
        account="me@example.com",
        granted_scopes=[f"https://www.googleapis.com/auth/{scope}"],
    )
    found = credentials._Found(user, "", False)
    (one,) = credentials._judged(found, bad=error, why="it fails", key_file=None)
    assert one.level == level
    assert one.seen.startswith("a user's, of gcloud, me@example.com; ")
    assert one.seen.endswith(seen)
    assert ("--scopes=https" in one.cure) == (level != "ok")


def test_an_emulator_takes_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        (found,) = look_at_credentials(DatasetPlace("gs://bucket/c4"))
    assert found.level == "warning"
    assert server.url in found.seen
    assert found.cure.startswith("unset STORAGE_EMULATOR_HOST")


@pytest.mark.parametrize(("dataset", "level"), [(None, "ok"), ("gs://b/c4", "error")])
def test_without_the_library_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, dataset: str | None, level: str
) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    place = None
    if dataset is not None:
        with GcsServer("b") as server:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
            place = DatasetPlace(dataset)
            place.known()
        monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.setitem(sys.modules, "google.auth.exceptions", None)
    (found,) = look_at_credentials(place)
    assert found.level == level
    assert "pip install 'gristmill[gcs]'" in f"{found.seen} {found.cure}"
