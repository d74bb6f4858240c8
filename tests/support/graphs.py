"""What a runner gets: the graph of a transform as Beam's portable form."""

import dataclasses
import functools
import operator

import apache_beam as beam


@dataclasses.dataclass(frozen=True)
class Graph:
    """The leaf transforms of a pipeline, by their full names.

    Attributes:
        leaves: All of them.
        side_inputs: Those that read a side input.
    """

    leaves: tuple[str, ...]
    side_inputs: tuple[str, ...]


def graph_of(*chain: beam.PTransform) -> Graph:
    """Returns the graph of a pipeline that holds only these, one after the other."""
    pipeline = beam.Pipeline()
    functools.reduce(operator.or_, chain, pipeline)
    leaves, side_inputs = [], []
    for node in pipeline.to_runner_api().components.transforms.values():
        if node.subtransforms:
            continue
        leaves.append(node.unique_name)
        payload = beam.portability.api.beam_runner_api_pb2.ParDoPayload
        if node.spec.urn == beam.portability.common_urns.primitives.PAR_DO.urn and (
            payload.FromString(node.spec.payload).side_inputs
        ):
            side_inputs.append(node.unique_name)
    return Graph(tuple(leaves), tuple(side_inputs))
