"""A small Dataflow service on loopback: jobs that are created, and end as they should.

Subnetworks of Compute Engine are there as well.

It runs nothing. A test takes the pipeline that was submitted and runs it itself.
"""

import http.server
import json
import re
import threading

JOB = "2026-01-02_03_04_05-0"
"""The job of each launched template."""

_LAUNCH = re.compile(r"/v1b3/projects/[^/]+/locations/[^/]+/flexTemplates:launch")
_SUBNETWORK = re.compile(r"/compute/v1/projects/[^/]+/regions/[^/]+/subnetworks/(.+)")
_JOBS = re.compile(r"/v1b3/projects/([^/]+)/locations/([^/]+)/jobs(?:/([^/]+)(/\w+)?)?")


class DataflowServer:
    """The server; use it in a `with` statement.

    Attributes:
        requests: (method, path) of every request.
        jobs: Jobs as they were sent to be created, by their ids.
        launches: Requests to launch templates, as they were sent.
        states: What a job is in, one state for each look at it; the last one stays.
        errors: What the log of every job says.
        refusal: (status, message) of the answer to the creation of jobs, if refused.
        denied: Permissions that the caller does not have.
        busy: Number of 503s that the next requests for subnetworks get.
        subnetworks: Whether those of the region have Private Google Access, by name.
    """

    def __init__(self, *states):
        self.requests = []
        self.jobs = {}
        self.launches = []
        self.states = list(states) or ["JOB_STATE_RUNNING"]
        self.errors = []
        self.refusal = None
        self.denied = set()
        self.busy = 0
        self.subnetworks = {"default": True}
        self._http = http.server.ThreadingHTTPServer(
            ("localhost", 0), type("Handler", (_Handler,), {"service": self})
        )
        # Beam takes a service on `localhost`, and no other, for one without TLS.
        self.url = f"http://localhost:{self._http.server_address[1]}"

    def __enter__(self):
        serve = self._http.serve_forever
        threading.Thread(target=serve, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error):
        self._http.shutdown()
        self._http.server_close()

    def create(self, project, region, job):
        job_id = f"2026-01-02_03_04_05-{len(self.jobs) + 1}"
        # Of an active job of that name the service tells, and makes no other.
        for active_id, active in self.jobs.items():
            if active["name"] == job["name"]:
                job_id, job = active_id, active
        about = {"id": job_id, "projectId": project, "location": region}
        self.jobs[job_id] = job
        kept = {key: job[key] for key in ("name", "type", "clientRequestId")}
        return about | kept | {"currentState": "JOB_STATE_PENDING"}

    def denied_to(self, command, project, part):
        """Returns what the service says to a caller without a permission, if so."""
        what = "get workflow; user does not have sufficient permissions on"
        permission = "dataflow.jobs.get"
        if part == "/messages":
            permission = "dataflow.messages.list"
        if command == "POST":
            what = "create workflow; user does not have write access to"
            permission = "dataflow.jobs.create"
            if "iam.serviceAccounts.actAs" in self.denied:
                acts = "Current user cannot act as service account worker@my-project."
                return f"(1a2b): {acts} Causes: (1a2c): {acts}"
        if permission not in self.denied:
            return None
        return (
            f"(1a2b): Could not {what} project: {project} Causes: (1a2c): Permission "
            f"'{permission}' denied on project: '{project}'"
        )

    def subnetwork(self, name):
        """Returns status and document of the answer that tells of a subnetwork."""
        if self.busy:
            self.busy -= 1
            return 503, _error(503, "The service is busy")
        permission = "compute.subnetworks.get"
        if permission in self.denied:
            return 403, _error(403, f"Required '{permission}' permission for {name}")
        if name not in self.subnetworks:
            return 404, _error(404, f"The resource {name} was not found")
        return 200, {"name": name, "privateIpGoogleAccess": self.subnetworks[name]}

    def look(self, project, region, job_id):
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        about = {"id": job_id, "projectId": project, "location": region}
        return about | {"name": self.jobs[job_id]["name"], "currentState": state}


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format, *args):
        """Says nothing."""

    def do_GET(self):
        path = self.path.partition("?")[0]
        if match := _SUBNETWORK.fullmatch(path):
            self._send(*self.service.subnetwork(match[1]))
            return
        self.service.requests.append((self.command, path))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if _LAUNCH.fullmatch(path):
            self.service.launches.append(json.loads(body))
            self._send(200, {"job": {"id": JOB}})
            return
        match = _JOBS.fullmatch(path)
        if match is None:
            self._send(404, _error(404, f"no such method: {path}"))
            return
        project, region, job_id, part = match.groups()
        denied = self.service.denied_to(self.command, project, part)
        if denied is not None:
            self._send(403, _error(403, denied))
        elif self.command == "POST" and self.service.refusal is not None:
            self._send(self.service.refusal[0], _error(*self.service.refusal))
        elif self.command == "POST" and job_id is None:
            self._send(200, self.service.create(project, region, json.loads(body)))
        elif job_id not in self.service.jobs:
            self._send(404, _error(404, f"no such job: {job_id}"))
        elif part is None:
            self._send(200, self.service.look(project, region, job_id))
        elif part == "/messages":
            about = {"messageImportance": "JOB_MESSAGE_ERROR"}
            about["time"] = "2026-01-02T03:04:05.678Z"
            messages = [
                about | {"id": f"message-{number}", "messageText": text}
                for number, text in enumerate(self.service.errors)
            ]
            self._send(200, {"jobMessages": messages})
        else:
            self._send(404, _error(404, f"no such method: {path}"))

    do_POST = do_GET  # noqa: N815

    def _send(self, status, document):
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _error(status, message):
    return {"error": {"code": status, "message": message, "status": "REFUSED"}}
