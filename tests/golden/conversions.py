"""Conversions of every format, locally, on Beam, and in a bucket."""

import pathlib
from typing import Any

from tests.golden import facts, inputs
from tests.golden.cases import case


@case
def tfrecord_one_shard(folder: pathlib.Path) -> dict[str, Any]:
    data = inputs.write(folder, a__tfrecord=inputs.tfrecord(inputs.records(60)))
    facts.convert(data / "a.tfrecord", folder / "out", "--num-shards", 1)
    return facts.of_dataset(folder / "out") | {
        "places": facts.places(folder / "out", [0, 3, 31, 59])
    }
