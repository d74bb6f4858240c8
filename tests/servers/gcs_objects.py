"""The objects of a small Google Cloud Storage, and what its JSON API does with them.

It is strict where servers made for tests are not: preconditions hold for every kind of
upload, checksums are compared, resumable uploads keep to the protocol.
"""

import base64
import hashlib
import itertools
import json
import re
import sys
import threading
import time
from collections import namedtuple
from urllib.parse import quote

import google_crc32c

CONTENT_TYPE = "application/octet-stream"
# Large objects have no MD5, as those of the real server that were composed.
MOST_MD5_BYTES = 1 << 20
# Of all servers together: what a process remembers by generation stays right.
_GENERATIONS = itertools.count(1_700_000_000_000_000)


StoredObject = namedtuple(
    "StoredObject", "data generation checksums content_encoding updated"
)
Reply = namedtuple("Reply", "status headers body", defaults=[b""])


class RefusalError(Exception):
    def __init__(self, status, message, **headers):
        self.reply = error_reply(status, message, **headers)


def error_reply(status, message, **headers):
    detail = {"message": message, "domain": "global", "reason": "made"}
    error = {"code": status, "message": message, "errors": [detail]}
    return json_reply({"error": error}, status=status, **headers)


def json_reply(document, *, status=200, **headers):
    kind = {"Content-Type": "application/json; charset=UTF-8"}
    return Reply(status, kind | headers, json.dumps(document).encode())


def _checksums(data):
    digests = {"crc32c": google_crc32c.Checksum(data).digest()}
    if len(data) <= MOST_MD5_BYTES:
        digests["md5Hash"] = hashlib.md5(data).digest()
    return {kind: base64.b64encode(digest).decode() for kind, digest in digests.items()}


def _hashes(found):
    return ",".join(
        f"{kind.removesuffix('Hash')}={value}"
        for kind, value in found.checksums.items()
    )


