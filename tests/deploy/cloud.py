"""Google Cloud as tests see it: a Storage and a Dataflow on loopback, and a worker.

What was submitted to this Dataflow is run as its workers would run it: the staged
pipeline, by Python processes of another environment.
"""

import contextlib
import functools
import io
import json
import subprocess
import time
from collections import namedtuple
from types import SimpleNamespace

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.commands import main as cli
from tests.deploy.dataflow_server import DataflowServer
from tests.servers.gcs_server import GcsServer
from tests.support.records import frames_of, text_records

FILES, RECORDS = 3, 200
# Who waits for a job asks for its state every five seconds: the service here answers
# at once.
_POLL_SECONDS = 0.05


# What a command did.
Done = namedtuple("Done", "code stdout stderr")


class Cloud:
    """Both services, with TFRecord files in gs://raw/texts.

    Attributes:
        storage: Buckets `raw`, `data` and `scratch`.
        dataflow: The service of jobs.
        environment: Variables that lead clients to them.
    """

    def __init__(self, storage, dataflow):
        self.storage, self.dataflow = storage, dataflow
        self.environment = {
            "STORAGE_EMULATOR_HOST": storage.url,
            "CLOUD_STORAGE_EMULATOR_ENDPOINT": storage.url,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{dataflow.url}/compute/v1/",
            "NO_GCE_CHECK": "true",
        }
        for file in range(FILES):
            data = frames_of(text_records(RECORDS, seed=file))
            storage.objects.put("raw", f"texts/part-{file}.tfrecord", data)

    @property
    def arguments(self):
        """Options of Beam's that lead it to these services."""
        return ["--no_auth", f"--dataflow_endpoint={self.dataflow.url}"]

    def gristmill(self, *arguments):
        """Runs a command in this process."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                cli.main(arguments)
                code = 0
            except SystemExit as e:
                code = int(e.code or 0)
        return Done(code, out.getvalue(), err.getvalue())

    def submit(self, command, *arguments):
        """Runs a command on Dataflow, as from a laptop."""
        return self.gristmill(
            *(command, *arguments, "--runner", "DataflowRunner", *self.arguments),
            *("--project", "my-project", "--region", "us-central1"),
        )

    def files(self, directory):
        """Returns all objects below a gs:// directory, by relative path."""
        storage = storage_for(directory)
        return {
            info.path.removeprefix(f"{directory}/"): storage.read(info.path)
            for info in storage.match(f"{directory}/**")
        }

    def staged(self, job):
        """Returns the files that were staged with a job, by name."""
        url = job["environment"]["sdkPipelineOptions"]["options"]["pipelineUrl"]
        return self.files(url.rpartition("/")[0])


@functools.cache
def _printed(*command):
    """Returns what a command prints: of each submission, the list of packages here."""
    return subprocess.check_output(command)


@contextlib.contextmanager
def running(*states):
    """Runs both services, and leads the clients of this process to them."""
    with (
        GcsServer("raw", "data", "scratch") as storage,
        DataflowServer(*states) as dataflow,
        pytest.MonkeyPatch.context() as patch,
    ):
        cloud = Cloud(storage, dataflow)
        for name, value in cloud.environment.items():
            patch.setenv(name, value)
        polls = SimpleNamespace(
            time=time.time, sleep=lambda seconds: time.sleep(_POLL_SECONDS)
        )
        patch.setattr("apache_beam.runners.dataflow.dataflow_runner.time", polls)
        stager = SimpleNamespace(check_output=lambda command: _printed(*command))
        patch.setattr("apache_beam.runners.portability.stager.subprocess", stager)
        # Worker processes must find their packages in their own environment.
        patch.delenv("PYTHONPATH", raising=False)
        yield cloud


def gcloud_environment(folder, storage, dataflow):
    """Returns variables that lead `gcloud` to services; a folder has its settings."""
    endpoints = "CLOUDSDK_API_ENDPOINT_OVERRIDES"
    return {
        "CLOUDSDK_CONFIG": str(folder),
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
        f"{endpoints}_STORAGE": f"{storage.url}/storage/v1/",
        f"{endpoints}_CLOUDBUILD": f"{dataflow.url}/",
        f"{endpoints}_DATAFLOW": f"{dataflow.url}/",
    }


def run_staged(pipeline, python):
    """Runs a staged pipeline with workers of another environment.

    Args:
        pipeline: The content of `pipeline.pb`.
        python: That environment's interpreter.

    Returns:
        How the pipeline ended.
    """
    proto = beam_runner_api_pb2.Pipeline.FromString(pipeline)
    worker = f"{python} -m apache_beam.runners.worker.sdk_worker_main"
    for environment in proto.components.environments.values():
        environment.urn = python_urns.SUBPROCESS_SDK
        environment.payload = worker.encode()
        # Installed there already, as a worker does before it starts.
        del environment.dependencies[:]
    result = FnApiRunner().run_via_runner_api(proto, PipelineOptions([]))
    return result.wait_until_finish()


def job_of(cloud):
    """Returns the one job that was created, as it was sent."""
    (job,) = cloud.dataflow.jobs.values()
    return job


def options_of_job(job):
    """Returns the pipeline options of a job."""
    return job["environment"]["sdkPipelineOptions"]["options"]


def written_job(cloud, path):
    """Returns the description of a job that was written instead of sent."""
    return json.loads(storage_for(path).read(path))
