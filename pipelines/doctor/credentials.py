"""A check of a process's Google Cloud credentials: their owner and validity."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gristmill.dataset.base.daemon_call import daemon_call
from gristmill.dataset.storage.gcs_emulator import emulator_url
from gristmill.pipelines.doctor.dataset_place import DatasetPlace
from gristmill.pipelines.doctor.finding import Finding, error, ok, warning

_SECONDS = 5.0
_KEY_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_AUTH = "https://www.googleapis.com/auth/"
_REQUESTED = (f"{_AUTH}cloud-platform",)
_WRITING = {
    f"{_AUTH}{scope}"
    for scope in ("cloud-platform", "devstorage.read_write", "devstorage.full_control")
}
_READING = _WRITING | {
    f"{_AUTH}devstorage.read_only",
    f"{_AUTH}cloud-platform.read-only",
}
_LOG_IN = "gcloud auth application-default login"
# Module and class of google-auth -> description.
_KINDS = {
    "google.oauth2.service_account": "the key of a service account",
    "google.oauth2.credentials": "a user's, of gcloud",
    "google.auth.compute_engine.credentials": "the service account of this machine",
    "google.auth.impersonated_credentials": "an impersonated service account",
    "google.auth.identity_pool": "workload identity federation",
    "google.auth.aws": "workload identity federation, of AWS",
    "google.auth.pluggable": "workload identity federation, by a program",
}


class _Found(NamedTuple):
    """Credentials, and why they gave no token, or ""."""

    credentials: Any
    failure: str
    transient: bool


def look_at_credentials(place: DatasetPlace | None) -> Iterator[Finding]:
    """Yields the owner of the credentials, and whether they work for buckets.

    Without a dataset in a bucket, missing ones are not an error.
    """
    needed = place is not None and place.remote
    bad = error if needed else warning
    why = "gs:// paths cannot be read or written"
    if emulator := emulator_url():
        yield warning(
            f"STORAGE_EMULATOR_HOST is set: gs:// paths lead to {emulator}, without "
            "credentials",
            why="no bucket of Google Cloud is reached",
            cure="unset STORAGE_EMULATOR_HOST, unless that is meant",
        )
        return
    try:
        import google.auth.exceptions
    except ImportError:
        seen = "google-auth is not installed"
        cure = "pip install 'gristmill[gcs]'"
        yield (
            bad(seen, why=why, cure=cure)
            if needed
            else ok(f"{seen}; gs:// paths need {cure}")
        )
        return
    key_file = os.environ.get(_KEY_FILE)
    if key_file and not os.path.exists(key_file):
        yield bad(
            f"{_KEY_FILE} names a file that is not there: {key_file}",
            why=why,
            cure=f"unset {_KEY_FILE}, or give it the path of a key file",
        )
        return
    find = daemon_call(_find, thread_name="gristmill-doctor-credentials")
    try:
        found = find.result(_SECONDS)
    except (TimeoutError, google.auth.exceptions.GoogleAuthError) as e:
        late = isinstance(e, TimeoutError)
        said = f"none found in {_SECONDS:g} seconds" if late else "none found"
        if not needed and not key_file:
            yield ok(f"{said}; gs:// paths need them: `{_LOG_IN}`")
            return
        if not late:
            said = f"none that can be used: {str(e).splitlines()[0]}"
        yield bad(said, why=why, cure=f"{_LOG_IN}, or {_KEY_FILE}=KEY_FILE")
        return
    yield from _judged(found, bad=bad, why=why, key_file=key_file)


def _judged(
    found: _Found,
    *,
    bad: Callable[..., Finding],
    why: str,
    key_file: str | None,
) -> Iterator[Finding]:
    kind, account = _described(found.credentials)
    seen = f"{kind}{f', {account}' if account else ''}"
    if key_file:
        seen += f", from {_KEY_FILE}={key_file}"
    if found.failure:
        if found.transient:
            state, cure = "no answer about a token", "check the network and proxies"
        elif kind == _KINDS["google.oauth2.service_account"]:
            state = "expired or revoked"
            cure = "gcloud iam service-accounts keys create KEY_FILE --iam-account="
            cure += f"{account}, then {_KEY_FILE}=KEY_FILE"
        else:
            state, cure = "expired or revoked", _LOG_IN
        yield bad(f"{seen}; {state}: {found.failure}", why=why, cure=cure)
        return
    # Those of a machine's service account are not known.
    scopes = frozenset(getattr(found.credentials, "granted_scopes", None) or ())
    if scopes and not scopes & _READING:
        yield bad(
            f"{seen}; its scopes do not include Cloud Storage: {_shown(scopes)}",
            why=f"{why}, whatever roles the account has",
            cure=f"{_LOG_IN} --scopes={_REQUESTED[0]}",
        )
    elif scopes and not scopes & _WRITING:
        yield warning(
            f"{seen}; its scopes allow reading alone: {_shown(scopes)}",
            why="conversions into gs:// are refused, whatever roles the account has",
            cure=f"{_LOG_IN} --scopes={_REQUESTED[0]}",
        )
    else:
        yield ok(f"{seen}; they gave a token")


def _find() -> _Found:
    import google.auth
    import google.auth.transport.requests
    from google.auth.exceptions import GoogleAuthError, TransportError

    credentials, _ = google.auth.default(scopes=_REQUESTED)
    try:
        credentials.refresh(google.auth.transport.requests.Request())  # type: ignore[no-untyped-call]
    except GoogleAuthError as e:
        # Its arguments are a message, or the error of a transport, and more.
        cause = e.args[0] if e.args else e
        text = (str(cause).splitlines() or [type(e).__name__])[0]
        transient = isinstance(e, TransportError) or isinstance(cause, TransportError)
        return _Found(credentials, text, transient)
    return _Found(credentials, "", False)


def _described(credentials: Any) -> tuple[str, str]:
    """Returns the kind of credentials, and their account."""
    kind = type(credentials)
    named = (
        _KINDS[base.__module__] for base in kind.__mro__ if base.__module__ in _KINDS
    )
    for name in ("service_account_email", "account", "signer_email"):
        account = getattr(credentials, name, "")
        if isinstance(account, str) and account not in ("", "default"):
            break
    else:
        account = ""
    return next(named, f"{kind.__module__}.{kind.__name__}"), account


def _shown(scopes: frozenset[str]) -> str:
    return ", ".join(sorted(scope.removeprefix(_AUTH) for scope in scopes))
