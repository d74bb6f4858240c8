"""One pipeline on a Beam runner, from start to result."""

from __future__ import annotations

import _thread
import contextlib
import hashlib
import hmac
import itertools
import pickle
import re
import secrets
import threading
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, cast

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineResult

from gristmill.dataset.base import errors
from gristmill.dataset.base.errors import GristmillError, JobError, StorageChangedError
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.local.workers import worker_died

_OUR_ERROR = re.compile(r"\bgristmill\.[\w.]+\.(\w+Error): ")
_STEP_NOTE = re.compile(r" \[while running '.*?'\]")

_HASH = "sha256"
_SIGNATURE_BYTES = hashlib.new(_HASH).digest_size

T = TypeVar("T")


def run_pipeline(
    transform: beam.PTransform[beam.pvalue.PBegin, beam.PCollection[T]],
    beam_options: Sequence[str],
    *,
    result_path: str,
) -> T:
    """Runs a transform as a pipeline, waits for its end, and returns its result.

    Runners do not return elements to the process that started them. Therefore the last
    step writes the result to a file, which is read and deleted here. It is pickled, and
    signed with a key of this run, since others may write to the bucket.

    Args:
        transform: A transform of a pipeline, with one element as result.
        beam_options: Options of the pipeline, including `--runner`.
        result_path: The file, where the workers and this process can both access it.
            A file from another run of the same command is deleted.

    Returns:
        The element. If the runner repeated the last step, the first one, as a repeated
        step finds the work done and counts nothing.
    """
    storage_for(result_path).delete(result_path)
    key = secrets.token_bytes()
    try:
        pipeline = beam.Pipeline(options=PipelineOptions(list(beam_options)))
        _ = pipeline | transform | "HandOver" >> beam.Map(_hand_over, result_path, key)
        with _dead_workers_noticed():
            _wait(pipeline.run())
        content = storage_for(result_path).load(result_path)
    except Exception as e:
        error = _our_error(e) or _runner_error(e, beam_options)
        if error is None or error is e:
            raise
        raise error from e
    finally:
        with contextlib.suppress(GristmillError):
            storage_for(result_path).delete(result_path)
    if content is None:
        raise JobError(
            "the pipeline has finished, but its result did not arrive",
            where=result_path,
            expected="a file that the last step writes",
            got=f"none, with {' '.join(beam_options)}",
            cure="use paths that the workers and this machine share, such as gs:// "
            "paths; for verify, also give --temp_location or --report there",
        )
    signature, data = content.data[:_SIGNATURE_BYTES], content.data[_SIGNATURE_BYTES:]
    if not hmac.compare_digest(signature, hmac.digest(key, data, _HASH)):
        raise JobError(
            "the result of the pipeline is not from this run",
            where=result_path,
            expected="the signature of this run",
            got="another",
            cure="see who else writes there, then run the same command again",
        )
    return cast("T", pickle.loads(data))


def _wait(result: PipelineResult) -> None:
    try:
        result.wait_until_finish()
    finally:
        # Beam leaves Dask's client open.
        client = getattr(result, "client", None)
        if client is not None:
            client.close()


def _hand_over(result: Any, path: str, key: bytes) -> None:
    data = pickle.dumps(result)
    signature = hmac.digest(key, data, _HASH)
    with contextlib.suppress(StorageChangedError):
        storage_for(path).write(path, signature + data, replaces="")


@contextlib.contextmanager
def _dead_workers_noticed() -> Iterator[None]:
    """Raises an error when one of Beam's local worker processes dies.

    Beam 2.77 raises it in a thread that it never joins, and the pipeline hangs
    (local_job_service.SubprocessSdkWorker.run).
    """
    died = threading.Event()
    inherited = threading.excepthook

    def notice(failure: threading.ExceptHookArgs) -> None:
        if "Worker subprocess exited" in str(failure.exc_value):
            died.set()
            _thread.interrupt_main()
        else:
            inherited(failure)

    threading.excepthook = notice
    try:
        yield
    except (KeyboardInterrupt, RuntimeError) as e:
        # Sometimes Beam detects the lost connection first.
        if died.is_set() or "Channel closed prematurely" in str(e):
            raise worker_died("one of Beam's processes") from None
        raise
    finally:
        threading.excepthook = inherited


def _runner_error(error: Exception, beam_options: Sequence[str]) -> JobError | None:
    """Returns the error for a failure of the runner itself, None for one of a step."""
    text = str(error)
    if _STEP_NOTE.search(text) or "Traceback (most recent call last)" in text:
        return None
    return JobError(
        "the Beam runner has failed",
        where=" ".join(beam_options),
        got=f"{type(error).__name__}: {text}",
        cure="give the options that it asks for, or choose another --runner; finished "
        "shards are kept",
    )


def _our_error(error: Exception) -> GristmillError | None:
    """Returns the error of gristmill inside a runner's error, if any.

    In memory, runners raise our error with the name of the step after its first
    argument; across processes, a RuntimeError whose text is the traceback, which ends
    with our message.
    """
    if isinstance(error, GristmillError):
        error.what = _STEP_NOTE.sub("", error.what)
        error.args = (error.what, *error.args[1:])
        return error
    text = str(error)
    names = list(_OUR_ERROR.finditer(text))
    if not names:
        return None
    kind: type[GristmillError] = getattr(errors, names[-1][1], GristmillError)
    first, *rest = _STEP_NOTE.sub("", text[names[-1].end() :]).splitlines()
    facts = itertools.takewhile(lambda line: line.startswith("  "), rest)
    return kind.from_text("\n".join([first, *facts]))
