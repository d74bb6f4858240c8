"""Causes and cures of failed requests to Cloud Storage, in plain words."""

from __future__ import annotations

import contextlib
import re

from google.api_core import exceptions as api
from google.auth.exceptions import GoogleAuthError, TransportError

_SYSTEM_ERROR = re.compile(r"\[Errno -?\d+\] ([^'\")\]]+)")
_NO_BUCKET = "The specified bucket does not exist"
_NO_OBJECT = "No such object"
_AGAIN = "run the same command again"
# Refusals that no role cures, by words of the service's message.
_CURES = {
    "retention": "wait until then, or choose another output: this bucket keeps its "
    "objects by a retention policy",
    " hold": "release the hold, or choose another output: the object is held",
    "requester pays": "let GOOGLE_CLOUD_QUOTA_PROJECT name the project that pays",
    "billing": "enable billing for the project of the bucket",
}


# Reasons in bodies that are not JSON, or not Google's JSON.
_NO_MESSAGE = (ValueError, AttributeError, TypeError, LookupError, RecursionError)


def is_bad_checksum(error: Exception) -> bool:
    """Returns whether the server says that the data arrived damaged."""
    return getattr(error, "code", None) == 400 and "crc32c" in str(error).lower()


def names_bucket(error: Exception) -> bool | None:
    """Returns whether a 404 is about a bucket, not an object; None if it is unclear."""
    text = _plain(error)
    if _NO_BUCKET in text:
        return True
    return False if _NO_OBJECT in text else None


def _plain(cause: BaseException) -> str:
    """Returns the message of the server or the network, without its wrapping."""
    text = str(cause)
    response = getattr(cause, "response", None)
    status = getattr(response, "status_code", None) or getattr(cause, "code", None)
    if response is not None:
        with contextlib.suppress(*_NO_MESSAGE):
            text = str(response.json()["error"]["message"])
    elif match := _SYSTEM_ERROR.search(text):
        text = match[1]
    if status is not None and str(int(status)) not in text:
        text = f"{int(status)} {text}"
    return text or type(cause).__name__


def diagnosis(
    error: Exception, deadline_seconds: float, *, no_bucket: bool, kept: str
) -> tuple[str, str]:
    """Returns the cause of an error, and its cure.

    Args:
        error: Error of the client library, or of requests.
        deadline_seconds: How long the request was retried.
        no_bucket: Whether the bucket is missing.
        kept: A note about work already done, after "run the same command again".
    """
    cause: BaseException = error
    if isinstance(error, api.RetryError) and error.cause is not None:
        cause = error.cause
    got, again = _plain(cause), f"{_AGAIN}{kept}"
    if isinstance(cause, api.NotFound):
        if no_bucket:
            return got, "check the bucket's name, or create it"
        return "no such object", "check the path"
    if isinstance(cause, api.Forbidden | api.BadRequest):
        for part, cure in _CURES.items():
            if part in got:
                return got, cure
    if isinstance(cause, api.Forbidden):
        return got, (
            "give this account the role roles/storage.objectUser on the bucket "
            "(roles/storage.objectViewer is enough to read)"
        )
    if isinstance(cause, TransportError):  # Errors of credentials.
        return got, f"check network and service status, then {again}"
    if isinstance(cause, api.Unauthorized | GoogleAuthError):
        return got, (
            "run `gcloud auth application-default login`, or let "
            "GOOGLE_APPLICATION_CREDENTIALS name a key file"
        )
    if cause is not error:
        return f"no success in {deadline_seconds:,.4g} seconds; last: {got}", (
            f"check network and service status, then {again}"
        )
    return got, again
