"""What the metadata server of Google Cloud says of this machine, asked in time."""

from __future__ import annotations

import dataclasses
import http.client
import os

from gristmill.dataset.daemon_call import daemon_call

_HOST = "169.254.169.254"  # The same on every machine; a name could take a while.
_FLAVOR = "Metadata-Flavor"
_REQUEST_SECONDS, _SECONDS = 1.0, 3.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine of Google Cloud.

    Attributes:
        name: Of the instance, "" if it is not told.
        zone: Such as `us-central1-a`.
        scopes: Those of its service account; None if they are not told.
    """

    name: str
    zone: str
    scopes: frozenset[str] | None

    @property
    def region(self) -> str:
        """Its region, such as `us-central1`."""
        return self.zone.rpartition("-")[0]


def this_machine() -> Machine | None:
    """Returns this machine as its metadata server describes it, None if there is none.

    The server is that of `GCE_METADATA_HOST` where it is set, as for google-auth.
    """
    if os.environ.get("NO_GCE_CHECK") == "true":
        return None
    try:
        asked = daemon_call(_ask_all, thread_name="gristmill-doctor-metadata")
        return asked.result(_SECONDS)
    except (OSError, http.client.HTTPException):  # TimeoutError is an OSError.
        return None


def _ask_all() -> Machine | None:
    zone = _ask("instance/zone")
    if zone is None:
        return None
    scopes = _ask("instance/service-accounts/default/scopes")
    return Machine(
        name=_ask("instance/name") or "",
        zone=zone.rpartition("/")[2],
        scopes=None if scopes is None else frozenset(scopes.split()),
    )


def _ask(what: str) -> str | None:
    host = (
        os.environ.get("GCE_METADATA_HOST")
        or os.environ.get("GCE_METADATA_IP")
        or _HOST
    )
    connection = http.client.HTTPConnection(host, timeout=_REQUEST_SECONDS)
    try:
        path = f"/computeMetadata/v1/{what}"
        connection.request("GET", path, headers={_FLAVOR: "Google"})
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", "replace").strip()
    finally:
        connection.close()
    # A proxy answers for any address.
    known = answer.status == 200 and answer.headers.get(_FLAVOR) == "Google"
    return text if known else None
