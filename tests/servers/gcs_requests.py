"""What a request to a small Google Cloud Storage asks for, of its JSON API."""

import json
import re
import urllib.parse
from collections import namedtuple

from tests.servers.gcs_objects import error_reply

_PATH = re.compile(r"(/upload|/download)?/storage/v1/b/([^/]+)(?:/o(?:/([^/]+))?)?")
_PERMISSIONS = re.compile(r"/storage/v1/b/([^/]+)/iam/testPermissions")
_OBJECTS = "storage.objects."
# What an operation takes, as Google's page "IAM permissions for JSON methods" lists it.
# An object that is replaced is deleted as well.
_NEEDS = {
    "bucket": ("storage.buckets.get",),
    "list": (_OBJECTS + "list",),
    "stat": (_OBJECTS + "get",),
    "media": (_OBJECTS + "get",),
    "insert": (_OBJECTS + "create",),
    "start": (_OBJECTS + "create",),
    "delete": (_OBJECTS + "delete",),
}


# A request, read as a whole. Its operation is `list`, `stat`, `media`, `insert`,
# `start`, `chunk`, `delete`, `bucket`, `permissions`, or `unknown`; the name is that
# of an object, "" for none. `query` has its parameters, `about` what else it says:
# metadata of an object, `data` the content of one. Headers are by lower-case name.
Request = namedtuple("Request", "operation bucket name query about data headers")


def parse(command, target, headers, data, objects):
    """Finds out what a request asks for.

    Args:
        command: Such as `GET`.
        target: Path and query.
        headers: Any case.
        data: Its body.
        objects: Knows which upload is of which object.
    """
    url = urllib.parse.urlsplit(target)
    query = dict(urllib.parse.parse_qsl(url.query))
    headers = {field.lower(): value for field, value in headers.items()}

    def request(operation, bucket, name, **about):
        unquoted = urllib.parse.unquote(name)
        return Request(operation, bucket, unquoted, query, about, data, headers)

    if match := _PERMISSIONS.fullmatch(url.path):
        wanted = urllib.parse.parse_qs(url.query).get("permissions", [])
        return request("permissions", match[1], "", wanted=wanted)
    match = _PATH.fullmatch(url.path)
    if match is None:
        return Request("unknown", "", url.path, query, {}, data, headers)
    bucket, name = match[2], match[3] or ""
    if "upload_id" in query:
        return request("chunk", bucket, objects.name_of_upload(query["upload_id"]))
    if match[1] == "/upload":
        about = {"name": query.get("name", "")}
        operation = "insert"
        if query["uploadType"] == "multipart":
            more, data = _upload_parts(headers["content-type"], data)
            about |= more
        elif query["uploadType"] == "resumable":
            operation = "start"
            about |= json.loads(data or b"{}")
        return Request(operation, bucket, about["name"], query, about, data, headers)
    if command == "DELETE":
        return request("delete", bucket, name)
    if not name:
        return request("list" if url.path.endswith("/o") else "bucket", bucket, "")
    return request("media" if query.get("alt") == "media" else "stat", bucket, name)


def carry_out(objects, request, url):
    """Does what a request asks for.

    Args:
        objects: What there is.
        request: The request.
        url: Of the server.

    Raises:
        RefusalError: The server refuses.
    """
    operation, bucket, name, query, about, data, headers = request
    with objects.lock:
        if needs := _NEEDS.get(operation):
            objects.demand(bucket, *needs)
        if operation in ("insert", "start") and name in objects.buckets[bucket]:
            objects.demand(bucket, _OBJECTS + "delete")
        match operation:
            case "chunk":
                part = headers.get("content-range", "")
                return objects.chunk(query["upload_id"], data, part, **about)
            case "start":
                return objects.start(url, bucket, about, query)
            case "insert":
                return objects.insert(bucket, about, data, query)
            case "delete":
                return objects.delete(bucket, name, query)
            case "bucket":
                return objects.bucket(bucket)
            case "permissions":
                return objects.permissions(bucket, about["wanted"])
            case "list":
                return objects.list(bucket, query)
            case "stat":
                return objects.stat(bucket, name, query)
            case "media":
                return objects.media(bucket, name, query, headers.get("range", ""))
    return error_reply(404, f"Not Found: {name}")


def _upload_parts(content_type, data):
    """Splits a multipart/related body into metadata and content."""
    boundary = content_type.partition("boundary=")[2].strip("\"'").encode()
    _, first, rest = data.split(b"--" + boundary, 2)
    # gcloud ends lines as Unix does.
    end = b"\r\n" if first.startswith(b"\r\n") else b"\n"
    about = json.loads(first.split(2 * end, 1)[1])
    content = rest.split(2 * end, 1)[1]
    return about, content[: content.rindex(end + b"--" + boundary)]
