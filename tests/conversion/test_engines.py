"""The conversion on engines of other processes: the same bytes, whoever is killed.

Real ones, on loopback: a Dask scheduler with two workers, and Beam's portable job
service with an SDK harness of its own, as Flink, Spark and Dataflow have it.
"""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from gristmill.pipelines.convert import convert as run_conversion
from gristmill.transforms import ConvertFiles
from gristmill.transforms.beam.job_transforms import MakePlanned
from tests.support.conversion import contents, convert, job_of, varied_records, work_of
from tests.support.records import write_tfrecords
from tests.support.waiting import until

DASK = "--runner=apache_beam.runners.dask.dask_runner.DaskRunner"

# A function that says who called it, slow enough to be killed in the middle.
NOTES_ITS_PROCESS = """
import os, pathlib, time

def slow(record):
    (pathlib.Path({pids!r}) / str(os.getpid())).touch()
    time.sleep(0.004)
    return record
"""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def listens(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def inputs(folder):
    (folder / "in").mkdir()
    (folder / "pids").mkdir()
    for number in range(3):
        records = varied_records(150, seed=number)
        write_tfrecords(folder / "in" / str(number), records)
    text = NOTES_ITS_PROCESS.format(pids=str(folder / "pids"))
    (folder / "engine_functions.py").write_text(text)
    return folder / "in"


@pytest.fixture(scope="module")
def start(folder):
    """Starts processes that import what lies in the folder, and ends them."""
    # Beam's worker pool starts whatever `python` it finds.
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    environment = os.environ | {"PYTHONPATH": f"{folder}:{os.getcwd()}", "PATH": path}
    with contextlib.ExitStack() as stack:

        def start(words, port=None):
            log = stack.enter_context(open(folder / f"{len(os.listdir(folder))}", "w"))
            argv = [sys.executable, "-m", *words.split()]
            options = {"stdout": log, "stderr": subprocess.STDOUT}
            process = subprocess.Popen(argv, cwd=folder, env=environment, **options)
            stack.enter_context(process)
            stack.callback(process.kill)
            until(lambda: port is None or listens(port) or process.poll() is not None)
            assert process.poll() is None, pathlib.Path(log.name).read_text()
            return process

        yield start


@pytest.fixture(scope="module")
def dask_workers(start):
    """The address of a scheduler, and its two workers."""
    port = free_port()
    cli, address = "distributed.cli", f"tcp://127.0.0.1:{port}"
    start(f"{cli}.dask_scheduler --host 127.0.0.1 --port {port} --no-dashboard", port)
    words = f"{cli}.dask_worker {address} --no-nanny --no-dashboard --nthreads 1"
    workers = [start(words) for _ in range(2)]
    from distributed import Client

    with Client(address) as client:
        client.wait_for_workers(2, timeout=60)
    return address, workers


@pytest.fixture(scope="module")
def job_service(start):
    """Options for a pipeline on a portable job service."""
    service, harness = free_port(), free_port()
    module = "apache_beam.runners"
    start(f"{module}.portability.local_job_service_main -p {service}", service)
    start(f"{module}.worker.worker_pool_main --service_port={harness}", harness)
    return (
        *("--runner=PortableRunner", f"--job_endpoint=localhost:{service}"),
        *("--environment_type=EXTERNAL", f"--environment_config=localhost:{harness}"),
    )


@pytest.fixture
def options(engine, request):
    """Options for a pipeline on an engine."""
    if engine == "job service":
        return request.getfixturevalue("job_service")
    address, _ = request.getfixturevalue("dask_workers")
    return DASK, f"--dask_client_address={address}", "--dask_partition_size=1"


def run(transform, *options):
    pipeline = beam.Pipeline(options=PipelineOptions(list(options)))
    _ = pipeline | transform
    result = pipeline.run()
    try:
        result.wait_until_finish()
    finally:
        # Beam leaves Dask's client open, which would miss its scheduler for ever.
        client = getattr(result, "client", None)
        if client is not None:
            client.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "planned"),
    [
        ("dask", True),
        ("job service", False),
        pytest.param("dask", False, marks=pytest.mark.soak),
        pytest.param("job service", True, marks=pytest.mark.soak),
    ],
)
def test_the_same_bytes(options, planned, inputs, tmp_path):
    """Where it is planned before, the result comes back too."""
    here, there = (
        job_of(inputs, tmp_path / name, shards=7) for name in ("here", "there")
    )
    expected = run_conversion([here])
    if planned:
        result = run_conversion([there], beam_options=options)
        assert result.manifest == expected.manifest
    else:
        run(ConvertFiles(jobs=(there,)), *options)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("engine", ["dask"])
def test_a_dask_worker_that_is_killed(
    inputs, folder, dask_workers, tmp_path, options, monkeypatch
):
    """The last test of the workers: one of them is gone. The other does its work."""
    first, second = dask_workers[1]
    monkeypatch.syspath_prepend(str(folder))
    reference, job = (
        job_of(inputs, out, shards=12, map="engine_functions:slow")
        for out in (tmp_path / "reference", tmp_path / "out")
    )
    convert(reference)
    work = work_of(job)

    def kill_when_both_work():
        pids = folder / "pids"
        until(lambda: all((pids / str(each.pid)).exists() for each in (first, second)))
        first.send_signal(signal.SIGKILL)

    threading.Thread(target=kill_when_both_work, daemon=True).start()
    run(MakePlanned(work), *options)
    assert first.wait(60) == -signal.SIGKILL
    assert second.poll() is None
    assert contents(tmp_path / "out") == contents(tmp_path / "reference")
