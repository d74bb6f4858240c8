"""Pipelines as tests run them: on real local runners, with all that comes out."""

import pathlib
import pickle
import tempfile

import apache_beam as beam
from apache_beam.metrics import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.trigger import AccumulationMode, AfterWatermark
from apache_beam.transforms.window import GlobalWindows

from gristmill.transforms.beam.run_job import NAMESPACE

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


def _in_one_window():
    # The trigger is for streams: the default one may not group them.
    return beam.WindowInto(
        GlobalWindows(),
        trigger=AfterWatermark(),
        accumulation_mode=AccumulationMode.DISCARDING,
    )


def _keyed(element):
    return None, element


def _dump(group, path):
    pathlib.Path(path).write_bytes(pickle.dumps(list(group[1])))


def run(*transforms, argv=IN_MEMORY):
    """Runs a chain of transforms and returns what comes out of the last one.

    The elements come through a file that one group writes: `assert_that` takes four
    times as many steps, and megabytes of records in a side input take seconds.

    Args:
        *transforms: From the pipeline's begin on; applied with labels of their own.
        argv: Beam options.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/elements"
        with beam.Pipeline(options=PipelineOptions(list(argv))) as pipeline:
            found = pipeline
            for number, transform in enumerate(transforms):
                found = found | f"Stage{number}" >> transform
            (
                found
                | "OneWindow" >> _in_one_window()
                | "Keyed" >> beam.Map(_keyed)
                | "Group" >> beam.GroupByKey()
                | "Dump" >> beam.Map(_dump, path)
            )
        written = pathlib.Path(path)  # Of nothing there is no group.
        return list(pickle.loads(written.read_bytes())) if written.exists() else []


def ended(*transforms, argv=IN_MEMORY):
    """Runs a chain of transforms and returns what is known of the pipeline then."""
    pipeline = beam.Pipeline(options=PipelineOptions(list(argv)))
    applied = pipeline
    for number, transform in enumerate(transforms):
        applied = applied | f"Stage{number}" >> transform
    result = pipeline.run()
    result.wait_until_finish()
    return result


def counters(result):
    """Returns our counters of a pipeline that has ended, by name."""
    return {
        found.key.metric.name: found.result
        for found in _metrics(result)["counters"]
        if found.result is not None
    }


def distributions(result):
    """Returns our distributions of a pipeline that has ended, by name."""
    found = _metrics(result)["distributions"]
    return {each.key.metric.name: each.result for each in found}


def _metrics(result):
    wanted = MetricsFilter().with_namespace(NAMESPACE)
    found = result.metrics().query(wanted)
    return found
