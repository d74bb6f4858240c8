"""Pipelines as tests run them: on real local runners, with all that comes out."""

from __future__ import annotations

import functools
import pathlib
import pickle
import tempfile
from collections.abc import Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that

IN_MEMORY = ("--runner=FnApiRunner",)
# Every bundle twice, as after a failure that nobody saw.
BUNDLES_TWICE = (*IN_MEMORY, "--direct_runner_bundle_repeat=1")
# Bundles are tried four times, and elements arrive in another order.
BUNDLE_BASED = ("--runner=BundleBasedDirectRunner",)
WORKER_PROCESSES = (
    *IN_MEMORY,
    "--direct_running_mode=multi_processing",
    "--direct_num_workers=2",
)


def _dump(path: str, elements: list[Any]) -> None:
    pathlib.Path(path).write_bytes(pickle.dumps(list(elements)))


def run(*transforms: Any, argv: Sequence[str] = IN_MEMORY) -> list[Any]:
    """Runs a chain of transforms and returns what comes out of the last one.

    The elements come through a file: as a side input of `equal_to`, megabytes of
    records take seconds.

    Args:
        *transforms: From the pipeline's begin on; applied with labels of their own.
        argv: Beam options.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/elements"
        with beam.Pipeline(options=PipelineOptions(list(argv))) as pipeline:
            found: Any = pipeline
            for number, transform in enumerate(transforms):
                found = found | f"Stage{number}" >> transform
            assert_that(found, functools.partial(_dump, path))
        return list(pickle.loads(pathlib.Path(path).read_bytes()))
