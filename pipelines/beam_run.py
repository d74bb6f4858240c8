"""Running a pipeline on one of Beam's runners until it has ended."""

from __future__ import annotations

import _thread
import contextlib
import itertools
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from gristmill.dataset import errors
from gristmill.dataset.errors import GristmillError
from gristmill.pipelines.local.pool import worker_died

_OUR_ERROR = re.compile(r"\bgristmill\.[\w.]+\.(\w+Error): ")
_STAGE_NOTE = re.compile(r" \[while running '.*?'\]")


def run_pipeline(
    transform: beam.PTransform[Any, Any], label: str, beam_options: Sequence[str]
) -> None:
    """Runs a transform as a whole pipeline, and waits for its end.

    Args:
        transform: Applied to a pipeline.
        label: Its label.
        beam_options: Options of the pipeline, `--runner` among them.

    Raises:
        GristmillError: What one of our own steps found wrong, as it said it.
    """
    pipeline = beam.Pipeline(options=PipelineOptions(list(beam_options)))
    _ = pipeline | label >> transform
    try:
        with _dead_workers_noticed():
            pipeline.run().wait_until_finish()
    except Exception as e:
        ours = _beam_error(e)
        if ours is None:
            raise
        raise ours from e


@contextlib.contextmanager
def _dead_workers_noticed() -> Iterator[None]:
    """Makes the death of one of Beam's local worker processes an error.

    Beam 2.77 raises it in a thread that nobody waits for, and the pipeline hangs
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
        # Now and then Beam notices first, by the connection that it lost.
        if died.is_set() or "Channel closed prematurely" in str(e):
            raise worker_died("one of Beam's processes") from None
        raise
    finally:
        threading.excepthook = inherited


def _beam_error(error: Exception) -> GristmillError | None:
    """Finds our own message in what a runner makes of an error.

    In memory, runners raise our error with a note on the stage; across processes, a
    RuntimeError whose text is the whole traceback, ours at the end.
    """
    kind: type[GristmillError] = GristmillError
    text = str(error)
    if isinstance(error, GristmillError):
        kind = type(error)
    else:
        names = list(_OUR_ERROR.finditer(text))
        if not names:
            return None
        kind = getattr(errors, names[-1][1], GristmillError)
        text = text[names[-1].end() :]
    first, *rest = text.splitlines()
    facts = list(itertools.takewhile(lambda line: line.startswith("  "), rest))
    return kind(_STAGE_NOTE.sub("", "\n".join([first, *facts])))
