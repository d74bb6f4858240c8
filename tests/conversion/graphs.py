"""What a runner gets: the graph of a transform as Beam's portable form."""

import dataclasses
import functools
import operator

import apache_beam as beam
from apache_beam.portability.common_urns import primitives
from apache_beam.runners.portability.fn_api_runner import translations


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
    """Returns the graph of a pipeline that holds only these, one after the other."""
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
