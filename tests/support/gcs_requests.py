"""What a request to a small Google Cloud Storage asks for, of JSON, XML and batches."""

from __future__ import annotations

import email.message
import email.parser
import json
import re
import urllib.parse
import xml.sax.saxutils
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.support.gcs_objects import Objects, RefusalError, Reply, error_reply

_PATH = re.compile(r"(/upload|/download)?/storage/v1/b/([^/]+)(?:/o(?:/([^/]+))?)?")
_COPY = re.compile(
    r"/storage/v1/b/([^/]+)/o/([^/]+)/(?:rewriteTo|copyTo)/b/([^/]+)/o/([^/]+)"
)
_COMPOSE = re.compile(r"/storage/v1/b/([^/]+)/o/([^/]+)/compose")
_PERMISSIONS = re.compile(r"/storage/v1/b/([^/]+)/iam/testPermissions")
_XML = re.compile(r"/([a-z0-9][a-z0-9._-]+)(?:/(.*))?", re.DOTALL)
_BATCH = "/batch/storage/v1"
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
    "compose": (_OBJECTS + "create", _OBJECTS + "get"),
}


class Request(NamedTuple):
    """A request, read as a whole.

    Attributes:
        operation: `list`, `stat`, `media`, `insert`, `start`, `chunk`, `delete`,
            `bucket`, `permissions`, `copy`, `compose`, `batch`, or `unknown`.
        bucket: The bucket.
        name: The object, "" for none.
        query: Parameters.
        about: What else it says: metadata of an object, its target, its parts.
        data: Content of an object.
        headers: By lower-case name.
    """

    operation: str
    bucket: str
    name: str
    query: dict[str, str]
    about: dict[str, Any]
    data: bytes
    headers: Mapping[str, str]


def parse(
    command: str,
    target: str,
    headers: Mapping[str, str],
    data: bytes,
    objects: Objects,
) -> Request:
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

    def request(operation: str, bucket: str, name: str, **about: Any) -> Request:
        unquoted = urllib.parse.unquote(name)
        return Request(operation, bucket, unquoted, query, about, data, headers)

    if match := _PERMISSIONS.fullmatch(url.path):
        wanted = urllib.parse.parse_qs(url.query).get("permissions", [])
        return request("permissions", match[1], "", wanted=wanted)
    if match := _COPY.fullmatch(url.path):
        to = (match[3], urllib.parse.unquote(match[4]))
        return request("copy", match[1], match[2], to=to)
    if match := _COMPOSE.fullmatch(url.path):
        return request("compose", match[1], match[2], **json.loads(data))
    if url.path == _BATCH:
        parts = _batch_parts(headers["content-type"], data)
        requests = [parse(*part, objects) for part in parts]
        return request("batch", "", "", requests=requests)
    match = _PATH.fullmatch(url.path)
    if match is None:
        return _parse_xml(command, url.path, query, headers, data)
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


def _parse_xml(
    command: str,
    path: str,
    query: dict[str, str],
    headers: Mapping[str, str],
    data: bytes,
) -> Request:
    match = _XML.fullmatch(path)
    if match is None:
        return Request("unknown", "", path, query, {}, data, headers)
    bucket, name = match[1], urllib.parse.unquote(match[2] or "")
    operation = "unknown"  # Nobody writes by this API here.
    if command in ("GET", "HEAD"):
        operation = "media" if name else "list"
    return Request(operation, bucket, name, query, {"xml": True}, data, headers)


def carry_out(objects: Objects, request: Request, url: str) -> Reply:
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
        if operation == "copy":
            objects.demand(bucket, _OBJECTS + "get")
            objects.demand(about["to"][0], _OBJECTS + "create")
        to, new = about["to"] if operation == "copy" else (bucket, name)
        makes = operation in ("insert", "start", "compose", "copy")
        if makes and new in objects.buckets[to]:
            objects.demand(to, _OBJECTS + "delete")
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
                reply = objects.list(bucket, _json_listing(query))
                return _xml_listing(bucket, query, reply) if about else reply
            case "stat":
                return objects.stat(bucket, name, query)
            case "media":
                return objects.media(bucket, name, query, headers.get("range", ""))
            case "copy":
                return objects.copy(bucket, name, *about["to"], query)
            case "compose":
                names = [source["name"] for source in about["sourceObjects"]]
                return objects.compose(bucket, name, names, query)
            case "batch":
                return _batch_reply(objects, about["requests"], url)
    return error_reply(404, f"Not Found: {name}")


