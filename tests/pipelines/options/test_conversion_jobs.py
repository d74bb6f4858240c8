"""The jobs that options describe."""

from __future__ import annotations

import pytest

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.definitions import ConvertOptions, options_of
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.planning.shard_plan import PlanOptions

pytestmark = pytest.mark.usefixtures("no_cloud")


def test_defaults_are_those_of_what_the_options_make():
    job = conversion_of(ConvertOptions(input=("gs://a/b",), output="gs://a/c")).jobs[0]
    default = ConversionJob(inputs=("gs://a/b",), output="gs://a/c", name="c")
    assert job == default
    assert (job.plan, job.writer) == (PlanOptions(), WriterOptions())
    shown = {option.name: option.shown for option in options_of(ConvertOptions)}
    assert (shown["split"], shown["shard_size"]) == (default.split, "256MiB")
    assert default.plan.value == 256 << 20
