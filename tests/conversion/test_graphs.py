"""The graphs of all transforms: no element is a list of objects for all shards.

A `CombineGlobally` that keeps its default adds a side input that carries the whole
result; a list of objects takes half a kilobyte a shard.
"""

from __future__ import annotations

import dataclasses
import functools
import operator

import apache_beam as beam
import pytest
from apache_beam.portability.common_urns import primitives
from apache_beam.runners.portability.fn_api_runner import translations

from gristmill import transforms
from gristmill.transforms import (
    ConversionJob,
    ConvertFiles,
    IndexArrayRecords,
    PackOptions,
    ReadAllRecords,
    ReadArrayRecords,
    ReadRecords,
    ReadTFRecords,
    VerifyDataset,
    WriteArrayRecords,
)
from gristmill.transforms.beam.run_job import RunJob
from gristmill.transforms.columns.attach_job import ComputeJob
from gristmill.transforms.columns.duplicates import DuplicatesJob
from gristmill.transforms.removal.removal_job import RemovalJob


@dataclasses.dataclass(frozen=True)
class Graph:
    """The leaf transforms of a pipeline, by their full names.

    Attributes:
        leaves: All of them.
        side_inputs: Those that read a side input.
        groups: How many group by a key, which shuffles.
        stages: How many others are left when Beam has fused them.
    """

    leaves: tuple[str, ...]
    side_inputs: tuple[str, ...]
    groups: int
    stages: int


def graph_of(*chain: beam.PTransform) -> Graph:
    """Returns the graph of a pipeline, as a runner gets it."""
    pipeline = beam.Pipeline()
    functools.reduce(operator.or_, chain, pipeline)
    proto = pipeline.to_runner_api()
    leaves, side_inputs = [], []
    for node in proto.components.transforms.values():
        if node.subtransforms:
            continue
        leaves.append(node.unique_name)
        payload = beam.portability.api.beam_runner_api_pb2.ParDoPayload
        if node.spec.urn == beam.portability.common_urns.primitives.PAR_DO.urn and (
            payload.FromString(node.spec.payload).side_inputs
        ):
            side_inputs.append(node.unique_name)
    groups, starts = primitives.GROUP_BY_KEY.urn, primitives.IMPULSE.urn
    _, fused = translations.create_and_optimize_stages(
        proto,
        phases=translations.standard_optimize_phases(),
        known_runner_urns=frozenset({groups, starts}),
    )
    kinds = [{one.spec.urn for one in stage.transforms} for stage in fused]
    return Graph(
        tuple(leaves),
        tuple(side_inputs),
        groups=sum(groups in kind for kind in kinds),
        stages=sum(not kind & {groups, starts} for kind in kinds),
    )


def convert(**options) -> list[beam.PTransform]:
    job = ConversionJob(inputs=("in",), output="out", name="out", **options)
    return [ConvertFiles(jobs=(job,))]


# With the groups and the stages that they take.
GRAPHS = {
    "convert": (convert(), 4, 5),
    "append": (convert(appends=True), 4, 5),
    "pack": (convert(pack=PackOptions(length=64)), 4, 5),
    "overwrite": ([dataclasses.replace(convert()[0], overwrite=True)], 4, 5),
    "index": ([IndexArrayRecords(files="in")], 2, 3),
    "verify": ([VerifyDataset("in")], 2, 3),
    "quick": ([VerifyDataset("in", quick=True)], None, None),
    "remove": ([RunJob(RemovalJob("in", {}))], 2, 3),
    "attach": ([RunJob(ComputeJob("in", "module:function"))], 2, 3),
    "unique": ([RunJob(DuplicatesJob("in"))], 2, 3),
    "read": ([ReadRecords("in")], 5, 6),
    "read TFRecords": ([ReadTFRecords("in")], 3, 4),
    "read ArrayRecords": ([ReadArrayRecords("in")], None, None),
    "read all": ([beam.Create(["in"]), ReadAllRecords()], None, None),
    "write": ([beam.Create([b""]), WriteArrayRecords("out", num_shards=3)], None, None),
    # It needs the number of shards, as a side input: one number.
    "write by size": (
        [beam.Create([b""]), WriteArrayRecords("out", shard_bytes=9)],
        None,
        None,
    ),
}


def test_no_transform_is_left_out():
    public = [getattr(transforms, name) for name in transforms.__all__]
    here = {type(chain[-1]) for chain, *_ in GRAPHS.values()} - {RunJob}
    assert here == {one for one in public if issubclass(one, beam.PTransform)}


@pytest.mark.parametrize("name", GRAPHS)
def test_shuffles_and_stages_are_few_and_nothing_is_sent_to_all(name):
    chain, groups, stages = GRAPHS[name]
    graph = graph_of(*chain)
    assert not [leaf for leaf in graph.leaves if "InjectDefault" in leaf]
    assert bool(graph.side_inputs) <= (name == "write by size")
    assert groups in (None, graph.groups)
    assert stages in (None, graph.stages)