# Listings of the XML API say the same in other words.


def _json_listing(query: dict[str, str]) -> dict[str, str]:
    words = {"continuation-token": "pageToken", "max-keys": "maxResults"}
    return {words.get(word, word): value for word, value in query.items()}


def _xml_listing(bucket: str, query: dict[str, str], reply: Reply) -> Reply:
    escape = xml.sax.saxutils.escape
    document = json.loads(reply.body)
    token = document.get("nextPageToken", "")
    parts = [
        f"<Name>{bucket}</Name><Prefix>{escape(query.get('prefix', ''))}</Prefix>",
        f"<IsTruncated>{str(bool(token)).lower()}</IsTruncated>",
        f"<NextContinuationToken>{escape(token)}</NextContinuationToken>"
        if token
        else "",
    ]
    for item in document["items"]:
        parts.append(
            f"<Contents><Key>{escape(item['name'])}</Key>"
            f"<Generation>{item['generation']}</Generation>"
            f"<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f'<ETag>"{item["etag"]}"</ETag><Size>{item["size"]}</Size></Contents>'
        )
    for prefix in document["prefixes"]:
        parts.append(
            f"<CommonPrefixes><Prefix>{escape(prefix)}</Prefix></CommonPrefixes>"
        )
    text = (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult '
        'xmlns="http://doc.s3.amazonaws.com/2006-03-01">'
        f"{''.join(parts)}</ListBucketResult>"
    )
    return Reply(200, {"Content-Type": "application/xml"}, text.encode())


# Bodies of several parts.


def _upload_parts(content_type: str, data: bytes) -> tuple[dict[str, Any], bytes]:
    """Splits a multipart/related body into metadata and content."""
    boundary = content_type.partition("boundary=")[2].strip("\"'").encode()
    _, first, rest = data.split(b"--" + boundary, 2)
    # gcloud ends lines as Unix does.
    end = b"\r\n" if first.startswith(b"\r\n") else b"\n"
    about = json.loads(first.split(2 * end, 1)[1])
    content = rest.split(2 * end, 1)[1]
    return about, content[: content.rindex(end + b"--" + boundary)]


def _batch_parts(
    content_type: str, data: bytes
) -> list[tuple[str, str, dict[str, str], bytes]]:
    """Splits a batch into command, target, headers and body of each request."""
    head = f"Content-Type: {content_type}\r\n\r\n".encode()
    message = email.parser.BytesParser().parsebytes(head + data)
    parts = []
    for part in message.get_payload():
        assert isinstance(part, email.message.Message)
        text = part.get_payload(decode=True)
        assert isinstance(text, bytes)
        line, _, rest = text.partition(b"\n")
        inner = email.parser.BytesParser().parsebytes(rest)
        command, target = line.decode().split()[:2]
        body = inner.get_payload(decode=True)
        assert isinstance(body, bytes)
        parts.append((command, target, dict(inner.items()), body))
    return parts


def _batch_reply(objects: Objects, requests: list[Request], url: str) -> Reply:
    boundary, parts = "batch-of-tests", []
    for number, request in enumerate(requests, 1):
        try:
            reply = carry_out(objects, request, url)
        except RefusalError as refusal:
            reply = refusal.reply
        headers = {**reply.headers, "Content-Length": str(len(reply.body))}
        lines = [f"{field}: {value}" for field, value in headers.items()]
        parts.append(
            f"--{boundary}\r\nContent-Type: application/http\r\n"
            f"Content-ID: <response-{number}>\r\n\r\nHTTP/1.1 {reply.status} X\r\n"
            + "\r\n".join(lines)
            + f"\r\n\r\n{reply.body.decode()}\r\n"
        )
    text = "".join(parts) + f"--{boundary}--\r\n"
    kind = {"Content-Type": f"multipart/mixed; boundary={boundary}"}
    return Reply(200, kind, text.encode())
