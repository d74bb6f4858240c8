"""Answers that are not Google's tell what they can."""

from __future__ import annotations

import pytest
import requests
from google.api_core import exceptions as api

from gristmill.dataset.storage.gcs_diagnosis import diagnosis, names_bucket


def answer(status: int, body: bytes) -> api.GoogleAPICallError:
    response = requests.Response()
    response.status_code, response._content = status, body
    return api.from_http_status(status, "unknown error", response=response)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"<html>", b"null", b"[]", b"{}", b'{"error": 1}', b'{"error": {}}'),
        b'{"error": [1]}',
        b"[" * 100_000,
    ],
)
def test_any_body_of_a_404(body: bytes) -> None:
    error = answer(404, body)
    assert names_bucket(error) is None
    what, _ = diagnosis(error, 1, no_bucket=False, kept="")
    assert what == "no such object"


def test_what_google_says_is_told() -> None:
    body = b'{"error": {"message": "The specified bucket does not exist."}}'
    assert names_bucket(answer(404, body)) is True
    what, _ = diagnosis(answer(404, body), 1, no_bucket=True, kept="")
    assert what == "404 The specified bucket does not exist."