class Objects:
    """Buckets of objects.

    Attributes:
        buckets: Objects by name, by bucket.
        page_size: Most items on one page of a listing.
        places: What the service says of a bucket's location, by bucket; of others it
            is `US`.
        denied: Permissions that the caller has in no bucket.
        granted: Permissions that the caller has, by bucket; None for all.
        leaves_out_zeros: Whether an empty object has no `size`.
        lock: Held while one request is carried out.
    """

    def __init__(self, *buckets):
        self.buckets = {name: {} for name in buckets}
        # Where clients find the objects, for links to them.
        self.url = ""
        self.page_size = 1000
        self.places = {}
        self.denied = set()
        self.granted = None
        self.leaves_out_zeros = False
        self.uploads = {}
        self.lock = threading.RLock()

    def put(self, bucket, name, data, *, encoding=""):
        """Stores an object and returns its generation."""
        checksums = _checksums(data)
        with self.lock:
            generation = next(_GENERATIONS)
            self.buckets[bucket][name] = StoredObject(
                data, generation, checksums, encoding, time.time()
            )
        return generation

    def tamper(self, bucket, name, how):
        """Lets somebody `replace` an object by other bytes, or `remove` it."""
        with self.lock:
            found = self.buckets[bucket].pop(name, None)
            if found is not None and how == "replace":
                self.put(bucket, name, found.data[::-1])

    def may(self, bucket, permission):
        """Returns whether the caller has a permission in a bucket."""
        granted = self.granted is None or permission in self.granted.get(bucket, ())
        return granted and permission not in self.denied

    def demand(self, bucket, *permissions):
        """Refuses, as the service does, unless the caller has all permissions."""
        self._bucket(bucket)
        for permission in permissions:
            if not self.may(bucket, permission):
                raise RefusalError(
                    403,
                    f"the caller does not have {permission} access to the Google "
                    f"Cloud Storage bucket. Permission '{permission}' denied on "
                    "resource (or it may not exist).",
                )

    def find(self, bucket, name, query):
        objects = self._bucket(bucket)
        found = objects.get(name)
        wanted = query.get("generation")
        if found is None:
            # Whoever may not list is not told what is not there.
            self.demand(bucket, "storage.objects.list")
        if found is None or wanted not in (None, str(found.generation)):
            text = f"No such object: {bucket}/{name}"
            raise RefusalError(404, text)
        self._check_generation(found, query)
        return found

    def delete(self, bucket, name, query):
        self.find(bucket, name, query)
        del self.buckets[bucket][name]
        return Reply(204, {})

    def insert(self, bucket, about, data, query):
        objects, name = self._bucket(bucket), about["name"]
        self._check_generation(objects.get(name), query)
        for field, value in _checksums(data).items():
            if about.get(field, value) != value:
                raise RefusalError(
                    400, f"Provided {field} {about[field]!r} doesn't match {value!r}."
                )
        self.put(bucket, name, data, encoding=about.get("contentEncoding", ""))
        return json_reply(self.resource(bucket, name))

    def bucket(self, bucket):
        self._bucket(bucket)
        about = {"name": bucket, "location": "US", "projectNumber": "1"}
        return json_reply(about | self.places.get(bucket, {}))

    def permissions(self, bucket, wanted):
        self._bucket(bucket)
        granted = [name for name in wanted if self.may(bucket, name)]
        return json_reply({"permissions": granted})

    def list(self, bucket, query):
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        most = min(int(query.get("maxResults", self.page_size)), self.page_size)
        token = base64.b64decode(query.get("pageToken", "")).decode()
        is_item = {}
        for name in self._bucket(bucket):
            if name.startswith(prefix):
                tail = name[len(prefix) :]
                cut = tail.find(delimiter) if delimiter else -1
                group = name if cut < 0 else prefix + tail[: cut + len(delimiter)]
                is_item[group] = cut < 0
        left = sorted(group for group in is_item if group > token)
        page = left[:most]
        more = {}
        if len(left) > most:
            more["nextPageToken"] = base64.b64encode(page[-1].encode()).decode()
        found = [self.resource(bucket, name) for name in page if is_item[name]]
        prefixes = [name for name in page if not is_item[name]]
        return json_reply({"items": found, "prefixes": prefixes} | more)

    def stat(self, bucket, name, query):
        self.find(bucket, name, query)
        return json_reply(self.resource(bucket, name))

    def resource(self, bucket, name):
        found = self.buckets[bucket][name]
        place = f"{self.url}/download/storage/v1/b/{bucket}/o/{quote(name, safe='')}"
        size = {"size": str(len(found.data))}
        if self.leaves_out_zeros and not found.data:
            size = {}
        return {
            "kind": "storage#object",
            "mediaLink": f"{place}?generation={found.generation}&alt=media",
            "id": f"{bucket}/{name}/{found.generation}",
            "bucket": bucket,
            "name": name,
            **size,
            "generation": str(found.generation),
            "metageneration": "1",
            "contentType": CONTENT_TYPE,
            **found.checksums,
            "etag": str(found.generation),
            "updated": time.strftime(
                "%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(found.updated)
            ),
        }

    def media(self, bucket, name, query, sent_range):
        found = self.find(bucket, name, query)
        size = len(found.data)
        begin, end, status = 0, size, 200
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", sent_range):
            begin, status = int(match[1]), 206
            end = min(int(match[2]) + 1, size) if match[2] else size
            if begin >= size:
                unfit = {"Content-Range": f"bytes */{size}"}
                raise RefusalError(416, "Requested range not satisfiable", **unfit)
        headers = {
            "Content-Type": CONTENT_TYPE,
            "X-Goog-Generation": str(found.generation),
            "X-Goog-Hash": _hashes(found),
            "X-Goog-Stored-Content-Encoding": found.content_encoding or "identity",
            "X-Goog-Stored-Content-Length": str(size),
        }
        if found.content_encoding:
            headers["Content-Encoding"] = found.content_encoding
        if status == 206:
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        return Reply(status, headers, found.data[begin:end])

    def start(self, url, bucket, about, query):
        self._check_generation(self._bucket(bucket).get(about["name"]), query)
        key = str(len(self.uploads))
        upload = {"bucket": bucket, "about": about, "query": query, "data": bytearray()}
        self.uploads[key] = upload
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={key}"
        return Reply(200, {"Location": url + path})

    def name_of_upload(self, key):
        return self.uploads[key]["about"]["name"] if key in self.uploads else ""

    def lose(self, key, *, all_of_it):
        """Loses what has arrived of an upload, or all that is known of it."""
        with self.lock:
            self.uploads[key]["data"].clear()
            if all_of_it:
                del self.uploads[key]
                raise RefusalError(404, "No such upload")
            return Reply(308, {})

    def chunk(self, key, data, content_range, *, keep_bytes=sys.maxsize):
        """Takes a piece of an upload, or all but its end."""
        upload = self.uploads.get(key)
        if upload is None:
            raise RefusalError(404, "No such upload")
        if "reply" in upload:  # Finished before: the same answer again.
            return upload["reply"]
        match = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", content_range)
        if match is None:
            raise RefusalError(400, f"Bad Content-Range: {content_range}")
        received = upload["data"]
        if match[1]:
            begin = int(match[1])
            if begin > len(received) or int(match[2]) + 1 - begin != len(data):
                raise RefusalError(
                    503, f"Got {len(received)} bytes, not {content_range}"
                )
            # What is there already stays.
            received += data[len(received) - begin : keep_bytes]
        if match[3] != "*" and len(received) == int(match[3]):
            upload["reply"] = self.insert(
                upload["bucket"], upload["about"], bytes(received), upload["query"]
            )
            return upload["reply"]
        have = {"Range": f"bytes=0-{len(received) - 1}"} if received else {}
        return Reply(308, have)

    def _bucket(self, bucket):
        if bucket not in self.buckets:
            text = "The specified bucket does not exist."
            raise RefusalError(404, text)
        return self.buckets[bucket]

    def _check_generation(self, found, query):
        wanted = query.get("ifGenerationMatch")
        if wanted is not None and int(wanted) != (found.generation if found else 0):
            raise RefusalError(
                412, "At least one of the pre-conditions you specified did not hold."
            )
