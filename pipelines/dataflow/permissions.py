"""The permissions that a submission takes, and the roles that grant them.

deploy/iam.md lists them; a test compares the two, and takes away one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Collection

READ = frozenset({"storage.objects.get", "storage.objects.list"})
WRITE = READ | {"storage.objects.create", "storage.objects.delete"}
# Beam asks for the bucket before it puts a file there, and tries again for 8 minutes if
# it may not see it.
STAGE = WRITE | {"storage.buckets.get"}

_BUCKET_ROLE = "roles/storage.legacyBucketReader"
# What Dataflow's refusals name, and the role to grant on the project or the account.
_ROLES = {
    "compute.subnetworks.get": "roles/compute.networkViewer on the project",
    "dataflow.jobs.create": "roles/dataflow.developer on the project",
    "dataflow.jobs.get": "roles/dataflow.developer on the project",
    "dataflow.messages.list": "roles/dataflow.developer on the project",
    "iam.serviceAccounts.actAs": "roles/iam.serviceAccountUser on the workers' "
    "service account",
}
_DENIED = re.compile(r"[Pp]ermission '([\w.]+)' denied")
_ACT_AS = "cannot act as service account"


def bucket_roles(missing: Collection[str], *, wanted: Collection[str]) -> str:
    """Returns the roles that grant what is missing in a bucket, for a message.

    Args:
        missing: Permissions that an account lacks.
        wanted: All permissions that it needs there.

    >>> bucket_roles({"storage.objects.get"}, wanted=READ)
    'roles/storage.objectViewer'
    >>> bucket_roles({"storage.buckets.get"}, wanted=STAGE)
    'roles/storage.legacyBucketReader'
    """
    objects = "objectViewer" if READ.issuperset(wanted) else "objectUser"
    roles = []
    if any(permission.startswith("storage.objects.") for permission in missing):
        roles.append(f"roles/storage.{objects}")
    if "storage.buckets.get" in missing:
        roles.append(_BUCKET_ROLE)
    return " and ".join(roles)


def denied_permission(message: str) -> str | None:
    """Returns the permission that a refusal of Google's names, None for another error.

    >>> denied_permission("Causes: Permission 'dataflow.jobs.create' denied on project")
    'dataflow.jobs.create'
    """
    if _ACT_AS in message:
        return "iam.serviceAccounts.actAs"
    match = _DENIED.search(message)
    return None if match is None else match[1]


def cure_of(permission: str) -> str:
    """Returns the cure for a denied permission."""
    role = _ROLES.get(permission, "a role that contains it, as in deploy/iam.md,")
    return f"grant {role} to the account that submits the job"
