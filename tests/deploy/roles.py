"""What deploy/iam.md says of roles and permissions, and what Google's roles contain."""

from collections import namedtuple

from tests.support.distributions import ROOT

DOCUMENT = ROOT / "deploy" / "iam.md"

_VIEW = {"storage.objects.get", "storage.objects.list"}
_USE = _VIEW | {"storage.objects.create", "storage.objects.delete"}
# From https://cloud.google.com/iam/docs/roles-permissions in 2026: what the services of
# these tests ask for. The worker's role also contains storage.buckets.get and creating
# and getting objects, in all buckets of the project; the tests do without.
CONTENTS = {
    "roles/artifactregistry.reader": set(),
    "roles/artifactregistry.writer": set(),
    "roles/cloudbuild.builds.editor": set(),
    "roles/compute.networkViewer": {"compute.subnetworks.get"},
    "roles/dataflow.developer": {
        "dataflow.jobs.create",
        "dataflow.jobs.get",
        "dataflow.messages.list",
    },
    "roles/dataflow.worker": {"dataflow.jobs.get"},
    "roles/iam.serviceAccountUser": {"iam.serviceAccounts.actAs"},
    "roles/logging.logWriter": set(),
    "roles/serviceusage.serviceUsageConsumer": set(),
    "roles/storage.legacyBucketReader": {"storage.buckets.get", "storage.objects.list"},
    "roles/storage.objectUser": _USE,
    "roles/storage.objectViewer": _VIEW,
}
SUBMITTER, LAUNCHER = "user who submits without a template, also", "launching user"
# Members and resources of the guide and of Terraform, in the words of the document.
MEMBERS = {
    "serviceAccount:gristmill-worker@my-project.iam.gserviceaccount.com": (
        "workers' service account"
    ),
    "serviceAccount:gristmill-build@my-project.iam.gserviceaccount.com": (
        "build's service account"
    ),
    "user:builder": "building user",
    "user:launcher": LAUNCHER,
    "user:submitter": SUBMITTER,
}
PLACES = {
    "my-project": "project",
    "raw": "input bucket",
    "data": "output bucket",
    "my-bucket": "bucket for temporary files",
    "my-bucket-templates": "template bucket",
    "gristmill": "image repository",
} | {member.partition(":")[2]: account for member, account in MEMBERS.items()}
# The buckets of `tests.deploy.cloud` that stand for those of the document.
BUCKETS = {
    "input bucket": "raw",
    "output bucket": "data",
    "bucket for temporary files": "scratch",
    "template bucket": "scratch-templates",
}


# Rows of the tables of roles and of permissions.
Grant = namedtuple("Grant", "account role resource")
Asked = namedtuple("Asked", "permission resource role without")


def _rows(heading):
    """Returns the cells of the table whose first heading this is."""
    lines = iter(DOCUMENT.read_text("utf-8").splitlines())
    for line in lines:
        if line.startswith(f"| {heading} |"):
            next(lines)
            break
    rows = []
    for line in lines:
        if not line.startswith("|"):
            return rows
        rows.append([cell.strip().replace("`", "") for cell in line.split("|")[1:-1]])
    return rows


def grants():
    """Returns the table of roles, each row with its account."""
    found = []
    for account, role, resource, _ in _rows("account"):
        found.append(Grant(account or found[-1].account, role, resource))
    return found


def asked():
    """Returns the table of permissions."""
    return [Asked(*row) for row in _rows("permission")]


def permissions_of(*accounts):
    """Returns (permission, resource) of all that the roles of accounts grant."""
    rows = [grant for grant in grants() if grant.account in accounts]
    assert {grant.account for grant in rows} == set(accounts)
    return {
        (permission, grant.resource)
        for grant in rows
        for permission in CONTENTS[grant.role]
    }


def bucket_permissions(*accounts):
    """Returns the permissions that the roles of accounts grant, by bucket."""
    return by_bucket(permissions_of(*accounts))


def by_bucket(granted):
    """Returns permissions by bucket, of (permission, resource)."""
    return {
        bucket: {name for name, resource in granted if resource == place}
        for place, bucket in BUCKETS.items()
    }
