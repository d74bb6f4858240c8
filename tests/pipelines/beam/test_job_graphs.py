"""Every option reaches the graph of its pipeline."""

from __future__ import annotations

import pytest

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.pipelines.beam.job_graphs import graph_of
from gristmill.pipelines.options.job_options import ConvertOptions
from gristmill.transforms.planning.shard_plan import PlanOptions
from tests.support.options import REQUIRED

pytestmark = pytest.mark.usefixtures("no_cloud")


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"name": "n"}, "name", "n"),
        ({"split": "test"}, "split", "test"),
        ({"map": "a:b"}, "map", "a:b"),
        ({"on_corrupt": "skip"}, "on_corrupt", "skip"),
        ({"max_corrupt": 3}, "max_corrupt", 3),
        ({"group_size": 4}, "writer", WriterOptions(group_size=4)),
        ({"compression": "snappy"}, "writer", WriterOptions(compression="snappy")),
        ({"match_shards": True}, "plan", PlanOptions(kind="match_shards", value=None)),
        ({"num_shards": 7}, "plan", PlanOptions(kind="num_shards", value=7)),
        ({"shard_size": "1kB"}, "plan", PlanOptions(kind="shard_bytes", value=1000)),
    ],
)
def test_every_option_reaches_the_job_and_the_graph(given, field, value):
    options = ConvertOptions(**REQUIRED["convert"], **given)
    graph = graph_of(options)
    assert getattr(graph.jobs[0], field) == value


def test_overwrite_reaches_the_graphs():
    for overwrite in (False, True):
        options = ConvertOptions(**REQUIRED["convert"], overwrite=overwrite)
        assert graph_of(options).overwrite is overwrite
